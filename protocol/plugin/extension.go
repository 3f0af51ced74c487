// Package plugin is the extension of the Model Context Protocol that CodeWork's
// plugins may speak, and a small kit for writing such plugins in Go.
//
// A plugin is a program that serves MCP on its standard input and output. One
// that only brings tools needs nothing of this package. One that wants hooks,
// prompt sections, events, or the session's sandbox names the extension
// "sh.codework/plugin" among the capabilities of its answer to the handshake
// (Declaration) and then gets the codework/* calls described here. This
// package is the only place that knows their JSON.
//
// Order: codework/setup comes once per exchange, before the first call of that
// exchange. Hooks and calls of different sessions come in any order and at the
// same time. Loss: an event is told to whoever listens and not stored; one of
// a type that was not declared is dropped. Blocking: the host gives setup
// 5 s and a hook 10 s. Closing: the host closes the plugin's standard input,
// waits 5 s, and then ends the plugin's whole process tree.
package plugin

import (
	"encoding/json"
	"regexp"
	"strings"
)

// Extension is the extension's name among the capabilities; Version the only
// version there is.
const (
	Extension = "sh.codework/plugin"
	Version   = 1
)

// The methods of the extension. The host calls the first three; the plugin
// sends the event and calls the sandbox.
const (
	MethodSetup  = "codework/setup"
	MethodBefore = "codework/tool.before"
	MethodAfter  = "codework/tool.after"

	MethodEvent        = "codework/event" // a notification
	MethodSandboxExec  = "codework/sandbox.exec"
	MethodSandboxRead  = "codework/sandbox.read"
	MethodSandboxWrite = "codework/sandbox.write"
	MethodSandboxStat  = "codework/sandbox.stat"
	MethodSandboxList  = "codework/sandbox.list"
)

// MethodPrefix starts the name of every method of the extension.
const MethodPrefix = "codework/"

// The keys of a tool call's _meta.
const (
	MetaSession   = "sh.codework/sessionId"
	MetaCall      = "sh.codework/callId"
	MetaDirectory = "sh.codework/directory"
)

// Kind decides when a plugin is set up: all tool plugins come before all
// prompt plugins.
type Kind string

// The kinds.
const (
	KindTool   Kind = "tool"
	KindPrompt Kind = "prompt"
)

// Declaration is what a plugin says of itself: the value of the extension in
// the capabilities.
type Declaration struct {
	Version int    `json:"version"`
	ID      string `json:"id"` // vendor.domain.name
	Kind    Kind   `json:"kind"`
	// OptIn keeps the plugin off until the settings enable it.
	OptIn bool `json:"optIn,omitempty"`
	// Hooks, Prompt and Sandbox ask for the right to have hooks, to change the
	// system prompt, and to use the session's sandbox.
	Hooks   bool `json:"hooks,omitempty"`
	Prompt  bool `json:"prompt,omitempty"`
	Sandbox bool `json:"sandbox,omitempty"`
	// Events are the types it may publish; each starts with EventPrefix(ID).
	Events []string `json:"events,omitempty"`
}

// Setup is what a plugin learns at the start of an exchange.
type Setup struct {
	SessionID  string `json:"sessionId"`
	ExchangeID string `json:"exchangeId"`
	// Options are what the settings say, {} when nothing.
	Options  json.RawMessage `json:"options"`
	Model    Model           `json:"model"`
	Location Location        `json:"location"`
	Sandbox  Sandbox         `json:"sandbox"`
	// Tools are those of the plugins before this one, and its own.
	Tools []ToolInfo `json:"tools"`
}

// Model is the model of the exchange.
type Model struct {
	Provider string `json:"provider"`
	ID       string `json:"id"`
}

// Location is where the session works: Directory inside its sandbox, Host on
// the machine of the host ("" when it has no such folder).
type Location struct {
	Directory string `json:"directory"`
	Host      string `json:"hostDirectory,omitempty"`
}

// Sandbox names the session's sandbox; "local" is the host's machine itself.
type Sandbox struct {
	ID string `json:"id"`
}

// ToolInfo is a tool as a setup sees it.
type ToolInfo struct {
	Name        string `json:"name"`
	Plugin      string `json:"plugin"`
	Label       string `json:"label,omitempty"`
	Description string `json:"description,omitempty"`
}

// Plan is a plugin's answer to Setup. All of it holds for one exchange.
type Plan struct {
	// Tools say more of the plugin's own tools; those it does not mention are
	// there as they are.
	Tools []ToolPlan `json:"tools,omitempty"`
	// Patches change how tools of other plugins are described.
	Patches []ToolPatch `json:"patches,omitempty"`
	// Hooks name the tools, of any plugin, before or after which the plugin is
	// asked. A tool that is not there is left alone.
	Hooks    []Hook    `json:"hooks,omitempty"`
	Sections []Section `json:"sections,omitempty"`
	// Foundation replaces the first part of the system prompt; "" leaves it.
	Foundation string `json:"foundation,omitempty"`
}

// ToolPlan is what a plugin says of one of its own tools.
type ToolPlan struct {
	Name       string   `json:"name"`
	Label      string   `json:"label,omitempty"`
	Snippet    string   `json:"promptSnippet,omitempty"`
	Guidelines []string `json:"promptGuidelines,omitempty"`
	// Enabled false leaves the tool out of this exchange.
	Enabled *bool `json:"enabled,omitempty"`
}

