// Package acptest is an editor for tests: it speaks the Agent Client Protocol
// and holds every line it gets against the schema and the order that the
// protocol promises. What is wrong with them, Faults tells.
package acptest

import (
	"bytes"
	_ "embed" // the schema
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"codework/messages"
	"codework/protocol/acp"
)

//go:embed schema.json
var schemaText []byte

var schema = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	var s jsonschema.Schema
	if err := json.Unmarshal(schemaText, &s); err != nil {
		return nil, err
	}
	return s.Resolve(nil)
})

// Valid holds one line against the schema of what the agent may send.
func Valid(line []byte) error {
	s, err := schema()
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(line, &v); err != nil {
		return err
	}
	return s.Validate(v)
}

// Line is one message of the agent.
type Line struct {
	At     time.Time
	ID     json.RawMessage
	Result json.RawMessage
	Error  *acp.Error
	// Session, Kind and Update are those of an update.
	Session string
	Kind    string
	Update  Update
}

// Update are the members of an update that tests look at.
type Update struct {
	SessionUpdate string
	MessageID     string `json:"messageId"`
	ToolCallID    string `json:"toolCallId"`
	Title         string
	Kind          string
	Status        string
	Content       json.RawMessage
	RawInput      json.RawMessage `json:"rawInput"`
	RawOutput     json.RawMessage `json:"rawOutput"`
	Locations     []acp.Location
	ConfigOptions []acp.Option `json:"configOptions"`
	Used, Size    int64
	Description   string
}

// Text is the text of a chunk.
func (u Update) Text() string {
	var b struct{ Text string }
	if json.Unmarshal(u.Content, &b) != nil {
		return "" // no chunk
	}
	return b.Text
}

// asked is a request that was sent.
type asked struct {
	method, session string
	answered        bool
}

// Client is the editor.
type Client struct {
	w io.Writer

	mu      sync.Mutex // guards what follows
	n       int
	asked   map[string]*asked
	lines   []Line
	faults  []string
	more    chan struct{} // closed when a line comes, and then another
	ended   bool
	known   map[string]bool
	calls   map[string]bool // by session and call: ended
	writing sync.Mutex
	// Words are what the gateway says to the bridge.
	Words chan acp.Word
}

// New makes a client that writes to w. Read must be running.
func New(w io.Writer) *Client {
	return &Client{w: w, asked: map[string]*asked{}, more: make(chan struct{}), known: map[string]bool{}, calls: map[string]bool{}, Words: make(chan acp.Word, 8)}
}

// Over makes a client of a gateway's connection and says hello. Read is
// started; it ends with the connection.
func Over(conn acp.Conn, hello messages.Hello) (*Client, error) {
	if err := acp.Say(conn, acp.Word{Hello: &hello}); err != nil {
		return nil, err
	}
	f, err := conn.Read()
	if err != nil {
		return nil, err
	}
	if w, err := acp.Heard(f); err != nil || w.Info == nil {
		return nil, fmt.Errorf("hello was answered with %s (%w)", f.Data, err)
	}
	c := New(frames{conn})
	go c.Read(&reader{conn: conn, words: c.Words})
	return c, nil
}

type frames struct{ conn acp.Conn }

func (f frames) Write(p []byte) (int, error) { return len(p), f.conn.Write(acp.Frame{Data: p}) }

