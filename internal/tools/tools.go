// Package tools holds the tools a model may call (read, write, edit, bash,
// grep, find, ls) and runs calls through their fixed order of steps.
//
// Everything goes through the session's sandbox mount, never to the host
// directly. Calls may run at the same time; those that change a file hold its
// lock from reading it to having replaced it. Memory per call is bounded,
// whatever a file or a command's output measures, except that edit and write
// hold the file they change. What a call answers is bounded too: 2000 lines
// and 50 KiB of text, with a notice that says what is missing.
//
// Execute never panics and never waits longer than StopWait for a handler
// after its context ended. Progress is handed on in order, from one goroutine
// at a time, and never after Execute has returned; newer progress replaces
// older, so some may be missing, and a sink must not block.
package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

// Tool is something a model may call.
type Tool struct {
	Name string
	// Label is the tool's name for people; "" means Name.
	Label       string
	Description string
	// Snippet is the tool's line in the system prompt; "" gives it none.
	Snippet string
	// Guidelines are rules that the system prompt gets when the tool is there.
	Guidelines []string
	// Schema is the JSON Schema of the arguments, of type object.
	Schema json.RawMessage
	// Plugin is the id of the plugin that brought the tool.
	Plugin string
	// On tells that the tool is there unless settings turn it off.
	On bool

	// Repair mends arguments that are nearly right, before they are checked;
	// nil leaves them as they are. It gets a JSON object.
	Repair func(args json.RawMessage) json.RawMessage
	// Run does the work. A failure the model is to learn about is a result
	// with IsError; an error is anything else, and is shown as one line.
	Run func(ctx context.Context, c Context, args json.RawMessage) (messages.ToolResult, error)

	// Before may refuse a call, After may change its result; nil does nothing.
	// A hook that fails makes the call an error.
	Before func(ctx context.Context, call Call) (*Verdict, error)
	// After also hears of aborted calls: then what it answers is ignored.
	After func(ctx context.Context, call Call, state messages.CallState, result messages.ToolResult) (*Patch, error)

	check *checker
}

// Call is one call as a model made it.
type Call struct {
	ID   string
	Name string
	// MessageID is the message that the call stands in, for the hooks.
	MessageID string
	// Arguments is what the model wrote: any text.
	Arguments string
	// Args are the checked arguments, a JSON object. Execute sets them for the
	// hooks.
	Args json.RawMessage
}

// Verdict is what a before-hook decided.
type Verdict struct {
	Block  bool
	Reason string // shown to the model; "" gives a default text
}

// Patch is what an after-hook changes of a result; nil fields stay.
type Patch struct {
	Content []messages.Part
	Details json.RawMessage
	IsError *bool
}

// Context is what a call has to work with.
type Context struct {
	Mount sandboxes.Mount
	// Seen remembers what the session knows of its files; nil remembers nothing.
	Seen *Seen
	// Progress receives what there is so far; nil drops it. It must not block.
	Progress func(messages.ToolResult)
	// Images tells whether the model takes images.
	Images bool
	CallID string
	// BashTimeout bounds every command; 0 means DefaultBashTimeout.
	BashTimeout time.Duration
	// Fault is told of panics, for the log; nil drops them.
	Fault func(tool string, value any, stack []byte)
}

// Set is the tools of a session, in order. It is immutable.
type Set struct {
	tools       []Tool
	index       map[string]int
	definitions []messages.ToolDefinition
}

// NewSet makes a set. Of two tools with one name the later replaces the
// earlier, in the earlier's place. It fails when a schema is not one of an
// object; the error names the tool.
func NewSet(tools ...Tool) (*Set, error) {
	s := &Set{index: make(map[string]int, len(tools))}
	for _, t := range tools {
		if t.check == nil || string(t.check.source) != string(t.Schema) {
			c, err := newChecker(t.Schema)
			if err != nil {
				return nil, fmt.Errorf("schema of tool %s: %w", t.Name, err)
			}
			t.check = c
		}
		if i, ok := s.index[t.Name]; ok {
			s.tools[i] = t
			continue
		}
		s.index[t.Name] = len(s.tools)
		s.tools = append(s.tools, t)
	}
	for _, t := range s.tools {
		s.definitions = append(s.definitions, messages.ToolDefinition{
			Name: t.Name, Description: t.Description, Schema: t.Schema,
		})
	}
	return s, nil
}

// Tools are the set's tools in order. The caller must not change them.
func (s *Set) Tools() []Tool { return s.tools }

// Tool finds a tool by its exact name.
func (s *Set) Tool(name string) (Tool, bool) {
	i, ok := s.index[name]
	if !ok {
		return Tool{}, false
	}
	return s.tools[i], true
}

// Definitions is what a model is told of the tools, made once. The caller must
// not change it.
func (s *Set) Definitions() []messages.ToolDefinition { return s.definitions }

// Builtin are the built-in tools; those with On are there by default. The
// slice is the caller's.
func Builtin() []Tool { return append([]Tool(nil), builtins()...) }

var builtins = sync.OnceValue(func() []Tool {
	all := []Tool{readTool, bashTool, editTool, writeTool, grepTool, findTool, lsTool}
	for i := range all {
		all[i].Plugin = "codework.tool." + all[i].Name
		c, err := newChecker(all[i].Schema)
		if err != nil {
			panic("tools: schema of " + all[i].Name + ": " + err.Error()) // a typo in this package; the first test shows it
		}
		all[i].check = c
	}
	return all
})

// failed is a declared failure of one text.
func failed(format string, args ...any) (messages.ToolResult, error) {
	return messages.TextResult(fmt.Sprintf(format, args...), true), nil
}

// succeeded is a result of one text, with details for clients.
func succeeded(text string, details any) (messages.ToolResult, error) {
	r := messages.TextResult(text, false)
	return withDetails(r, details)
}

func withDetails(r messages.ToolResult, details any) (messages.ToolResult, error) {
	if details == nil {
		return r, nil
	}
	b, err := json.Marshal(details)
	if err != nil {
		return messages.ToolResult{}, fmt.Errorf("encode details: %w", err)
	}
	r.Details = b
	return r, nil
}
