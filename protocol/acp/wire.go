package acp

import (
	"encoding/json"

	"codework/messages"
)

// Methods of the protocol.
const (
	MethodInitialize = "initialize"
	MethodNew        = "session/new"
	MethodLoad       = "session/load"
	MethodResume     = "session/resume"
	MethodList       = "session/list"
	MethodPrompt     = "session/prompt"
	MethodCancel     = "session/cancel"
	MethodSetConfig  = "session/set_config_option"
	MethodClose      = "session/close"
	MethodDelete     = "session/delete"
	MethodCancelAny  = "$/cancel_request"
	MethodUpdate     = "session/update"
)

// ProtocolVersion is the only version spoken.
const ProtocolVersion = 1

type empty struct{}

// InitializeResult says who answers and what it can do.
type InitializeResult struct {
	ProtocolVersion int          `json:"protocolVersion"`
	AgentInfo       AgentInfo    `json:"agentInfo"`
	Capabilities    Capabilities `json:"agentCapabilities"`
	AuthMethods     []empty      `json:"authMethods"`
}

// AgentInfo names the agent.
type AgentInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Version string `json:"version"`
}

// Capabilities are what the agent offers. The markers of sessions are objects,
// never booleans: strict clients refuse to connect otherwise.
type Capabilities struct {
	LoadSession bool `json:"loadSession"`
	Prompt      struct {
		Image           bool `json:"image"`
		Audio           bool `json:"audio"`
		EmbeddedContext bool `json:"embeddedContext"`
	} `json:"promptCapabilities"`
	MCP struct {
		HTTP bool `json:"http"`
		SSE  bool `json:"sse"`
	} `json:"mcpCapabilities"`
	Session struct {
		List   empty `json:"list"`
		Resume empty `json:"resume"`
		Close  empty `json:"close"`
		Delete empty `json:"delete"`
	} `json:"sessionCapabilities"`
}

// Initialized is the answer to initialize.
func Initialized(version string) InitializeResult {
	r := InitializeResult{ProtocolVersion: ProtocolVersion, AgentInfo: AgentInfo{"codework", "CodeWork", version}, AuthMethods: []empty{}}
	r.Capabilities.LoadSession = true
	r.Capabilities.Prompt.Image, r.Capabilities.Prompt.EmbeddedContext = true, true
	return r
}

// NewResult answers session/new.
type NewResult struct {
	SessionID     string   `json:"sessionId"`
	ConfigOptions []Option `json:"configOptions"`
}

// ConfigResult answers session/load, session/resume and
// session/set_config_option with the complete list.
type ConfigResult struct {
	ConfigOptions []Option `json:"configOptions"`
}

// ListResult answers session/list.
type ListResult struct {
	Sessions   []SessionEntry `json:"sessions"`
	NextCursor string         `json:"nextCursor,omitempty"`
}

// SessionEntry is one stored session.
type SessionEntry struct {
	SessionID string `json:"sessionId"`
	Cwd       string `json:"cwd"`
	Title     string `json:"title"`
	UpdatedAt string `json:"updatedAt"` // RFC 3339, UTC
}

// PromptResult answers session/prompt.
type PromptResult struct {
	StopReason string `json:"stopReason"`
}

// The stop reasons of a turn.
const (
	StopEndTurn   = "end_turn"
	StopMaxTokens = "max_tokens"
	StopRefusal   = "refusal"
	StopCancelled = "cancelled"
)

// Done answers requests that have nothing to say.
type Done struct{}

// Update is one of the updates of a session below.
type Update interface{ kind() string }

// Block is a piece of content.
type Block struct {
	Type     string `json:"type"` // text, image
	Text     string `json:"text,omitempty"`
	MimeType string `json:"mimeType,omitempty"`
	Data     string `json:"data,omitempty"` // base64
}

// textBlock keeps its text when that is empty.
type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// MarshalJSON writes the members that the block's type has.
func (b Block) MarshalJSON() ([]byte, error) {
	if b.Type == "text" {
		return marshal(textBlock{"text", b.Text})
	}
	type plain Block
	return marshal(plain(b))
}

// marshal leaves <, > and & readable.
func marshal(v any) ([]byte, error) { return messages.JSON(v) }

