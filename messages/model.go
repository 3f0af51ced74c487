package messages

import (
	"encoding/json"
	"time"
)

// Protocol is a wire dialect.
type Protocol string

// The wire dialects that settings and the catalog may name.
const (
	ProtocolCompatible      Protocol = "openai-compatible"
	ProtocolOpenAI          Protocol = "openai"
	ProtocolAnthropic       Protocol = "anthropic"
	ProtocolGoogle          Protocol = "google"
	ProtocolOpenRouter      Protocol = "openrouter"
	ProtocolXAI             Protocol = "xai"
	ProtocolCodex           Protocol = "openai-codex"
	ProtocolVertex          Protocol = "google-vertex"
	ProtocolVertexAnthropic Protocol = "google-vertex-anthropic"
	ProtocolOffline         Protocol = "offline"
)

// ProtocolCopilot is the dialect of GitHub Copilot, which speaks three of the
// others, by model. Settings and the catalog name the one of the model.
const ProtocolCopilot Protocol = "github-copilot"

// ThinkingLevel is how much a model is asked to reason.
type ThinkingLevel string

// ThinkingLevels in rising order.
var ThinkingLevels = []ThinkingLevel{"off", "minimal", "low", "medium", "high", "xhigh", "max"}

// Valid tells whether l is one of ThinkingLevels.
func (l ThinkingLevel) Valid() bool {
	for _, k := range ThinkingLevels {
		if k == l {
			return true
		}
	}
	return false
}

// ModelRef names a model.
type ModelRef struct {
	Provider string `json:"provider"`
	ID       string `json:"id"`
}

func (r ModelRef) String() string { return r.Provider + "/" + r.ID }

// ModelProvider is the service that offers a model.
type ModelProvider struct {
	ID      string                     `json:"id"`
	Name    string                     `json:"name"`
	Source  string                     `json:"source"`        // env, config, custom, api, unknown
	Env     []string                   `json:"env"`           // variables that may hold the key, in order
	Key     string                     `json:"key,omitempty"` // "${NAME}", never a literal
	Options map[string]json.RawMessage `json:"options,omitempty"`
}

// Model is an entry of the catalog. Zero ContextWindow or MaxTokens means
// unknown.
type Model struct {
	ID       string        `json:"id"`
	Name     string        `json:"name"`
	Provider ModelProvider `json:"provider"`
	Protocol Protocol      `json:"protocol"`
	BaseURL  string        `json:"baseUrl"`

	Reasoning bool `json:"reasoning"`
	// ThinkingLevelMap gives the provider's word for a level; null means the
	// level does not exist there.
	ThinkingLevelMap map[ThinkingLevel]*string `json:"thinkingLevelMap,omitempty"`
	Input            []string                  `json:"input"` // text, image
	Cost             ModelCost                 `json:"cost"`
	ContextWindow    int64                     `json:"contextWindow"`
	MaxTokens        int64                     `json:"maxTokens"`

	Headers map[string]string `json:"headers,omitempty"`
	// Compat switches quirks of compatible servers; the dialect says which
	// names it knows.
	Compat          map[string]json.RawMessage            `json:"compat,omitempty"`
	Options         map[string]json.RawMessage            `json:"options,omitempty"`
	ProviderOptions map[string]map[string]json.RawMessage `json:"providerOptions,omitempty"`
	API             *ModelAPI                             `json:"api,omitempty"`
}

// ModelAPI overrides how one model of a provider is reached.
type ModelAPI struct {
	ID     string `json:"id,omitempty"`
	URL    string `json:"url,omitempty"`
	Method string `json:"method,omitempty"`
}

// Ref is the model's name.
func (m Model) Ref() ModelRef { return ModelRef{Provider: m.Provider.ID, ID: m.ID} }

// AcceptsImages tells whether the model takes image input.
func (m Model) AcceptsImages() bool {
	for _, in := range m.Input {
		if in == "image" {
			return true
		}
	}
	return false
}

// AcceptsTools tells whether the model can be offered tools: all can, but those
// whose compat entry has supportsTools false.
func (m Model) AcceptsTools() bool { return string(m.Compat["supportsTools"]) != "false" }

// Rates are US dollars per million tokens.
type Rates struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cacheRead"`
	CacheWrite float64 `json:"cacheWrite"`
}

