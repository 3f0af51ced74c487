package offline

import (
	"fmt"
	"strings"
)

// shownCommits is how many commits are shown unless the question has a number.
const (
	shownCommits = 10
	mostCommits  = 50
	shownChanges = 30
)

var howMany = lazy(`\b(\d{1,3})\b`)

// history tells the state of the working tree and the last commits.
func history(t *talk) string {
	n := shownCommits
	if m := howMany().FindString(t.question); m != "" {
		n = min(max(1, number(m)), mostCommits)
	}
	r := t.ask(
		bash("what has changed", "git --no-optional-locks -c core.quotePath=false status --short --branch | head -n 400"),
		bash("the last commits", fmt.Sprintf("git --no-pager log -n %d --date=short --pretty='@commit %%h %%ad %%an: %%s' 2>/dev/null; true", n)),
	)
	if r == nil {
		return ""
	}
	status := strings.TrimSpace(r[0].text)
	if !strings.HasPrefix(status, "##") {
		if strings.Contains(status, "not a git repository") {
			return "This folder is not in a git repository."
		}
		return "git gave no status: " + firstLine(status)
	}
	head, rest, _ := strings.Cut(status, "\n")
	var b strings.Builder
	fmt.Fprintf(&b, "Branch: %s\n", strings.TrimSpace(strings.TrimPrefix(head, "##")))
	groups := map[string][]string{}
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\r\n")
		if len(line) < 4 || line[2] != ' ' {
			continue
		}
		groups[changeKind(line[:2])] = append(groups[changeKind(line[:2])], line[3:])
	}
	for _, kind := range []string{"In conflict", "Staged", "Changed, not staged", "Not tracked"} {
		if files := groups[kind]; files != nil {
			fmt.Fprintf(&b, "\n%s (%d):\n%s", kind, len(files), bullets(files, shownChanges))
		}
	}
	if len(groups) == 0 {
		b.WriteString("The working tree is clean.\n")
	}
	var commits []string
	for line := range strings.Lines(r[1].text) {
		if c, ok := strings.CutPrefix(strings.TrimSpace(line), "@commit "); ok {
			commits = append(commits, short(c))
		}
	}
	if commits == nil {
		b.WriteString("\nThere are no commits yet.\n")
		return b.String()
	}
	fmt.Fprintf(&b, "\nLast commits:\n%s", bullets(commits, mostCommits))
	return b.String()
}

// changeKind sorts by the two letters of git status --short: the index, then
// the working tree.
func changeKind(xy string) string {
	switch {
	case xy == "??":
		return "Not tracked"
	case strings.Contains(xy, "U") || xy == "AA" || xy == "DD":
		return "In conflict"
	case xy[1] == ' ':
		return "Staged"
	}
	return "Changed, not staged"
}
