package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"codework/protocol/plugin"
	"codework/sandboxes/supervisor"
)

const (
	// handshakeLimit is how long a plugin has to start, to shake hands and to
	// name its tools, unless options say otherwise.
	handshakeLimit = 10 * time.Second
	// stopGrace is how long a plugin has to end by itself when its input has.
	stopGrace = 5 * time.Second
	// editorGrace is the same for a server of an editor, which waits for it
	// when it is closed.
	editorGrace = time.Second
	// lastOutput is how long the output of a process that has ended is read:
	// something it started may hold it open.
	lastOutput = 250 * time.Millisecond
	// legacyProtocol is offered to servers that end when they are asked the
	// newest handshake first.
	legacyProtocol = "2025-11-25"
	// maxTools is how many tools of one plugin are taken.
	maxTools = 1000
)

// Options are what a host needs.
type Options struct {
	// Processes starts programs; nil runs only servers that have a URL.
	Processes *supervisor.Host
	// LogDir is where each plugin's standard error is kept; "" keeps none.
	LogDir string
	Log    *slog.Logger
	// Version is the program's, for the handshake.
	Version string
	// Publish tells an event that a plugin sent. It must not block.
	Publish func(plugin.Event)
	// Handshake is how long a plugin has to start, to shake hands and to name
	// its tools; 0 is the 10 s that sessions wait.
	Handshake time.Duration
}

// Host starts plugins. It holds nothing but their open logs.
type Host struct {
	opt  Options
	logs logs
	all  sync.WaitGroup // processes whose end is being seen to
}

// Wait waits until nothing of any plugin runs, and their logs are closed. It is
// for when all were closed.
func (h *Host) Wait() { h.all.Wait() }

// NewHost starts nothing.
func NewHost(opt Options) *Host {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Handshake == 0 {
		opt.Handshake = handshakeLimit
	}
	if opt.Publish == nil {
		opt.Publish = func(plugin.Event) {}
	}
	return &Host{opt: opt, logs: logs{dir: opt.LogDir}}
}

// Instance is one running plugin.
type Instance struct {
	host    *Host
	program Program
	// ID is what the plugin is called, Declared what it says of itself; nil
	// for a server that only speaks MCP.
	ID       string
	Kind     plugin.Kind
	Declared *plugin.Declaration
	// Instructions are a server's words for the system prompt.
	Instructions string

	session *mcp.ClientSession
	pipes   *pipes // nil without a process
	proc    *supervisor.Process
	said    voice
	done    chan struct{}
	closing chan struct{}
	once    sync.Once
	calls   calls
	told    pace          // of events
	served  atomic.Bool   // a tool call was answered
	relist  chan struct{} // holds one: the list of tools is old

	mu     sync.Mutex // guards the following
	tools  []Tool
	warned map[string]bool
	err    error // why it ended
}

// Start starts a plugin, shakes hands and lists its tools. The error is an
// *Error, unless ctx has ended. Who gets an instance closes it.
func (h *Host) Start(ctx context.Context, p Program) (*Instance, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.opt.Handshake, errHandshakeLate)
	defer cancel()
	i, old, err := h.start(ctx, p, "")
	if old {
		i, _, err = h.start(ctx, p, legacyProtocol)
	}
	return i, err
}

var errHandshakeLate = errors.New("no answer to the handshake in time")

// start makes one try; old tells that the server may know only an older
// handshake.
func (h *Host) start(ctx context.Context, p Program, version string) (_ *Instance, old bool, err error) {
	i := &Instance{host: h, program: p, ID: p.ID, Kind: p.Kind, done: make(chan struct{}), closing: make(chan struct{}), warned: map[string]bool{}, relist: make(chan struct{}, 1)}
	i.ID = p.name()
	var transport mcp.Transport
	if p.URL != "" {
		transport = i.remote()
	} else if transport, err = i.launch(); err != nil {
		return nil, false, err
	}
	client := i.client()
	var opt *mcp.ClientSessionOptions
	if version != "" {
		opt = &mcp.ClientSessionOptions{ProtocolVersion: version}
	}
	i.session, err = client.Connect(ctx, transport, opt)
	if err == nil {
		go i.watch()
		if err = i.introduce(); err == nil {
			i.said.name(&h.logs, i.ID)
			err = i.list(ctx)
		}
	}
	if err == nil {
		return i, false, nil
	}
	old = version == "" && i.pipes != nil && i.pipes.onlyAsked() && i.pipes.reason() != nil && ctx.Err() == nil
	err = i.failure(ctx, err)
	i.abandon()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errHandshakeLate) {
		return nil, false, err
	}
	return nil, old, err
}

