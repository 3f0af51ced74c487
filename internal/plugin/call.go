package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"codework/messages"
	"codework/protocol/plugin"
	"codework/sandboxes"
)

// How long a plugin has for what sessions wait for.
const (
	setupLimit = 5 * time.Second
	hookLimit  = 10 * time.Second
)

// The parameters and results of the extension as the library wants them.
type (
	setupParams struct {
		mcp.ParamsBase
		plugin.Setup
	}
	planResult struct {
		mcp.ResultBase
		plugin.Plan
	}
	beforeParams struct {
		mcp.ParamsBase
		plugin.Before
	}
	verdictResult struct {
		mcp.ResultBase
		plugin.Verdict
	}
	afterParams struct {
		mcp.ParamsBase
		plugin.After
	}
	changeResult struct {
		mcp.ResultBase
		plugin.Change
	}
)

// ErrUnavailable means that a plugin could not be asked: it has ended, or did
// not answer in time.
var ErrUnavailable = errors.New("the plugin cannot be asked")

// Setup tells the plugin of a new exchange and gives its answer.
func (i *Instance) Setup(ctx context.Context, s plugin.Setup) (plugin.Plan, error) {
	if len(s.Options) == 0 {
		s.Options = json.RawMessage("{}")
	}
	r, err := ask[*planResult](ctx, i, setupLimit, plugin.MethodSetup, &setupParams{Setup: s})
	if err != nil {
		return plugin.Plan{}, err
	}
	return r.Plan, nil
}

// Before asks whether a call may run. m is where the plugin may use the
// sandbox meanwhile. An error that is ErrUnavailable means that it could not
// be asked.
func (i *Instance) Before(ctx context.Context, b plugin.Before, m sandboxes.Mount) (plugin.Verdict, error) {
	ctx, end := i.calls.begin(ctx, b.SessionID, b.CallID, m, nil)
	defer end()
	r, err := ask[*verdictResult](ctx, i, hookLimit, plugin.MethodBefore, &beforeParams{Before: b})
	if err != nil {
		return plugin.Verdict{}, err
	}
	return r.Verdict, nil
}

// After tells how a call ended and gives what the plugin changes of it.
func (i *Instance) After(ctx context.Context, a plugin.After, m sandboxes.Mount) (plugin.Change, error) {
	ctx, end := i.calls.begin(ctx, a.SessionID, a.CallID, m, nil)
	defer end()
	r, err := ask[*changeResult](ctx, i, hookLimit, plugin.MethodAfter, &afterParams{After: a})
	if err != nil {
		return plugin.Change{}, err
	}
	return r.Change, nil
}

type params[T any] interface {
	*T
	mcp.Params
}

