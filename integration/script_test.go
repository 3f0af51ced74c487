package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// protocols are the wires that every script runs over, unless it skips one.
var protocols = map[string]string{"chat": "openai-compatible", "anthropic": "anthropic"}

func TestScripts(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(protocols)) {
		t.Run(name, func(t *testing.T) { runScripts(t, "script", name, protocols[name]) })
	}
}

// runScripts runs the scripts of a folder over one wire.
func runScripts(t *testing.T, folder, name, protocol string) {
	root, err := os.MkdirTemp(built.dir, name[:1])
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                filepath.Join("testdata", folder),
		WorkdirRoot:        root,
		RequireUniqueNames: true,
		Cmds:               commands,
		Condition: func(cond string) (bool, error) {
			_, wire := wires[cond]
			switch {
			case cond == "long":
				return *long, nil
			case wire:
				return cond == name, nil
			case cond == "isolated": // a machine without them says why
				reason, absent := os.LookupEnv("CODEWORK_TEST_SKIP_ISOLATED")
				if absent {
					t.Log("no isolated sandboxes: " + reason)
				}
				return !absent, nil
			case cond == "again": // the wire makes no difference to it
				return name == "anthropic" && !*long, nil
			}
			return false, fmt.Errorf("no such condition")
		},
		Setup: func(env *testscript.Env) error { return setUp(env, protocol) },
	})
}

type worldKey struct{}

func setUp(env *testscript.Env, protocol string) error {
	w, err := newWorld(env.WorkDir, protocol)
	if err != nil {
		return err
	}
	env.Values[worldKey{}] = w
	env.Vars = append(env.Vars, w.environment()...)
	t := env.T().(testing.TB)
	env.Defer(func() {
		failed := t.Failed()
		err := w.end(failed)
		if err != nil {
			t.Error(err)
		}
		if failed && w.model != nil {
			t.Logf("the model was asked %d times", len(w.model.Requests()))
		}
		if t.Failed() {
			t.Logf("log of the home process:\n%s", w.log())
		} else if err := os.RemoveAll(w.dir); err != nil {
			t.Error(err)
		}
	})
	return nil
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

// commands are what scripts can do beside the usual:
//
//	mockmodel FILE            start the model server, or give it a new script
//	settings FILE             merge JSON over the user settings
//	waithold NAME             wait until a request stands at that hold
//	release NAME              let it go
//	waitrequests N            wait until the model has been asked N times
//	received N                the model was asked exactly N times
//	request N|last            print what was asked (request 1 is the first)
//	gap N MIN [MAX]           time from the arrival of request N to the next one
//	violations                print what the model refused, and accept it
//	session [NAME]            set $SES, or $NAME, from the header on stderr
//	header NAME               set $SES from the header that a running one printed
//	start [-pty] [-open] NAME PROGRAM ARG…   run in the background
//	signal SIG NAME           send INT, TERM, HUP, KILL, … to it
//	type NAME TEXT            type into its terminal; \x03 is ctrl-c
//	hangup NAME               close its terminal
//	waitoutput NAME REGEXP    wait until it printed that
//	finish NAME CODE [LIMIT]  wait for its end; sets stdout and stderr
//	exitcode CODE PROGRAM ARG…
//	together N PROGRAM ARG…   N at once, all must succeed; prints all outputs
//	followup [SESSION [TEXT]] a plain prompt must be answered: still here
//	waitfile FILE [REGEXP]    wait until it exists, and says that
//	[!] running REGEXP [LIMIT]   wait until such a process of the test (doesn't) run
//	homegone                  wait until the home process has ended
//	killhome                  kill the home process
//	mkbytes FILE TEXT, isbytes FILE TEXT   with the escapes of a Go string
//	json FILE PATH VALUE      FILE is JSON (or lines: the last one) that says so
//	jsonsession FILE          set $SES from such JSON
//	events FILE               print the types of such events: D for durable, L for live
//	address NAME              set $SERVER from what a running server printed
//	handshake STATUS [HEADER VALUE]…   ask it for a WebSocket
//	fetch STATUS server|socket PATH [HEADER VALUE]…   read a page of it, or of the home process
//	result ID                 print the result of a call as the last request had it
//	newer NAME                set $NAME to the path of another, newer build
//	daytona                   start a Daytona, and set what its clients look for
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"mockmodel":    cmdMockmodel,
	"settings":     cmdSettings,
	"waithold":     cmdWaithold,
	"release":      cmdRelease,
	"waitrequests": cmdWaitrequests,
	"received":     cmdReceived,
	"request":      cmdRequest,
	"gap":          cmdGap,
	"violations":   cmdViolations,
	"session":      cmdSession,
	"start":        cmdStart,
	"signal":       cmdSignal,
	"type":         cmdType,
	"hangup":       cmdHangup,
	"waitoutput":   cmdWaitoutput,
	"finish":       cmdFinish,
	"exitcode":     cmdExitcode,
	"together":     cmdTogether,
	"followup":     cmdFollowup,
	"waitfile":     cmdWaitfile,
	"running":      cmdRunning,
	"homegone":     cmdHomegone,
	"killhome":     cmdKillhome,
	"mkbytes":      cmdMkbytes,
	"isbytes":      cmdIsbytes,
	"json":         cmdJSON,
	"newer":        cmdNewer,
	"jsonsession":  cmdJSONSession,
	"header":       cmdHeader,
	"events":       cmdEvents,
	"address":      cmdAddress,
	"handshake":    cmdHandshake,
	"fetch":        cmdFetch,
	"result":       cmdResult,
	"daytona":      cmdDaytona,
}

