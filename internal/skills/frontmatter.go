package skills

import (
	"errors"
	"strings"
)

// parse reads the front matter of a skill: between two lines of "---", the
// name and the description, as plain or quoted text, over several indented
// lines, or as a block ("|", ">"). Other keys are left alone. Both come back on
// one line each.
func parse(text string) (Skill, error) {
	text = strings.TrimPrefix(text, "\uFEFF")
	if !strings.HasPrefix(text, "---") {
		return Skill{}, errors.New("it does not begin with front matter (---)")
	}
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	if strings.TrimRight(lines[0], " \t") != "---" {
		return Skill{}, errors.New("it does not begin with front matter (---)")
	}
	var s Skill
	closed := false
	for i := 1; i < len(lines) && !closed; i++ {
		line := strings.TrimRight(lines[i], " \t")
		if line == "---" {
			closed = true
			break
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "#") {
			continue
		}
		words := []string{strings.TrimSpace(value)}
		for i+1 < len(lines) && (strings.HasPrefix(lines[i+1], " ") || strings.HasPrefix(lines[i+1], "\t")) {
			i++
			words = append(words, lines[i])
		}
		switch strings.TrimSpace(key) {
		case "name":
			s.Name = scalar(words)
		case "description":
			s.Description = clip(scalar(words), maxDescription)
		}
	}
	switch {
	case !closed:
		return Skill{}, errors.New("its front matter does not end (---)")
	case s.Description == "":
		return Skill{}, errors.New("its front matter has no description")
	}
	return s, nil
}

// scalar joins the lines of a value.
func scalar(lines []string) string {
	switch strings.TrimRight(lines[0], "+-") {
	case "|", ">":
		lines = lines[1:]
		return oneLine(lines)
	}
	s := oneLine(lines)
	if len(s) >= 2 && s[0] == s[len(s)-1] {
		switch s[0] {
		case '"':
			return oneLine([]string{strings.NewReplacer(`\"`, `"`, `\\`, `\`, `\n`, " ", `\t`, " ").Replace(s[1 : len(s)-1])})
		case '\'':
			return oneLine([]string{strings.ReplaceAll(s[1:len(s)-1], "''", "'")})
		}
	}
	if before, _, ok := strings.Cut(s, " #"); ok { // a comment
		s = before
	}
	return s
}

// oneLine is what a prompt can show: one line, valid, without control
// characters.
func oneLine(lines []string) string {
	s := strings.ToValidUTF8(strings.Join(lines, " "), "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}
