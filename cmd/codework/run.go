package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"codework/messages"
	"codework/protocol/client"
)

// What run reads at most: a prompt from a pipe, an attached file, and a file
// with an addition to the system prompt, which every request carries.
const (
	maxPromptPipe = 1 << 20
	maxAttachment = 8 << 20
	maxAddendum   = 256 << 10
)

// settleWait is how long run waits for its work to stop after ctrl-c.
const settleWait = 5 * time.Second

type runFlags struct {
	session   string
	latest    bool
	cwd       string
	provider  string
	model     string
	thinking  string
	title     string
	addendum  string
	files     []string
	format    string
	delivery  string
	timeout   time.Duration
	trust     bool
	driver    string
	sandboxID string
	resource  string
	detach    bool

	id   string // of a new session: the same in every attempt, so that it is made once
	made string // the sandbox that this run made
}

func newRun(g *global) *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [prompt]",
		Short: "Send a prompt and print the answer",
		Long: `Send a prompt, let the model work in this directory, and print its answer.

The answer goes to standard output, everything else to standard error. Without a
prompt, or with "-" in its place, the prompt is read from standard input; with
"-" behind a prompt, what is read is added to it. Otherwise standard input is
left alone.`,
		Example: `  codework run --model offline/guide "Summarize the open TODOs in this repo"
  codework run --continue "and now fix the first one"
  git diff | codework run "Review this change:" -`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.chooseServer(c); err != nil {
				return err
			}
			// A variable that is not set must not mean the host.
			for _, name := range []string{"sandbox-driver", "sandbox-id", "sandbox-provider-id"} {
				if flag := c.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
					return usagef("--%s: expected a string that is not empty", name)
				}
			}
			if err := f.check(g.remote()); err != nil {
				return err
			}
			p, err := f.prompt(g, args)
			if err != nil {
				return err
			}
			return f.run(c.Context(), g, p)
		},
	}
	fl := c.Flags()
	fl.StringVarP(&f.session, "session", "s", "", "continue this session")
	fl.BoolVarP(&f.latest, "continue", "c", false, "continue the newest session of this directory")
	fl.StringVarP(&f.cwd, "cwd", "C", "", "working directory of a new session")
	fl.StringVar(&f.provider, "provider", "", "provider of the model, with --model; kept with the session")
	fl.StringVar(&f.model, "model", "", "model, or provider/model; kept with the session")
	fl.StringVar(&f.thinking, "thinking", "", "off, minimal, low, medium, high, xhigh or max; kept with the session")
	fl.StringVar(&f.title, "title", "", "title of a new session")
	fl.StringVar(&f.addendum, "append-system-prompt", "", "text to add to the system prompt of a new session, or @file")
	fl.StringArrayVarP(&f.files, "file", "f", nil, "attach a text file or an image (repeatable)")
	fl.StringVar(&f.format, "output-format", "text", "text, json (one object at the end) or stream-json (every event as a line)")
	fl.StringVar(&f.delivery, "delivery", "followUp", "followUp waits for the session's running work, steer joins it")
	fl.DurationVar(&f.timeout, "timeout", 0, "interrupt the work after this time, such as 90s or 10m, and exit 1")
	fl.BoolVar(&f.trust, "trust-project", false, "trust this directory's project from now on; see: codework trust --help")
	fl.StringVar(&f.driver, "sandbox-driver", "", "where a new session's tools run, see: codework sandbox drivers (default: the settings, local)")
	fl.StringVar(&f.sandboxID, "sandbox-id", "", "use an existing sandbox for a new session")
	fl.StringVar(&f.resource, "sandbox-provider-id", "", "with --sandbox-driver: attach to what somebody else made, such as ssh://user@host/folder")
	fl.BoolVar(&f.detach, "detach", false, "with --server: print the session's id once the prompt is saved, and leave")
	g.addServerFlag(c)
	return c
}