// ToolPatch changes a tool; nil fields stay.
type ToolPatch struct {
	Tool        string    `json:"tool"`
	Description *string   `json:"description,omitempty"`
	Label       *string   `json:"label,omitempty"`
	Snippet     *string   `json:"promptSnippet,omitempty"`
	Guidelines  *[]string `json:"promptGuidelines,omitempty"`
}

// Hook asks to be told of the calls of a tool.
type Hook struct {
	Tool   string `json:"tool"`
	Before bool   `json:"before,omitempty"`
	After  bool   `json:"after,omitempty"`
}

// Section is a change of a part of the system prompt: rules (a list),
// addendum, project_context, skills (texts), or one of an own name.
type Section struct {
	Name    string   `json:"name"`
	Format  string   `json:"format,omitempty"` // list or text, of an own section
	Op      string   `json:"op"`               // append, set or remove
	Entries []string `json:"entries,omitempty"`
}

// Before asks whether a call may run.
type Before struct {
	SessionID string          `json:"sessionId"`
	MessageID string          `json:"messageId"`
	CallID    string          `json:"callId"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"` // a JSON object
}

// Verdict answers Before. The zero value lets the call run.
type Verdict struct {
	Block  bool   `json:"block,omitempty"`
	Reason string `json:"reason,omitempty"` // for the model
}

// After tells how a call ended: Status is completed, error or aborted. What
// is answered for an aborted call changes nothing.
type After struct {
	Before
	Status string `json:"status"`
	Result Result `json:"result"`
}

// Result is the result of a call.
type Result struct {
	Content []Content       `json:"content"`
	Details json.RawMessage `json:"details,omitempty"`
	IsError bool            `json:"isError"`
}

// Content is text, or an image with its data in base64. An image in what a
// hook gets has no data.
type Content struct {
	Type     string `json:"type"` // text or image
	Text     string `json:"text,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
	Data     []byte `json:"data,omitempty"`
}

// Change answers After; nil fields stay.
type Change struct {
	Content []Content       `json:"content,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
	IsError *bool           `json:"isError,omitempty"`
}

// Event is something a plugin tells to whoever listens to the session, or to
// the server when there is no session.
type Event struct {
	Type      string          `json:"type"`
	SessionID string          `json:"sessionId,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"` // a JSON object
}

// InCall says for which running call or hook a plugin uses the sandbox.
type InCall struct {
	SessionID string `json:"sessionId"`
	CallID    string `json:"callId"`
}

// Exec runs a command: Command through the sandbox's shell, or Argv without.
type Exec struct {
	InCall
	Command   string            `json:"command,omitempty"`
	Argv      []string          `json:"argv,omitempty"`
	Dir       string            `json:"cwd,omitempty"` // "" is the session's directory
	Env       map[string]string `json:"env,omitempty"`
	TimeoutMs int64             `json:"timeoutMs,omitempty"` // 0 is none
}

// ExecResult is how a command ended. Each stream has at most its last 50 KiB;
// Truncated tells that there was more.
type ExecResult struct {
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	ExitCode  int    `json:"exitCode"` // 128+n for death by signal n
	TimedOut  bool   `json:"timedOut,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
}

// Read reads a file from Offset; at most MaxRead bytes at a time.
type Read struct {
	InCall
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty"`
	Limit  int64  `json:"limit,omitempty"` // 0 is MaxRead
}

// ReadResult is a piece of a file, in base64. Fewer bytes than were asked for
// are the end of the file.
type ReadResult struct {
	Data []byte `json:"data"`
}

// Write replaces a file; missing folders are made.
type Write struct {
	InCall
	Path string `json:"path"`
	Data []byte `json:"data"` // base64, at most MaxWrite bytes
}

// MaxRead and MaxWrite bound what one call reads or writes, in bytes: a line
// of the protocol has at most 16 MiB.
const (
	MaxRead  = 1 << 20
	MaxWrite = 8 << 20
)

// Path names a file or folder, for stat and list.
type Path struct {
	InCall
	Path string `json:"path"`
}

// Info is what the sandbox knows of a file.
type Info struct {
	Name       string `json:"name"`
	Type       string `json:"type"` // file, directory, symlink or other
	Size       int64  `json:"size"`
	ModifiedMs int64  `json:"modifiedMs,omitempty"` // epoch milliseconds
}

// Listing is a folder's entries by name, at most MaxEntries.
type Listing struct {
	Entries   []Info `json:"entries"`
	Truncated bool   `json:"truncated,omitempty"`
}

// MaxEntries is how many entries of a folder a list gives.
const MaxEntries = 10000

// EventPrefix is what every event type of a plugin starts with.
func EventPrefix(id string) string { return "plugin." + id + "." }

// BuiltinVendor is the vendor of the plugins that are part of the program; no
// other may use it.
const BuiltinVendor = "codework"

var idForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*){2}$`)

// ValidID tells whether id names a plugin that is not part of the program:
// three segments of a-z, 0-9 and "-".
func ValidID(id string) bool {
	return idForm.MatchString(id) && !strings.HasPrefix(id, BuiltinVendor+".")
}
