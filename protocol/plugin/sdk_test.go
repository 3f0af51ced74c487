package plugin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A plugin is a few lines, and speaks the protocol as it is written down: this
// test plays the host with plain JSON.
func TestAPluginOfAFewLines(t *testing.T) {
	p := New("acme.tool.words", "1.0.0")
	Tool(p, "count_words", "Counts words.", func(_ context.Context, c *Call, in struct {
		Text string `json:"text"`
	}) (string, error) {
		return fmt.Sprint(len(strings.Fields(in.Text)), " in ", c.SessionID), nil
	})
	p.Before("bash", func(_ context.Context, _ *Call, b Before) (Verdict, error) {
		return Verdict{Block: strings.Contains(string(b.Arguments), "rm"), Reason: "no"}, nil
	})
	p.Section(Section{Name: "rules", Op: "append", Entries: []string{"Count."}})

	in, host := io.Pipe()
	plugin, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- p.Serve(context.Background(), in, out) }()
	lines := bufio.NewScanner(plugin)
	ask := func(line string) map[string]json.RawMessage {
		t.Helper()
		if _, err := io.WriteString(host, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		if m["error"] != nil {
			t.Fatalf("%s: %s", line, m["error"])
		}
		return m
	}
	hello := ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	want := `"sh.codework/plugin":{"hooks":true,"id":"acme.tool.words","kind":"tool","prompt":true,"version":1}`
	if !strings.Contains(string(hello["result"]), want) {
		t.Errorf("%s", hello["result"])
	}
	if _, err := io.WriteString(host, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ method, params, want string }{
		{MethodSetup, `{"sessionId":"s","options":{}}`, `{"hooks":[{"tool":"bash","before":true}],"sections":[{"name":"rules","op":"append","entries":["Count."]}]}`},
		{MethodBefore, `{"sessionId":"s","callId":"c","tool":"bash","arguments":{"command":"ls"}}`, `{"reason":"no"}`},
		{MethodBefore, `{"sessionId":"s","callId":"c","tool":"bash","arguments":{"command":"rm x"}}`, `{"block":true,"reason":"no"}`},
		{"tools/call", `{"name":"count_words","arguments":{"text":"a b c"},"_meta":{"sh.codework/sessionId":"s"}}`, `{"content":[{"type":"text","text":"3 in s"}]}`},
	} {
		m := ask(`{"jsonrpc":"2.0","id":2,"method":"` + c.method + `","params":` + c.params + `}`)
		if string(m["result"]) != c.want {
			t.Errorf("%s %s: %s", c.method, c.params, m["result"])
		}
	}
	host.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	plugin.Close()
}

func TestIDs(t *testing.T) {
	for id, want := range map[string]bool{
		"acme.tool.x": true, "a.b.c-1": true, "acme.tool": false, "acme.tool.x.y": false, "codework.tool.x": false,
		"Acme.tool.x": false, "acme..x": false, "-a.b.c": false, "": false, "codeworks.tool.x": true,
	} {
		if ValidID(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}
