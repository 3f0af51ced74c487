package acp

import (
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"codework/messages"
)

// Bounds of what is shown of a call.
const (
	maxTitle    = 200       // characters
	maxProgress = 16 << 10  // bytes of a running command's output, its end
	maxRaw      = 64 << 10  // bytes of one string in rawOutput
	maxDiffs    = 256 << 10 // bytes of the diffs of one call
	maxInput    = 1 << 20   // bytes of rawInput, above which its strings are cut
	maxImages   = 3 << 20   // bytes of the images of one call, in base64
	maxShownOut = 1 << 20   // bytes of a result's text; the tools keep to far less
	maxPath     = 4096      // bytes of a path: no file has a longer one
	cutMark     = "\n[cut]"
)

// builtinKinds are the kinds of the tools of the program.
var builtinKinds = map[string]string{
	"bash": "execute", "read": "read", "write": "edit", "edit": "edit", "grep": "search", "find": "search", "ls": "search",
}

// otherKinds are those of other tools, by their name or the last word of it.
var otherKinds = map[string][]string{
	"execute": {"shell", "sh", "exec", "execute", "run", "terminal", "command", "eval"},
	"read":    {"view", "cat", "open"},
	"edit":    {"create", "patch", "replace", "multiedit", "apply_patch"},
	"delete":  {"delete", "remove", "rm"},
	"move":    {"move", "rename", "mv"},
	"search":  {"glob", "search", "list", "query"},
	"fetch":   {"fetch", "webfetch", "http", "download", "browse", "web_search"},
	"think":   {"think", "plan", "todo"},
}

// Kind is what sort of a thing a tool does, by its name.
func Kind(name string) string {
	name = strings.ToLower(name)
	last := name
	if i := strings.LastIndexAny(name, "_./"); i >= 0 {
		last = name[i+1:]
	}
	for _, word := range []string{name, last} {
		if k, ok := builtinKinds[word]; ok {
			return k
		}
		for kind, words := range otherKinds {
			if slices.Contains(words, word) {
				return kind
			}
		}
	}
	return "other"
}

// arguments are what is looked at in a call's arguments.
type arguments struct {
	Command, Path, Pattern string
	Content                *string
	Offset                 *float64
}

func argumentsOf(raw string) arguments {
	var all map[string]json.RawMessage
	var a arguments
	if json.Unmarshal([]byte(raw), &all) != nil {
		return a
	}
	// One that has the wrong type does not hide the others.
	_ = json.Unmarshal(all["command"], &a.Command)
	_ = json.Unmarshal(all["path"], &a.Path)
	_ = json.Unmarshal(all["pattern"], &a.Pattern)
	_ = json.Unmarshal(all["content"], &a.Content)
	_ = json.Unmarshal(all["offset"], &a.Offset)
	a.Path = strings.TrimPrefix(a.Path, "@")
	return a
}

// title is what a person wants to read of a call in one line.
func (t *Translator) title(p messages.Part) string {
	a := argumentsOf(p.Arguments)
	path := t.relative(a.Path)
	text := ""
	switch p.Name {
	case "bash":
		text = a.Command
	case "read", "write", "edit":
		text = strings.ToUpper(p.Name[:1]) + p.Name[1:] + " " + path
	case "grep":
		text = `Search "` + a.Pattern + `"`
	case "find":
		text = `Find "` + a.Pattern + `"`
	case "ls":
		if path == "" {
			path = "."
		}
		text = "List " + path
	}
	if (p.Name == "grep" || p.Name == "find") && path != "" && path != "." {
		text += " in " + path
	}
	if strings.TrimSpace(text) == "" {
		text = p.Label
	}
	if text = oneLine(text); text == "" {
		text = oneLine(p.Name)
	}
	return clip(text, maxTitle)
}

// relative shortens a path inside the session's folder.
func (t *Translator) relative(path string) string {
	if path == "" || !filepath.IsAbs(path) {
		return path
	}
	rel, err := filepath.Rel(t.Dir, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return path
	}
	return rel
}

// absolute is a path of a call for the editor to open; "" if there is none.
func (t *Translator) absolute(path string) string {
	switch {
	case path == "" || len(path) > maxPath || strings.ContainsRune(path, 0):
		return ""
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	}
	return filepath.Join(t.Dir, path)
}

