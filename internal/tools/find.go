package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"codework/messages"
	"codework/sandboxes"
)

// defaultFindLimit is how many paths find gives when nobody says.
const defaultFindLimit = 1000

var findTool = Tool{
	Name:        "find",
	Label:       "Find",
	Description: "Find files and folders by a glob such as *.go or src/**/*.ts. Leaves out what .gitignore names. Gives paths relative to the folder searched, sorted.",
	Snippet:     "find files by name",
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"pattern":{"type":"string","description":"glob; matches names, or paths if it has a slash"},` +
		`"path":{"type":"string","description":"folder to search"},` +
		`"limit":{"type":"number","description":"default 1000"}},` +
		`"required":["pattern"],"additionalProperties":false}`),
	Run: runFind,
}

// pathGlob decides which entries a glob means.
type pathGlob struct {
	pattern string
	names   bool // no slash: base names at any depth
	dirOnly bool
	rooted  bool // begins with a slash: the absolute path, or the path from the folder searched
}

func newPathGlob(pattern string) (pathGlob, error) {
	g := pathGlob{pattern: pattern}
	if p := strings.TrimSuffix(pattern, "/"); p != pattern && p != "" {
		g.pattern, g.dirOnly = p, true
	}
	if pattern == "" || !doublestar.ValidatePattern(g.pattern) {
		return g, doublestar.ErrBadPattern
	}
	switch {
	case strings.HasPrefix(g.pattern, "/"):
		g.rooted = true
	case g.pattern == "**" || strings.HasPrefix(g.pattern, "**/"):
	case strings.Contains(g.pattern, "/"):
		g.pattern = "**/" + strings.TrimPrefix(g.pattern, "./")
	default:
		g.names = true
	}
	return g, nil
}

func (g pathGlob) matches(e entry) bool {
	if g.dirOnly && !e.isDir() {
		return false
	}
	is := func(subject string) bool {
		ok, _ := doublestar.Match(g.pattern, subject) // the pattern was checked
		return ok
	}
	switch {
	case g.names:
		return is(e.info.Name)
	case g.rooted:
		return is(e.path) || is("/"+e.rel)
	}
	return is(e.rel)
}

func runFind(ctx context.Context, c Context, raw json.RawMessage) (messages.ToolResult, error) {
	var args struct {
		Pattern, Path string
		Limit         *float64
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return messages.ToolResult{}, err
	}
	limit := whole(args.Limit, defaultFindLimit, 1)
	glob, err := newPathGlob(args.Pattern)
	if err != nil {
		return failed("bad glob %q: %v", clip(args.Pattern, maxNameShown), err)
	}
	root, info, err := searchRoot(ctx, c.Mount, args.Path)
	if err == nil && !info.Mode.IsDir() {
		err = sandboxes.ErrNotDirectory
	}
	if err != nil {
		return failed("cannot search %s: %s", shown(folderArgument(args.Path)), fileReason(err))
	}

	var found strings.Builder
	n, over := 0, false
	w := walker{mount: c.Mount, visit: func(e entry) error {
		if !glob.matches(e) {
			return nil
		}
		if n == limit || found.Len() > MaxBytes {
			over = true
			return errEnough
		}
		n++
		found.WriteString(e.rel)
		if e.isDir() {
			found.WriteByte('/')
		}
		found.WriteByte('\n')
		return nil
	}}
	err = w.walk(ctx, root)
	if err != nil && !errors.Is(err, errEnough) {
		return failed("cannot search %s: %s", shown(folderArgument(args.Path)), fileReason(err))
	}
	notes := w.notes()
	if over && n == limit {
		notes = append(notes, fmt.Sprintf("only the first %d results. Use limit=%d or a narrower pattern", limit, 2*limit))
	}
	return listResult(found.String(), "no files match", notes)
}

// notes are what a walk has to say about what it did not look at.
func (w *walker) notes() []string {
	var notes []string
	if w.left < 0 {
		notes = append(notes, fmt.Sprintf("stopped after looking at %d entries; search a smaller folder", walkLimit))
	}
	if w.skipped > 0 {
		notes = append(notes, plural(w.skipped, "folder")+" could not be read")
	}
	return notes
}

// listResult is the result of a tool that gives lines: cut, with notes, or the
// given text when there are none.
func listResult(text, none string, notes []string) (messages.ToolResult, error) {
	if text == "" {
		return succeeded(notice(none, notes...), nil)
	}
	text, cut := Head(text, MaxLines, MaxBytes)
	switch cut.TruncatedBy {
	case byBytes:
		notes = append(notes, "cut at "+formatSize(MaxBytes))
	case byLines:
		notes = append(notes, fmt.Sprintf("cut at %d lines", MaxLines))
	}
	return succeeded(notice(strings.TrimSuffix(text, "\n"), notes...), cut)
}
