package tools

import (
	"context"
	"encoding/json"
	"fmt"

	"codework/messages"
	"codework/sandboxes"
)

// maxEditBytes is the largest file that edit takes into memory. What people
// and models edit is far smaller.
const maxEditBytes = 32 << 20

var editTool = Tool{
	Name:        "edit",
	Label:       "Edit",
	On:          true,
	Description: "Replace exact pieces of one file. Each oldText must occur exactly once in the file as it is now, blanks included; edits must not overlap. All are applied, or none.",
	Snippet:     "replace exact text in a file",
	Guidelines: []string{
		"Use edit, not bash or write, to change part of a file; put all changes of one file into one call.",
		"Keep oldText as short as is unique.",
	},
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"path":{"type":"string"},` +
		`"edits":{"type":"array","minItems":1,"items":{"type":"object","properties":{` +
		`"oldText":{"type":"string"},` +
		`"newText":{"type":"string"}},` +
		`"required":["oldText","newText"],"additionalProperties":false}}},` +
		`"required":["path","edits"],"additionalProperties":false}`),
	Repair: repairEdit,
	Run:    runEdit,
}

// repairEdit accepts the forms in which models write one edit: the list as a
// JSON string, an object instead of a list, and the texts at the top level,
// which come after the listed ones.
func repairEdit(raw json.RawMessage) json.RawMessage {
	var args map[string]json.RawMessage
	if json.Unmarshal(raw, &args) != nil {
		return raw
	}
	changed := false
	edits := args["edits"]
	var text string
	if json.Unmarshal(edits, &text) == nil && json.Valid([]byte(text)) {
		edits, changed = json.RawMessage(text), true
	}
	var one map[string]json.RawMessage
	if json.Unmarshal(edits, &one) == nil && one != nil {
		edits, changed = json.RawMessage("["+string(edits)+"]"), true
	}
	oldText, hasOld := args["oldText"]
	newText, hasNew := args["newText"]
	var list []json.RawMessage
	if hasOld && hasNew && (edits == nil || json.Unmarshal(edits, &list) == nil) {
		single, err := json.Marshal(map[string]json.RawMessage{"oldText": oldText, "newText": newText})
		if err != nil {
			return raw
		}
		if edits, err = json.Marshal(append(list, single)); err != nil {
			return raw
		}
		delete(args, "oldText")
		delete(args, "newText")
		changed = true
	}
	if !changed {
		return raw
	}
	args["edits"] = edits
	repaired, err := json.Marshal(args)
	if err != nil {
		return raw
	}
	return repaired
}

func runEdit(ctx context.Context, c Context, raw json.RawMessage) (messages.ToolResult, error) {
	var args struct {
		Path  string
		Edits []replacement
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return messages.ToolResult{}, err
	}
	p := cleanPath(args.Path)
	if p == "" {
		return failed("path is empty")
	}
	cannot := func(err error) (messages.ToolResult, error) {
		return failed("cannot edit %s: %s", shown(p), fileReason(err))
	}
	unlock, err := c.Mount.Lock(ctx, p)
	if err != nil {
		return cannot(err)
	}
	defer unlock()

	info, err := c.Mount.Stat(ctx, p)
	switch {
	case err != nil:
		return cannot(err)
	case info.Mode.IsDir():
		return cannot(sandboxes.ErrIsDirectory)
	case !info.Mode.IsRegular():
		return cannot(sandboxes.ErrNotRegular)
	}
	before, err := c.Mount.Read(ctx, p, 0, maxEditBytes+1)
	if err != nil {
		return cannot(err)
	}
	if len(before) > maxEditBytes {
		return failed("cannot edit %s: it is larger than %s; change it with a command", shown(p), formatSize(maxEditBytes))
	}
	after, err := applyEdits(string(before), args.Edits)
	if err != nil {
		return failed("cannot edit %s: %v", shown(p), err)
	}
	if err := c.Mount.Write(ctx, p, []byte(after.content)); err != nil {
		return cannot(err)
	}
	if real, err := c.Mount.RealPath(ctx, p); err == nil {
		// Who had not seen the file as it was does not know it now either.
		if seen, ok := c.Seen.get(real); ok && seen.same(sightOf(before)) {
			c.Seen.note(real, sightOf([]byte(after.content)))
		}
	}

	details := change{Path: absolute(c.Mount, p)}
	details.compare(string(before), after.content)
	text := fmt.Sprintf("replaced %s in %s", plural(len(args.Edits), "block"), shown(p))
	if after.forgiving {
		text += "\n\n[oldText did not match exactly: it was found by ignoring blanks at line ends and reading typographic characters as plain ones]"
	}
	return succeeded(text, details)
}

// plural is n with a noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
