package chat

import (
	"strings"
	"unicode"
)

const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
	// maxLead is how much white space may come before the opening tag.
	maxLead = 256
)

// thinkSplitter tells thinking from text where a server sends both as text,
// with the thinking first and between <think> and </think>. Tags may be split
// anywhere. Later tags are text: a model may well write about them.
type thinkSplitter struct {
	on    bool
	state thinkState
	held  string // what may be the beginning of a tag
}

type thinkState int

const (
	thinkBefore thinkState = iota
	thinkInside
	thinkGap // between the closing tag and the first word of the answer
	thinkAfter
)

func (t *thinkSplitter) split(delta string, thinking, answer func(string)) {
	if !t.on || t.state == thinkAfter {
		answer(delta)
		return
	}
	t.held += delta
	if t.state == thinkBefore {
		trimmed := strings.TrimLeftFunc(t.held, unicode.IsSpace)
		switch {
		case strings.HasPrefix(trimmed, thinkOpen):
			t.state, t.held = thinkInside, trimmed[len(thinkOpen):]
		case strings.HasPrefix(thinkOpen, trimmed) && len(t.held) <= maxLead:
			return // still open, "" too
		default:
			t.state = thinkAfter
			t.flush(thinking, answer)
			return
		}
	}
	if t.state == thinkInside {
		before, after, closed := strings.Cut(t.held, thinkClose)
		if !closed {
			keep := tagStart(t.held)
			thinking(t.held[:len(t.held)-keep])
			t.held = t.held[len(t.held)-keep:]
			return
		}
		thinking(before)
		t.state, t.held = thinkGap, after
	}
	t.held = strings.TrimLeftFunc(t.held, unicode.IsSpace)
	if t.held != "" {
		t.state = thinkAfter
		t.flush(thinking, answer)
	}
}

// flush gives out what was held back, at the end of the text.
func (t *thinkSplitter) flush(thinking, answer func(string)) {
	held := t.held
	t.held = ""
	if t.state == thinkInside {
		thinking(held)
		return
	}
	answer(held)
}

// tagStart is how many bytes at the end of s may begin the closing tag.
func tagStart(s string) int {
	for n := min(len(thinkClose)-1, len(s)); n > 0; n-- {
		if strings.HasSuffix(s, thinkClose[:n]) {
			return n
		}
	}
	return 0
}
