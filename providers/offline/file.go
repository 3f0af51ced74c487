package offline

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

const (
	// shownLines is how much of a file is shown at once.
	shownLines = 200
	// outlinedLines is how much of a file is looked through: what one read
	// gives.
	outlinedLines = 2000
	// shownOutline is how many declarations an answer lists.
	shownOutline = 60
	// shownNames is how many paths.
	shownNames = 40
)

var (
	asksToExplain = lazy(`(?i)\b(explain|describe|summari[sz]e|outline|what (does|is)|how does|tell|about|purpose)\b`)
	fromLine      = lazy(`(?i)\b(?:from )?lines? (\d{1,7})(?:\s*(?:-|–|to|until)\s*(\d{1,7}))?`)
	// notice is what the read tool adds when a file goes on.
	notice = lazy(`\n\n?\[[^\n]*\b(offset|lines?|limit)\b[^\n]*\]\s*$`)
)

// read is a call that gives lines of a file, with read or else with bash.
func (t *talk) read(name string, first, lines int) call {
	if t.has("read") || !t.has("bash") {
		return call{"read", map[string]any{"path": name, "offset": first, "limit": lines}}
	}
	return bash("read "+oneLine(name), fmt.Sprintf("sed -n %d,%dp %s", first, first+lines-1, within(name)))
}

// file shows or outlines the file that the question names. A name that is no
// path from here is looked for.
func file(t *talk) string {
	name := target(t.question)
	first, count := 1, shownLines
	if m := fromLine().FindStringSubmatch(t.question); m != nil {
		first = max(1, number(m[1]))
		if last := number(m[2]); last >= first {
			count = min(last-first+1, outlinedLines)
		}
	}
	explain := asksToExplain().MatchString(t.question)
	if explain {
		first, count = 1, outlinedLines
	}
	r := t.ask(t.read(name, first, count))
	if r == nil {
		return ""
	}
	if !r[0].ok {
		found, answer := t.locate(name, r[0].text)
		if found == "" && answer != "" && name == bareWord(t.question) && strings.HasPrefix(answer, unread) {
			return fmt.Sprintf("There is no file or folder named %s here.\n\n%s", name, help(t))
		}
		if found == "" {
			return answer
		}
		name = found
		if r = t.ask(t.read(name, first, count)); r == nil {
			return ""
		}
		if !r[0].ok {
			return unread + firstLine(r[0].text)
		}
	}
	text := r[0].text
	more := notice().MatchString(text)
	if more {
		text = notice().ReplaceAllString(text, "")
	}
	if explain {
		return outline(name, text, more)
	}
	return show(name, text, first, more)
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // no digits are 0
	return n
}

// unread begins the answer when a file cannot be read; the tool names it.
const unread = "I could not read it. The tool says: "

// locate finds out what a name is that could not be read: a folder, or the
// last part of one path or several. It returns the one path, or an answer, or
// neither when it has to ask first.
func (t *talk) locate(name, problem string) (found, answer string) {
	failed := unread + firstLine(problem)
	if !t.has("bash") {
		return "", failed
	}
	base := path.Base(name)
	r := t.ask(bash("look for "+oneLine(name), fmt.Sprintf("if [ -d %s ]; then echo @folder; ls -1ap %s | head -n 200; else { %s; } | grep -iF -e %s | head -n 100; true; fi",
		within(name), within(name), files(""), quote(base))))
	if r == nil {
		return "", ""
	}
	if listing, ok := strings.CutPrefix(r[0].text, "@folder\n"); ok {
		return "", folder(name, listing)
	}
	var same, like []string
	for line := range strings.Lines(r[0].text) {
		p := strings.TrimSpace(line)
		switch stem, _, _ := strings.Cut(path.Base(p), "."); {
		case p == "" || p == "(no output)" || strings.HasPrefix(p, "["):
		case strings.EqualFold(path.Base(p), base), strings.EqualFold(stem, base):
			same = append(same, p)
		default:
			like = append(like, p)
		}
	}
	candidates := same
	if len(candidates) == 0 {
		candidates = like
	}
	switch {
	case !r[0].ok || len(candidates) == 0:
		return "", failed
	case len(candidates) == 1 && candidates[0] == path.Clean(name):
		return "", failed // it is there, and still cannot be read
	case len(candidates) == 1:
		return candidates[0], ""
	case !strings.Contains(candidates[0], "/") && strings.Contains(candidates[1], "/"):
		return candidates[0], "" // the only one at the top
	}
	return "", fmt.Sprintf("There is no %s here, but these have such a name; ask for one of them:\n%s", name, bullets(candidates, shownNames))
}