// locations names the file that a call reads or changes.
func (t *Translator) locations(p messages.Part, d details) []Location {
	kind := builtinKinds[p.Name]
	changed := d.Path != "" && (d.Created || d.Patch != "") // by whatever tool
	if !t.Local || kind != "read" && kind != "edit" && !changed {
		return nil
	}
	a := argumentsOf(p.Arguments)
	l := Location{Path: t.absolute(a.Path)}
	if d.Path != "" {
		l.Path = t.absolute(d.Path)
	}
	if l.Path == "" {
		return nil
	}
	switch {
	case d.FirstChangedLine > 0:
		l.Line = d.FirstChangedLine
	case p.Name == "read" && a.Offset != nil && *a.Offset >= 1 && *a.Offset < 1<<31:
		l.Line = int(*a.Offset)
	}
	return []Location{l}
}

// details are what is looked at in the details of a result.
type details struct {
	Path             string
	Created          bool
	Patch            string
	FirstChangedLine int
	Output           *string
}

func detailsOf(raw json.RawMessage) details {
	var d details
	if len(raw) > 0 && json.Unmarshal(raw, &d) != nil {
		return details{} // not ours
	}
	return d
}

// rawInput is the argument object as the model gave it.
func rawInput(args string) json.RawMessage {
	raw := messages.RawObject(args)
	if len(raw) > maxInput {
		raw = cutStrings(raw, maxRaw)
	}
	return raw
}

// rawOutput is the result for programs. What a diff says is not said again.
func rawOutput(r messages.ToolResult) json.RawMessage {
	var object map[string]json.RawMessage
	raw := r.Details
	if json.Unmarshal(raw, &object) != nil || object == nil {
		b, err := messages.JSON(struct {
			Output string `json:"output"`
		}{plainText(resultText(r))})
		if err != nil {
			return nil
		}
		raw = b
	}
	return cutStrings(raw, maxRaw)
}

// cutStrings cuts every string in a JSON value to n bytes. A value that is
// still too large is left out: it would be nobody's help.
func cutStrings(raw json.RawMessage, n int) json.RawMessage {
	var v any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	b, err := messages.JSON(cutIn(v, n))
	if err != nil || len(b) > 2*maxInput {
		return json.RawMessage("{}")
	}
	return b
}

func cutIn(v any, n int) any {
	switch v := v.(type) {
	case string:
		return cutText(v, n)
	case []any:
		for i := range v {
			v[i] = cutIn(v[i], n)
		}
	case map[string]any:
		for k := range v {
			v[k] = cutIn(v[k], n)
		}
	}
	return v
}

// cutText cuts s to n bytes, between characters.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len(cutMark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + cutMark
}

// tail is the end of s in at most n bytes, from the beginning of a line where
// there is one.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	for len(s) > 0 && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	if i := strings.IndexByte(s, '\n'); i >= 0 && i < len(s)-1 {
		s = s[i+1:]
	}
	return s
}