// Chunk is a piece of a message: of the user, the agent, or its thoughts.
type Chunk struct {
	SessionUpdate string `json:"sessionUpdate"`
	MessageID     string `json:"messageId"`
	Content       Block  `json:"content"`
}

// The kinds of chunks.
const (
	UserChunk    = "user_message_chunk"
	AgentChunk   = "agent_message_chunk"
	ThoughtChunk = "agent_thought_chunk"
)

func textChunk(kind, id, text string) Chunk {
	return Chunk{kind, id, Block{Type: "text", Text: text}}
}

// ToolCall begins a tool call.
type ToolCall struct {
	SessionUpdate string          `json:"sessionUpdate"`
	ToolCallID    string          `json:"toolCallId"`
	Title         string          `json:"title"`
	Name          string          `json:"name,omitempty"`
	Kind          string          `json:"kind"`
	Status        string          `json:"status"`
	RawInput      json.RawMessage `json:"rawInput"`
	Locations     []Location      `json:"locations,omitempty"`
}

// ToolCallUpdate tells how a call goes on. Content replaces what was there.
type ToolCallUpdate struct {
	SessionUpdate string          `json:"sessionUpdate"`
	ToolCallID    string          `json:"toolCallId"`
	Status        string          `json:"status,omitempty"`
	Content       []ToolContent   `json:"content,omitempty"`
	Locations     []Location      `json:"locations,omitempty"`
	RawOutput     json.RawMessage `json:"rawOutput,omitempty"`
}

// The states of a call.
const (
	StatusInProgress = "in_progress"
	StatusCompleted  = "completed"
	StatusFailed     = "failed"
)

// ToolContent is content of a call: a block, or how a file changed.
type ToolContent struct {
	Block *Block
	Diff  *Diff
}

// MarshalJSON writes one of the two.
func (c ToolContent) MarshalJSON() ([]byte, error) {
	if c.Diff != nil {
		return marshal(c.Diff)
	}
	return marshal(struct {
		Type    string `json:"type"`
		Content *Block `json:"content"`
	}{"content", c.Block})
}

// Diff is a piece of a file before and after. OldText is nil for a file that
// is new.
type Diff struct {
	Type    string  `json:"type"`
	Path    string  `json:"path"`
	OldText *string `json:"oldText"`
	NewText string  `json:"newText"`
}

// Location is a file that a call is about. Line is 1-based; 0 names none.
type Location struct {
	Path string `json:"path"`
	Line int    `json:"line,omitempty"`
}

// SessionInfo tells the title of a session.
type SessionInfo struct {
	SessionUpdate string `json:"sessionUpdate"`
	Title         string `json:"title"`
	UpdatedAt     string `json:"updatedAt"`
}

// Usage tells how full the model's window is.
type Usage struct {
	SessionUpdate string `json:"sessionUpdate"`
	Used          int64  `json:"used"`
	Size          int64  `json:"size"`
	Cost          *Cost  `json:"cost,omitempty"`
}

// Cost is what the session has cost so far.
type Cost struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"`
}

// Config tells the complete list of options after a change.
type Config struct {
	SessionUpdate string   `json:"sessionUpdate"`
	ConfigOptions []Option `json:"configOptions"`
}

// Notice is a word to the user beside the conversation.
type Notice struct {
	SessionUpdate string `json:"sessionUpdate"`
	Severity      string `json:"severity"`
	Title         string `json:"title"`
	Description   string `json:"description"`
}

func (Chunk) kind() string          { return "chunk" }
func (ToolCall) kind() string       { return "tool_call" }
func (ToolCallUpdate) kind() string { return "tool_call_update" }
func (SessionInfo) kind() string    { return "session_info_update" }
func (Usage) kind() string          { return "usage_update" }
func (Config) kind() string         { return "config_option_update" }
func (Notice) kind() string         { return "notice" }

// Titled tells a session's title.
func Titled(title, updatedAt string) SessionInfo {
	return SessionInfo{"session_info_update", title, updatedAt}
}

// Configured tells options that somebody else has changed.
func Configured(o []Option) Config { return Config{"config_option_update", o} }

// Used tells how full a window is. cost of 0 is one that is not known.
func Used(used, size int64, cost float64) Usage {
	u := Usage{SessionUpdate: "usage_update", Used: used, Size: size}
	if cost > 0 {
		u.Cost = &Cost{cost, "USD"}
	}
	return u
}