// ask makes a call of the extension that must be answered within limit.
func ask[R mcp.Result, P params[T], T any](ctx context.Context, i *Instance, limit time.Duration, method string, p P) (R, error) {
	late := fmt.Errorf("%w: no answer to %s within %s", ErrUnavailable, method, limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	r, err := mcp.CallCustomMethod[P, R](ctx, i.session, method, p)
	var answer *jsonrpc.Error
	switch {
	case err == nil:
		return r, nil
	case context.Cause(ctx) != nil:
		return r, context.Cause(ctx)
	case errors.As(err, &answer) && i.Alive():
		return r, errors.New(i.clean(shortLine([]byte(answer.Message))))
	}
	return r, fmt.Errorf("%w: %w", ErrUnavailable, i.gone(err))
}

// gone explains a call that came to nothing.
func (i *Instance) gone(err error) error {
	if !i.Alive() {
		if f := i.Failure(); f != nil {
			return f
		}
		return i.problem(Crashed, "it was stopped")
	}
	return errors.New(i.clean(shortLine([]byte(err.Error()))))
}

// Call is one tool call of a session.
type Call struct {
	SessionID string
	ID        string
	Directory string // the session's, in its sandbox
	Tool      string // the plugin's own name of it
	Arguments json.RawMessage
	Images    bool // the model takes images
	Mount     sandboxes.Mount
	Progress  func(messages.ToolResult) // must not block; nil drops it
}

// Call runs a tool. What the tool says of a failure is a result with IsError;
// so is what the plugin's side refuses. An error is that the plugin could not
// be asked, or ended meanwhile: what the call has done is not known then.
func (i *Instance) Call(ctx context.Context, c Call) (messages.ToolResult, error) {
	ctx, end := i.calls.begin(ctx, c.SessionID, c.ID, c.Mount, c.Progress)
	defer end()
	p := &mcp.CallToolParams{
		Meta: mcp.Meta{plugin.MetaSession: c.SessionID, plugin.MetaCall: c.ID, plugin.MetaDirectory: c.Directory},
		Name: c.Tool, Arguments: c.Arguments,
	}
	if c.Progress != nil {
		p.SetProgressToken(tokenOf(ctx))
	}
	r, err := i.session.CallTool(ctx, p)
	var answer *jsonrpc.Error
	switch {
	case err == nil:
		i.served.Store(true)
		return toResult(ctx, r, c.Images), nil
	case ctx.Err() != nil:
		return messages.ToolResult{}, ctx.Err()
	case i.Alive() && errors.As(err, &answer) && answer.Code != codeRejected:
		return messages.TextResult(i.clean(boundText(answer.Message)), true), nil
	}
	return messages.ToolResult{}, i.gone(err)
}

// Served tells whether the process has answered a tool call since it was
// started.
func (i *Instance) Served() bool { return i.served.Load() }

// codeRejected is the library's own for a request that did not get through: the
// reason is in the text of the error around it.
const codeRejected = -32005

// calls are the tool calls and hooks under way.
type calls struct {
	mu       sync.Mutex // guards the following
	declared *plugin.Declaration
	byToken  map[string]*running
	byCall   map[callKey][]*running
}

type callKey struct{ session, call string }

// running is a call or hook under way.
type running struct {
	ctx      context.Context
	mount    sandboxes.Mount
	progress func(messages.ToolResult)
	pace     pace
}

const (
	// maxProgress bounds the text of one progress, in bytes.
	maxProgress = 4 << 10
	// What a plugin tells beside its answers goes to readers whose queues have
	// an end: so much at once, then one in each interval. The rest is dropped.
	burst    = 50
	interval = 20 * time.Millisecond
)

// pace drops what comes too fast. The zero value is ready.
type pace struct {
	mu   sync.Mutex // guards free
	free time.Time  // when all of the burst can be had again
}

func (p *pace) allows(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free.Before(now) {
		p.free = now
	}
	if p.free.Sub(now) > (burst-1)*interval {
		return false
	}
	p.free = p.free.Add(interval)
	return true
}

type tokenKey struct{}

func tokenOf(ctx context.Context) string {
	t, _ := ctx.Value(tokenKey{}).(string)
	return t
}

var tokens atomic.Uint64

// begin records a call; end takes it out again and ends what the plugin still
// does in the sandbox for it.
func (c *calls) begin(ctx context.Context, session, call string, m sandboxes.Mount, progress func(messages.ToolResult)) (context.Context, func()) {
	token := strconv.FormatUint(tokens.Add(1), 10)
	ctx, cancel := context.WithCancel(context.WithValue(ctx, tokenKey{}, token))
	r, key := &running{ctx: ctx, mount: m, progress: progress}, callKey{session, call}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byToken == nil {
		c.byToken, c.byCall = map[string]*running{}, map[callKey][]*running{}
	}
	c.byToken[token] = r
	c.byCall[key] = append(c.byCall[key], r)
	return ctx, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.byToken, token)
		var left []*running
		for _, o := range c.byCall[key] {
			if o != r {
				left = append(left, o)
			}
		}
		if c.byCall[key] = left; len(left) == 0 {
			delete(c.byCall, key)
		}
	}
}

// find is the call that a plugin names.
func (c *calls) find(in plugin.InCall) *running {
	c.mu.Lock()
	defer c.mu.Unlock()
	if all := c.byCall[callKey{in.SessionID, in.CallID}]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (c *calls) progress(p *mcp.ProgressNotificationParams) {
	token, _ := p.ProgressToken.(string)
	c.mu.Lock()
	r := c.byToken[token]
	c.mu.Unlock()
	if r == nil || r.progress == nil {
		return
	}
	if !r.pace.allows(time.Now()) {
		return
	}
	text := cut(strings.ToValidUTF8(p.Message, "\uFFFD"), maxProgress)
	if text == "" {
		text = strconv.FormatFloat(p.Progress, 'g', -1, 64)
		if p.Total > 0 {
			text += "/" + strconv.FormatFloat(p.Total, 'g', -1, 64)
		}
	}
	r.progress(messages.TextResult(text, false))
}

func (c *calls) declare(d *plugin.Declaration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.declared = d
}

func (c *calls) sandboxed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.declared != nil && c.declared.Sandbox
}

func (c *calls) events() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.declared == nil {
		return nil
	}
	return c.declared.Events
}
