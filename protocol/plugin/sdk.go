package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Plugin is a plugin that is being written. Everything is added before Run:
//
//	p := plugin.New("acme.tool.weather", "1.0.0")
//	plugin.Tool(p, "forecast", "Says the weather of a place.", func(ctx context.Context, c *plugin.Call, in struct {
//		Place string `json:"place"`
//	}) (string, error) {
//		return "rain in " + in.Place, nil
//	})
//	p.Before("bash", func(ctx context.Context, c *plugin.Call, b plugin.Before) (plugin.Verdict, error) {
//		return plugin.Verdict{Block: bytes.Contains(b.Arguments, []byte("rm -rf")), Reason: "not that"}, nil
//	})
//	log.Fatal(p.Run(context.Background()))
type Plugin struct {
	version string
	says    Declaration
	add     []func(*mcp.Server, *Plugin)
	plan    Plan
	setup   func(ctx context.Context, s Setup, plan *Plan) error
	before  map[string]func(context.Context, *Call, Before) (Verdict, error)
	after   map[string]func(context.Context, *Call, After) (Change, error)
	link    *link
}

// New begins a plugin of kind tool.
func New(id, version string) *Plugin {
	return &Plugin{version: version, says: Declaration{Version: Version, ID: id, Kind: KindTool},
		before: map[string]func(context.Context, *Call, Before) (Verdict, error){}, after: map[string]func(context.Context, *Call, After) (Change, error){}}
}

// Declare changes what the plugin says of itself: its kind, OptIn, and the
// events that it will publish. What the other methods of Plugin need is
// declared by them.
func (p *Plugin) Declare(change func(*Declaration)) { change(&p.says) }

// UseSandbox lets calls and hooks use the session's sandbox.
func (p *Plugin) UseSandbox() { p.says.Sandbox = true }

// Tool adds a tool. The schema of its arguments is made of In, a struct with
// JSON tags, whose fields without omitempty are required; a tag
// `jsonschema:"…"` describes a field. An error is shown to the model.
func Tool[In any](p *Plugin, name, description string, run func(ctx context.Context, c *Call, in In) (string, error)) {
	p.add = append(p.add, func(s *mcp.Server, p *Plugin) {
		mcp.AddTool(s, &mcp.Tool{Name: name, Description: description}, func(ctx context.Context, r *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
			text, err := run(ctx, p.call(r), in)
			if err != nil {
				return nil, nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
		})
	})
}

// Describe says how a tool of the plugin appears in the system prompt.
func (p *Plugin) Describe(t ToolPlan) { p.plan.Tools = append(p.plan.Tools, t) }

// Before is asked before each call of a tool, of any plugin.
func (p *Plugin) Before(tool string, hook func(context.Context, *Call, Before) (Verdict, error)) {
	p.says.Hooks = true
	p.before[tool] = hook
}

// After is told of each finished call of a tool.
func (p *Plugin) After(tool string, hook func(context.Context, *Call, After) (Change, error)) {
	p.says.Hooks = true
	p.after[tool] = hook
}

// Section changes a part of the system prompt.
func (p *Plugin) Section(s Section) {
	p.says.Prompt = true
	p.plan.Sections = append(p.plan.Sections, s)
}

// Setup is called at the start of every exchange, and may change the plan for
// it: Declare says Prompt when it changes the system prompt, and Hooks when it
// names hooks.
func (p *Plugin) Setup(f func(ctx context.Context, s Setup, plan *Plan) error) { p.setup = f }

// Publish tells an event, with data that has the JSON form of an object. An
// event that was not declared is dropped by the host.
func (p *Plugin) Publish(ctx context.Context, kind, sessionID string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", kind, err)
	}
	if p.link == nil {
		return errNotRunning
	}
	return p.link.send(ctx, MethodEvent, jsonrpc.ID{}, Event{Type: kind, SessionID: sessionID, Data: b})
}

var errNotRunning = errors.New("the plugin does not run")

// Run serves the plugin on standard input and output until the host closes
// them.
func (p *Plugin) Run(ctx context.Context) error {
	return p.Serve(ctx, os.Stdin, os.Stdout)
}