// failure says why a plugin did not start.
func (i *Instance) failure(ctx context.Context, err error) *Error {
	e := i.problem(HandshakeFailed, "")
	var known *Error
	if errors.As(err, &known) {
		known.Tail = e.Tail
		return known
	}
	var unsupported interface{ Error() string }
	switch {
	case errors.Is(context.Cause(ctx), errHandshakeLate):
		e.Detail = fmt.Sprintf("no answer to the handshake within %s", i.host.opt.Handshake)
		if i.program.fetches() {
			e.Hint = "if it has to be fetched first, this waits for that: codework plugin list --probe"
		}
	case i.pipes != nil && i.pipes.reason() != nil && !errors.Is(i.pipes.reason(), errClosed):
		e.Slug, e.Detail = StartFailed, i.ended()
		e.Tail = i.said.tail.last()
	case errors.As(err, &unsupported) && strings.Contains(err.Error(), "unsupported protocol version"):
		// The library has no exported type for it.
		e.Slug, e.Detail = Incompatible, "it speaks a version of MCP that is not supported: "+i.clean(err.Error())
	default:
		e.Detail = i.clean(err.Error())
	}
	return e
}

// problem is an error about this plugin.
func (i *Instance) problem(slug, detail string) *Error {
	return &Error{Slug: slug, Reference: i.program.Reference, File: i.program.File, ID: i.ID, Detail: i.clean(detail), Tail: i.said.tail.last()}
}

// ended says how a process came to its end.
func (i *Instance) ended() string {
	why := "its connection has ended"
	if i.pipes != nil {
		if r := i.pipes.reason(); r != nil {
			why = r.Error()
		}
	}
	if i.proc == nil || errors.Is(i.pipes.reason(), errLineTooLong) || errors.Is(i.pipes.reason(), errNotReading) {
		return why // then it was ended from here
	}
	select {
	case <-i.proc.Exited():
	case <-time.After(lastOutput): // it may end just behind its output
		return why
	}
	s, err := i.proc.Result()
	var start *supervisor.StartError
	switch {
	case errors.As(err, &start) && start.Dir:
		return "its working folder " + i.program.Dir + " cannot be used: " + start.Err.Error()
	case err != nil:
		return err.Error()
	case s.Signal != "":
		return "it was ended by " + s.Signal
	}
	return fmt.Sprintf("it ended with exit code %d", s.Code)
}

// launch starts the process.
func (i *Instance) launch() (_ *pipes, err error) {
	p := i.program
	if i.host.opt.Processes == nil {
		return nil, i.problem(StartFailed, "programs cannot be started here")
	}
	env := environment(p)
	path, err := lookPath(p.Argv[0], env)
	if err != nil {
		e := i.problem(MissingDependency, err.Error())
		e.Hint = "install it, or name it with its whole path"
		return nil, e
	}
	var files []*os.File
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			if r, w, err = os.Pipe(); err == nil {
				files = append(files, r, w)
			}
		}
		return r, w
	}
	stdin, in := pipe()
	out, stdout := pipe()
	said, stderr := pipe()
	if err != nil {
		return nil, i.problem(StartFailed, err.Error())
	}
	i.proc, err = i.host.opt.Processes.Start(supervisor.Job{
		Path: path, Argv: p.Argv, Env: env, Dir: p.Dir, Umask: -1, Stdin: stdin, Stdout: stdout, Stderr: stderr,
	})
	if err != nil {
		return nil, i.problem(StartFailed, err.Error())
	}
	for _, f := range []*os.File{stdin, stdout, stderr} {
		_ = f.Close()
	}
	files = nil
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		follow(said, func(line string) { i.said.line(i.clean(line)) })
	}()
	i.pipes = newPipes(in, out, i.fromPlugin, func(line string) {
		i.host.opt.Log.Warn("a plugin prints on its standard output what is no message; such lines are dropped", "plugin", i.ID, "line", i.clean(line))
	})
	i.host.all.Go(func() { i.reap(heard, said) })
	return i.pipes, nil
}

// reap ends what is left when the process, its output or the connection has
// ended, and tells when nothing is.
func (i *Instance) reap(heard <-chan struct{}, said *os.File) {
	select {
	case <-i.proc.Exited():
		select {
		case <-i.pipes.over:
		case <-time.After(lastOutput):
			i.pipes.end(errors.New("it has ended"))
		}
	case <-i.pipes.over:
		select {
		case <-i.closing: // it was asked to end, and has the time for that
			grace := stopGrace
			if i.program.OfEditor {
				grace = editorGrace
			}
			select {
			case <-i.proc.Exited():
			case <-time.After(grace):
			}
		case <-i.proc.Exited():
		case <-time.After(lastOutput):
		}
	}
	i.proc.Kill()
	<-i.proc.Gone()
	_ = said.SetReadDeadline(time.Now().Add(lastOutput)) // what escaped may hold it open
	<-heard
	_ = said.Close()
	i.said.name(&i.host.logs, i.program.name()) // one that never said who it is
	i.said.close()
	i.pipes.work.Wait()
	close(i.done)
}

