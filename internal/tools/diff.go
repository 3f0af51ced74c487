package tools

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

const (
	// diffContext is how many unchanged lines surround a change.
	diffContext = 4
	// maxDiffBytes bounds diff and patch together: more is no help to a
	// reader and would weigh on the log.
	maxDiffBytes = 256 << 10
	// maxDiffInput is how much text is compared, old and new together, and
	// maxDiffWork how often the library may look at a byte of it: it counts
	// lines from the beginning for each edit. Both keep a comparison below a
	// fraction of a second; what differs by more could hardly be shown within
	// maxDiffBytes.
	maxDiffInput = 4 << 20
	maxDiffWork  = 2 << 30
)

// change is the details of a call that changed a file.
type change struct {
	Path             string `json:"path"`
	Created          bool   `json:"created,omitempty"`
	Diff             string `json:"diff,omitempty"`  // numbered lines, for people
	Patch            string `json:"patch,omitempty"` // unified, for programs
	FirstChangedLine int    `json:"firstChangedLine,omitempty"`
	DiffOmitted      bool   `json:"diffOmitted,omitempty"`
}

// compare fills in how the content of c's file changed.
func (c *change) compare(before, after string) {
	if before == after {
		return
	}
	// Only what is between the common lines at both ends, and its context, is
	// compared: the cost is that of the change, not of the file.
	head := commonLines(before, after)
	tail := commonTail(before[head:], after[head:])
	from := backLines(before, head, diffContext)
	to := len(before) - tail + forwardLines(before[len(before)-tail:], diffContext)
	skipped := strings.Count(before[:from], "\n")
	c.FirstChangedLine = strings.Count(before[:head], "\n") + 1

	old := before[from:to]
	if len(old)+len(after)-head-tail > maxDiffInput {
		c.DiffOmitted = true
		return
	}
	edits := udiff.Lines(before[head:len(before)-tail], after[head:len(after)-tail])
	if len(edits)*len(old) > maxDiffWork {
		c.DiffOmitted = true
		return
	}
	for i := range edits {
		edits[i].Start += head - from
		edits[i].End += head - from
	}
	u, err := udiff.ToUnifiedDiff(c.Path, c.Path, old, edits, diffContext)
	if err != nil {
		c.DiffOmitted = true // the library's own edits do not fit its own text
		return
	}
	for _, h := range u.Hunks {
		h.FromLine += skipped
		h.ToLine += skipped
	}
	patch := u.String()
	numbered := numbered(u, max(strings.Count(before, "\n"), strings.Count(after, "\n"))+1)
	if len(patch)+len(numbered) > maxDiffBytes {
		c.DiffOmitted = true
		return
	}
	c.Patch, c.Diff = patch, numbered
}

// commonLines is the length of the longest common beginning of whole lines.
func commonLines(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	return strings.LastIndexByte(a[:i], '\n') + 1
}

// commonTail is the length of the longest common end of whole lines.
func commonTail(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[len(a)-1-i] == b[len(b)-1-i] {
		i++
	}
	tail := a[len(a)-i:]
	if i == len(a) && (i == len(b) || b[len(b)-1-i] == '\n') || i == len(b) && a[len(a)-1-i] == '\n' {
		return i // begins with a whole line in both
	}
	nl := strings.IndexByte(tail, '\n')
	if nl < 0 {
		return 0
	}
	return len(tail) - nl - 1
}

// backLines is the start of the n-th line before the line that starts at i.
func backLines(s string, i, n int) int {
	for ; n > 0 && i > 0; n-- {
		i = strings.LastIndexByte(s[:i-1], '\n') + 1
	}
	return i
}

// forwardLines is the length of the first n lines of s.
func forwardLines(s string, n int) int {
	i := 0
	for ; n > 0 && i < len(s); n-- {
		nl := strings.IndexByte(s[i:], '\n')
		if nl < 0 {
			return len(s)
		}
		i += nl + 1
	}
	return i
}

// numbered prints hunks as "+12 text", "-12 text", " 12 text": removed lines
// with their old number, the others with their new one, and "..." for gaps.
func numbered(u udiff.UnifiedDiff, lastLine int) string {
	width := len(strconv.Itoa(lastLine))
	var b strings.Builder
	for i, h := range u.Hunks {
		if i > 0 {
			fmt.Fprintf(&b, " %*s ...\n", width, "")
		}
		old, new := h.FromLine, h.ToLine
		for _, l := range h.Lines {
			sign, n := ' ', new
			switch l.Kind {
			case udiff.Delete:
				sign, n = '-', old
				old++
			case udiff.Insert:
				sign = '+'
				new++
			default:
				old++
				new++
			}
			fmt.Fprintf(&b, "%c%*d %s\n", sign, width, n, strings.TrimRight(l.Content, "\r\n"))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
