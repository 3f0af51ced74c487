package tools

import (
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// ignoreFile is one .gitignore: rules in order, of which the last that matches
// decides.
type ignoreFile struct {
	dir   string // absolute folder the rules are relative to, without a slash at the end
	rules []ignoreRule
}

// ignoreRule is a line of a .gitignore, as gitignore(5) describes it.
type ignoreRule struct {
	pattern  string
	keep     bool // "!": not ignored after all
	dirOnly  bool // "/" at the end
	anchored bool // has a slash elsewhere: matches the path, not the name
	literal  bool // no wildcard
	suffix   string
}

func parseIgnore(dir string, content string) ignoreFile {
	f := ignoreFile{dir: strings.TrimSuffix(dir, "/")}
	content = strings.TrimPrefix(content, string(utf8BOM))
	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if r, ok := parseIgnoreLine(line); ok {
			f.rules = append(f.rules, r)
		}
	}
	return f
}

func parseIgnoreLine(line string) (ignoreRule, bool) {
	var r ignoreRule
	if strings.HasPrefix(line, "#") {
		return r, false
	}
	if strings.HasPrefix(line, "!") {
		r.keep, line = true, line[1:]
	}
	// Blanks at the end do not count unless a backslash keeps them.
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	if strings.HasSuffix(line, "/") {
		r.dirOnly, line = true, strings.TrimSuffix(line, "/")
	}
	if line == "" {
		return r, false
	}
	r.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if !strings.ContainsAny(line, `*?[\`) {
		r.literal, r.pattern = true, line
		return r, true
	}
	// doublestar knows braces, git does not; its "dir/**" matches dir itself,
	// git's only what is inside.
	line = strings.NewReplacer("{", `\{`, "}", `\}`).Replace(line)
	if strings.HasSuffix(line, "/**") {
		line += "/*"
	}
	if !r.anchored {
		if rest, ok := strings.CutPrefix(line, "*"); ok && !strings.ContainsAny(rest, `*?[\`) {
			r.suffix = rest
		}
	}
	r.pattern = line
	return r, doublestar.ValidatePattern(line)
}

// decides tells whether f has a rule for the entry called name at path (below
// f.dir), and whether that rule ignores it.
func (f *ignoreFile) decides(path, name string, isDir bool) (ignored, decided bool) {
	rel := path[len(f.dir)+1:]
	for i := len(f.rules) - 1; i >= 0; i-- {
		r := &f.rules[i]
		if r.dirOnly && !isDir {
			continue
		}
		subject := name
		if r.anchored {
			subject = rel
		}
		var match bool
		switch {
		case r.literal:
			match = subject == r.pattern
		case r.suffix != "":
			match = strings.HasSuffix(subject, r.suffix)
		default:
			match, _ = doublestar.Match(r.pattern, subject) // the pattern was checked
		}
		if match {
			return !r.keep, true
		}
	}
	return false, false
}

// ignores asks the files from the innermost outwards.
func ignores(files []ignoreFile, path, name string, isDir bool) bool {
	for i := len(files) - 1; i >= 0; i-- {
		if ignored, decided := files[i].decides(path, name, isDir); decided {
			return ignored
		}
	}
	return false
}