func folder(name, listing string) string {
	var entries []string
	for line := range strings.Lines(listing) {
		if e := strings.TrimSpace(line); e != "" && e != "./" && e != "../" {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return name + " is an empty folder."
	}
	return fmt.Sprintf("%s is a folder with %s:\n%s", name, several(len(entries), "entry"), bullets(entries, shownNames))
}

func bullets(items []string, most int) string {
	var b strings.Builder
	for i, item := range items {
		if i == most {
			fmt.Fprintf(&b, "- and %d more\n", len(items)-i)
			break
		}
		fmt.Fprintf(&b, "- %s\n", item)
	}
	return b.String()
}

func show(name, text string, first int, more bool) string {
	text = strings.TrimRight(text, "\n")
	if strings.TrimSpace(text) == "" || text == "(no output)" || text == "(empty file)" {
		return name + " is empty."
	}
	lines := strings.Count(text, "\n") + 1
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	var b strings.Builder
	if first > 1 || more {
		fmt.Fprintf(&b, "%s, lines %d to %d:\n", name, first, first+lines-1)
	} else {
		fmt.Fprintf(&b, "%s, %s:\n", name, several(lines, "line"))
	}
	fmt.Fprintf(&b, "\n%s\n%s\n%s\n", fence, text, fence)
	if more {
		fmt.Fprintf(&b, "\nThe file goes on. Ask: show %s from line %d\n", name, first+lines)
	}
	return b.String()
}

// language is how declarations look in files with some ending.
type language struct {
	name string
	decl func() *regexp.Regexp
}

var (
	script = language{"JavaScript or TypeScript", lazy(`^(export )?(default )?(declare )?(abstract )?(async )?(function\*?|class|interface|enum|namespace|type|const|let|var)\s+\w+`)}
	cLike  = language{"C or C++", lazy(`^(typedef|struct|class|enum|union|namespace|#define|[A-Za-z_][\w:<>*&\s]*\([^;]*$)`)}
	plain  = language{"text", lazy(`^$a`)} // nothing matches

	languages = map[string]language{
		".go": {"Go", lazy(`^(func|type)\s|^(var|const)\s+\w`)},
		".py": {"Python", lazy(`^\s{0,4}(async def|def|class)\s+\w+`)},
		".rs": {"Rust", lazy(`^\s{0,4}(pub(\([^)]*\))?\s+)?(async\s+|unsafe\s+|const\s+)*(fn|struct|enum|trait|impl|mod|type|macro_rules!)\b`)},
		".js": script, ".mjs": script, ".jsx": script, ".ts": script, ".tsx": script,
		".c": cLike, ".h": cLike, ".cc": cLike, ".cpp": cLike, ".hpp": cLike,
		".java": {"Java", lazy(`^\s{0,4}(public|protected|private|static|final|abstract|class|interface|enum|record)\b.*[({]\s*$`)},
		".rb":   {"Ruby", lazy(`^\s*(class|module|def)\s+\w+`)},
		".php":  {"PHP", lazy(`^\s*((abstract|final|public|protected|private|static)\s+)*(class|interface|trait|function)\s+\w+`)},
		".sh":   {"shell", lazy(`^(function\s+)?[\w-]+\s*\(\)`)},
		".sql":  {"SQL", lazy(`(?i)^\s*(create|alter|drop)\s+\w+`)},
		".md":   {"Markdown", lazy(`^#{1,4} `)},
		".yml":  {"YAML", lazy(`^[\w."'-]+:`)},
		".yaml": {"YAML", lazy(`^[\w."'-]+:`)},
		".toml": {"TOML", lazy(`^\[`)},
		".ini":  {"settings", lazy(`^\[`)},
		".json": {"JSON", lazy(`^(\t| {2,4})"[^"]+"\s*:`)},
		".mod":  {"Go module file", lazy(`^(module|go|toolchain|require|replace|tool)\b`)},
	}
	makefile = language{"Makefile", lazy(`^[A-Za-z0-9_./-]+\s*:([^=]|$)`)}
)

func languageOf(name string) language {
	if l, ok := languages[strings.ToLower(path.Ext(name))]; ok {
		return l
	}
	if strings.EqualFold(path.Base(name), "makefile") {
		return makefile
	}
	return plain
}

// outline says what a file is made of: its first words and its declarations.
func outline(name, text string, more bool) string {
	l := languageOf(name)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	size := several(len(lines), "line")
	if more {
		size = "more than " + size
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s of %s.\n", name, size, l.name)
	intro := ""
	if l.name == "Markdown" {
		title, words := introduction(text)
		intro = strings.TrimSpace(title + ". " + words)
		if title == "" {
			intro = words
		}
	} else {
		intro = leadingComment(lines)
	}
	if intro != "" {
		fmt.Fprintf(&b, "\nIt says of itself: %s\n", intro)
	}
	var declared []string
	for i, line := range lines {
		if l.decl().MatchString(line) {
			declared = append(declared, fmt.Sprintf("%s:%d %s", name, i+1, short(strings.TrimRight(strings.TrimSpace(line), "{ "))))
		}
	}
	switch {
	case len(declared) > 0:
		fmt.Fprintf(&b, "\nWhat is in it, by line:\n%s", bullets(declared, shownOutline))
	case intro == "":
		fmt.Fprintf(&b, "\nIts first lines:\n%s", bullets(lastLines(strings.Join(lines[:min(len(lines), 15)], "\n"), 15), 15))
	}
	b.WriteString("\nThis is an outline by rules; understanding the code takes a real model (codework models).\n")
	return b.String()
}

var (
	commentLine = lazy(`^\s*(//+!?|#+|\*+|/\*+|;+|--|"""|''')\s?`)
	notWords    = lazy(`^(#!|//go:|// ?\+build|#\s*-\*-)|(?i)copyright|spdx|licen[sc]e|use of this source`)
)

// leadingComment is the first comment at the head of a file that is no legal
// text or directive.
func leadingComment(lines []string) string {
	var words []string
	for _, line := range lines[:min(len(lines), 60)] {
		mark := commentLine().FindString(line)
		switch {
		case mark == "" && words != nil:
			return short3(strings.Join(words, " "))
		case mark == "" && strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "package "):
			return ""
		case mark == "" || notWords().MatchString(line):
		default:
			if w := strings.Trim(strings.TrimSpace(line[len(mark):]), `*/"'#`); w != "" {
				words = append(words, strings.TrimSpace(w))
			}
		}
	}
	return short3(strings.Join(words, " "))
}