// The methods of the extension as the library wants them.
type (
	setupParams struct {
		mcp.ParamsBase
		Setup
	}
	planResult struct {
		mcp.ResultBase
		Plan
	}
	beforeParams struct {
		mcp.ParamsBase
		Before
	}
	verdictResult struct {
		mcp.ResultBase
		Verdict
	}
	afterParams struct {
		mcp.ParamsBase
		After
	}
	changeResult struct {
		mcp.ResultBase
		Change
	}
)

// Serve serves the plugin over a stream of lines until it ends.
func (p *Plugin) Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	caps := &mcp.ServerCapabilities{}
	caps.AddExtension(Extension, p.says.settings())
	s := mcp.NewServer(&mcp.Implementation{Name: p.says.ID, Version: p.version}, &mcp.ServerOptions{Capabilities: caps})
	for _, add := range p.add {
		add(s, p)
	}
	// They cannot fail: the names are none of the protocol's own.
	_ = mcp.AddReceivingCustomMethod(s, MethodSetup, func(ctx context.Context, _ *mcp.ServerSession, q *setupParams) (*planResult, error) {
		plan, err := p.planFor(ctx, q.Setup)
		return &planResult{Plan: plan}, err
	})
	_ = mcp.AddReceivingCustomMethod(s, MethodBefore, func(ctx context.Context, _ *mcp.ServerSession, q *beforeParams) (*verdictResult, error) {
		hook := p.before[q.Tool]
		if hook == nil {
			return &verdictResult{}, nil
		}
		v, err := hook(ctx, p.during(q.SessionID, q.CallID, ""), q.Before)
		return &verdictResult{Verdict: v}, err
	})
	_ = mcp.AddReceivingCustomMethod(s, MethodAfter, func(ctx context.Context, _ *mcp.ServerSession, q *afterParams) (*changeResult, error) {
		hook := p.after[q.Tool]
		if hook == nil {
			return &changeResult{}, nil
		}
		c, err := hook(ctx, p.during(q.SessionID, q.CallID, ""), q.After)
		return &changeResult{Change: c}, err
	})
	p.link = &link{next: &mcp.IOTransport{Reader: in, Writer: out}, asked: map[string]chan *jsonrpc.Response{}}
	err := s.Run(ctx, p.link)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// settings is the declaration as a JSON object.
func (d Declaration) settings() map[string]any {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // strings and numbers
	}
	var m map[string]any
	_ = json.Unmarshal(b, &m) // was encoded just now
	return m
}

func (p *Plugin) planFor(ctx context.Context, s Setup) (Plan, error) {
	plan := Plan{Tools: slices.Clone(p.plan.Tools), Sections: slices.Clone(p.plan.Sections)}
	hooks := map[string]*Hook{}
	of := func(tool string) *Hook {
		if hooks[tool] == nil {
			hooks[tool] = &Hook{Tool: tool}
		}
		return hooks[tool]
	}
	for tool := range p.before {
		of(tool).Before = true
	}
	for tool := range p.after {
		of(tool).After = true
	}
	for _, h := range hooks {
		plan.Hooks = append(plan.Hooks, *h)
	}
	slices.SortFunc(plan.Hooks, func(a, b Hook) int { return strings.Compare(a.Tool, b.Tool) })
	if p.setup == nil {
		return plan, nil
	}
	err := p.setup(ctx, s, &plan)
	return plan, err
}

// Call is the call that a tool or hook serves. Its methods use the session's
// sandbox, and work only until the tool or hook returns.
type Call struct {
	SessionID string
	ID        string
	Directory string // the session's; "" in hooks

	link     *link
	progress func(ctx context.Context, text string)
}

func (p *Plugin) during(session, id, dir string) *Call {
	return &Call{SessionID: session, ID: id, Directory: dir, link: p.link, progress: func(context.Context, string) {}}
}

func (p *Plugin) call(r *mcp.CallToolRequest) *Call {
	text := func(key string) string { s, _ := r.Params.Meta[key].(string); return s }
	c := p.during(text(MetaSession), text(MetaCall), text(MetaDirectory))
	if token := r.Params.GetProgressToken(); token != nil {
		var step atomic.Int64
		c.progress = func(ctx context.Context, text string) {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Message: text, Progress: float64(step.Add(1))}) // it may be lost
		}
	}
	return c
}

