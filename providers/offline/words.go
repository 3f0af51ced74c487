package offline

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// lazy is a regular expression that is compiled when it is first used: nearly
// every process that has this package in it never needs one, and together they
// would cost each 2 ms and 1 MB at its start.
func lazy(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// several is a count with its noun.
func several(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "y"):
		return fmt.Sprintf("%s %sies", thousands(n), strings.TrimSuffix(noun, "y"))
	}
	return fmt.Sprintf("%s %ss", thousands(n), noun)
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// capital makes a word the first of a sentence.
func capital(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToUpper(r)) + s[n:]
}

// short cuts a line to what fits beside its place.
func short(line string) string {
	line = strings.TrimSpace(line)
	if utf8.RuneCountInString(line) <= shownText {
		return line
	}
	return strings.TrimSpace(string([]rune(line)[:shownText])) + "…"
}

// oneLine makes text fit to stand in a comment.
func oneLine(text string) string { return short(strings.Join(strings.Fields(text), " ")) }

// firstLine is the part of an error worth repeating.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return short(line)
}

// ranked returns the keys by count, the largest first.
func ranked(counts map[string]int) []string {
	keys := make([]string, 0, len(counts))
	for k := range counts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return keys
}

// tally is "9 TODO, 2 FIXME", the most frequent first.
func tally(counts map[string]int) string {
	var parts []string
	for _, k := range ranked(counts) {
		parts = append(parts, fmt.Sprintf("%s %s", thousands(counts[k]), k))
	}
	return strings.Join(parts, ", ")
}

// lastLines are the last n lines with something on them.
func lastLines(text string, n int) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \r\n\t"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}
