package messages

import "encoding/json"

// Role tells who wrote a message.
type Role string

// The two roles. Tool results live inside the assistant message that called.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

// EntryState is how far an assistant message got.
type EntryState string

// A draft is being written, a committed message counts, an aborted one was
// stopped or failed: of it only kept text is ever sent to a model again.
const (
	EntryDraft     EntryState = "draft"
	EntryCommitted EntryState = "committed"
	EntryAborted   EntryState = "aborted"
)

// StopReason is why a model stopped writing.
type StopReason string

// The stop reasons of a finished message.
const (
	StopStop    StopReason = "stop"
	StopLength  StopReason = "length"
	StopToolUse StopReason = "toolUse"
)

// Message is one node of a conversation.
type Message struct {
	ID    string     `json:"id"`
	Role  Role       `json:"role"`
	State EntryState `json:"state,omitempty"` // assistant only
	Parts []Part     `json:"parts"`

	// What wrote an assistant message: thinking and signatures go back only
	// to the same three.
	Provider string `json:"provider,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Model    string `json:"model,omitempty"`
	// ResponseModel is the model the provider says answered.
	ResponseModel string     `json:"responseModel,omitempty"`
	ResponseID    string     `json:"responseId,omitempty"`
	StopReason    StopReason `json:"stopReason,omitempty"`
	Usage         *Usage     `json:"usage,omitempty"`
	Failure       *Failure   `json:"error,omitempty"`
	Timestamp     int64      `json:"timestamp,omitempty"` // epoch milliseconds
}

// PartType says which fields of a Part count.
type PartType string

// The part types.
const (
	PartText     PartType = "text"
	PartThinking PartType = "thinking"
	PartImage    PartType = "image"
	PartToolCall PartType = "toolCall"
)

// Part is one piece of a message.
type Part struct {
	Type PartType `json:"type"`

	// Text of a text or thinking part.
	Text string `json:"text,omitempty"`
	// Signature is what the provider wants back with a part, byte for byte:
	// a thinking signature, a text item id, a thought signature.
	Signature string `json:"signature,omitempty"`
	// Redacted thinking has no text; Signature holds the provider's data.
	Redacted bool `json:"redacted,omitempty"`

	// An image is kept beside the log and named by its content.
	MediaType string `json:"mediaType,omitempty"`
	Blob      string `json:"blob,omitempty"`
	Bytes     int64  `json:"bytes,omitempty"`
	// Data is an image that has not been stored yet. It is never encoded.
	Data []byte `json:"-"`

	// A tool call.
	CallID    string `json:"callID,omitempty"`
	Name      string `json:"name,omitempty"`
	Label     string `json:"label,omitempty"`
	Arguments string `json:"arguments,omitempty"` // as the model wrote them
	ItemID    string `json:"itemId,omitempty"`    // the provider's second id of a call
	// Call is how far the call got; Result is set in every terminal state.
	Call   CallState   `json:"state,omitempty"`
	Result *ToolResult `json:"result,omitempty"`
}

// CallState is how far a tool call got.
type CallState string

// Aborted means side effects may exist; skipped means it never started.
const (
	CallPending   CallState = "pending"
	CallRunning   CallState = "running"
	CallCompleted CallState = "completed"
	CallError     CallState = "error"
	CallSkipped   CallState = "skipped"
	CallAborted   CallState = "aborted"
)

// Terminal tells whether a call in this state has its result.
func (s CallState) Terminal() bool {
	switch s {
	case CallCompleted, CallError, CallSkipped, CallAborted:
		return true
	}
	return false
}

// ToolResult is what a tool call gave. Content holds text and image parts;
// Details is for clients and is never sent to the model.
type ToolResult struct {
	Content []Part          `json:"content"`
	Details json.RawMessage `json:"details,omitempty"`
	IsError bool            `json:"isError"`
}

// TextResult is a result of one text part.
func TextResult(text string, isError bool) ToolResult {
	return ToolResult{Content: []Part{{Type: PartText, Text: text}}, IsError: isError}
}

// Usage counts tokens of one assistant message. Input excludes what was read
// from or written to the provider's cache; Output includes Reasoning.
type Usage struct {
	Input       int64 `json:"input"`
	Output      int64 `json:"output"`
	Reasoning   int64 `json:"reasoning,omitempty"`
	CacheRead   int64 `json:"cacheRead"`
	CacheWrite  int64 `json:"cacheWrite"`
	TotalTokens int64 `json:"totalTokens"`
	Cost        Cost  `json:"cost"`
	// ProviderCost is what the provider itself says that the answer cost, in US
	// dollars; 0 where it says nothing. Cost beside it is computed.
	ProviderCost float64 `json:"providerCost,omitempty"`
}

// Cost is in US dollars.
type Cost struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cacheRead"`
	CacheWrite float64 `json:"cacheWrite"`
	Total      float64 `json:"total"`
}

// Add returns the sum of two usages.
func (u Usage) Add(v Usage) Usage {
	u.Input += v.Input
	u.Output += v.Output
	u.Reasoning += v.Reasoning
	u.CacheRead += v.CacheRead
	u.CacheWrite += v.CacheWrite
	u.TotalTokens += v.TotalTokens
	u.Cost.Input += v.Cost.Input
	u.Cost.Output += v.Cost.Output
	u.Cost.CacheRead += v.Cost.CacheRead
	u.Cost.CacheWrite += v.Cost.CacheWrite
	u.Cost.Total += v.Cost.Total
	u.ProviderCost += v.ProviderCost
	return u
}

// Valid tells whether every count and cost is a number of at least zero.
func (u Usage) Valid() bool {
	for _, n := range []int64{u.Input, u.Output, u.Reasoning, u.CacheRead, u.CacheWrite, u.TotalTokens} {
		if n < 0 {
			return false
		}
	}
	for _, c := range []float64{u.Cost.Input, u.Cost.Output, u.Cost.CacheRead, u.Cost.CacheWrite, u.Cost.Total, u.ProviderCost} {
		if !(c >= 0) { // also refuses NaN
			return false
		}
	}
	return true
}