// abandon closes an instance that did not come up, and does not wait for it.
func (i *Instance) abandon() {
	if i.session != nil {
		go i.Close()
		return
	}
	if i.pipes != nil {
		i.pipes.end(errClosed)
	}
}

// watch waits for the end of the connection.
func (i *Instance) watch() {
	err := i.session.Wait()
	_ = i.session.Close() // else the library goes on listening for changes
	if i.pipes != nil {
		i.pipes.end(errClosed)
		return
	}
	if err != nil {
		i.mu.Lock()
		i.err = err
		i.mu.Unlock()
	}
	close(i.done)
}

// Done is closed when nothing of the plugin runs any more.
func (i *Instance) Done() <-chan struct{} { return i.done }

// Alive tells whether calls can be made.
func (i *Instance) Alive() bool {
	if i.pipes != nil {
		return i.pipes.reason() == nil
	}
	select {
	case <-i.done:
		return false
	default:
		return true
	}
}

// Over is closed when no more calls can be made.
func (i *Instance) Over() <-chan struct{} {
	if i.pipes != nil {
		return i.pipes.over
	}
	return i.done
}

// Failure is why the plugin ended; nil while it runs and after Close.
func (i *Instance) Failure() *Error {
	select {
	case <-i.closing:
		return nil
	default:
	}
	if i.Alive() {
		return nil
	}
	if i.pipes != nil {
		return i.problem(Crashed, i.ended())
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		return i.problem(Crashed, "the server ended the connection")
	}
	return i.problem(Crashed, "the connection was lost: "+i.err.Error())
}

// Close ends the plugin: its input is closed, and what still runs 5 s later is
// killed. It returns when nothing does. Closing again is fine.
func (i *Instance) Close() {
	i.once.Do(func() { close(i.closing) })
	if i.pipes != nil {
		i.pipes.end(errClosed)
	} else {
		_ = i.session.Close() // whatever it says, it is closed
	}
	<-i.done
}

// client is the side of the protocol that asks.
func (i *Instance) client() *mcp.Client {
	caps := &mcp.ClientCapabilities{}
	caps.AddExtension(plugin.Extension, map[string]any{"version": plugin.Version})
	c := mcp.NewClient(&mcp.Implementation{Name: "codework", Title: "CodeWork", Version: i.host.opt.Version}, &mcp.ClientOptions{
		Capabilities: caps,
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			select {
			case i.relist <- struct{}{}:
			default:
			}
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { i.calls.progress(r.Params) },
	})
	// They cannot fail: the names are none of the protocol's own.
	_ = mcp.AddSendingCustomMethod[*setupParams, *planResult](c, plugin.MethodSetup)
	_ = mcp.AddSendingCustomMethod[*beforeParams, *verdictResult](c, plugin.MethodBefore)
	_ = mcp.AddSendingCustomMethod[*afterParams, *changeResult](c, plugin.MethodAfter)
	return c
}

// introduce takes what the plugin says of itself.
func (i *Instance) introduce() error {
	hello := i.session.InitializeResult()
	if hello == nil {
		return i.problem(HandshakeFailed, "it did not say who it is")
	}
	i.Instructions = hello.Instructions
	if i.Kind == "" {
		i.Kind = plugin.KindTool
	}
	var said any
	if caps := hello.Capabilities; caps != nil {
		said = caps.Extensions[plugin.Extension]
		if said == nil {
			said = caps.Experimental[plugin.Extension]
		}
	}
	if said == nil {
		if i.program.ID == "" {
			return i.problem(InvalidDefinition, "it names no id: give its entry an \"id\", or declare the extension "+plugin.Extension)
		}
		return nil
	}
	var d plugin.Declaration
	raw, err := json.Marshal(said)
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if d.Version != plugin.Version && (err == nil || d.Version != 0) {
		e := i.problem(Incompatible, fmt.Sprintf("it speaks version %d of %s; this program speaks %d", d.Version, plugin.Extension, plugin.Version))
		e.Required = true
		return e
	}
	invalid := func(format string, args ...any) error {
		e := i.problem(InvalidDefinition, fmt.Sprintf(format, args...))
		e.Required = true
		return e
	}
	switch {
	case err != nil:
		return invalid("what it declares of itself cannot be read: %v", err)
	case !plugin.ValidID(d.ID):
		return invalid("its id %q is not vendor.domain.name of a-z, 0-9 and -, with a vendor other than %s", shortLine([]byte(d.ID)), plugin.BuiltinVendor)
	case i.program.ID != "" && !i.program.Unnamed && i.program.ID != d.ID:
		return invalid("it calls itself %s", d.ID)
	case d.Kind != plugin.KindTool && d.Kind != plugin.KindPrompt:
		return invalid("its kind is %q; tool and prompt are possible", shortLine([]byte(d.Kind)))
	case i.program.Kind != "" && i.program.Kind != d.Kind:
		return invalid("its kind is %s, but its manifest says %s", d.Kind, i.program.Kind)
	}
	for _, t := range d.Events {
		if !strings.HasPrefix(t, plugin.EventPrefix(d.ID)) || len(t) > maxEventType {
			return invalid("the event type %q does not start with %s", shortLine([]byte(t)), plugin.EventPrefix(d.ID))
		}
	}
	i.ID, i.Kind, i.Declared = d.ID, d.Kind, &d
	i.calls.declare(&d)
	return nil
}

