package offline

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	// checkSeconds is the time one check gets: a cold build of a large
	// project takes minutes.
	checkSeconds = 900
	// failedLines and passedLines are how much of its output is repeated.
	failedLines = 30
	passedLines = 4
	// shownFailures is how many failed tests are named.
	shownFailures = 15
)

// survey prints the files that name checks, the programs that could run them
// and the lock files that tell package managers apart. It changes nothing.
const survey = `for f in Taskfile.yml Taskfile.yaml Makefile makefile GNUmakefile justfile package.json go.mod Cargo.toml pyproject.toml pytest.ini tox.ini setup.py pom.xml build.gradle build.gradle.kts; do [ -f "$f" ] && { echo "@file $f"; head -c 5000 "$f"; echo; }; done; ` +
	`for t in task make just npm pnpm yarn bun go cargo python3 mvn gradle; do command -v "$t" >/dev/null 2>&1 && echo "@have $t"; done; ` +
	`ls pyproject.toml pytest.ini tox.ini setup.py 2>/dev/null | grep -q . && python3 -c 'import pytest' 2>/dev/null && echo '@have pytest'; ` +
	`for f in pnpm-lock.yaml yarn.lock bun.lock bun.lockb gradlew; do [ -e "$f" ] && echo "@lock $f"; done; true`

// project is what the survey found.
type project struct {
	files map[string]string
	have  map[string]bool // programs
	locks map[string]bool
}

func parseSurvey(text string) project {
	p := project{files: map[string]string{}, have: map[string]bool{}, locks: map[string]bool{}}
	current := ""
	for line := range strings.Lines(text) {
		word, name, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		switch word {
		case "@file":
			current = name
			p.files[name] = ""
		case "@have":
			current = ""
			p.have[name] = true
		case "@lock":
			current = ""
			p.locks[name] = true
		default:
			if current != "" {
				p.files[current] += line
			}
		}
	}
	return p
}

// offer is what one file of the project has for the wish.
type offer struct {
	source   string
	program  string
	commands []string
}

var wishes = lazy(`(?i)\b(tests?|lint|build|builds|building|compil\w*)`)

// wish is the kind of check that is asked for: test, lint, build or check,
// which is all that the project has.
func wish(q string) string {
	kinds := map[string]bool{}
	for _, w := range wishes().FindAllString(q, -1) {
		switch w = strings.ToLower(w); {
		case strings.HasPrefix(w, "test"):
			kinds["test"] = true
		case w == "lint":
			kinds["lint"] = true
		default:
			kinds["build"] = true
		}
	}
	if len(kinds) == 1 {
		for k := range kinds {
			return k
		}
	}
	return "check"
}

// targets are the names under which projects keep a kind of check. Of check,
// both halves count where there is no whole.
func targets(wish string, has func(string) bool) []string {
	first := func(names ...string) []string {
		for _, n := range names {
			if has(n) {
				return []string{n}
			}
		}
		return nil
	}
	switch wish {
	case "test":
		return first("test", "tests", "check")
	case "lint":
		return first("lint", "vet", "check")
	case "build":
		return first("build", "compile", "all")
	}
	if whole := first("check", "checks", "verify", "ci"); whole != nil {
		return whole
	}
	return append(first("lint", "vet"), first("test", "tests")...)
}

var (
	taskName = lazy(`(?m)^(?: {2}|\t)["']?([A-Za-z][\w:-]*)["']?:`)
	ruleName = lazy(`(?m)^([A-Za-z][\w-]*)[^:=\n]*:([^=]|$)`)
)