// check refuses flags that do not go together, before anything is started.
func (f *runFlags) check(remote bool) error {
	old := f.session != "" || f.latest
	switch {
	case f.session != "" && f.latest:
		return usagef("--session and --continue do not go together")
	case old && f.cwd != "":
		return usagef("--cwd is for new sessions; a session keeps its directory")
	case old && (f.driver != "" || f.sandboxID != "" || f.resource != ""):
		return usagef("--sandbox-driver, --sandbox-id and --sandbox-provider-id are for new sessions; a session keeps its sandbox")
	case f.sandboxID != "" && (f.driver != "" || f.resource != ""):
		return usagef("--sandbox-id goes without --sandbox-driver and --sandbox-provider-id")
	case f.resource != "" && f.driver == "":
		return usagef("--sandbox-provider-id goes with --sandbox-driver")
	case old && f.title != "":
		return usagef("--title is for new sessions")
	case old && f.addendum != "":
		return usagef("--append-system-prompt is for new sessions")
	case f.session != "" && !messages.ValidSessionID(f.session):
		return usagef("--session: %q is not a session id; they begin with ses_", f.session)
	case f.provider != "" && f.model == "":
		return usagef("--provider goes with --model")
	case f.thinking != "" && !messages.ThinkingLevel(f.thinking).Valid():
		return usagef("--thinking: expected off, minimal, low, medium, high, xhigh or max, not %q", f.thinking)
	case f.format != "text" && f.format != "json" && f.format != "stream-json":
		return usagef("--output-format: expected text, json or stream-json, not %q", f.format)
	case f.delivery != string(messages.Steer) && f.delivery != string(messages.FollowUp):
		return usagef("--delivery: expected steer or followUp, not %q", f.delivery)
	case remote && f.trust:
		return usagef("--trust-project does not go with a server; the list of trusted projects belongs to its home")
	case f.detach && !remote:
		return usagef("--detach goes with --server: without one the work ends with this command")
	case f.detach && f.timeout != 0:
		return usagef("--timeout does not go with --detach; nobody is there to stop the work")
	case f.detach && f.format != "text":
		return usagef("--output-format does not go with --detach, which prints the session's id")
	case f.timeout < 0:
		return usagef("--timeout: expected a positive duration")
	}
	if f.resource != "" {
		if err := messages.ValidateResourceID(f.resource); err != nil {
			return usagef("--sandbox-provider-id: %w", err)
		}
	}
	_, err := f.runtime()
	return err
}

// runtime is what the flags override of the settings; nil when nothing.
func (f *runFlags) runtime() (*messages.Runtime, error) {
	if f.model == "" && f.thinking == "" {
		return nil, nil
	}
	r := &messages.Runtime{ThinkingLevel: messages.ThinkingLevel(f.thinking)}
	if f.model == "" {
		return r, nil
	}
	ref := messages.ModelRef{Provider: f.provider, ID: f.model}
	if f.provider == "" {
		provider, id, ok := strings.Cut(f.model, "/")
		if !ok || provider == "" || id == "" {
			return nil, usagef("--model: expected provider/model, or --provider beside it; not %q", f.model)
		}
		ref = messages.ModelRef{Provider: provider, ID: id}
	}
	r.Model = &ref
	return r, nil
}