// ModelCost is what a model's tokens cost. Of the tiers whose threshold the
// prompt passes, the highest one's rates hold for the whole request.
type ModelCost struct {
	Rates
	Tiers []CostTier `json:"tiers,omitempty"`
}

// CostTier are the rates of requests with more than InputTokensAbove tokens
// of prompt, cached ones included.
type CostTier struct {
	Rates
	InputTokensAbove int64 `json:"inputTokensAbove"`
}

// CacheRetention is how long a provider is asked to keep the prompt cached.
type CacheRetention string

// The retentions; empty leaves it to the provider.
const (
	CacheNone  CacheRetention = "none"
	CacheShort CacheRetention = "short"
	CacheLong  CacheRetention = "long"
)

// RequestOptions are the settings of one exchange that shape its requests.
// Pointers are nil where nobody said anything.
type RequestOptions struct {
	Temperature *float64
	MaxTokens   int64 // cap on answer tokens; 0 is the model's maximum
	Timeout     time.Duration
	IdleTimeout time.Duration
	// HTTPRetries is how often a request that failed before its first event
	// is sent again below the retries of the turn; they multiply.
	HTTPRetries     int
	CacheRetention  CacheRetention
	Headers         map[string]string // already resolved
	Metadata        map[string]json.RawMessage
	ThinkingBudgets map[ThinkingLevel]int64
	// Extra goes into the request body as it is.
	Extra map[string]json.RawMessage
}

// ToolDefinition is what a model is told of a tool.
type ToolDefinition struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"` // JSON Schema of type object
}

// Request is one attempt's question to a provider. Messages are committed
// entries, oldest first, each with one result per call.
type Request struct {
	SessionID string
	MessageID string // the id the answer will have
	Model     Model
	APIKey    string // already resolved; empty sends none
	// Login is what a stored login says beside its key; nil when the key came
	// from elsewhere.
	Login    *Login
	System   string
	Messages []Message
	Tools    []ToolDefinition
	Thinking ThinkingLevel // already fitted to the model
	Options  RequestOptions
	// Blob loads an image by its name.
	Blob func(name string) ([]byte, error)
	// Cache keeps the encoded form of messages between the requests of one
	// session. It is used by one request at a time; nil encodes afresh.
	Cache *EncodeCache
}

// Login is what the credentials of a subscription say beside their bearer
// token. Neither field is secret.
type Login struct {
	AccountID string // of a ChatGPT account; empty for other providers
	Endpoint  string // base URL the provider gave for this account; empty keeps the model's
}

// EncodeCache holds what a dialect made of messages that never change again.
// A different key (another model, another dialect) empties it. It is not safe
// for concurrent use: a session has one request under way.
type EncodeCache struct {
	key     string
	entries map[string]any
}

// For returns the entries made under this key, after forgetting any others.
// The map is the caller's to fill, by message id, with about that many.
func (c *EncodeCache) For(key string, messages int) map[string]any {
	if c.entries == nil || c.key != key {
		c.key, c.entries = key, make(map[string]any, messages)
	}
	return c.entries
}

// StreamKind says which fields of a StreamEvent count.
type StreamKind uint8

// The stream of every dialect: one StreamStart, parts, then exactly one
// StreamDone or StreamError and nothing after it. A StreamError may also come
// first.
const (
	StreamStart StreamKind = iota + 1
	StreamTextStart
	StreamTextDelta
	StreamTextEnd
	StreamThinkingStart
	StreamThinkingDelta
	StreamThinkingEnd
	StreamCallStart
	StreamCallDelta
	StreamCallEnd
	StreamDone
	StreamError
)

// StreamEvent is one step of a model's answer.
type StreamEvent struct {
	Kind  StreamKind
	Index int    // of the part in the message
	Delta string // text, thinking, or a fragment of call arguments
	More  int    // of a delta: how many that came behind it were joined to it
	Part  Part   // CallStart: id and name; the End kinds: the whole part
	// RequestDigest is the hex SHA-256 of the request body (StreamStart).
	RequestDigest string
	// Message is the finished message (StreamDone), or with StreamError what
	// is known of it: usage, response id.
	Message *Message
	Failure *Failure // StreamError
}
