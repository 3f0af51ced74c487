package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"regexp/syntax"
	"runtime"
	"strings"
	"unicode/utf8"

	"codework/messages"
	"codework/sandboxes"
)

const (
	// defaultGrepLimit is how many matches grep gives when nobody says.
	defaultGrepLimit = 100
	// maxLineChars is how much of a line grep shows.
	maxLineChars = 500
	// maxLineBytes is how much of a line is searched.
	maxLineBytes = 1 << 20
	// maxContext is how many lines around a match one may ask for.
	maxContext = 100
	// maxWorkers is how many files are searched at once, so that a search does
	// not take all of a big machine.
	maxWorkers = 4
	// aheadFiles is how many files may be found before their turn.
	aheadFiles = 64
)

var grepTool = Tool{
	Name:        "grep",
	Label:       "Search",
	Description: "Search file contents by regular expression (RE2) and give path:line: text. Leaves out binary files and what .gitignore names.",
	Snippet:     "search file contents",
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"pattern":{"type":"string"},` +
		`"path":{"type":"string","description":"folder or file"},` +
		`"glob":{"type":"string","description":"only these files, e.g. *.go"},` +
		`"ignoreCase":{"type":"boolean"},` +
		`"literal":{"type":"boolean","description":"pattern is plain text"},` +
		`"context":{"type":"number","description":"lines around each match"},` +
		`"limit":{"type":"number","description":"default 100"}},` +
		`"required":["pattern"],"additionalProperties":false}`),
	Run: runGrep,
}

func runGrep(ctx context.Context, c Context, raw json.RawMessage) (messages.ToolResult, error) {
	var args struct {
		Pattern, Path, Glob string
		IgnoreCase, Literal bool
		Context, Limit      *float64
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return messages.ToolResult{}, err
	}
	limit := whole(args.Limit, defaultGrepLimit, 1)
	pattern, err := newLinePattern(args.Pattern, args.Literal, args.IgnoreCase)
	if err != nil {
		return failed("bad pattern: %s", reason(err))
	}
	pattern.context = min(whole(args.Context, 0, 0), maxContext)
	pattern.limit = limit + 1 // one more tells that there are more
	accept := func(entry) bool { return true }
	if args.Glob != "" {
		text, not := strings.CutPrefix(args.Glob, "!")
		glob, err := newPathGlob(text)
		if err != nil {
			return failed("bad glob %q: %v", clip(args.Glob, maxNameShown), err)
		}
		accept = func(e entry) bool { return glob.matches(e) != not }
	}
	where := shown(folderArgument(args.Path))
	root, info, err := searchRoot(ctx, c.Mount, args.Path)
	if err != nil {
		return failed("cannot search %s: %s", where, fileReason(err))
	}

	g := gathered{c: c, limit: limit}
	var notes []string
	switch {
	case info.Mode.IsDir():
		w := walker{mount: c.Mount}
		err = g.folder(ctx, &w, root, accept, pattern)
		notes = w.notes()
	case info.Mode.IsRegular():
		var found fileMatches
		if found, err = pattern.search(ctx, c.Mount, root, info.Size); err == nil {
			g.add(path.Base(cleanPath(args.Path)), found)
		}
	default:
		err = sandboxes.ErrNotRegular
	}
	if err != nil {
		return failed("cannot search %s: %s", where, fileReason(err))
	}
	if g.over {
		notes = append(notes, fmt.Sprintf("only the first %d matches. Use limit=%d or a narrower pattern", limit, 2*limit))
	}
	if g.cut {
		notes = append(notes, fmt.Sprintf("long lines are cut at %d characters; read the file to see them", maxLineChars))
	}
	if g.unread > 0 {
		notes = append(notes, plural(g.unread, "file")+" could not be read")
	}
	return listResult(g.out.String(), "no matches", notes)
}

// gathered is the output of a search so far.
type gathered struct {
	c       Context
	limit   int
	out     strings.Builder
	matches int
	over    bool // there are more matches than the limit
	cut     bool // a line was cut
	unread  int
}

// add takes what was found in the file called name, and tells whether there is
// room for more.
func (g *gathered) add(name string, found fileMatches) bool {
	for _, l := range found.lines {
		if l.match {
			if g.matches == g.limit {
				g.over = true
				return false
			}
			g.matches++
			fmt.Fprintf(&g.out, "%s:%d: %s\n", name, l.number, l.text)
		} else {
			fmt.Fprintf(&g.out, "%s-%d- %s\n", name, l.number, l.text)
		}
		g.cut = g.cut || l.cut
	}
	return g.out.Len() <= MaxBytes
}

// folder searches the files below root, several at once, and gathers what is
// found in the order of their paths.
func (g *gathered) folder(parent context.Context, w *walker, root string, accept func(entry) bool, pattern linePattern) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	type result struct {
		found fileMatches
		err   error
	}
	type job struct {
		entry entry
		done  chan result
	}
	work := make(chan job)
	order := make(chan job, aheadFiles)
	walked := make(chan error, 1)
	go func() {
		defer close(order)
		defer close(work)
		w.visit = func(e entry) error {
			if !e.info.Mode.IsRegular() || !accept(e) {
				return nil
			}
			j := job{e, make(chan result, 1)}
			select {
			case order <- j:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case work <- j:
			case <-ctx.Done():
				j.done <- result{err: ctx.Err()}
				return ctx.Err()
			}
			return nil
		}
		_, err := guarded("grep", g.c, func() (struct{}, error) { return struct{}{}, w.walk(ctx, root) })
		walked <- err
	}()
	for range min(maxWorkers, runtime.GOMAXPROCS(0)) {
		go func() {
			for j := range work {
				found, err := guarded("grep", g.c, func() (fileMatches, error) {
					return pattern.search(ctx, w.mount, j.entry.path, j.entry.info.Size)
				})
				j.done <- result{found, err}
			}
		}()
	}
	enough := false
	for j := range order {
		r := <-j.done // also when there is enough: nothing may still use the mount afterwards
		switch {
		case enough:
		case r.err != nil:
			g.unread++
		case !g.add(j.entry.rel, r.found):
			enough = true
			cancel()
		}
	}
	err := <-walked
	if parent.Err() != nil {
		return parent.Err()
	}
	if enough || errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// linePattern is what to look for in lines.
type linePattern struct {
	line *regexp.Regexp
	// literal is a text that every match holds, "" if none is known. Looking
	// for it first is many times faster than the expression. With fold it is
	// in lower case and stands for all cases.
	literal []byte
	fold    bool
	// block finds, in many lines at once, the first that may match; nil when
	// the pattern can tell a line from a text.
	block   *regexp.Regexp
	context int
	limit   int // matches a file
}

// minLiteral is the shortest literal worth looking for: single letters are in
// nearly every line.
const minLiteral = 2

func newLinePattern(expr string, literal, ignoreCase bool) (linePattern, error) {
	if literal {
		expr = regexp.QuoteMeta(expr)
	}
	flags := ""
	if ignoreCase {
		flags = "i"
	}
	var p linePattern
	if _, err := syntax.Parse(expr, syntax.Perl); err != nil {
		return p, err // before anything is put around it
	}
	var err error
	if p.line, err = regexp.Compile("(?" + flags + ":" + expr + ")"); err != nil {
		return p, err
	}
	block := "(?m" + flags + ":" + expr + ")"
	tree, err := syntax.Parse(block, syntax.Perl)
	if err != nil {
		return p, err
	}
	if lit, fold := required(tree); len(lit) >= minLiteral {
		p.literal, p.fold = []byte(lit), fold
	}
	if !knowsTextEnds(tree) {
		p.block, err = regexp.Compile(block)
	}
	return p, err
}

// required is the longest literal text that is known to be in every match.
func required(re *syntax.Regexp) (lit string, fold bool) {
	switch re.Op {
	case syntax.OpLiteral:
		fold = re.Flags&syntax.FoldCase != 0
		for _, r := range re.Rune {
			// Where letters have other cases than the two of ASCII, folded
			// bytes are no help.
			if fold && r >= utf8.RuneSelf {
				return "", false
			}
		}
		if lit = string(re.Rune); fold {
			lit = strings.ToLower(lit)
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if l, f := required(sub); len(l) > len(lit) {
				lit, fold = l, f
			}
		}
	}
	return lit, fold
}

// foldASCII writes b in lower case to dst.
func foldASCII(dst, b []byte) []byte {
	dst = append(dst[:0], b...)
	for i, c := range dst {
		if 'A' <= c && c <= 'Z' {
			dst[i] = c + 'a' - 'A'
		}
	}
	return dst
}

// foldedOutside tells whether b has one of the two characters beyond ASCII
// that are cases of ASCII letters: the Kelvin sign and the long s.
func foldedOutside(b []byte) bool {
	return bytes.Contains(b, []byte("\u212a")) || bytes.Contains(b, []byte("\u017f"))
}

// knowsTextEnds tells whether a pattern can match the beginning or the end of
// a text as such (\A, \z), which are those of each line here.
func knowsTextEnds(re *syntax.Regexp) bool {
	if re.Op == syntax.OpBeginText || re.Op == syntax.OpEndText {
		return true
	}
	for _, sub := range re.Sub {
		if knowsTextEnds(sub) {
			return true
		}
	}
	return false
}

// matchLine is a line to show.
type matchLine struct {
	number int
	text   string
	match  bool
	cut    bool
}

type fileMatches struct {
	lines []matchLine
}

// search looks through one file. A binary file has no matches.
func (p linePattern) search(ctx context.Context, m sandboxes.Mount, name string, size int64) (fileMatches, error) {
	s := lineSearch{pattern: p, number: 1}
	var rest []byte
	start, skipping := true, false
	err := scan(ctx, m, name, size, func(b []byte) bool {
		if start {
			start = false
			if bytes.IndexByte(b[:min(len(b), sniffBytes)], 0) >= 0 {
				return false
			}
			b = bytes.TrimPrefix(b, utf8BOM)
		}
		if skipping { // the end of a line of which enough was searched
			n := bytes.IndexByte(b, '\n')
			if n < 0 {
				return true
			}
			b, skipping = b[n+1:], false
		}
		end := bytes.LastIndexByte(b, '\n') + 1
		if end == 0 {
			if rest = append(rest, b...); len(rest) > maxLineBytes {
				more := s.lines(rest)
				rest, skipping = rest[:0], true
				return more
			}
			return true
		}
		block := b[:end]
		if len(rest) > 0 {
			block = append(rest, block...)
		}
		if !s.lines(block) {
			return false
		}
		rest = append(rest[:0], b[end:]...)
		return true
	})
	if err == nil && len(rest) > 0 && !s.full() {
		s.lines(rest)
	}
	return fileMatches{s.found}, err
}

// lineSearch is a search of one file on its way.
type lineSearch struct {
	pattern linePattern
	number  int         // of the next line
	found   []matchLine // in order
	matches int
	before  []matchLine // the last lines, should the next one match
	after   int         // how many lines behind a match are still to be shown
	folded  []byte      // scratch of candidates
}

func (s *lineSearch) full() bool { return s.matches >= s.pattern.limit }

// lines searches whole lines, of which the last may lack its line break, and
// tells whether to go on.
func (s *lineSearch) lines(b []byte) bool {
	next := s.candidates(b)
	for len(b) > 0 && !s.full() {
		if at := next(b); at < 0 {
			s.pass(b)
			return true
		} else if at > 0 {
			begin := bytes.LastIndexByte(b[:at], '\n') + 1
			s.pass(b[:begin])
			if b = b[begin:]; len(b) == 0 {
				return true // it matched nothing, behind the last line break
			}
		}
		end := len(b)
		if n := bytes.IndexByte(b, '\n'); n >= 0 {
			end = n + 1
		}
		if line := trimBreak(b[:end]); s.pattern.line.Match(line) {
			s.found = append(s.found, s.before...)
			s.before = s.before[:0]
			s.found = append(s.found, showLine(s.number, line, true))
			s.matches++
			s.after = s.pattern.context
			s.number++
		} else {
			s.pass(b[:end])
		}
		b = b[end:]
	}
	return !s.full()
}

// candidates gives a function that finds the first place in the rest of b
// whose line may match, -1 if none can.
func (s *lineSearch) candidates(b []byte) func(rest []byte) int {
	p := s.pattern
	switch {
	case p.literal != nil && !p.fold:
		return func(rest []byte) int { return bytes.Index(rest, p.literal) }
	case p.literal != nil && !foldedOutside(b):
		s.folded = foldASCII(s.folded, b)
		return func(rest []byte) int { return bytes.Index(s.folded[len(s.folded)-len(rest):], p.literal) }
	case p.block != nil && bytes.IndexByte(b, '\r') < 0: // "$" does not match in front of a carriage return
		return func(rest []byte) int {
			if at := p.block.FindIndex(rest); at != nil {
				return at[0]
			}
			return -1
		}
	}
	return func([]byte) int { return 0 }
}

// pass goes over lines that do not match.
func (s *lineSearch) pass(b []byte) {
	for len(b) > 0 && s.after > 0 {
		end := len(b)
		if n := bytes.IndexByte(b, '\n'); n >= 0 {
			end = n + 1
		}
		s.found = append(s.found, showLine(s.number, trimBreak(b[:end]), false))
		s.after--
		s.number++
		b = b[end:]
	}
	if len(b) == 0 {
		return
	}
	count := bytes.Count(b, []byte("\n"))
	if b[len(b)-1] != '\n' {
		count++
	}
	if keep := min(count, s.pattern.context); keep > 0 {
		begin := len(bytes.TrimSuffix(b, []byte("\n")))
		for range keep {
			begin = bytes.LastIndexByte(b[:begin], '\n') // -1 when these are all lines
		}
		last := b[begin+1:]
		for i := range keep {
			end := len(last)
			if n := bytes.IndexByte(last, '\n'); n >= 0 {
				end = n + 1
			}
			s.before = append(s.before, showLine(s.number+count-keep+i, trimBreak(last[:end]), false))
			last = last[end:]
		}
	}
	if over := len(s.before) - s.pattern.context; over > 0 {
		s.before = append(s.before[:0], s.before[over:]...)
	}
	s.number += count
}

func trimBreak(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

func showLine(number int, line []byte, match bool) matchLine {
	l := matchLine{number: number, match: match}
	if len(line) > maxLineChars*utf8.UTFMax {
		l.cut = true
		line = line[:maxLineChars*utf8.UTFMax]
	}
	text := validText(line)
	if n := utf8.RuneCountInString(text); n > maxLineChars {
		l.cut = true
		text = string([]rune(text)[:maxLineChars])
	}
	if l.cut {
		text += "… [cut]"
	}
	l.text = text
	return l
}
