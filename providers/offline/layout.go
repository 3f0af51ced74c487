package offline

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// inventory adds the file list up in the shell, because the list of a large
// project would not fit into one result. A kind, a count and a name per line.
const inventory = `awk -F/ '{ t++; if (NF == 1) f[$1]; else d[$1]++; if (NF > 2) s[$1 "/" $2]++; e = "other"; if (match($NF, /[^.]\.[A-Za-z][A-Za-z0-9]*$/)) { e = substr($NF, RSTART + 1) } x[e]++; ` +
	`if ($0 ~ /(^|\/)(main|index|app|cli)\.(go|rs|py|js|mjs|ts|tsx|java|c|cc|cpp|rb|php)$/ && NF < 4) m[$0]; ` +
	`if ($0 ~ /_test\.[a-z]+$|\.(test|spec)\.[a-z]+$|(^|\/)test_[^\/]*\.py$/) n++ } ` +
	`END { print "total", t + 0; print "tests", n + 0; for (k in f) print "file", 1, k; for (k in d) print "dir", d[k], k; for (k in s) print "sub", s[k], k; for (k in x) print "ext", x[k], k; for (k in m) print "main", 1, k }' | LC_ALL=C sort | head -n 600`

const (
	shownDirs  = 20
	shownSubs  = 6
	shownKinds = 8
	shownMains = 12
)

// descriptions are files that say what a project is, the best first.
var descriptions = lazy(`^(?i:readme(\.(md|markdown|rst|txt|adoc|org))?)$`)
var manifests = []string{"go.mod", "package.json", "Cargo.toml", "pyproject.toml"}

// layout describes what the project is made of.
func layout(t *talk) string {
	where := strings.TrimRight(scope(t.question), "/")
	list := "{ " + files("") + "; } | " + inventory
	if where != "" {
		list = orMissing(where, "cd "+within(where)+" && "+list)
	}
	r := t.ask(bash("take stock of the files", list))
	if r == nil {
		return ""
	}
	if !r[0].ok {
		return "I could not list the files: " + firstLine(r[0].text)
	}
	if strings.TrimSpace(r[0].text) == missing {
		return fmt.Sprintf("There is no %s here.", where)
	}
	inv := parseInventory(r[0].text)
	if inv.total == 0 {
		return "This folder holds no files, apart from what git ignores."
	}
	about := t.about(inv, where)
	if t.next != nil {
		return ""
	}

	var b strings.Builder
	b.WriteString(about)
	if where != "" {
		fmt.Fprintf(&b, "In %s/: ", where)
	}
	b.WriteString(several(inv.total, "file"))
	if inv.tests > 0 {
		fmt.Fprintf(&b, ", %s among them", several(inv.tests, "test file"))
	}
	kinds := map[string]int{}
	for _, k := range ranked(inv.kinds)[:min(shownKinds, len(inv.kinds))] {
		kinds[k] = inv.kinds[k]
	}
	fmt.Fprintf(&b, ". By ending: %s", tally(kinds))
	if len(inv.kinds) > shownKinds {
		b.WriteString(", …")
	}
	b.WriteString(".\n")

	if len(inv.dirs) > 0 {
		b.WriteString("\nFolders:\n")
		for i, d := range sortedKeys(inv.dirs) {
			if i == shownDirs {
				fmt.Fprintf(&b, "- and %d more\n", len(inv.dirs)-i)
				break
			}
			fmt.Fprintf(&b, "- %s/ (%s)%s\n", d, several(inv.dirs[d], "file"), inv.below(d))
		}
	}
	if len(inv.mains) > 0 {
		shown := inv.mains[:min(shownMains, len(inv.mains))]
		fmt.Fprintf(&b, "\nPrograms probably start in: %s\n", strings.Join(shown, ", "))
	}
	if len(inv.files) > 0 {
		shown := inv.files[:min(shownDirs, len(inv.files))]
		fmt.Fprintf(&b, "\nAt the top: %s", strings.Join(shown, ", "))
		if len(shown) < len(inv.files) {
			fmt.Fprintf(&b, " and %d more", len(inv.files)-len(shown))
		}
		b.WriteString("\n")
	}
	return b.String()
}

type inventoryOf struct {
	total, tests      int
	files, mains      []string
	dirs, subs, kinds map[string]int
}