// prompt collects text and attachments.
func (f *runFlags) prompt(g *global, args []string) (messages.Prompt, error) {
	var p messages.Prompt
	piped := len(args) == 0 || args[len(args)-1] == "-"
	if piped && len(args) > 0 {
		args = args[:len(args)-1]
	}
	p.Text = strings.Join(args, " ")
	if piped {
		if len(args) == 0 && terminal(g.in) {
			return p, &problem{err: errors.New("no prompt"), code: exitUsage, hint: `give it as an argument: codework run "…"`}
		}
		b, err := io.ReadAll(io.LimitReader(g.in, maxPromptPipe+1))
		if err != nil {
			return p, &problem{err: fmt.Errorf("read the prompt from standard input: %w", err)}
		}
		if len(b) > maxPromptPipe {
			return p, &problem{err: errors.New("the prompt on standard input is over 1 MiB"), code: exitUsage, hint: "put it into a file and name the file in the prompt"}
		}
		text := strings.TrimRight(string(b), "\n")
		if p.Text != "" && text != "" {
			p.Text += "\n\n"
		}
		p.Text += text
	}
	p.Text = strings.ToValidUTF8(p.Text, "\uFFFD")
	for _, name := range f.files {
		part, err := attachment(name)
		if err != nil {
			return p, err
		}
		p.Parts = append(p.Parts, part)
	}
	if strings.TrimSpace(p.Text) == "" && len(p.Parts) == 0 {
		return p, &problem{err: errors.New("the prompt is empty"), code: exitUsage}
	}
	return p, nil
}

// attachment reads a file that goes along with the prompt.
func attachment(name string) (messages.Part, error) {
	bad := func(err error) (messages.Part, error) {
		return messages.Part{}, &problem{err: fmt.Errorf("--file %s: %w", name, err), code: exitUsage}
	}
	fi, err := os.Stat(name)
	switch {
	case err != nil:
		return bad(bareError(err))
	case !fi.Mode().IsRegular():
		return bad(errors.New("not a regular file"))
	case fi.Size() > maxAttachment:
		return bad(errors.New("over 8 MiB; name it in the prompt instead, the model can read it in parts"))
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return bad(bareError(err))
	}
	switch kind := http.DetectContentType(b); kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return messages.Part{Type: messages.PartImage, MediaType: kind, Data: b}, nil
	}
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		return bad(errors.New("neither text nor an image (png, jpeg, gif, webp)"))
	}
	return messages.Part{Type: messages.PartText, Text: fmt.Sprintf("<file path=%q>\n%s\n</file>", name, b)}, nil
}

// run does the command's work once its arguments are good.
func (f *runFlags) run(ctx context.Context, g *global, p messages.Prompt) error {
	out := newOutput(g, f.format)
	out.quiet = out.quiet || f.detach
	if f.trust {
		if _, err := g.trust("."); err != nil {
			return out.end(&watch{}, err)
		}
	}
	p.Delivery = messages.Delivery(f.delivery)
	w := &watch{}
	for try := 1; ; try++ {
		last := w
		var err error
		w, err = f.attempt(ctx, g, out, p, last)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = context.Cause(ctx) // the signal, which a call only knows as its end
		}
		switch {
		case !lostOwner(err):
			return out.end(w, err)
		case g.remote():
			return out.end(w, g.serverLost(w, err))
		case w.admitted:
			return out.end(w, g.ownerDied(ctx, w))
		case try == connectTries:
			return out.end(w, err)
		}
		// The owner ended before it had the prompt: the next one gets it, and
		// the session, if there is one already.
		if w.session != "" {
			f.session, f.latest = w.session, false
		}
	}
}

// connectTries is how many owners may end under a run before it has sent its
// prompt.
const connectTries = 5

// lostOwner tells whether a call failed because the owner ended, and not
// because this run was stopped.
func lostOwner(err error) bool {
	var s stopped
	if errors.As(err, &s) || errors.Is(err, errTimeout) {
		return false
	}
	var refused *messages.Refused
	return errors.Is(err, client.ErrConnectionLost) || errors.As(err, &refused) && refused.Name == messages.RefusedShutdown
}

