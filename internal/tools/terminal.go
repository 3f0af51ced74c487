package tools

import (
	"bytes"
	"unicode/utf8"

	"codework/sandboxes"
)

// screen turns what a command prints into the text a person would see last:
// without escape sequences, and of a line that was overwritten from its
// beginning (a progress bar) only what stood there at the end. It keeps the
// end of the text in bounded memory, however much is printed.
type screen struct {
	text    []byte // the end of the text so far
	begin   int    // where the last line begins in text
	lines   int    // line breaks so far
	cut     bool   // text does not go back to the beginning
	back    bool   // a carriage return was seen: what comes next overwrites the line
	lineLen int64  // bytes of the last line, also those no longer in text
	streams [maxStreams]escape
}

const (
	// screenKept is how much is always kept: enough to fill a result after
	// bytes that are not UTF-8 were replaced.
	screenKept = 2 * MaxBytes
	// screenMax is when the rest is thrown away; the distance makes that rare.
	screenMax = 4 * screenKept
	// maxStreams is one more than the highest stream.
	maxStreams = int(sandboxes.Stderr) + 1
)

// escape is how far a stream is in a sequence; streams interleave.
type escape struct {
	state escapeState
	rune  []byte // the beginning of a character whose end has not come yet
}

type escapeState uint8

const (
	plainText     escapeState = iota
	afterEscape               // ESC
	inControl                 // ESC [ … final byte
	inString                  // ESC ] P X ^ _ … BEL or ESC \
	inStringEnd               // ESC inside a string
	afterIntermed             // ESC and an intermediate byte, one more follows
)

const esc, bel = 0x1b, 0x07

// special marks the bytes that are not simply text.
var special = func() (t [256]bool) {
	for i := range 0x20 {
		t[i] = i != '\n' && i != '\t'
	}
	t[0x7f] = true
	return t
}()

// add takes what a stream printed.
func (s *screen) add(stream sandboxes.Stream, b []byte) {
	e := &s.streams[int(stream)%maxStreams]
	if len(e.rune) > 0 {
		b = append(e.rune, b...)
		e.rune = nil
	}
	if n := partialRune(b); n > 0 {
		e.rune = bytes.Clone(b[len(b)-n:])
		b = b[:len(b)-n]
	}
	for len(b) > 0 {
		if e.state != plainText && b[0] != '\n' {
			e.step(b[0])
			b = b[1:]
			continue
		}
		e.state = plainText // a line break ends a sequence that was never ended, or it would swallow everything
		n := 0
		for n < len(b) && !special[b[n]] {
			n++
		}
		if n > 0 {
			s.print(b[:n])
			b = b[n:]
			continue
		}
		switch b[0] {
		case esc:
			e.state = afterEscape
		case '\r':
			s.back = true
		case '\b':
			if n := len(s.text); n > s.begin {
				_, size := utf8.DecodeLastRune(s.text[s.begin:])
				s.text = s.text[:n-size]
				s.lineLen -= int64(size)
			}
		case 0:
			s.print([]byte("\uFFFD")) // separates in many programs' output, so it must not vanish
		}
		b = b[1:]
	}
}

func (e *escape) step(c byte) {
	switch e.state {
	case afterEscape:
		switch {
		case c == '[':
			e.state = inControl
		case c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_':
			e.state = inString
		case c >= 0x20 && c <= 0x2f:
			e.state = afterIntermed
		case c == esc:
		default:
			e.state = plainText
		}
	case inControl:
		switch {
		case c == esc:
			e.state = afterEscape
		case c >= 0x40 && c <= 0x7e:
			e.state = plainText
		}
	case inString:
		switch c {
		case bel:
			e.state = plainText
		case esc:
			e.state = inStringEnd
		}
	case inStringEnd:
		if c == '\\' {
			e.state = plainText
		} else {
			e.state = afterEscape
			e.step(c)
		}
	case afterIntermed:
		if c < 0x20 || c > 0x2f {
			e.state = plainText
		}
	}
}

// finish takes what is left of characters that were never completed.
func (s *screen) finish() {
	for i := range s.streams {
		e := &s.streams[i]
		if len(e.rune) > 0 && e.state == plainText {
			s.print(e.rune)
			e.rune = nil
		}
	}
}

// print adds text without control characters but tabs and line breaks.
func (s *screen) print(b []byte) {
	if s.back {
		s.back = false
		if b[0] != '\n' {
			s.text = s.text[:s.begin]
			s.lineLen = 0
		}
	}
	s.lines += bytes.Count(b, []byte("\n"))
	s.text = append(s.text, b...)
	if n := bytes.LastIndexByte(b, '\n'); n >= 0 {
		s.begin = len(s.text) - (len(b) - n - 1)
		s.lineLen = int64(len(b) - n - 1)
	} else {
		s.lineLen += int64(len(b))
	}
	if len(s.text) > screenMax {
		drop := len(s.text) - screenKept
		s.text = append(s.text[:0], s.text[drop:]...)
		s.begin = max(0, s.begin-drop)
		s.cut = true
	}
}

// output is the end of the text within the limits of a result.
func (s *screen) output() (string, Cut) {
	b := s.text
	if s.cut {
		// The first character may be cut, and what is in front of the first
		// line break is no whole line; Tail leaves both out unless there is
		// nothing else.
		for len(b) > 0 && !utf8.RuneStart(b[0]) {
			b = b[1:]
		}
	}
	text, cut := Tail(validText(b), MaxLines, MaxBytes)
	if s.cut && !cut.Truncated { // what was thrown away made room for a line that was then overwritten
		cut.Truncated, cut.TruncatedBy = true, byBytes
	}
	cut.TotalLines = s.lines
	if s.lineLen > 0 {
		cut.TotalLines++
	}
	return text, cut
}

// partialRune is how many bytes at the end of b begin a character without
// ending it.
func partialRune(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
