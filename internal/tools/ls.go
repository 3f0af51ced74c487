package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"codework/messages"
	"codework/sandboxes"
)

// defaultLsLimit is how many entries ls gives when nobody says.
const defaultLsLimit = 500

var lsTool = Tool{
	Name:        "ls",
	Label:       "List",
	Description: "List a folder, hidden entries included; folders end with a slash.",
	Snippet:     "list a folder",
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"path":{"type":"string"},` +
		`"limit":{"type":"number","description":"default 500"}},` +
		`"additionalProperties":false}`),
	Run: runLs,
}

func runLs(ctx context.Context, c Context, raw json.RawMessage) (messages.ToolResult, error) {
	var args struct {
		Path  string
		Limit *float64
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return messages.ToolResult{}, err
	}
	p := folderArgument(args.Path)
	limit := whole(args.Limit, defaultLsLimit, 1)
	info, err := c.Mount.Stat(ctx, p)
	if err == nil && !info.Mode.IsDir() {
		err = sandboxes.ErrNotDirectory
	}
	var entries []sandboxes.Info
	if err == nil {
		entries, err = c.Mount.List(ctx, p)
	}
	if err != nil {
		return failed("cannot list %s: %s", shown(p), fileReason(err))
	}
	folded := make(map[string]string, len(entries))
	for _, e := range entries {
		folded[e.Name] = strings.ToLower(e.Name)
	}
	slices.SortStableFunc(entries, func(a, b sandboxes.Info) int {
		return strings.Compare(folded[a.Name], folded[b.Name])
	})

	var out strings.Builder
	n, over := 0, false
	for _, e := range entries {
		isDir := e.Mode.IsDir()
		if e.Mode&fs.ModeSymlink != 0 {
			target, err := c.Mount.Stat(ctx, join(p, e.Name))
			if err != nil {
				if ctx.Err() != nil {
					return messages.ToolResult{}, ctx.Err()
				}
				continue // leads nowhere
			}
			isDir = target.Mode.IsDir()
		}
		if n == limit {
			over = true
			break
		}
		n++
		out.WriteString(e.Name)
		if isDir {
			out.WriteByte('/')
		}
		out.WriteByte('\n')
	}
	var notes []string
	if over {
		notes = append(notes, fmt.Sprintf("only the first %d entries. Use limit=%d", limit, 2*limit))
	}
	return listResult(out.String(), "(empty directory)", notes)
}