// attempt connects, finds or makes the session and follows the prompt. last is
// the attempt before it.
func (f *runFlags) attempt(ctx context.Context, g *global, out *output, p messages.Prompt, last *watch) (*watch, error) {
	p.ID = messages.NewMessageID()
	w := &watch{out: out, prompt: p.ID, session: f.session}
	if g.remote() {
		w.server = &remoteServer{g.dialServer, g.serverFlag()}
	}
	c, closeClient, err := g.connect(ctx)
	if err != nil {
		return w, err
	}
	defer closeClient()
	info, err := f.open(ctx, c, g.remote())
	if err != nil {
		return w, err
	}
	defer f.stopMade(ctx, g, c)
	out.header(info)
	w.client, w.session, p.SessionID = c, info.ID, info.ID
	if last.sent {
		// The owner may have taken it and not have lived to say so.
		ran, err := takeBack(ctx, c, info.ID, last.prompt)
		if ran {
			w.admitted, err = true, client.ErrConnectionLost
		}
		if err != nil {
			w.sent, w.prompt = true, last.prompt
			return w, err
		}
	}
	if f.detach {
		err = w.leave(ctx, p, g)
	} else {
		err = w.follow(ctx, p, f.timeout)
	}
	var refused *messages.Refused
	if f.session == "" && !f.latest && !w.admitted && errors.As(err, &refused) && refused.Name == messages.RefusedBusy {
		// Its session would stay empty, and count. That it cannot be removed
		// is no news beside the refusal.
		_ = c.Delete(ctx, info.ID, false)
	}
	return w, err
}

// stopLimitHere is how long a run waits at its end for the sandbox that it made.
const stopLimitHere = 20 * time.Second

// stopMade stops the sandbox that this run made. A server keeps it: others may
// have found it there.
func (f *runFlags) stopMade(ctx context.Context, g *global, c *client.Client) {
	if f.made == "" || g.remote() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimitHere)
	defer cancel()
	err := c.StopSandbox(ctx, f.made)
	var busy *messages.SandboxBusy // with other sessions; the end of the home's process stops it
	if err != nil && !errors.As(err, &busy) && !errors.Is(err, client.ErrConnectionLost) && !g.quiet {
		fmt.Fprintln(g.err, "warning: sandbox "+f.made+" could not be stopped: "+oneLine(err.Error()))
	}
}

// takeBack takes a prompt out of the queue and tells whether it is too late for
// that.
func takeBack(ctx context.Context, c *client.Client, session, prompt string) (ran bool, err error) {
	if _, err := c.Queue(ctx, messages.GetQueue{SessionID: session, Remove: prompt}); err != nil {
		return false, err
	}
	return c.HasMessage(ctx, session, prompt)
}

// open finds or makes the session.
func (f *runFlags) open(ctx context.Context, c *client.Client, remote bool) (messages.SessionInfo, error) {
	runtime, err := f.runtime()
	if err != nil {
		return messages.SessionInfo{}, err
	}
	here, err := os.Getwd()
	if err != nil {
		return messages.SessionInfo{}, fmt.Errorf("find the working directory: %w", err)
	}
	id := f.session
	if f.latest {
		list, err := c.List(ctx, messages.ListSessions{HostDir: here, Limit: 1})
		if err != nil {
			return messages.SessionInfo{}, err
		}
		if len(list) == 0 {
			return messages.SessionInfo{}, &problem{slug: messages.FailSessionNotFound,
				err: fmt.Errorf("no session was started in %s", here), hint: "start one without --continue"}
		}
		id = list[0].ID
	}
	if id != "" {
		if id, err = findSession(ctx, c, id); err != nil {
			return messages.SessionInfo{}, err
		}
	}
	switch {
	case id != "" && runtime != nil:
		return c.Configure(ctx, id, *runtime)
	case id != "":
		return c.Session(ctx, id)
	}
	if f.id == "" {
		f.id = messages.NewSessionID()
	}
	m := messages.CreateSession{ID: f.id, Title: f.title, HostDir: here, Runtime: runtime}
	m.AppendSystemPrompt, err = addendum(f.addendum)
	if err != nil {
		return messages.SessionInfo{}, err
	}
	switch {
	case f.sandboxID != "":
		if f.sandboxID, err = findSandbox(ctx, c, f.sandboxID); err != nil {
			return messages.SessionInfo{}, err
		}
		m.Sandbox = &messages.SandboxRef{ID: f.sandboxID}
	case f.driver != "":
		m.Sandbox = &messages.SandboxRef{Driver: f.driver, ProviderResourceID: f.resource}
	}
	m.Directory = f.cwd
	onHost := m.Sandbox == nil || m.Sandbox.ID == messages.LocalSandbox || m.Sandbox.Driver == messages.LocalSandbox
	if remote && onHost && !filepath.IsAbs(m.Directory) {
		m.Directory = filepath.Join(here, m.Directory) // a server does not know where its client is
	}
	info, err := c.Create(ctx, m)
	if err == nil && info.Sandbox != nil && info.Sandbox.Ownership == messages.SandboxManaged && f.sandboxID == "" {
		f.made = info.Sandbox.ID
	}
	var missing *messages.DirectoryNotFound
	if remote && errors.As(err, &missing) && messages.IsHost(missing.SandboxID) {
		err = &problem{slug: kebab(missing.Tag()), err: fmt.Errorf("there is no folder %s on the server", missing.Directory), hint: "name one that it has with --cwd"}
	}
	return info, err
}