// usage fails a script that uses a command wrongly.
func usage(ts *testscript.TestScript, neg bool, args []string, least, most int, how string) {
	if neg || len(args) < least || len(args) > most {
		ts.Fatalf("usage: %s", how)
	}
}

func cmdMockmodel(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "mockmodel FILE")
	w := worldOf(ts)
	ts.Check(w.serve([]byte(ts.ReadFile(args[0]))))
	ts.Setenv("MOCK", w.model.URL())
}

func cmdSettings(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "settings FILE")
	w := worldOf(ts)
	ts.Check(w.change([]byte(os.Expand(ts.ReadFile(args[0]), func(name string) string {
		switch name {
		case "MOCK", "PROTOCOL", "MODEL", "WORK":
			return ts.Getenv(name)
		}
		return "${" + name + "}"
	}))))
}

// limited is a context for waiting on something that should come soon.
func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), endLimit)
}

func cmdWaithold(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "waithold NAME")
	ctx, cancel := limited()
	defer cancel()
	ts.Check(worldOf(ts).model.Reached(ctx, args[0]))
}

func cmdRelease(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "release NAME")
	if worldOf(ts).model.Release(args[0]) == 0 {
		ts.Fatalf("no request stands at hold %s", args[0])
	}
}

func cmdWaitrequests(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "waitrequests N")
	ctx, cancel := limited()
	defer cancel()
	ts.Check(worldOf(ts).model.WaitRequests(ctx, number(ts, args[0])))
}

func cmdReceived(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "received N")
	if got := len(worldOf(ts).model.Requests()); got != number(ts, args[0]) {
		ts.Fatalf("the model was asked %d times", got)
	}
}

func number(ts *testscript.TestScript, text string) int {
	n, err := strconv.Atoi(text)
	ts.Check(err)
	return n
}

func duration(ts *testscript.TestScript, text string) time.Duration {
	d, err := time.ParseDuration(text)
	ts.Check(err)
	return d
}

func cmdRequest(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "request N|last")
	all := worldOf(ts).model.Requests()
	n := len(all)
	if args[0] != "last" {
		n = number(ts, args[0])
	}
	if n < 1 || n > len(all) {
		ts.Fatalf("the model was asked %d times", len(all))
	}
	r := all[n-1]
	out := ts.Stdout()
	fmt.Fprintf(out, "request %d: %s %s, answered with %d\n", r.N, r.Method, r.Path, r.Status)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(out, "header %s: %q\n", name, strings.Join(r.Header[name], ", "))
	}
	v := r.View
	if v == nil {
		return
	}
	fmt.Fprintf(out, "model %s stream %t thinking %q\n", v.Model, v.Stream, v.Thinking)
	fmt.Fprintf(out, "system %q\n", v.System)
	for _, t := range v.Tools {
		fmt.Fprintf(out, "tool %s\n", t.Name)
	}
	for _, m := range v.Messages {
		for _, p := range m.Parts {
			fmt.Fprintf(out, "%s %s", m.Role, p.Kind)
			if p.ID != "" {
				fmt.Fprintf(out, " %s", p.ID)
			}
			if p.Name != "" {
				fmt.Fprintf(out, " %s", p.Name)
			}
			if p.Args != "" {
				fmt.Fprintf(out, " %s", p.Args)
			}
			if p.Text != "" {
				fmt.Fprintf(out, " %q", p.Text)
			}
			if p.Signature != "" {
				fmt.Fprintf(out, " signature %q", p.Signature)
			}
			if p.IsError {
				fmt.Fprint(out, " failed")
			}
			fmt.Fprintln(out)
		}
	}
	// Those inside of a result are no part of the view.
	fmt.Fprintf(out, "images %d\n", bytes.Count(r.Body, []byte(pngInBase64)))
}

