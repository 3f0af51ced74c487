package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/protocol/plugin"
	"codework/sandboxes/supervisor"
)

// modeVariable makes the test binary a server of some sort.
const modeVariable = "PLUGIN_TEST_MODE"

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVariable); mode != "" {
		serve(mode)
		os.Exit(0)
	}
	if err := supervisor.Subreaper(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// serve is a server that behaves as mode says, well or badly.
func serve(mode string) {
	switch mode {
	case "silent":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	case "dies":
		fmt.Fprintln(os.Stderr, "no license found for key sk-secret-value")
		os.Exit(3)
	case "floods":
		for {
			fmt.Println(strings.Repeat("noise ", 2000))
		}
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		child := exec.Command("sleep", "1000")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			os.Exit(9)
		}
		raw{mode}.serve()
		select {}
	case "extension":
		extension()
		return
	}
	raw{mode}.serve()
}

// raw speaks the protocol by hand, so that it can speak it badly.
type raw struct{ mode string }

type message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params struct {
		ProtocolVersion string         `json:"protocolVersion"`
		Name            string         `json:"name"`
		Arguments       map[string]any `json:"arguments"`
		Meta            map[string]any `json:"_meta"`
		RequestID       any            `json:"requestId"`
	} `json:"params"`
}

func say(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(b, '\n'))
}