// maxEventType bounds the name of an event, in bytes.
const maxEventType = 200

// fromPlugin serves what the plugin asks the host and tells it.
func (i *Instance) fromPlugin(ctx context.Context, method string, params json.RawMessage) (any, error) {
	if method == plugin.MethodEvent {
		i.event(params)
		return struct{}{}, nil
	}
	// The library's goroutine may still be storing what the handshake said:
	// a call can only belong to a tool call, which comes later.
	if !i.calls.sandboxed() {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "the plugin did not declare sandbox"}
	}
	return i.sandbox(ctx, method, params)
}

// event passes on an event of a declared type.
func (i *Instance) event(params json.RawMessage) {
	var e plugin.Event
	if err := json.Unmarshal(params, &e); err != nil || len(e.Data) > 0 && e.Data[0] != '{' {
		i.warnOnce("event", "an event of a plugin is no event; dropped", "")
		return
	}
	if !slices.Contains(i.calls.events(), e.Type) {
		i.warnOnce("type "+e.Type, "a plugin sends an event that it did not declare; dropped", shortLine([]byte(e.Type)))
		return
	}
	if len(params) > maxEvent || !i.told.allows(time.Now()) {
		i.warnOnce("events", fmt.Sprintf("a plugin sends events of more than %d KiB, or too many; dropped", maxEvent>>10), shortLine([]byte(e.Type)))
		return
	}
	i.host.opt.Publish(e)
}

// maxEvent bounds one event, in bytes.
const maxEvent = 64 << 10

func (i *Instance) warnOnce(key, text, what string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.warned[key] || len(i.warned) >= maxWarned {
		return
	}
	i.warned[key] = true
	i.host.opt.Log.Warn(text, "plugin", i.program.Reference, "what", what)
}

// maxWarned is how many different warnings one process may cause.
const maxWarned = 20

// clean masks the secrets that the plugin was given.
func (i *Instance) clean(s string) string {
	for _, secret := range i.program.Secrets {
		if len(secret) >= minSecret {
			s = strings.ReplaceAll(s, secret, "<redacted>")
		}
	}
	return s
}

// minSecret is the shortest value that is masked: shorter ones would blank out
// ordinary words.
const minSecret = 8

// environment is the whole environment of the process.
func environment(p Program) []string {
	env := make([]string, 0, len(p.Env)+len(p.Base))
	for _, e := range p.Base {
		name, _, _ := strings.Cut(e, "=")
		if _, ok := p.Env[name]; !ok {
			env = append(env, e)
		}
	}
	for name, value := range p.Env {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// lookPath finds a program in the PATH of env. A name with a slash is taken as
// it is.
func lookPath(name string, env []string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	path := ""
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	names := []string{name}
	if runtime.GOOS == "windows" && filepath.Ext(name) == "" {
		names = []string{name + ".exe", name + ".cmd", name + ".bat"}
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // the working folder is not to be trusted with programs
		}
		for _, n := range names {
			full := filepath.Join(dir, n)
			if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && (runtime.GOOS == "windows" || info.Mode()&0o111 != 0) {
				return full, nil
			}
		}
	}
	return "", fmt.Errorf("%s: not found on PATH", name)
}

// remote is the transport to a server that is reached by HTTP.
func (i *Instance) remote() mcp.Transport {
	client := i.program.Client
	if client == nil {
		client = http.DefaultClient
	}
	own := *client
	own.Transport = &headers{client.Transport, i.program.URL, i.program.Headers}
	return &mcp.StreamableClientTransport{Endpoint: i.program.URL, HTTPClient: &own, MaxEventSize: maxLine}
}