// offers are what the project has for a wish, its own words first: what a
// Taskfile or Makefile calls the checks is more than what a tool does alone.
func (p project) offers(wish string) []offer {
	var all []offer
	add := func(source, program string, commands ...string) {
		if len(commands) > 0 {
			all = append(all, offer{source, program, commands})
		}
	}
	named := func(source, program string, names []string) {
		var commands []string
		for _, target := range targets(wish, func(n string) bool { return slices.Contains(names, n) }) {
			commands = append(commands, program+" "+target)
		}
		add(source, program, commands...)
	}
	for _, f := range []string{"Taskfile.yml", "Taskfile.yaml"} {
		if _, tasks, ok := strings.Cut(p.files[f], "tasks:"); ok {
			named(f, "task", names(taskName(), tasks))
		}
	}
	for _, f := range []string{"GNUmakefile", "makefile", "Makefile"} {
		if text, ok := p.files[f]; ok {
			named(f, "make", names(ruleName(), text))
		}
	}
	if text, ok := p.files["justfile"]; ok {
		named("justfile", "just", names(ruleName(), text))
	}
	if text, ok := p.files["package.json"]; ok {
		manager := p.packageManager()
		scripts := packageScripts(text)
		var commands []string
		for _, target := range targets(wish, func(n string) bool { return scripts[n] != "" }) {
			commands = append(commands, manager+" run "+target)
		}
		add("package.json", manager, commands...)
	}
	tool := func(file, program string, commands map[string]string) {
		if _, ok := p.files[file]; ok && commands[wish] != "" {
			add(file, program, commands[wish])
		}
	}
	tool("go.mod", "go", map[string]string{
		"check": "go vet ./... && go test ./...", "test": "go test ./...", "lint": "go vet ./...", "build": "go build ./...",
	})
	tool("Cargo.toml", "cargo", map[string]string{
		"check": "cargo test", "test": "cargo test", "lint": "cargo clippy", "build": "cargo build",
	})
	for _, f := range []string{"pytest.ini", "tox.ini", "pyproject.toml", "setup.py"} {
		if _, ok := p.files[f]; ok {
			tool(f, "pytest", map[string]string{"check": "python3 -m pytest -q", "test": "python3 -m pytest -q"})
			break
		}
	}
	tool("pom.xml", "mvn", map[string]string{"check": "mvn -q verify", "test": "mvn -q test", "build": "mvn -q package -DskipTests"})
	gradle := "gradle"
	if p.locks["gradlew"] {
		gradle = "./gradlew"
	}
	for _, f := range []string{"build.gradle", "build.gradle.kts"} {
		tool(f, gradle, map[string]string{"check": gradle + " check", "test": gradle + " test", "build": gradle + " assemble"})
	}
	return all
}

