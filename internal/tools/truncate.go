package tools

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// What one result may hold: about what a model reads with profit, and far
// below what fills its window.
const (
	MaxLines = 2000
	MaxBytes = 50 << 10 // of UTF-8
)

// Cut says how a text was shortened. It is part of a result's details.
type Cut struct {
	Truncated   bool   `json:"truncated"`
	TruncatedBy string `json:"truncatedBy,omitempty"` // lines, bytes
	TotalLines  int    `json:"totalLines"`
	OutputLines int    `json:"outputLines"`
	OutputBytes int    `json:"outputBytes"`
	MaxLines    int    `json:"maxLines"`
	MaxBytes    int    `json:"maxBytes"`
}

// The limits that cut.
const (
	byLines = "lines"
	byBytes = "bytes"
)

// countLines counts the lines of s; a newline at the end adds none.
func countLines(s string) int {
	if s == "" {
		return 0
	}
	n := strings.Count(s, "\n")
	if s[len(s)-1] != '\n' {
		n++
	}
	return n
}

// fits gives s when it is within the limits, without its last newline where
// that alone is too much.
func fits(s string, cut Cut) (string, bool) {
	if cut.TotalLines > cut.MaxLines {
		return "", false
	}
	if len(s) > cut.MaxBytes {
		s = strings.TrimSuffix(s, "\n")
	}
	return s, len(s) <= cut.MaxBytes
}

// Head keeps the first whole lines of s within both limits. A first line that
// is over maxBytes by itself leaves nothing. What is cut ends without a
// newline.
func Head(s string, maxLines, maxBytes int) (string, Cut) {
	cut := Cut{TotalLines: countLines(s), MaxLines: maxLines, MaxBytes: maxBytes}
	if text, ok := fits(s, cut); ok {
		cut.OutputLines, cut.OutputBytes = cut.TotalLines, len(text)
		return text, cut
	}
	cut.Truncated, cut.TruncatedBy = true, byLines
	end, next := 0, 0
	for cut.OutputLines < maxLines && next < len(s) {
		stop := len(s)
		if i := strings.IndexByte(s[next:], '\n'); i >= 0 {
			stop = next + i
		}
		if stop > maxBytes {
			cut.TruncatedBy = byBytes
			break
		}
		end, next = stop, stop+1
		cut.OutputLines++
	}
	cut.OutputBytes = end
	return s[:end], cut
}

// Tail keeps the last lines of s within both limits. When the last line alone
// is over maxBytes, its end is kept, from a rune boundary on. What is cut ends
// without a newline.
func Tail(s string, maxLines, maxBytes int) (string, Cut) {
	cut := Cut{TotalLines: countLines(s), MaxLines: maxLines, MaxBytes: maxBytes}
	if text, ok := fits(s, cut); ok {
		cut.OutputLines, cut.OutputBytes = cut.TotalLines, len(text)
		return text, cut
	}
	text := strings.TrimSuffix(s, "\n")
	cut.Truncated, cut.TruncatedBy = true, byLines
	start, prev := len(text), len(text)+1
	for cut.OutputLines < maxLines && prev > 0 {
		begin := strings.LastIndexByte(text[:prev-1], '\n') + 1
		if len(text)-begin > maxBytes {
			cut.TruncatedBy = byBytes
			break
		}
		start, prev = begin, begin
		cut.OutputLines++
	}
	if cut.OutputLines == 0 {
		start = len(text) - maxBytes
		for start < len(text) && !utf8.RuneStart(text[start]) {
			start++
		}
		cut.OutputLines = 1
	}
	cut.OutputBytes = len(text) - start
	return text[start:], cut
}

// formatSize prints a number of bytes for people and models.
func formatSize(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%dB", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1fKB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1fMB", float64(n)/(1<<20))
	}
}

// notice adds notes to a text the way every tool does: one pair of brackets
// after a blank line. Empty notes are left out.
func notice(text string, notes ...string) string {
	var kept []string
	for _, n := range notes {
		if n != "" {
			kept = append(kept, n)
		}
	}
	if len(kept) == 0 {
		return text
	}
	note := "[" + strings.Join(kept, ". ") + "]"
	if text == "" {
		return note
	}
	return strings.TrimSuffix(text, "\n") + "\n\n" + note
}
