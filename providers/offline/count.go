package offline

import (
	"fmt"
	"strconv"
	"strings"
)

// sums adds lines up by ending: ext, files, lines, name. Its input is what
// grep -c prints, path:lines of files that are text.
const sums = `awk '{ i = match($0, /:[0-9]+$/); n = substr($0, i + 1); p = substr($0, 1, i - 1); sub(/^.*\//, "", p); e = "other"; if (match(p, /[^.]\.[A-Za-z][A-Za-z0-9]*$/)) e = substr(p, RSTART + 1); if (n > 0) { f[e]++; l[e] += n } } END { for (k in f) print "ext", f[k], l[k], k }' | LC_ALL=C sort -k3,3nr -k4,4 | head -n 100`

// shownEndings is how many kinds of files an answer lists.
const shownEndings = 15

// count says how many files and lines there are.
func count(t *talk) string {
	where := scope(t.question)
	s := within(where)
	command := fmt.Sprintf(`{ if %s; then git -c core.quotePath=false grep -cI --untracked -e '' -- %s %s; else grep -rcHI %s -e '' %s; fi; } | %s`,
		inGit, s, others, noGrep, s, sums)
	if where != "" {
		command = orMissing(where, command)
	}
	r := t.ask(bash("count lines", command))
	if r == nil {
		return ""
	}
	if strings.TrimSpace(r[0].text) == missing {
		return fmt.Sprintf("There is no %s here.", where)
	}
	if !r[0].ok {
		return "I could not count: " + firstLine(r[0].text)
	}
	var files, lines int
	var kinds []string
	for line := range strings.Lines(r[0].text) {
		f := strings.Fields(line)
		if len(f) != 4 || f[0] != "ext" {
			continue
		}
		nf, err1 := strconv.Atoi(f[1])
		nl, err2 := strconv.Atoi(f[2])
		if err1 != nil || err2 != nil {
			continue
		}
		files, lines = files+nf, lines+nl
		kinds = append(kinds, fmt.Sprintf("%s: %s in %s", f[3], several(nl, "line"), several(nf, "file")))
	}
	if files == 0 {
		return "There are no text files to count here."
	}
	place := "here"
	if where != "" {
		place = "in " + where
	}
	return fmt.Sprintf("%s in %s %s, blank lines and comments included; binary files, what git ignores, vendor and node_modules left out.\n\nBy ending:\n%s",
		capital(several(lines, "line")), several(files, "text file"), place, bullets(kinds, shownEndings))
}
