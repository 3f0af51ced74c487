package tools

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// replacement is one edit a model asks for.
type replacement struct {
	OldText string `json:"oldText"`
	NewText string `json:"newText"`
}

// splice replaces content[start:end] by text. It belongs to the edit that
// asked for it.
type splice struct {
	start, end int
	text       string
	edit       int
}

// edited is what applying edits gave.
type edited struct {
	content string
	// forgiving tells that the texts did not match exactly.
	forgiving bool
}

// maxLinesNamed is how many of the places of an ambiguous text are named.
const maxLinesNamed = 8

// applyEdits applies all edits to content, or none. Texts are matched against
// the original, line endings aside; where that fails for one edit, all are
// matched in a forgiving form. Bytes outside the matched lines never change,
// and within them only what an edit names does. An error is meant for the
// model.
func applyEdits(content string, edits []replacement) (edited, error) {
	if len(edits) == 0 {
		return edited{}, fmt.Errorf("edits is empty; give at least one")
	}
	bom := ""
	if strings.HasPrefix(content, string(utf8BOM)) {
		bom, content = content[:len(utf8BOM)], content[len(utf8BOM):]
	}
	file := newLines(content)
	wanted := make([]replacement, len(edits))
	for i, e := range edits {
		// A mark that was copied along belongs to no line of the file.
		e.OldText = strings.TrimPrefix(e.OldText, string(utf8BOM))
		e.NewText = strings.TrimPrefix(e.NewText, string(utf8BOM))
		if e.OldText == "" {
			return edited{}, fmt.Errorf("edits[%d]: oldText is empty", i)
		}
		wanted[i] = replacement{OldText: unixLines(e.OldText), NewText: unixLines(e.NewText)}
	}

	splices, err := file.match(wanted)
	forgiving := false
	var missing noMatch
	if errors.As(err, &missing) {
		splices, err = newForgiven(file.text).match(wanted)
		forgiving = true
	}
	if err != nil {
		return edited{}, err
	}

	sort.Slice(splices, func(i, j int) bool { return splices[i].start < splices[j].start })
	for i := 1; i < len(splices); i++ {
		if a, b := splices[i-1], splices[i]; b.start < a.end {
			return edited{}, fmt.Errorf("edits[%d] and edits[%d] overlap; merge them into one", min(a.edit, b.edit), max(a.edit, b.edit))
		}
	}
	out := bom + file.apply(splices)
	if out == bom+content {
		return edited{}, fmt.Errorf("the result equals the original; nothing to change")
	}
	return edited{content: out, forgiving: forgiving}, nil
}

// noMatch is the error for an edit whose text is not in the file.
type noMatch struct{ edit int }

func (e noMatch) Error() string {
	return fmt.Sprintf("edits[%d]: oldText is not in the file; it must match exactly, blanks and line breaks included. Read the file again if it may have changed", e.edit)
}