func resultText(r messages.ToolResult) string {
	var b strings.Builder
	for _, p := range r.Content {
		if p.Type == messages.PartText {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// progress is the newest output of a running call.
func progress(name string, r messages.ToolResult) []ToolContent {
	text := tail(plainText(resultText(r)), maxProgress)
	if text == "" {
		return nil
	}
	return []ToolContent{{Block: &Block{Type: "text", Text: fenced(language(name), text)}}}
}

// content is what a finished call shows.
func (t *Translator) content(p messages.Part) []ToolContent {
	r := *p.Result
	out := []ToolContent{}
	if text := cutText(plainText(resultText(r)), maxShownOut); strings.TrimSpace(text) != "" {
		if shownRaw(p) {
			text = fenced(language(p.Name), text)
		}
		out = append(out, ToolContent{Block: &Block{Type: "text", Text: text}})
	}
	room := maxImages
	for _, q := range r.Content {
		if q.Type == messages.PartImage {
			b := t.image(q, &room)
			out = append(out, ToolContent{Block: &b})
		}
	}
	return out
}

// shownRaw tells whether a result is output or a file, which Markdown would
// spoil. Errors in words are not, and what other tools say may be Markdown.
func shownRaw(p messages.Part) bool {
	kind, builtin := builtinKinds[p.Name]
	if !builtin {
		k := Kind(p.Name)
		return k == "execute" || k == "read"
	}
	if p.Call == messages.CallCompleted {
		return kind != "edit"
	}
	return kind == "execute" && detailsOf(p.Result.Details).Output != nil
}

func language(name string) string {
	if Kind(name) == "execute" {
		return "console"
	}
	return ""
}

// image is an image block, or the reason why there is none.
func (t *Translator) image(p messages.Part, room *int) Block {
	size := base64.StdEncoding.EncodedLen(int(p.Bytes))
	if size > *room {
		return Block{Type: "text", Text: "[image too large to be shown here]"}
	}
	data := p.Data
	if len(data) == 0 && t.Blob != nil {
		b, err := t.Blob(p.Blob)
		if err != nil {
			return Block{Type: "text", Text: "[image is not there any more]"}
		}
		data = b
	}
	text := base64.StdEncoding.EncodeToString(data)
	if len(text) > *room {
		return Block{Type: "text", Text: "[image too large to be shown here]"}
	}
	*room -= len(text)
	return Block{Type: "image", MimeType: p.MediaType, Data: text}
}

// diffs are the changes of a file that a result tells of; nil if there are
// none.
func (t *Translator) diffs(p messages.Part) []ToolContent {
	d := detailsOf(p.Result.Details)
	if p.Call != messages.CallCompleted || d.Path == "" || !d.Created && d.Patch == "" {
		return nil
	}
	path := t.absolute(d.Path)
	var all []Diff
	if d.Created {
		a := argumentsOf(p.Arguments)
		if a.Content == nil {
			return nil
		}
		all = []Diff{{Type: "diff", Path: path, NewText: *a.Content}}
	} else {
		all = hunks(path, d.Patch)
	}
	var out []ToolContent
	room := maxDiffs
	for i := range all {
		f := &all[i]
		n := len(f.NewText)
		if f.OldText != nil {
			n += len(*f.OldText)
		}
		if n > room {
			if f.OldText == nil && room > len(cutMark) {
				f.NewText = cutText(f.NewText, room)
				out = append(out, ToolContent{Diff: f})
			}
			return append(out, ToolContent{Block: &Block{Type: "text", Text: "The change is too large to be shown completely."}})
		}
		room -= n
		out = append(out, ToolContent{Diff: f})
	}
	return out
}

// hunks are the pieces of a unified patch of one file.
func hunks(path, patch string) []Diff {
	var out []Diff
	var before, after strings.Builder
	open := false
	flush := func() {
		if open {
			old := before.String()
			out = append(out, Diff{Type: "diff", Path: path, OldText: &old, NewText: after.String()})
		}
		before.Reset()
		after.Reset()
	}
	last := byte(0) // the side of the last line
	for line := range strings.Lines(patch) {
		switch {
		case strings.HasPrefix(line, "@@"):
			flush()
			open = true
		case !open:
		case line[0] == '\\': // the line before has no end
			trim(&before, last != '+')
			trim(&after, last != '-')
		case line[0] == '-':
			before.WriteString(line[1:])
			last = '-'
		case line[0] == '+':
			after.WriteString(line[1:])
			last = '+'
		default:
			before.WriteString(line[1:])
			after.WriteString(line[1:])
			last = ' '
		}
	}
	flush()
	return out
}

// trim takes the last line's end off.
func trim(b *strings.Builder, yes bool) {
	if !yes {
		return
	}
	s := strings.TrimSuffix(b.String(), "\n")
	b.Reset()
	b.WriteString(s)
}

// oneLine is s on one line and without control characters.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, plainText(s))
	return strings.Join(strings.Fields(s), " ")
}

// plainText is output as text: valid UTF-8, without the escape sequences of
// terminals and other control characters.
func plainText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.IndexFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == 0x1b || r == 0x9b || r == 0x9d:
			n = escape(s, r, n)
		case r == '\n' || r == '\t' || !unicode.IsControl(r):
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// escape is the length of the sequence at the beginning of s, whose first
// character r takes n bytes.
func escape(s string, r rune, n int) int {
	kind := r
	if r == 0x1b {
		if n == len(s) {
			return n
		}
		kind = rune(s[n])
		n++
	}
	switch kind {
	case '[', 0x9b: // parameters, then one final character
		for n < len(s) && s[n] >= 0x20 && s[n] < 0x40 {
			n++
		}
		if n < len(s) && s[n] >= 0x40 && s[n] < 0x7f {
			n++
		}
	case ']', 'P', 'X', '^', '_', 0x9d: // a text, up to BEL or ESC \, on one line
		for n < len(s) && s[n] != '\n' {
			if s[n] == 7 {
				return n + 1
			}
			if s[n] == 0x1b {
				if n+1 < len(s) && s[n+1] == '\\' {
					return n + 2
				}
				return n
			}
			n++
		}
	case '(', ')', '*', '+', '#', '%': // one more
		if n < len(s) && s[n] < utf8.RuneSelf {
			n++
		}
	default:
		if kind >= utf8.RuneSelf || kind == '\n' {
			n-- // no sequence: what follows is text
		}
	}
	return n
}
