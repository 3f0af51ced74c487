package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"codework/messages"
	"codework/sandboxes"
)

var writeTool = Tool{
	Name:        "write",
	Label:       "Write",
	On:          true,
	Description: "Write a whole file: creates it and missing folders, or replaces all of it. Use edit to change part of a file.",
	Snippet:     "create or replace a file",
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"path":{"type":"string"},` +
		`"content":{"type":"string"}},` +
		`"required":["path","content"],"additionalProperties":false}`),
	Run: runWrite,
}

// utf8BOM marks some files as UTF-8. The model never sees it.
var utf8BOM = []byte("\xef\xbb\xbf")

func runWrite(ctx context.Context, c Context, raw json.RawMessage) (messages.ToolResult, error) {
	var args struct{ Path, Content string }
	if err := json.Unmarshal(raw, &args); err != nil {
		return messages.ToolResult{}, err
	}
	p := cleanPath(args.Path)
	if p == "" {
		return failed("path is empty")
	}
	unlock, err := c.Mount.Lock(ctx, p)
	if err != nil {
		return failed("cannot write %s: %s", shown(p), fileReason(err))
	}
	defer unlock()

	content := []byte(args.Content)
	details := change{Path: absolute(c.Mount, p)}
	before, known, err := current(ctx, c.Mount, p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		details.Created = true
	case err != nil:
		return failed("cannot write %s: %s", shown(p), fileReason(err))
	}
	real, err := c.Mount.RealPath(ctx, p)
	if err != nil {
		real = details.Path // a parent is missing and is made by the write
	}
	if seen, ok := c.Seen.get(real); ok && !details.Created && !seen.same(known) {
		return failed("%s was changed by somebody else after you read it; nothing was written. Read it again, then write or edit it", shown(p))
	}
	if !details.Created && bytes.HasPrefix(before, utf8BOM) && !bytes.HasPrefix(content, utf8BOM) {
		// Reading hides the mark, so leaving it out was not a choice.
		content = append(bytes.Clone(utf8BOM), content...)
	}
	if err := c.Mount.Write(ctx, p, content); err != nil {
		return failed("cannot write %s: %s", shown(p), fileReason(err))
	}
	if details.Created {
		if r, err := c.Mount.RealPath(ctx, p); err == nil {
			real = r
		}
	}
	c.Seen.note(real, sightOf(content))

	verb := "created"
	if !details.Created {
		verb = "wrote"
		if int64(len(before)) < known.size {
			details.DiffOmitted = true
		} else {
			details.compare(string(before), string(content))
		}
	}
	return succeeded(fmt.Sprintf("%s %s (%s)", verb, shown(p), formatSize(int64(len(content)))), details)
}

// current is what a file holds now: its first bytes, all of them where they
// are few enough to be compared, and how to recognise the whole.
func current(ctx context.Context, m sandboxes.Mount, p string) ([]byte, sight, error) {
	info, err := m.Stat(ctx, p)
	if err != nil {
		return nil, sight{}, err
	}
	if info.Mode.IsDir() {
		return nil, sight{}, sandboxes.ErrIsDirectory
	}
	if !info.Mode.IsRegular() {
		return nil, sight{}, sandboxes.ErrNotRegular
	}
	var first []byte
	d := newDigest()
	err = scan(ctx, m, p, info.Size, func(b []byte) bool {
		if d.size == int64(len(first)) && len(first)+len(b) <= maxDiffInput {
			first = append(first, b...)
		}
		d.add(b)
		return d.size < maxScanBytes
	})
	v := d.sight(info)
	if d.size >= maxScanBytes {
		v = sight{size: info.Size, modTime: info.ModTime}
	}
	return first, v, err
}