func names(re *regexp.Regexp, text string) []string {
	var found []string
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

func (p project) packageManager() string {
	switch {
	case p.locks["pnpm-lock.yaml"]:
		return "pnpm"
	case p.locks["yarn.lock"]:
		return "yarn"
	case p.locks["bun.lock"] || p.locks["bun.lockb"]:
		return "bun"
	}
	return "npm"
}

var scriptsPart = lazy(`(?s)"scripts"\s*:\s*(\{[^{}]*\})`)

// packageScripts reads the scripts of a package.json, whose end may be cut
// off. The one that npm init writes only says that there is no test.
func packageScripts(text string) map[string]string {
	var scripts map[string]string
	if m := scriptsPart().FindStringSubmatch(text); m == nil || json.Unmarshal([]byte(m[1]), &scripts) != nil {
		return nil
	}
	for name, s := range scripts {
		if strings.Contains(s, "no test specified") {
			delete(scripts, name)
		}
	}
	return scripts
}

func (p project) runs(o offer) bool { return strings.HasPrefix(o.program, "./") || p.have[o.program] }

// checks runs the checks that the project names.
func checks(t *talk) string {
	r := t.ask(bash("find out which checks the project names", survey))
	if r == nil {
		return ""
	}
	if !r[0].ok {
		return "I could not look for checks: " + firstLine(r[0].text)
	}
	p := parseSurvey(r[0].text)
	kind := wish(t.question)
	all := p.offers(kind)
	if len(all) == 0 {
		return noOffers(p, kind)
	}
	chosen := -1
	for i, o := range all {
		if p.runs(o) {
			chosen = i
			break
		}
	}
	var b strings.Builder
	if chosen < 0 {
		b.WriteString("The project names checks, but what runs them is not installed here:\n")
		for _, o := range all {
			fmt.Fprintf(&b, "- %s: %s (no %s)\n", o.source, strings.Join(o.commands, ", "), o.program)
		}
		return b.String()
	}
	o := all[chosen]
	var calls []call
	for _, c := range o.commands {
		calls = append(calls, verbatim(c, checkSeconds))
	}
	if r = t.ask(calls...); r == nil {
		return ""
	}
	failed := 0
	for _, res := range r {
		if !res.ok {
			failed++
		}
	}
	if failed == 0 {
		fmt.Fprintf(&b, "Passed: %s found through %s.\n", several(len(r), "command"), o.source)
	} else {
		fmt.Fprintf(&b, "Failed: %d of %s found through %s.\n", failed, several(len(r), "command"), o.source)
	}
	for i, c := range o.commands {
		b.WriteString("\n" + verdict(c, r[i]))
	}
	var rest []string
	for i, other := range all {
		switch {
		case i == chosen:
		case p.runs(other):
			rest = append(rest, fmt.Sprintf("%s: %s", other.source, strings.Join(other.commands, ", ")))
		default:
			rest = append(rest, fmt.Sprintf("%s: %s (%s is not installed)", other.source, strings.Join(other.commands, ", "), other.program))
		}
	}
	if rest != nil {
		fmt.Fprintf(&b, "\nAlso there, not run:\n%s", bullets(rest, len(rest)))
	}
	return b.String()
}

func noOffers(p project, kind string) string {
	if kind != "check" && len(p.offers("check")) > 0 {
		return fmt.Sprintf("The project names nothing that I know as its %s. Ask me to run the checks instead.", kind)
	}
	return "I found nothing that names checks in this folder: no task, make or just target, no package script, and none of go.mod, Cargo.toml, pyproject.toml, pom.xml or build.gradle. If you know the command, say: run `the command`"
}

var (
	failedTest = lazy(`^\s*--- FAIL: (\S+)|^FAILED (\S+)|^test (\S+) \.\.\. FAILED|^\s+● (.+)|^FAIL (\S+)|^FAIL\t(\S+ \[[a-z ]+\])|^not ok \d+ -? ?(.+)`)
	goPackage  = lazy(`^(ok|FAIL|\?)\s+\S+`)
	totalLine  = lazy(`^(=+ )?\d+ (passed|failed|error)|^test result:|^Tests:|^# (pass|fail|tests) \d|^\S*\s*\d+ (passing|failing)`)
)

// verdict says how one command went: its result, which tests failed, and the
// end of its output.
func verdict(command string, r result) string {
	var b strings.Builder
	word := "passed"
	if !r.ok {
		word = "failed"
	}
	fmt.Fprintf(&b, "`%s` %s\n", command, word)
	packages := map[string]int{}
	var broken, totals []string
	for line := range strings.Lines(r.text) {
		line = strings.TrimRight(line, "\r\n")
		if m := goPackage().FindStringSubmatch(line); m != nil {
			packages[m[1]]++
		}
		if m := failedTest().FindStringSubmatch(line); m != nil {
			if name := strings.TrimSpace(strings.Join(m[1:], "")); !slices.Contains(broken, name) {
				broken = append(broken, name)
			}
		}
		if totalLine().MatchString(line) {
			totals = append(totals, short(line))
		}
	}
	if n := packages["ok"] + packages["FAIL"] + packages["?"]; n > 0 {
		fmt.Fprintf(&b, "- %s: %d ok, %d failed, %d without tests\n", several(n, "Go package"), packages["ok"], packages["FAIL"], packages["?"])
	}
	for _, total := range totals[max(0, len(totals)-3):] {
		fmt.Fprintf(&b, "- %s\n", total)
	}
	if len(broken) > 0 && !r.ok {
		b.WriteString("\nFailed:\n" + bullets(broken, shownFailures))
	}
	most := passedLines
	if !r.ok {
		most = failedLines
	}
	if end := lastLines(r.text, most); len(end) > 0 && (!r.ok || len(packages)+len(totals) == 0) {
		b.WriteString("\nThe end of its output:\n" + fenced(end))
	}
	return b.String()
}
