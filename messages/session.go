package messages

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Delivery says when a prompt joins the work.
type Delivery string

// A steer is promoted before the next model request, a followUp after the
// running work.
const (
	Steer    Delivery = "steer"
	FollowUp Delivery = "followUp"
)

// Runtime is what a session overrides of the settings. Empty fields override
// nothing.
type Runtime struct {
	Model         *ModelRef     `json:"model,omitempty"`
	ThinkingLevel ThinkingLevel `json:"thinkingLevel,omitempty"`
}

// SandboxRef says where a session's tools run: an existing sandbox, a new one
// of a driver, or a remote resource of one.
type SandboxRef struct {
	ID                 string `json:"id,omitempty"`
	Driver             string `json:"driver,omitempty"`
	ProviderResourceID string `json:"providerResourceId,omitempty"`
}

// SessionStatus is what a session does at the moment.
type SessionStatus string

// The statuses.
const (
	SessionIdle     SessionStatus = "idle"
	SessionRunning  SessionStatus = "busy"
	SessionStopping SessionStatus = "stopping"
)

// DefaultTitle is the title of a session nobody named and nobody prompted.
const DefaultTitle = "Session"

// SessionInfo is what clients are told of a session.
type SessionInfo struct {
	ID            string        `json:"id"`
	Title         string        `json:"title"`
	Directory     string        `json:"directory"`         // absolute, inside the sandbox
	HostDir       string        `json:"hostDir,omitempty"` // absolute, on the host
	Sandbox       *SandboxInfo  `json:"sandbox,omitempty"` // absent on the host
	Status        SessionStatus `json:"status,omitempty"`
	Queued        int           `json:"queued,omitempty"`
	Model         *ModelRef     `json:"model,omitempty"`
	ThinkingLevel ThinkingLevel `json:"thinkingLevel,omitempty"`
	Usage         *Usage        `json:"usage,omitempty"`
	CreatedAt     string        `json:"createdAt,omitempty"` // RFC 3339, UTC, milliseconds
	UpdatedAt     string        `json:"updatedAt,omitempty"`
	ParentID      string        `json:"parentId,omitempty"`
}

// SessionRecord is what the store keeps of a session beside its log: what the
// log does not say, and totals that would cost a scan.
type SessionRecord struct {
	ID        string `json:"id"`
	Title     string `json:"title"`
	TitleSet  bool   `json:"titleSet,omitempty"` // by a person, or from the first prompt
	Directory string `json:"directory"`
	HostDir   string `json:"hostDir,omitempty"`
	SandboxID string `json:"sandboxId,omitempty"` // empty is the host
	// AppendSystemPrompt is the caller's addendum.
	AppendSystemPrompt string  `json:"appendSystemPrompt,omitempty"`
	Runtime            Runtime `json:"runtime"`
	Usage              Usage   `json:"usage,omitzero"`     // of committed messages
	Discarded          Usage   `json:"discarded,omitzero"` // of attempts that failed or were stopped
	Turns              int     `json:"turns"`
	Queued             int     `json:"queued,omitempty"` // prompts that wait
	CreatedAt          int64   `json:"createdAt"`        // epoch milliseconds
	UpdatedAt          int64   `json:"updatedAt"`
	ParentID           string  `json:"parentId,omitempty"`
}

// World is the surrounding of a client on this machine: what its tools should
// see. It is kept in memory for the sessions that client works in, never
// stored, logged or sent over TCP.
type World struct {
	Dir           string
	Env           []string // "NAME=value"
	Umask         int      // -1: the server's own
	UserConfigDir string
	// MCPServers are those that an editor brings along for the session.
	MCPServers []MCPServer
}