func unixLines(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// lines is a file with every line break as one newline, and the way back to
// its own bytes.
type lines struct {
	raw  string
	text string
	// crs are the places in text of the newlines that have a carriage return
	// in front of them in raw, in order.
	crs []int
	// ending is the first line break of the file, which new lines get.
	ending string
}

func newLines(raw string) *lines {
	l := &lines{raw: raw, text: raw, ending: "\n"}
	if !strings.Contains(raw, "\r\n") {
		return l
	}
	l.text = unixLines(raw)
	if i := strings.IndexByte(raw, '\n'); i > 0 && raw[i-1] == '\r' {
		l.ending = "\r\n"
	}
	for i := 0; ; {
		n := strings.Index(raw[i:], "\r\n")
		if n < 0 {
			return l
		}
		i += n + 2
		l.crs = append(l.crs, i-2-len(l.crs))
	}
}

// rawIndex is where text[i:] begins in raw. A line break of two bytes is never
// divided: the place before its newline is the one before both.
func (l *lines) rawIndex(i int) int { return i + sort.SearchInts(l.crs, i) }

// match finds every edit exactly once in the text.
func (l *lines) match(edits []replacement) ([]splice, error) {
	out := make([]splice, len(edits))
	for i, e := range edits {
		places := occurrences(l.text, e.OldText)
		switch len(places) {
		case 0:
			return nil, noMatch{i}
		case 1:
			out[i] = splice{places[0], places[0] + len(e.OldText), e.NewText, i}
		default:
			return nil, ambiguous(l.text, i, places)
		}
	}
	return out, nil
}

// apply replaces the spans, which are in order and do not overlap.
func (l *lines) apply(splices []splice) string {
	var b strings.Builder
	at := 0
	for _, s := range splices {
		s = l.narrow(s)
		start, end := l.rawIndex(s.start), l.rawIndex(s.end)
		b.WriteString(l.raw[at:start])
		if l.ending == "\n" {
			b.WriteString(s.text)
		} else {
			b.WriteString(strings.ReplaceAll(s.text, "\n", l.ending))
		}
		at = end
	}
	b.WriteString(l.raw[at:])
	return b.String()
}

// narrow takes the whole lines that stay the same off both ends of a splice,
// so that they keep their own line endings.
func (l *lines) narrow(s splice) splice {
	old := l.text[s.start:s.end]
	n := commonLines(old, s.text)
	s.start, old, s.text = s.start+n, old[n:], s.text[n:]
	n = commonTail(old, s.text)
	s.end, s.text = s.end-n, s.text[:len(s.text)-n]
	return s
}

// occurrences are the places of needle in s, also where they overlap.
func occurrences(s, needle string) []int {
	var out []int
	for i := 0; ; {
		n := strings.Index(s[i:], needle)
		if n < 0 {
			return out
		}
		out = append(out, i+n)
		i += n + 1
	}
}

func ambiguous(text string, edit int, places []int) error {
	var named []string
	last := 0
	line, at := 1, 0
	for _, p := range places {
		line += strings.Count(text[at:p], "\n")
		at = p
		if line == last {
			continue
		}
		last = line
		if len(named) == maxLinesNamed {
			named = append(named, "…")
			break
		}
		named = append(named, fmt.Sprint(line))
	}
	return fmt.Errorf("edits[%d]: oldText occurs %d times, on lines %s; add more of the text around it", edit, len(places), strings.Join(named, ", "))
}

// forgiven is a text in the form in which look-alikes are equal, and the way
// back: each run says which bytes of the original its bytes stand for.
type forgiven struct {
	original string
	text     string
	runs     []run
}

// run maps text[at:] (up to the next run) to original[from:to]. A plain run
// maps byte by byte, any other only as a whole.
type run struct {
	at, from, to int
	plain        bool
}

// blanks at the end of a line do not count in the forgiving form.
const blanks = " \t"

// lookAlike is what typographic characters are read as. Compatibility forms,
// wide letters for instance, are NFKC's matter.
var lookAlike = strings.NewReplacer(
	"\u2018", "'", "\u2019", "'", "\u201a", "'", "\u201b", "'",
	"\u201c", `"`, "\u201d", `"`, "\u201e", `"`, "\u201f", `"`,
	"\u2010", "-", "\u2011", "-", "\u2012", "-", "\u2013", "-", "\u2014", "-", "\u2015", "-", "\u2212", "-",
	"\u00a0", " ", "\u2002", " ", "\u2003", " ", "\u2004", " ", "\u2005", " ", "\u2006", " ", "\u2007", " ",
	"\u2008", " ", "\u2009", " ", "\u200a", " ", "\u202f", " ", "\u205f", " ", "\u3000", " ",
)

func newForgiven(original string) *forgiven {
	f := &forgiven{original: original}
	out := make([]byte, 0, len(original))
	for from := 0; from < len(original); {
		end := len(original)
		if n := strings.IndexByte(original[from:], '\n'); n >= 0 {
			end = from + n
		}
		out = f.line(out, from, end)
		if end < len(original) {
			out = f.plain(out, end, end+1)
		}
		from = end + 1
	}
	f.text = string(out)
	return f
}

// line adds the line original[from:end], without the blanks at its end.
func (f *forgiven) line(out []byte, from, end int) []byte {
	begin := len(out)
	for i := from; i < end; {
		n := i
		for n < end && f.original[n] < utf8.RuneSelf {
			n++
		}
		if n < end && n > i {
			n-- // it may combine with the mark that follows
		}
		if n > i {
			out = f.plain(out, i, n)
			i = n
			continue
		}
		n = i + norm.NFKC.NextBoundaryInString(f.original[i:end], true)
		own := f.original[i:n]
		if form := lookAlike.Replace(norm.NFKC.String(own)); form == own {
			out = f.plain(out, i, n)
		} else {
			f.runs = append(f.runs, run{at: len(out), from: i, to: n})
			out = append(out, form...)
		}
		i = n
	}
	out = out[:begin+len(bytes.TrimRight(out[begin:], blanks))]
	for len(f.runs) > 0 && f.runs[len(f.runs)-1].at >= len(out) {
		f.runs = f.runs[:len(f.runs)-1]
	}
	if n := len(f.runs); n > 0 && f.runs[n-1].plain {
		last := &f.runs[n-1]
		last.to = last.from + len(out) - last.at
	}
	return out
}

// plain adds original[from:to] as it is.
func (f *forgiven) plain(out []byte, from, to int) []byte {
	if n := len(f.runs); n > 0 && f.runs[n-1].plain && f.runs[n-1].to == from {
		f.runs[n-1].to = to
	} else {
		f.runs = append(f.runs, run{at: len(out), from: from, to: to, plain: true})
	}
	return append(out, f.original[from:to]...)
}

// runAt is the run that text[i] belongs to, and where that run ends in text.
func (f *forgiven) runAt(i int) (r run, end int) {
	n := sort.Search(len(f.runs), func(n int) bool { return f.runs[n].at > i })
	end = len(f.text)
	if n < len(f.runs) {
		end = f.runs[n].at
	}
	return f.runs[n-1], end
}

// start is where text[i:] begins in the original. Where that is inside a
// character that cannot be divided, the part before it has to be kept.
func (f *forgiven) start(i int) (at int, keep string) {
	if i == len(f.text) {
		return len(f.original), ""
	}
	r, _ := f.runAt(i)
	if r.plain {
		return r.from + i - r.at, ""
	}
	return r.from, f.text[r.at:i]
}

// end is where text[:i] ends in the original, like start. i is not 0.
func (f *forgiven) end(i int) (at int, keep string) {
	r, end := f.runAt(i - 1)
	if r.plain {
		return r.from + i - r.at, ""
	}
	return r.to, f.text[i:end]
}

// match finds every edit exactly once in the forgiving text, and gives what to
// replace in the original.
func (f *forgiven) match(edits []replacement) ([]splice, error) {
	out := make([]splice, len(edits))
	for i, e := range edits {
		needle := newForgiven(e.OldText).text
		if needle == "" {
			return nil, noMatch{i}
		}
		// Blanks at the end of the last line were taken off, but it need not be
		// the end of a line in the file: then they have to be there.
		last := e.OldText[strings.LastIndexByte(e.OldText, '\n')+1:]
		last = lookAlike.Replace(norm.NFKC.String(last))
		trailing := last[len(strings.TrimRight(last, blanks)):]
		var places []int
		for _, p := range occurrences(f.text, needle) {
			rest := f.text[p+len(needle):]
			if trailing == "" || rest == "" || rest[0] == '\n' || strings.HasPrefix(rest, trailing) {
				places = append(places, p)
			}
		}
		switch len(places) {
		case 0:
			return nil, noMatch{i}
		case 1:
			out[i] = f.splice(places[0], needle, trailing, e)
			out[i].edit = i
		default:
			return nil, ambiguous(f.text, i, places)
		}
	}
	return out, nil
}

// splice is the replacement of e, whose forgiving text was found at p. Lines
// that e itself leaves as they are keep the file's characters.
func (f *forgiven) splice(p int, needle, trailing string, e replacement) splice {
	same := commonLines(e.OldText, e.NewText)
	from, end := p+len(newForgiven(e.OldText[:same]).text), p+len(needle)
	old, text := e.OldText[same:], e.NewText[same:]
	start, before := f.start(from)

	s := splice{start: start}
	after := ""
	rest := f.text[end:]
	if tail := commonTail(old, text); tail > 0 && before == "" {
		text = text[:len(text)-tail]
		s.end, _ = f.start(end - len(newForgiven(old[len(old)-tail:]).text))
	} else if trailing != "" && (rest == "" || rest[0] == '\n') {
		s.end, _ = f.start(end)
	} else {
		s.end, after = f.end(end + len(trailing))
	}
	s.text = before + text + after
	return s
}
