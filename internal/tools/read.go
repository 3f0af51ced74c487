package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"codework/messages"
	"codework/sandboxes"
)

const (
	// sniffBytes is how much of a file decides what it is.
	sniffBytes = 8000
	// maxScanBytes is how far behind what is shown read looks for the number
	// of lines, and how much of a file is looked at to recognise it later.
	maxScanBytes = 64 << 20
)

var readTool = Tool{
	Name:        "read",
	Label:       "Read",
	On:          true,
	Description: "Read a text file or look at an image (png, jpeg, gif, webp, bmp). At most 2000 lines or 50KB a call; go on with offset.",
	Snippet:     "read a file",
	Guidelines:  []string{"Look at files with read, not cat or sed."},
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"path":{"type":"string"},` +
		`"offset":{"type":"number","description":"first line, from 1"},` +
		`"limit":{"type":"number","description":"lines"}},` +
		`"required":["path"],"additionalProperties":false}`),
	Run: runRead,
}

func runRead(ctx context.Context, c Context, raw json.RawMessage) (messages.ToolResult, error) {
	var args struct {
		Path          string
		Offset, Limit *float64
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return messages.ToolResult{}, err
	}
	asked := cleanPath(args.Path)
	if asked == "" {
		return failed("path is empty")
	}
	p, info, err := statSpelled(ctx, c.Mount, asked)
	switch {
	case err != nil:
		return failed("cannot read %s: %s", shown(asked), fileReason(err))
	case info.Mode.IsDir():
		return failed("cannot read %s: is a directory (EISDIR); list it with a command", shown(asked))
	case !info.Mode.IsRegular():
		return failed("cannot read %s: not a regular file", shown(asked))
	}
	w := window{
		first: whole(args.Offset, 1, 1),
		lines: MaxLines,
		about: newDigest(),
	}
	if args.Limit != nil {
		w.limited = whole(args.Limit, MaxLines, 1)
		w.lines = min(w.lines, w.limited)
	}
	var kind imageKind
	binary := false
	start := true
	err = scan(ctx, c.Mount, p, info.Size, func(b []byte) bool {
		if start {
			start = false
			head := b[:min(len(b), sniffBytes)]
			if kind = sniffImage(head); kind != notImage {
				return false
			}
			if binary = bytes.IndexByte(head, 0) >= 0; binary {
				return false
			}
			if bytes.HasPrefix(b, utf8BOM) {
				w.about.add(b[:len(utf8BOM)])
				b = b[len(utf8BOM):]
			}
		}
		return w.add(b)
	})
	switch {
	case err != nil:
		return failed("cannot read %s: %s", shown(asked), fileReason(err))
	case kind != notImage:
		return readImage(ctx, c, p, asked, kind, info)
	case binary:
		return failed("cannot read %s: it is a binary file (%s); use a command to inspect it", shown(asked), formatSize(info.Size))
	}
	w.end()
	seen := w.about.sight(info)
	if w.more {
		seen = sight{size: info.Size, modTime: info.ModTime}
	}
	noteSeen(ctx, c, p, seen)
	return w.result(p)
}

func noteSeen(ctx context.Context, c Context, p string, v sight) {
	if c.Seen == nil {
		return
	}
	if real, err := c.Mount.RealPath(ctx, p); err == nil {
		c.Seen.note(real, v)
	}
}

// window collects the lines that were asked for while a file passes.
type window struct {
	first   int // number of the first line wanted
	lines   int // how many lines at most
	limited int // what the model asked for, 0 if nothing

	line     int    // line breaks seen
	begun    bool   // the last line is not empty, or not ended
	kept     []byte // from the first line wanted on: more than is shown, so that the cut is seen
	firstLen int64  // length of the first line wanted
	passed   int64  // bytes behind what is kept
	more     bool   // the end of the file was not reached
	about    *digest
}

// add takes the next bytes of the file and tells whether more are wanted.
func (w *window) add(b []byte) bool {
	w.about.add(b)
	for len(b) > 0 && w.line < w.first-1 {
		n := bytes.IndexByte(b, '\n')
		if n < 0 {
			w.begun = true
			return true
		}
		b = b[n+1:]
		w.line++
		w.begun = false
	}
	if len(b) == 0 {
		return true
	}
	if w.line == w.first-1 {
		if n := bytes.IndexByte(b, '\n'); n >= 0 {
			w.firstLen += int64(n)
		} else {
			w.firstLen += int64(len(b))
		}
	}
	if room := MaxBytes + 1 - len(w.kept); room > 0 && w.line-w.first+1 < w.lines {
		w.kept = append(w.kept, b[:min(room, len(b))]...)
	} else {
		w.passed += int64(len(b))
	}
	w.line += bytes.Count(b, []byte("\n"))
	w.begun = b[len(b)-1] != '\n'
	if w.passed > maxScanBytes {
		w.more = true
		return false
	}
	return true
}

// end counts a last line that has no line break.
func (w *window) end() {
	if w.begun {
		w.line++
		w.begun = false
	}
}

func (w *window) result(p string) (messages.ToolResult, error) {
	total := w.line
	count := fmt.Sprint(total)
	if w.more {
		count = "more than " + count
	}
	if w.first > max(total, 1) {
		return failed("cannot read %s from line %d: it has %s", shown(p), w.first, plural(total, "line"))
	}
	text, cut := Head(validText(w.kept), w.lines, MaxBytes)
	// What was not kept counts, too.
	last := w.first + cut.OutputLines - 1
	cut.TotalLines = total
	switch {
	case total == 0:
		return succeeded("(empty file)", cut)
	case cut.OutputLines == 0:
		cut.Truncated, cut.TruncatedBy = true, byBytes
		return succeeded(notice("", fmt.Sprintf("line %d is %s, more than the %s a call can show. View a part with bash: sed -n %dp %s | head -c %d",
			w.first, formatSize(w.firstLen), formatSize(MaxBytes), w.first, shellQuote(p), MaxBytes)), cut)
	case strings.TrimSpace(text) == "":
		text = notice("", plural(cut.OutputLines, "blank line"))
	}
	if last >= total && !w.more {
		return succeeded(text, cut)
	}
	if cut.OutputLines == w.limited {
		// Not cut: it is what was asked for.
		cut.Truncated, cut.TruncatedBy, cut.MaxLines = false, "", MaxLines
		return succeeded(notice(text, fmt.Sprintf("%s more lines. Use offset=%d to go on", leftOver(total-last, w.more), last+1)), cut)
	}
	cut.Truncated, cut.MaxLines = true, MaxLines
	limit := ""
	if cut.TruncatedBy == byBytes {
		limit = fmt.Sprintf(" (%s limit)", formatSize(MaxBytes))
	}
	return succeeded(notice(text, fmt.Sprintf("lines %d-%d of %s%s. Use offset=%d to go on", w.first, last, count, limit, last+1)), cut)
}

// validText is b with every byte that is not UTF-8 replaced. It is never
// shorter than b.
func validText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string(bytes.Runes(b))
}

func leftOver(n int, atLeast bool) string {
	if atLeast {
		return fmt.Sprintf("more than %d", n)
	}
	return fmt.Sprint(n)
}

// shellQuote is s as one word of a shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// readWhole is a file's content, nil if it is larger than limit.
func readWhole(ctx context.Context, m sandboxes.Mount, p string, limit int64) ([]byte, error) {
	b, err := m.Read(ctx, p, 0, limit+1)
	if err != nil || int64(len(b)) > limit {
		return nil, err
	}
	return b, nil
}