// Lookup returns the value of an environment variable of this world. A world
// without an environment has no variables.
func (w *World) Lookup(name string) (string, bool) {
	if w == nil {
		return "", false
	}
	for i := len(w.Env) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(w.Env[i], "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// CreateSession asks for a new session. The answer is a SessionInfo.
type CreateSession struct {
	// ID is the id that the session gets; "" is a new one. A session that has it
	// already is the answer, whatever it was made from: so a call whose answer
	// was lost can be made again.
	ID                 string      `json:"id,omitempty"`
	Title              string      `json:"title,omitempty"`
	Directory          string      `json:"directory,omitempty"`
	HostDir            string      `json:"hostDir,omitempty"`
	Sandbox            *SandboxRef `json:"sandbox,omitempty"`
	Runtime            *Runtime    `json:"runtime,omitempty"`
	AppendSystemPrompt string      `json:"appendSystemPrompt,omitempty"`
	World              *World      `json:"-"`
}

// ListSessions asks for sessions, newest first. The answer is []SessionInfo.
type ListSessions struct {
	HostDir string `json:"hostDir,omitempty"`
	Search  string `json:"search,omitempty"`
	Limit   int    `json:"limit,omitempty"`  // 0: all
	Before  string `json:"before,omitempty"` // session id: only older ones
	// BeforeTime is the last activity of that session when it was listed, in
	// epoch milliseconds; 0 is its present one.
	BeforeTime int64 `json:"-"`
}

// GetSession asks for a SessionInfo.
type GetSession struct {
	SessionID string `json:"sessionId"`
}

// Configure changes the session's overrides; keys left out stay. The answer
// is a SessionInfo.
type Configure struct {
	SessionID string  `json:"sessionId"`
	Runtime   Runtime `json:"runtime"`
}

// Prompt saves a prompt and wakes the session. It is answered, without a
// value, when the prompt is on disk.
type Prompt struct {
	SessionID string   `json:"sessionId"`
	Text      string   `json:"text"`
	Parts     []Part   `json:"parts,omitempty"` // text and images beside Text
	Delivery  Delivery `json:"delivery,omitempty"`
	ID        string   `json:"id,omitempty"`
	// Bound names the connection with which the work ends; empty: none.
	Bound string `json:"-"`
	// UnlessBusy refuses the prompt with SessionBusy when the session works,
	// or is about to, and is not merely settling after a stop. The ID then
	// must be new.
	UnlessBusy bool   `json:"-"`
	World      *World `json:"-"`
}

// Interrupt stops the running work. The answer is an Interrupted.
type Interrupt struct {
	SessionID  string `json:"sessionId"`
	ClearQueue bool   `json:"clearQueue,omitempty"`
	// Reason is user unless the server or the bound client ends.
	Reason InterruptReason `json:"-"`
	// Prompt stops no more than what works on that prompt: one that still waits
	// is taken back, one that is done with is left alone.
	Prompt string `json:"-"`
}

// Interrupted tells whether there was work to stop.
type Interrupted struct {
	Interrupted bool `json:"interrupted"`
}

// InterruptReason is why work was stopped.
type InterruptReason string

// The reasons.
const (
	ByUser     InterruptReason = "user"
	ByShutdown InterruptReason = "shutdown"
)

// Wait is answered, without a value, when the session is idle and all it did
// is on disk. It never starts work.
type Wait struct {
	SessionID string `json:"sessionId"`
}

// HasMessage asks whether a message is part of the conversation. The answer
// is a Found.
type HasMessage struct {
	SessionID string `json:"sessionId"`
	MessageID string `json:"messageId"`
}

// Found answers HasMessage.
type Found struct {
	Found bool `json:"found"`
}

// GetQueue asks for the prompts that wait, after removing one or all. The
// answer is a Queue.
type GetQueue struct {
	SessionID string `json:"sessionId"`
	Remove    string `json:"remove,omitempty"`
	Clear     bool   `json:"clear,omitempty"`
}

// Queue are the prompts that wait.
type Queue struct {
	Queued []QueuedPrompt `json:"queued"`
}

// QueuedPrompt is a prompt that was admitted and not yet promoted.
type QueuedPrompt struct {
	ID         string   `json:"id"`
	Text       string   `json:"text"`
	Delivery   Delivery `json:"delivery"`
	AdmittedAt string   `json:"admittedAt"` // RFC 3339, UTC, milliseconds
}

// Subscribe asks for events. Without SessionID it is those of all sessions.
// After names, per session, the last durable position the reader has seen. A
// subscription to one session ends with SessionNotFound once that is deleted.
type Subscribe struct {
	SessionID string           `json:"sessionId,omitempty"`
	After     map[string]int64 `json:"after,omitempty"`
}

// Hello is the first call of a client on this machine. The answer is a
// ServerInfo.
type Hello struct {
	Version        string            `json:"version"`
	Build          string            `json:"build"`
	Protocol       int               `json:"protocol"`
	Host           string            `json:"host"`
	MountNamespace string            `json:"mountNamespace,omitempty"`
	Cwd            string            `json:"cwd"`
	Umask          int               `json:"umask"`
	Env            map[string]string `json:"env"`
	UserConfigDir  string            `json:"userConfigDir,omitempty"`
}

// ServerInfo says who answers.
type ServerInfo struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	Build     string `json:"build,omitempty"`
	Protocol  int    `json:"protocol"`
	StartedAt string `json:"startedAt"`
	PID       int    `json:"pid"`
	Home      string `json:"home,omitempty"`
	// Foreground tells that somebody started it as a server: it hands its home
	// over to nobody.
	Foreground bool         `json:"foreground,omitempty"`
	Sessions   SessionCount `json:"sessions"`
}

// SessionCount counts sessions.
type SessionCount struct {
	Total int `json:"total"`
	Busy  int `json:"busy"`
}

// Handover answers the call of the same name: what is still running.
type Handover struct {
	WaitsFor []HandoverSession `json:"waitsFor"`
}

// HandoverSession is a session a hand-over waits for.
type HandoverSession struct {
	SessionID string `json:"sessionId"`
	Title     string `json:"title"`
}

// maxIDBytes bounds ids that clients bring.
const maxIDBytes = 256

// MaxPromptBytes bounds the text of one prompt. Larger material belongs into
// a file that the model can read.
const MaxPromptBytes = 8 << 20

// Validate checks a prompt before anything is written.
func (p Prompt) Validate() error {
	if !ValidSessionID(p.SessionID) {
		return errors.New(`sessionId: expected a string starting with "ses"`)
	}
	if p.Delivery != "" && p.Delivery != Steer && p.Delivery != FollowUp {
		return errors.New("delivery: expected steer or followUp")
	}
	n := len(p.Text)
	blank := strings.TrimSpace(p.Text) == ""
	for _, q := range p.Parts {
		switch q.Type {
		case PartText:
			n += len(q.Text)
			blank = blank && strings.TrimSpace(q.Text) == ""
		case PartImage:
			blank = false
		default:
			return errors.New("parts: expected text and image parts")
		}
	}
	if blank {
		return errors.New("text: expected a prompt that is not empty")
	}
	if n > MaxPromptBytes {
		return errors.New("text: prompt is over 8 MiB")
	}
	if len(p.ID) > maxIDBytes || strings.ContainsFunc(p.ID, unicode.IsControl) {
		return errors.New("id: expected at most 256 bytes without control characters")
	}
	return nil
}

// Validate checks what can be checked before anything is made.
func (c CreateSession) Validate() error {
	if c.ID != "" && !newSessionID(c.ID) {
		return errors.New(`id: expected "ses_" and a UUID in lower case`)
	}
	if c.HostDir != "" && !path.IsAbs(c.HostDir) {
		return errors.New("hostDir: expected an absolute path")
	}
	if c.Sandbox != nil {
		if err := c.Sandbox.Validate(); err != nil {
			return err
		}
	}
	if c.Runtime != nil {
		return c.Runtime.Validate()
	}
	return nil
}

// Validate checks the form of the overrides, not whether the model exists.
func (r Runtime) Validate() error {
	if r.Model != nil && (r.Model.Provider == "" || r.Model.ID == "") {
		return errors.New("runtime.model: expected provider and id")
	}
	if r.ThinkingLevel != "" && !r.ThinkingLevel.Valid() {
		return errors.New("runtime.thinkingLevel: expected off, minimal, low, medium, high, xhigh or max")
	}
	return nil
}

// Validate refuses references that say too much or nothing.
func (r SandboxRef) Validate() error {
	switch {
	case r.ID != "" && (r.Driver != "" || r.ProviderResourceID != ""):
		return errors.New("sandbox: id goes without driver and providerResourceId")
	case r.ID == "" && r.Driver == "":
		return errors.New("sandbox: expected id or driver")
	case r.ProviderResourceID != "":
		if err := ValidateResourceID(r.ProviderResourceID); err != nil {
			return fmt.Errorf("sandbox.providerResourceId: %w", err)
		}
	}
	return nil
}

// titleRunes is the longest title made from a prompt.
const titleRunes = 60

// TitleFrom makes a title from a prompt: its first line that is not blank,
// without markdown marks and surrounding quotes, cut at a word boundary.
// A prompt without text gives "Untitled".
func TitleFrom(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimLeft(strings.TrimSpace(line), "#>*-+ \t")
		line = strings.NewReplacer("**", "", "__", "", "`", "").Replace(line)
		line = strings.Join(strings.Fields(strings.ToValidUTF8(line, "")), " ")
		line = strings.TrimSpace(strings.Trim(line, `"'“”‘’«»*_`))
		if line == "" {
			continue
		}
		return cutTitle(line)
	}
	return "Untitled"
}

func cutTitle(line string) string {
	if utf8.RuneCountInString(line) <= titleRunes {
		return line
	}
	cut := string([]rune(line)[:titleRunes])
	if i := strings.LastIndexByte(cut, ' '); i > titleRunes/2 {
		cut = cut[:i]
	}
	return strings.TrimRight(cut, " ,;:.") + "…"
}

// RawObject returns the JSON object that text holds, or {} when it holds
// something else: what events show of call arguments.
func RawObject(text string) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &m) != nil || m == nil {
		return json.RawMessage("{}")
	}
	return json.RawMessage(text)
}