// Progress shows what there is so far; it may be lost.
func (c *Call) Progress(ctx context.Context, text string) { c.progress(ctx, text) }

func (c *Call) in() InCall { return InCall{c.SessionID, c.ID} }

// Exec runs a command; its call is filled in.
func (c *Call) Exec(ctx context.Context, e Exec) (ExecResult, error) {
	e.InCall = c.in()
	return askHost[ExecResult](ctx, c.link, MethodSandboxExec, e)
}

// Read reads a whole file.
func (c *Call) Read(ctx context.Context, path string) ([]byte, error) {
	var all []byte
	for {
		r, err := askHost[ReadResult](ctx, c.link, MethodSandboxRead, Read{InCall: c.in(), Path: path, Offset: int64(len(all))})
		if err != nil {
			return nil, err
		}
		all = append(all, r.Data...)
		if len(r.Data) < MaxRead {
			return all, nil
		}
	}
}

// Write replaces a file.
func (c *Call) Write(ctx context.Context, path string, data []byte) error {
	_, err := askHost[struct{}](ctx, c.link, MethodSandboxWrite, Write{c.in(), path, data})
	return err
}

// Stat tells about a file.
func (c *Call) Stat(ctx context.Context, path string) (Info, error) {
	return askHost[Info](ctx, c.link, MethodSandboxStat, Path{c.in(), path})
}

// List gives the entries of a folder.
func (c *Call) List(ctx context.Context, path string) (Listing, error) {
	return askHost[Listing](ctx, c.link, MethodSandboxList, Path{c.in(), path})
}

// link is the plugin's transport and connection: it sends what the extension
// asks of the host, for which the library has no place, and takes the answers
// out of the stream.
type link struct {
	next mcp.Transport
	conn mcp.Connection

	mu    sync.Mutex // guards the following
	count int
	asked map[string]chan *jsonrpc.Response
}

// ownID starts the ids of our own requests; the library's are numbers.
const ownID = "codework-"

// Connect connects the transport below.
func (l *link) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := l.next.Connect(ctx)
	l.conn = c
	return l, err
}

// Read returns the next message that is not for us.
func (l *link) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := l.conn.Read(ctx)
		if err != nil {
			return nil, err
		}
		r, ok := m.(*jsonrpc.Response)
		if !ok {
			return m, nil
		}
		id, ok := r.ID.Raw().(string)
		if !ok || !strings.HasPrefix(id, ownID) {
			return m, nil
		}
		l.mu.Lock()
		c := l.asked[id]
		delete(l.asked, id)
		l.mu.Unlock()
		if c != nil {
			c <- r
		}
	}
}

func (l *link) Write(ctx context.Context, m jsonrpc.Message) error { return l.conn.Write(ctx, m) }
func (l *link) Close() error                                       { return l.conn.Close() }
func (l *link) SessionID() string                                  { return l.conn.SessionID() }

func (l *link) send(ctx context.Context, method string, id jsonrpc.ID, params any) error {
	b, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("encode %s: %w", method, err)
	}
	return l.conn.Write(ctx, &jsonrpc.Request{ID: id, Method: method, Params: b})
}

// askHost makes a call to the host.
func askHost[T any](ctx context.Context, l *link, method string, params any) (T, error) {
	var out T
	if l == nil {
		return out, errNotRunning
	}
	answer := make(chan *jsonrpc.Response, 1)
	l.mu.Lock()
	l.count++
	name := ownID + strconv.Itoa(l.count)
	l.asked[name] = answer
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.asked, name)
		l.mu.Unlock()
	}()
	id, err := jsonrpc.MakeID(name)
	if err == nil {
		err = l.send(ctx, method, id, params)
	}
	if err != nil {
		return out, err
	}
	select {
	case r := <-answer:
		if r.Error != nil {
			return out, r.Error
		}
		if err := json.Unmarshal(r.Result, &out); err != nil {
			return out, fmt.Errorf("answer to %s: %w", method, err)
		}
		return out, nil
	case <-ctx.Done():
		return out, ctx.Err()
	}
}
