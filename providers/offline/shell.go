package offline

import (
	"fmt"
	"strconv"
	"strings"
)

// The commands below run in any POSIX shell with the usual tools. In a git
// repository git knows which files are the project's; elsewhere everything
// counts but the folders that hold other people's code. Their output stays
// below the 2000 lines and 50 KiB at which tools cut.

const (
	// foundLines and foundColumns bound a search: 200 lines of 240 bytes.
	foundLines   = 200
	foundColumns = 240

	inGit   = `git rev-parse --is-inside-work-tree >/dev/null 2>&1`
	others  = `':(exclude,glob)**/node_modules/**' ':(exclude,glob)**/vendor/**'`
	noGrep  = `--exclude-dir=.git --exclude-dir=node_modules --exclude-dir=vendor`
	noFind  = `\( -name .git -o -name node_modules -o -name vendor \) -prune -o`
	gitList = `git -c core.quotePath=false ls-files --cached --others --exclude-standard`
)

// bash is a call of the shell for a command of ours. Its first line says in
// words what it is for, since that is what a person sees first.
func bash(purpose, command string) call {
	return call{"bash", map[string]any{"command": "# " + purpose + "\n" + command}}
}

// verbatim is a call of the shell for a command that the person or the project
// has named.
func verbatim(command string, seconds int) call {
	return call{"bash", map[string]any{"command": command, "timeout": seconds}}
}

// quote makes one word of any text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// within quotes a path so that it is no flag, and . for none.
func within(path string) string {
	switch {
	case path == "":
		return "."
	case strings.HasPrefix(path, "-"):
		path = "./" + path
	}
	return quote(path)
}

// files lists the project's files below the working directory, one per line.
func files(scope string) string {
	s := within(scope)
	return fmt.Sprintf(`if %s; then %s -- %s %s; else find %s %s -type f -print | sed 's|^\./||' | LC_ALL=C sort; fi`,
		inGit, gitList, s, others, s, noFind)
}

// grep prints path:line:text of matching lines. The flags are those that git
// grep and grep share: i, w, E, F.
func grep(flags, pattern, scope string) string {
	s, p := within(scope), quote(pattern)
	return fmt.Sprintf(`if %s; then git -c core.quotePath=false grep -nI%s --untracked -e %s -- %s %s; else find %s %s -type f -exec grep -nH%s -e %s {} + | sed 's|^\./||' | LC_ALL=C sort -t: -k1,1 -k2,2n; fi`,
		inGit, flags, p, s, others, s, noFind, flags, p)
}

// search is grep as a call, with bash or else with the grep tool.
func (t *talk) search(purpose, flags, pattern, scope string) call {
	if t.has("bash") || !t.has("grep") {
		command := fmt.Sprintf("%s | cut -c1-%d | head -n %d", grep(flags, pattern, scope), foundColumns, foundLines)
		if scope != "" {
			command = orMissing(scope, command)
		}
		return bash(purpose, command)
	}
	args := map[string]any{"pattern": pattern, "limit": foundLines}
	if strings.Contains(flags, "F") {
		args["literal"] = true
	}
	if strings.Contains(flags, "w") {
		args["pattern"] = `\b(` + pattern + `)\b`
	}
	if strings.Contains(flags, "i") {
		args["ignoreCase"] = true
	}
	if scope != "" {
		args["path"] = scope
	}
	return call{"grep", args}
}

// missing is what orMissing prints for a path that does not exist.
const missing = "@missing"

// orMissing runs a command only if the path that it is about exists.
func orMissing(path, command string) string {
	return fmt.Sprintf("[ -e %s ] || { echo %s; exit 0; }; %s", within(path), missing, command)
}

// hit is one line that a search found.
type hit struct {
	path string
	line int
	text string
}

func (h hit) place() string { return fmt.Sprintf("%s:%d", h.path, h.line) }

var hitLine = lazy(`^(.+?):(\d+):(.*)$`)

// hits reads path:line:text lines and passes over everything else, such as
// notices of the tool.
func hits(output string) []hit {
	var found []hit
	for line := range strings.Lines(output) {
		m := hitLine().FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			continue // a number no file has
		}
		found = append(found, hit{path: m[1], line: n, text: strings.TrimSpace(m[3])})
	}
	return found
}