// pngInBase64 is how every PNG begins in base64.
const pngInBase64 = "iVBORw0KGgo"

func cmdGap(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 3, "gap N MIN [MAX]")
	all := worldOf(ts).model.Requests()
	n := number(ts, args[0])
	if n < 1 || n >= len(all) {
		ts.Fatalf("the model was asked %d times", len(all))
	}
	gap := all[n].At.Sub(all[n-1].At)
	if gap < duration(ts, args[1]) || len(args) > 2 && gap > duration(ts, args[2]) {
		ts.Fatalf("request %d came %s after request %d", n+1, gap, n)
	}
}

func cmdViolations(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 0, "violations")
	out := ts.Stdout()
	for _, v := range worldOf(ts).model.TakeViolations() {
		fmt.Fprintln(out, v)
	}
}

var headerLine = regexp.MustCompile(`(?m)^session  (ses_[0-9a-zA-Z-]+)\r?$`)

func cmdSession(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 1, "session [NAME]")
	name := "SES"
	if len(args) > 0 {
		name = args[0]
	}
	setSession(ts, name, ts.ReadFile("stderr")+ts.ReadFile("stdout"))
}

func cmdHeader(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "header NAME")
	setSession(ts, "SES", procOf(ts, args[0]).err.String())
}

func setSession(ts *testscript.TestScript, name, output string) {
	m := headerLine.FindStringSubmatch(output)
	if m == nil {
		ts.Fatalf("no header with a session was printed")
	}
	ts.Setenv(name, m[1])
}

// surroundings are the environment that the script has made for itself. Only
// exec knows variables beside these.
func surroundings(ts *testscript.TestScript) []string {
	env := worldOf(ts).environment()
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		env[i] = name + "=" + ts.Getenv(name)
	}
	for _, name := range []string{"WORK", "TMPDIR", "XDG_RUNTIME_DIR", "E2E_KEY", "CODEWORK_SERVER_TOKEN",
		"CODEWORK_MODELS_DEV_FILE", "CODEWORK_MODELS_FILE", "CODEWORK_SIGNIN_URL"} {
		if v := ts.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// program finds a program as a script's own search path would.
func program(ts *testscript.TestScript, name string) string {
	if name == "codework" {
		return worldOf(ts).program
	}
	return name
}

func launchIn(ts *testscript.TestScript, s start, argv []string) *process {
	s.dir, s.env = ts.MkAbs("."), surroundings(ts)
	s.argv0, s.args = program(ts, argv[0]), argv[1:]
	p, err := launch(s)
	ts.Check(err)
	return p
}

func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	var s start
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-pty":
			s.terminal = true
		case "-open":
			s.openInput = true
		default:
			ts.Fatalf("start: no such flag %s", args[0])
		}
		args = args[1:]
	}
	usage(ts, neg, args, 2, 100, "start [-pty] [-open] NAME PROGRAM ARG…")
	w := worldOf(ts)
	if w.procs[args[0]] != nil {
		ts.Fatalf("%s runs already", args[0])
	}
	w.procs[args[0]] = launchIn(ts, s, args[1:])
}

func procOf(ts *testscript.TestScript, name string) *process {
	p := worldOf(ts).procs[name]
	if p == nil {
		ts.Fatalf("%s was not started", name)
	}
	return p
}

var signals = map[string]syscall.Signal{
	"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL,
	"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT,
}

func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 2, "signal SIG NAME")
	sig, ok := signals[args[0]]
	if !ok {
		ts.Fatalf("no such signal %s", args[0])
	}
	ts.Check(procOf(ts, args[1]).cmd.Process.Signal(sig))
}

func cmdType(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 2, "type NAME TEXT")
	_, err := procOf(ts, args[0]).terminal.WriteString(unquoted(ts, args[1]))
	ts.Check(err)
}

func cmdHangup(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "hangup NAME")
	ts.Check(procOf(ts, args[0]).terminal.Close())
}

