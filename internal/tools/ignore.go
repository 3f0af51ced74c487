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
	keep     bool // "!": not ignored after all
	dirOnly  bool // "/" at the end
	anchored bool // has a slash elsewhere: matches the path, not the name

	literal string   // what is matched, when there is no wildcard
	suffix  string   // what a name has to end with, for the common "*.ext"
	parts   []string // else: a glob for each component; "**" is any number of them
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
	if !strings.ContainsAny(line, wildcards) {
		r.literal = line
		return r, true
	}
	if rest, ok := strings.CutPrefix(line, "*"); ok && !r.anchored && !strings.ContainsAny(rest, wildcards) && rest != "" {
		r.suffix = rest
		return r, true
	}
	for part := range strings.SplitSeq(line, "/") {
		if len(part) >= 2 && strings.Trim(part, "*") == "" && r.anchored {
			part = anyDepth
		} else {
			// Braces and several stars mean nothing to git.
			part = braces.Replace(part)
			for strings.Contains(part, "**") {
				part = strings.ReplaceAll(part, "**", "*")
			}
			if !doublestar.ValidatePattern(part) {
				return r, false
			}
		}
		r.parts = append(r.parts, part)
	}
	return r, true
}

const (
	wildcards = `*?[\`
	anyDepth  = "**"
)

var braces = strings.NewReplacer("{", `\{`, "}", `\}`)

// matchParts tells whether the globs match the components of path. "**" at the
// end stands for at least one, elsewhere for none as well.
func matchParts(globs []string, path string) bool {
	for len(globs) > 0 {
		if globs[0] == anyDepth {
			if len(globs) == 1 {
				return path != ""
			}
			for {
				if matchParts(globs[1:], path) {
					return true
				}
				_, rest, more := strings.Cut(path, "/")
				if !more {
					return false
				}
				path = rest
			}
		}
		name, rest, _ := strings.Cut(path, "/")
		if ok, _ := doublestar.Match(globs[0], name); !ok || path == "" { // the globs were checked
			return false
		}
		globs, path = globs[1:], rest
	}
	return path == ""
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
		case r.literal != "":
			match = subject == r.literal
		case r.suffix != "":
			match = strings.HasSuffix(subject, r.suffix)
		default:
			match = matchParts(r.parts, subject)
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