func parseInventory(text string) inventoryOf {
	inv := inventoryOf{dirs: map[string]int{}, subs: map[string]int{}, kinds: map[string]int{}}
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		number, name, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			continue // not a line of ours
		}
		switch kind {
		case "total":
			inv.total = n
		case "tests":
			inv.tests = n
		case "file":
			inv.files = append(inv.files, name)
		case "main":
			inv.mains = append(inv.mains, name)
		case "dir":
			inv.dirs[name] = n
		case "sub":
			inv.subs[name] = n
		case "ext":
			inv.kinds[name] = n
		}
	}
	return inv
}

// below names the folders in a folder.
func (inv inventoryOf) below(dir string) string {
	var names []string
	for _, s := range sortedKeys(inv.subs) {
		if name, ok := strings.CutPrefix(s, dir+"/"); ok {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	if len(names) > shownSubs {
		names = append(names[:shownSubs], "…")
	}
	return ": " + strings.Join(names, ", ")
}

func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// about says in the own words of the project, or of a folder in it, what it
// is, if it has some. It may ask for the files that do.
func (t *talk) about(inv inventoryOf, where string) string {
	var readme, manifest string
	var calls []call
	for _, f := range inv.files {
		if readme == "" && descriptions().MatchString(f) {
			readme = f
			calls = append(calls, t.read(path.Join(where, f), 1, 60))
		}
	}
	for _, f := range manifests {
		if manifest == "" && slices.Contains(inv.files, f) {
			manifest = f
			calls = append(calls, t.read(path.Join(where, f), 1, 60))
		}
	}
	if calls == nil {
		return ""
	}
	r := t.ask(calls...)
	if r == nil {
		return ""
	}
	var b strings.Builder
	if readme != "" {
		if title, words := introduction(r[0].text); r[0].ok && title+words != "" {
			fmt.Fprintf(&b, "%s: %s\n", readme, strings.TrimSpace(strings.TrimSuffix(title, ".")+". "+words))
		}
		r = r[1:]
	}
	if manifest != "" && r[0].ok {
		if what := identity(manifest, r[0].text); what != "" {
			fmt.Fprintf(&b, "%s: %s\n", manifest, what)
		}
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

var (
	markdownNoise = lazy(`^(\s*$|\[?!\[|<|[-=*_]{3,}\s*$|>|\[[^\]]+\]:|` + "```" + `)`)
	markdownMarks = strings.NewReplacer("**", "", "__", "", "`", "")
)

// introduction is the first heading of a page and its first paragraph.
func introduction(page string) (title, words string) {
	var paragraph []string
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		heading := strings.HasPrefix(line, "#")
		switch {
		case heading && title == "" && paragraph == nil:
			title = markdownMarks.Replace(strings.TrimSpace(strings.TrimLeft(line, "#")))
		case heading, markdownNoise().MatchString(line):
			if paragraph != nil {
				return title, short3(strings.Join(paragraph, " "))
			}
		default:
			paragraph = append(paragraph, markdownMarks.Replace(line))
		}
	}
	return title, short3(strings.Join(paragraph, " "))
}

// short3 cuts a paragraph to about three lines.
func short3(s string) string {
	r := []rune(s)
	if len(r) <= 3*shownText {
		return s
	}
	return strings.TrimSpace(string(r[:3*shownText])) + "…"
}

var (
	goModule = lazy(`(?m)^module\s+(\S+)`)
	goLine   = lazy(`(?m)^go\s+(\S+)`)
	jsonName = lazy(`(?m)^\s*"name"\s*:\s*"([^"]+)"`)
	jsonText = lazy(`(?m)^\s*"description"\s*:\s*"([^"]+)"`)
	tomlName = lazy(`(?m)^name\s*=\s*["']([^"']+)["']`)
	tomlText = lazy(`(?m)^description\s*=\s*["']([^"']+)["']`)
)

// identity is what a manifest says of its project.
func identity(name, text string) string {
	first := func(re *regexp.Regexp) string {
		if m := re.FindStringSubmatch(text); m != nil {
			return m[1]
		}
		return ""
	}
	var what, more string
	switch name {
	case "go.mod":
		if what = first(goModule()); what != "" {
			what = "Go module " + what
		}
		if v := first(goLine()); v != "" {
			more = "Go " + v
		}
	case "package.json":
		if what = first(jsonName()); what != "" {
			what = "JavaScript package " + what
		}
		more = first(jsonText())
	case "Cargo.toml":
		if what = first(tomlName()); what != "" {
			what = "Rust crate " + what
		}
		more = first(tomlText())
	case "pyproject.toml":
		if what = first(tomlName()); what != "" {
			what = "Python project " + what
		}
		more = first(tomlText())
	}
	if what != "" && more != "" {
		what += ", " + more
	}
	return what
}