func (r raw) answer(id json.RawMessage, result any) {
	say(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
}

func (r raw) refuse(id json.RawMessage, code int, text string) {
	say(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": text}})
}

func (r raw) serve() {
	in := bufio.NewReader(os.Stdin)
	fmt.Fprintln(os.Stderr, "up")
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		switch m.Method {
		case "server/discover":
			switch r.mode {
			case "old":
				continue
			case "strict":
				fmt.Fprintln(os.Stderr, "initialize was expected")
				os.Exit(1)
			}
			r.refuse(m.ID, -32601, "method not found")
		case "initialize":
			r.initialize(m)
		case "tools/list":
			r.list(m)
			if r.mode == "deaf" {
				select {}
			}
		case "tools/call":
			go r.call(m)
		case "notifications/cancelled":
			fmt.Fprintln(os.Stderr, "cancelled")
		default:
			if len(m.ID) > 0 {
				r.refuse(m.ID, -32601, "method not found")
			}
		}
	}
}

func (r raw) initialize(m message) {
	version, caps := m.Params.ProtocolVersion, map[string]any{"tools": map[string]any{"listChanged": true}}
	declare := func(d map[string]any) { caps["extensions"] = map[string]any{plugin.Extension: d} }
	switch r.mode {
	case "version":
		version = "1999-01-01"
	case "future":
		declare(map[string]any{"version": 2, "id": "acme.tool.future", "kind": "tool"})
	case "reserved":
		declare(map[string]any{"version": 1, "id": "codework.tool.bash", "kind": "tool"})
	case "foreign event":
		declare(map[string]any{"version": 1, "id": "acme.tool.x", "kind": "tool", "events": []string{"plugin.other.tool.x.y"}})
	}
	r.answer(m.ID, map[string]any{"protocolVersion": version, "capabilities": caps, "instructions": "Use it well.",
		"serverInfo": map[string]any{"name": "raw", "version": "1"}})
}

func (r raw) list(m message) {
	object := map[string]any{"type": "object"}
	tool := func(name string) map[string]any {
		return map[string]any{"name": name, "description": "does " + name, "inputSchema": object}
	}
	var all []any
	switch r.mode {
	case "hundred":
		for n := range 100 {
			all = append(all, tool(fmt.Sprintf("tool_%d", n)))
		}
	case "odd":
		bad := tool("bad_schema")
		bad["inputSchema"] = map[string]any{"type": "string"}
		titled := tool("good")
		titled["title"] = "Good one"
		all = append(all, bad, titled)
	default:
		for _, name := range []string{"echo", "env", "slow", "wait", "kinds", "structured", "fails", "refuses", "huge", "die", "long", "more", "no number", "no error", "deep", "parts", "storm"} {
			all = append(all, tool(name))
		}
		if more {
			all = append(all, tool("another"))
		}
	}
	r.answer(m.ID, map[string]any{"tools": all})
}

// released lets the slow tool go on.
var released = make(chan struct{})

// more is set when the list of tools has changed.
var more bool

func text(s string) map[string]any { return map[string]any{"type": "text", "text": s} }

func (r raw) call(m message) {
	result := func(content ...any) { r.answer(m.ID, map[string]any{"content": content}) }
	switch m.Params.Name {
	case "echo":
		b, _ := json.Marshal(map[string]any{"arguments": m.Params.Arguments, "meta": m.Params.Meta})
		result(text(string(b)))
	case "env":
		dir, _ := os.Getwd()
		result(text(strings.Join(append(os.Environ(), "cwd="+dir), "\n")))
	case "slow":
		token := m.Params.Meta["progressToken"]
		for n := range 3 {
			say(map[string]any{"jsonrpc": "2.0", "method": "notifications/progress", "params": map[string]any{
				"progressToken": token, "progress": n + 1, "total": 3, "message": fmt.Sprintf("step %d", n+1)}})
		}
		<-released
		result(text("done"))
	case "release":
		close(released)
		result(text("released"))
	case "wait":
	case "kinds":
		png, _ := base64.StdEncoding.DecodeString(onePixel)
		result(text("a"), map[string]any{"type": "image", "mimeType": "image/png", "data": png},
			map[string]any{"type": "audio", "mimeType": "audio/wav", "data": []byte("beep")},
			map[string]any{"type": "resource_link", "uri": "file:///x", "name": "x"},
			map[string]any{"type": "resource", "resource": map[string]any{"uri": "file:///y", "text": "inside"}},
			map[string]any{"type": "resource", "resource": map[string]any{"uri": "file:///z", "mimeType": "application/zip", "blob": []byte("zip")}})
	case "structured":
		r.answer(m.ID, map[string]any{"content": []any{}, "structuredContent": map[string]any{"n": 7}})
	case "fails":
		r.answer(m.ID, map[string]any{"content": []any{text("it broke")}, "isError": true})
	case "refuses":
		r.refuse(m.ID, -32602, "no such thing")
	case "huge":
		result(text(strings.Repeat("x", 9<<20)))
	case "die":
		fmt.Fprintln(os.Stderr, "about to die")
		os.Exit(7)
	case "long":
		os.Stdout.Write(append(append([]byte(`{"jsonrpc":"2.0","x":"`), bytes.Repeat([]byte("y"), 17<<20)...), '\n'))
	case "no number": // as Python's json writes it
		fmt.Printf(`{"jsonrpc": "2.0", "id": %s, "result": {"content": [], "structuredContent": {"id": 1, "n": NaN}}}`+"\n", m.ID)
	case "no error":
		say(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": "in words"})
	case "deep":
		fmt.Printf(`{"result": {"content": [], "structuredContent": {"id\"": %s1%s}}, "jsonrpc": "2.0", "id": %s}`+"\n", strings.Repeat("[", 5000), strings.Repeat("]", 5000), m.ID)
	case "parts":
		var all []any
		for n := range 5000 {
			all = append(all, text(fmt.Sprint("part ", n)))
		}
		result(all...)
	case "storm":
		for n := range 5000 {
			size := 10
			if n < 20 {
				size = 100 << 10
			}
			say(map[string]any{"jsonrpc": "2.0", "method": "notifications/progress", "params": map[string]any{
				"progressToken": m.Params.Meta["progressToken"], "progress": n, "message": strings.Repeat("x", size)}})
		}
		result(text("over"))
	case "more":
		more = true
		say(map[string]any{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
		result(text("there is more"))
	default:
		r.refuse(m.ID, -32602, "unknown tool")
	}
}

const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// extension is a plugin written with the kit.
func extension() {
	p := plugin.New("acme.tool.guard", "1.0.0")
	p.UseSandbox()
	p.Declare(func(d *plugin.Declaration) { d.Events = []string{"plugin.acme.tool.guard.seen"} })
	plugin.Tool(p, "census", "Counts files.", func(ctx context.Context, c *plugin.Call, in struct {
		Path string `json:"path"`
	}) (string, error) {
		list, err := c.List(ctx, in.Path)
		if err != nil {
			return "", err
		}
		if err := c.Write(ctx, in.Path+"/census.txt", []byte(fmt.Sprint(len(list.Entries)))); err != nil {
			return "", err
		}
		back, err := c.Read(ctx, in.Path+"/census.txt")
		if err != nil {
			return "", err
		}
		info, err := c.Stat(ctx, in.Path)
		if err != nil {
			return "", err
		}
		out, err := c.Exec(ctx, plugin.Exec{Argv: []string{"echo", "counted"}})
		if err != nil {
			return "", err
		}
		c.Progress(ctx, "counted")
		if err := p.Publish(ctx, "plugin.acme.tool.guard.seen", c.SessionID, map[string]any{"files": len(list.Entries)}); err != nil {
			return "", err
		}
		if err := p.Publish(ctx, "plugin.acme.tool.guard.undeclared", "", map[string]any{}); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s files in a %s; %s", back, info.Type, strings.TrimSpace(out.Stdout)), nil
	})
	plugin.Tool(p, "late", "Uses the sandbox when its call is over.", func(ctx context.Context, c *plugin.Call, in struct{}) (string, error) {
		go func() {
			time.Sleep(50 * time.Millisecond) // the call has ended by then
			_, err := c.List(context.Background(), ".")
			fmt.Fprintln(os.Stderr, "late:", err)
		}()
		return "ok", nil
	})
	p.Before("bash", func(_ context.Context, _ *plugin.Call, b plugin.Before) (plugin.Verdict, error) {
		if strings.Contains(string(b.Arguments), "hang") {
			select {}
		}
		return plugin.Verdict{Block: strings.Contains(string(b.Arguments), "rm -rf"), Reason: "too dangerous"}, nil
	})
	p.After("bash", func(_ context.Context, _ *plugin.Call, a plugin.After) (plugin.Change, error) {
		if a.Status == "error" {
			return plugin.Change{}, fmt.Errorf("cannot judge it")
		}
		return plugin.Change{Content: []plugin.Content{{Type: "text", Text: "seen: " + a.Result.Content[0].Text}}}, nil
	})
	p.Section(plugin.Section{Name: "rules", Op: "append", Entries: []string{"Count first."}})
	p.Describe(plugin.ToolPlan{Name: "census", Snippet: "counts files"})
	p.Setup(func(_ context.Context, s plugin.Setup, plan *plugin.Plan) error {
		var o struct{ Fail bool }
		if err := json.Unmarshal(s.Options, &o); err != nil {
			return err
		}
		if o.Fail {
			return fmt.Errorf("told to fail")
		}
		plan.Foundation = "You are a " + s.Model.ID + " guard."
		return nil
	})
	if err := p.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