func cmdWaitoutput(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 2, "waitoutput NAME REGEXP")
	p, want := procOf(ts, args[0]), expression(ts, args[1])
	ts.Check(until(endLimit, func() string {
		if text := p.out.String() + p.err.String(); !want.MatchString(text) {
			return "it has printed:\n" + text
		}
		return ""
	}))
}

func expression(ts *testscript.TestScript, text string) *regexp.Regexp {
	re, err := regexp.Compile("(?m)" + text)
	ts.Check(err)
	return re
}

func cmdFinish(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 3, "finish NAME CODE [LIMIT]")
	limit := endLimit
	if len(args) > 2 {
		limit = duration(ts, args[2])
	}
	p := procOf(ts, args[0])
	code, err := p.finish(limit)
	show(ts, p)
	if err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
	delete(worldOf(ts).procs, args[0])
	want(ts, code, args[1])
}

func show(ts *testscript.TestScript, p *process) {
	fmt.Fprint(ts.Stdout(), p.out.String())
	fmt.Fprint(ts.Stderr(), p.err.String())
}

func want(ts *testscript.TestScript, code int, wanted string) {
	if code != number(ts, wanted) {
		ts.Fatalf("exit code %d instead of %s", code, wanted)
	}
}

func cmdExitcode(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 100, "exitcode CODE PROGRAM ARG…")
	p := launchIn(ts, start{}, args[1:])
	code, err := p.finish(endLimit)
	if err != nil {
		_ = p.cmd.Process.Kill()
	}
	show(ts, p)
	ts.Check(err)
	want(ts, code, args[0])
}

func cmdTogether(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 100, "together N PROGRAM ARG…")
	s := start{dir: ts.MkAbs("."), env: surroundings(ts), argv0: program(ts, args[1]), args: args[2:]}
	var all []*process
	var faults []error
	for range number(ts, args[0]) {
		p, err := launch(s)
		if err != nil {
			faults = append(faults, err)
			break
		}
		all = append(all, p)
	}
	for i, p := range all {
		code, err := p.finish(2 * endLimit)
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		if err != nil {
			_ = p.cmd.Process.Kill()
			faults = append(faults, fmt.Errorf("number %d: %w", i+1, err))
		}
		show(ts, p)
	}
	ts.Check(errors.Join(faults...))
}

func cmdFollowup(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 2, "followup [SESSION [TEXT]]")
	id, text := ts.Getenv("SES"), "still here\n"
	if len(args) > 0 {
		id = args[0]
	}
	if len(args) > 1 {
		text = args[1] + "\n"
	}
	ts.Check(ts.Exec(worldOf(ts).program, "run", "--session", id, "are you still there?"))
	if got := ts.ReadFile("stdout"); got != text {
		ts.Fatalf("the follow-up was answered with %q", got)
	}
}

func cmdWaitfile(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 2, "waitfile FILE [REGEXP]")
	want := expression(ts, "")
	if len(args) > 1 {
		want = expression(ts, args[1])
	}
	name := ts.MkAbs(args[0])
	ts.Check(until(endLimit, func() string {
		b, err := os.ReadFile(name)
		if err != nil {
			return err.Error()
		}
		if !want.Match(b) {
			return fmt.Sprintf("%s says: %s", name, b)
		}
		return ""
	}))
}

func cmdRunning(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, false, args, 1, 2, "[!] running REGEXP [LIMIT]")
	limit := endLimit
	if len(args) > 1 {
		limit = duration(ts, args[1])
	}
	pattern, w := expression(ts, args[0]), worldOf(ts)
	ts.Check(until(limit, func() string {
		var all []string
		found := false
		for _, p := range processesOf(w.dir) {
			all = append(all, p.String())
			found = found || pattern.MatchString(p.command)
		}
		if found != neg {
			return ""
		}
		return "these are running:\n" + strings.Join(all, "\n")
	}))
}

func cmdHomegone(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 0, "homegone")
	w := worldOf(ts)
	ts.Check(until(leftLimit, func() string {
		if all := w.homeProcesses(); len(all) > 0 {
			return fmt.Sprint("the home process is there: ", all)
		}
		return w.locked()
	}))
}

func cmdKillhome(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 0, "killhome")
	ts.Check(worldOf(ts).killHome())
}

func unquoted(ts *testscript.TestScript, text string) string {
	s, err := strconv.Unquote(`"` + text + `"`)
	ts.Check(err)
	return s
}