type reader struct {
	conn  acp.Conn
	rest  []byte
	words chan<- acp.Word
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		f, err := r.conn.Read()
		if err != nil {
			return 0, io.EOF
		}
		if !f.Control {
			r.rest = f.Data
			continue
		}
		if w, err := acp.Heard(f); err == nil {
			r.words <- w
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Read takes what the agent sends until it ends.
func (c *Client) Read(r io.Reader) {
	lines := acp.NewLines(func() ([]byte, error) {
		b := make([]byte, 64<<10)
		n, err := r.Read(b)
		if n > 0 {
			return b[:n], nil
		}
		return nil, err
	})
	for {
		line, err := lines.Next()
		if err != nil {
			break
		}
		c.take(line)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	close(c.more)
	c.more = make(chan struct{})
}

func (c *Client) take(line []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fault := func(format string, a ...any) {
		c.faults = append(c.faults, fmt.Sprintf(format, a...)+": "+string(line[:min(len(line), 300)]))
	}
	if len(line) >= acp.MaxOut {
		fault("a line of %d bytes", len(line))
	}
	if err := Valid(line); err != nil {
		fault("not as the schema says (%v)", err)
	}
	var m struct {
		ID     json.RawMessage
		Result json.RawMessage
		Error  *acp.Error
		Method string
		Params struct {
			SessionID string
			Update    Update
		}
	}
	if err := json.Unmarshal(line, &m); err != nil {
		fault("not JSON (%v)", err)
		return
	}
	l := Line{At: time.Now(), ID: m.ID, Result: m.Result, Error: m.Error, Session: m.Params.SessionID, Update: m.Params.Update, Kind: m.Params.Update.SessionUpdate}
	if m.Method == "" {
		c.answered(l, fault)
	} else {
		c.updated(l, fault)
	}
	c.lines = append(c.lines, l)
	close(c.more)
	c.more = make(chan struct{})
}

func (c *Client) answered(l Line, fault func(string, ...any)) {
	a := c.asked[string(l.ID)]
	switch {
	case string(l.ID) == "null" && l.Error != nil:
		return
	case a == nil:
		fault("answer to nothing")
		return
	case a.answered:
		fault("a second answer")
	}
	a.answered = true
	if l.Error != nil {
		return
	}
	switch a.method {
	case acp.MethodNew:
		var r acp.NewResult
		if json.Unmarshal(l.Result, &r) == nil {
			c.known[r.SessionID] = true
		}
	case acp.MethodPrompt:
		if !c.open(acp.MethodPrompt, a.session) {
			for call, over := range c.calls {
				if !over && len(call) > len(a.session) && call[:len(a.session)] == a.session {
					fault("call %s is open behind its turn", call)
				}
			}
		}
	}
}

// open tells whether a request for the session is not answered yet.
func (c *Client) open(method, session string) bool {
	for _, a := range c.asked {
		if a.method == method && a.session == session && !a.answered {
			return true
		}
	}
	return false
}

func (c *Client) updated(l Line, fault func(string, ...any)) {
	if !c.known[l.Session] {
		fault("update of a session that is not known")
	}
	prompt, load := c.open(acp.MethodPrompt, l.Session), c.open(acp.MethodLoad, l.Session)
	id := l.Session + " " + l.Update.ToolCallID
	over, begun := c.calls[id]
	switch l.Kind {
	case acp.UserChunk:
		if !load {
			fault("words of the user outside a replay")
		}
	case acp.AgentChunk, acp.ThoughtChunk:
		if !prompt && !load {
			fault("text outside a turn")
		}
	case "tool_call":
		if !prompt && !load {
			fault("call outside a turn")
		}
		if begun && !load {
			fault("call begun twice")
		}
		c.calls[id] = false
	case "tool_call_update":
		if !prompt && !load {
			fault("news of a call outside a turn")
		}
		if !begun || over {
			fault("news of a call that is not open")
		}
		if l.Update.Status != "" {
			c.calls[id] = true
		}
	}
}

// Send writes bytes as they are.
func (c *Client) Send(text string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err := io.WriteString(c.w, text)
	return err
}

// Line makes the line of a request and remembers that it was asked.
func (c *Client) Line(method string, params any) (line, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	id = strconv.Itoa(c.n)
	return c.lineOf(method, id, params), id
}

func (c *Client) lineOf(method, id string, params any) string {
	b, err := messages.JSON(params)
	if err != nil {
		panic(err)
	}
	var p struct{ SessionID string }
	_ = json.Unmarshal(b, &p) // one without a session
	c.asked[id] = &asked{method: method, session: p.SessionID}
	if method == acp.MethodLoad || method == acp.MethodResume {
		c.known[p.SessionID] = true
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`+"\n", id, method, b)
}

// Ask sends a request.
func (c *Client) Ask(method string, params any) (id string, err error) {
	line, id := c.Line(method, params)
	return id, c.Send(line)
}

// Note is the line of a notification.
func Note(method string, params any) string {
	b, err := messages.JSON(params)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`+"\n", method, b)
}

// Until waits for a line for which ok is true, from the n-th on, and returns it
// and the number of the next.
func (c *Client) Until(limit time.Duration, n int, ok func(Line) bool) (Line, int, error) {
	late := time.After(limit)
	for {
		c.mu.Lock()
		lines, more, ended := c.lines, c.more, c.ended
		c.mu.Unlock()
		for ; n < len(lines); n++ {
			if ok(lines[n]) {
				return lines[n], n + 1, nil
			}
		}
		if ended {
			return Line{}, n, io.EOF
		}
		select {
		case <-more:
		case <-late:
			return Line{}, n, fmt.Errorf("nothing of the kind came in %s; %d lines did", limit, len(lines))
		}
	}
}

// Answer waits for the answer to a request.
func (c *Client) Answer(limit time.Duration, id string) (Line, error) {
	l, _, err := c.Until(limit, 0, func(l Line) bool { return bytes.Equal(l.ID, []byte(id)) })
	return l, err
}

// Call asks and waits; an error of the agent is an *acp.Error.
func (c *Client) Call(limit time.Duration, method string, params, result any) error {
	id, err := c.Ask(method, params)
	if err != nil {
		return err
	}
	l, err := c.Answer(limit, id)
	switch {
	case err != nil:
		return err
	case l.Error != nil:
		return l.Error
	case result == nil:
		return nil
	}
	return json.Unmarshal(l.Result, result)
}

// Lines are all lines so far.
func (c *Client) Lines() []Line {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// Faults are what was wrong so far.
func (c *Client) Faults() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.faults)
}