// addendum reads the text behind an @.
func addendum(value string) (string, error) {
	name, ok := strings.CutPrefix(value, "@")
	if !ok {
		return value, nil
	}
	b, err := readAtMost(name, maxAddendum)
	if err != nil {
		return "", &problem{err: fmt.Errorf("--append-system-prompt %s: %w", name, bareError(err)), code: exitUsage}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}

// readAtMost reads a file, which may be a pipe, up to a limit.
func readAtMost(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("over %d KiB", limit>>10)
	}
	return b, err
}

// serverLost is what a run says when its server went away. What the server
// had goes on without us.
func (g *global) serverLost(w *watch, err error) error {
	p := &problem{slug: "connection", err: &explained{errors.New("the connection to the server is lost"), err}, fields: []field{{"server", g.server}, {"session", w.session}}}
	var refused *messages.Refused
	if errors.As(err, &refused) {
		p.err = err
	}
	switch {
	case w.admitted:
		p.err = &explained{fmt.Errorf("the connection to the server is lost and did not come back within %s; the work there goes on", patience), err}
		p.hint = "attach to it again with: codework session attach " + w.session + g.serverFlag()
	case w.sent:
		p.fields = append(p.fields, field{"detail", "whether the server has the prompt is not known"})
		p.hint = "look with: codework session show " + w.session + g.serverFlag()
	}
	return p
}

// ownerDied is what a run says when the home's process ended under it. The
// process is started again, which settles what it left open and keeps what
// waited: a prompt that did is said to, for sent again it would run twice.
func (g *global) ownerDied(ctx context.Context, w *watch) error {
	session := w.session
	p := &problem{slug: "connection", err: errors.New("the process that owns this home ended while it worked"),
		fields: []field{{"session", session}}, hint: fmt.Sprintf("continue with: codework run --session %s \"…\"", session)}
	again, closeClient, err := g.connect(context.WithoutCancel(ctx))
	if err != nil {
		p.fields = append(p.fields, field{"detail", "it could not be started again: " + err.Error()})
		return p
	}
	defer closeClient()
	if _, err := again.Session(ctx, session); err != nil {
		p.fields = append(p.fields, field{"detail", err.Error()})
		return p
	}
	p.fields = append(p.fields, field{"detail", "it was started again, and the session is consistent"})
	q, err := again.Queue(ctx, messages.GetQueue{SessionID: session})
	if err == nil && w.queued(q) {
		p.err, p.hint = errors.New("the process that owns this home ended before this prompt ran"), w.stays()
	}
	return p
}

// bareError leaves out the path that is named already.
func bareError(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