func cmdMkbytes(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 2, "mkbytes FILE TEXT")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(unquoted(ts, args[1])), 0o644))
}

func cmdIsbytes(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, 2, "isbytes FILE TEXT")
	if got, want := ts.ReadFile(args[0]), unquoted(ts, args[1]); got != want {
		ts.Fatalf("%s is %q instead of %q", args[0], got, want)
	}
}

func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 3, 3, "json FILE PATH VALUE")
	if got := field(ts, args[0], args[1]); got != args[2] {
		ts.Fatalf("%s is %q", args[1], got)
	}
}

func cmdJSONSession(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "jsonsession FILE")
	ts.Setenv("SES", field(ts, args[0], "session"))
}

// field reads a value from the last of the lines of JSON; all must be JSON.
func field(ts *testscript.TestScript, file, path string) string {
	lines := strings.Split(strings.TrimRight(ts.ReadFile(file), "\n"), "\n")
	var v any
	for _, line := range lines {
		v = nil
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			ts.Fatalf("%q: %v", line, err)
		}
	}
	for _, name := range strings.Split(path, ".") {
		o, ok := v.(map[string]any)
		if !ok {
			ts.Fatalf("%s: there is no object with a key %s", path, name)
		}
		v = o[name]
	}
	return fmt.Sprint(v)
}

// cmdEvents prints repeated deltas once, and no progress: how many there are of
// both is a matter of time. Durable events must be numbered without gaps.
func cmdEvents(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "events FILE")
	lines := strings.Split(strings.TrimRight(ts.ReadFile(args[0]), "\n"), "\n")
	last, seq := "", 0
	for _, line := range lines[:len(lines)-1] {
		var e struct {
			Type    string
			Durable *struct{ Seq int }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			ts.Fatalf("%q: %v", line, err)
		}
		kind := "L"
		if e.Durable != nil {
			kind = "D"
			if seq != 0 && e.Durable.Seq != seq+1 {
				ts.Fatalf("event %d comes after event %d", e.Durable.Seq, seq)
			}
			seq = e.Durable.Seq
		}
		switch {
		case e.Type == last && strings.HasSuffix(e.Type, ".delta"), e.Type == "session.tool.progress":
			continue
		case e.Type == "session.updated": // a title was found: beside the course of things
			continue
		case strings.HasPrefix(e.Type, "session.llm.toolcall."): // may be told interleaved, as providers do
			continue
		}
		last = e.Type
		fmt.Fprintln(ts.Stdout(), kind, e.Type)
	}
}

var serverAddress = regexp.MustCompile(`ws://([0-9a-z.:]+/[a-z0-9/]+)`)

func cmdAddress(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "address NAME")
	p := procOf(ts, args[0])
	ts.Check(until(endLimit, func() string {
		m := serverAddress.FindStringSubmatch(p.out.String() + p.err.String())
		if m == nil {
			return "the server has printed no address: " + p.err.String()
		}
		ts.Setenv("SERVER", "http://"+m[1])
		return ""
	}))
}

func cmdHandshake(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 9, "handshake STATUS [HEADER VALUE]…")
	ctx, cancel := limited()
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ts.Getenv("SERVER"), nil)
	ts.Check(err)
	for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
		"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
		req.Header.Set(name, value)
	}
	for i := 1; i+1 < len(args); i += 2 {
		switch args[i] {
		case "Host":
			req.Host = args[i+1]
		case "Query":
			req.URL.RawQuery = args[i+1]
		default:
			req.Header.Set(args[i], args[i+1])
		}
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	ts.Check(err)
	resp.Body.Close()
	if resp.StatusCode != number(ts, args[0]) {
		ts.Fatalf("the server answered %s", resp.Status)
	}
}

func cmdResult(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "result ID")
	all := worldOf(ts).model.Requests()
	if len(all) == 0 || all[len(all)-1].View == nil {
		ts.Fatalf("the model was not asked")
	}
	p, ok := all[len(all)-1].View.Result(args[0])
	if !ok {
		ts.Fatalf("the last request has no result for %s", args[0])
	}
	fmt.Fprint(ts.Stdout(), p.Text)
}

func cmdNewer(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, 1, "newer NAME")
	path, err := newerProgram()
	ts.Check(err)
	path, err = worldOf(ts).link(path)
	ts.Check(err)
	ts.Setenv(args[0], path)
}
