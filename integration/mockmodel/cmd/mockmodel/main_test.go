package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is the command in this process.
type running struct {
	url    string
	stop   context.CancelFunc
	code   chan int
	stderr *bytes.Buffer // to be read after the end
	rest   chan string   // what came on standard output after the URL
}

func runCommand(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := &running{stop: cancel, code: make(chan int, 1), stderr: &bytes.Buffer{}, rest: make(chan string, 1)}
	out, in := io.Pipe()
	go func() {
		code := run(ctx, args, in, r.stderr)
		in.Close()
		r.code <- code
	}()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("no URL: exit %d, %s", <-r.code, r.stderr)
	}
	r.url = strings.TrimSpace(line)
	go func() {
		b, _ := io.ReadAll(lines)
		r.rest <- string(b)
	}()
	return r
}

// end stops the command and returns its exit code.
func (r *running) end(t *testing.T) int {
	t.Helper()
	r.stop()
	select {
	case code := <-r.code:
		if rest := <-r.rest; rest != "" {
			t.Errorf("more than the URL on standard output: %q", rest)
		}
		return code
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
		return -1
	}
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

const (
	valid   = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	invalid = `{"model":"m","messages":[{"role":"user","content":""}]}`
)

func TestServesAScriptAndSaysWhere(t *testing.T) {
	dir := t.TempDir()
	script, where := filepath.Join(dir, "s.json"), filepath.Join(dir, "url")
	if err := os.WriteFile(script, []byte(`["from the file"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := runCommand(t, "-script", script, "-addr-file", where)
	if b, err := os.ReadFile(where); err != nil || string(b) != r.url+"\n" {
		t.Errorf("address file %q %v, URL %s", b, err, r.url)
	}
	if status, body := post(t, r.url, valid); status != 200 || !strings.Contains(body, "from the file") {
		t.Errorf("%d %s", status, body)
	}
	if code := r.end(t); code != 0 {
		t.Errorf("exit %d: %s", code, r.stderr)
	}
	if left, err := filepath.Glob(where + ".*"); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestViolationsMakeItFail(t *testing.T) {
	r := runCommand(t)
	if status, _ := post(t, r.url, invalid); status != 400 {
		t.Errorf("status %d", status)
	}
	if code := r.end(t); code != exitFailed || !strings.Contains(r.stderr.String(), "request 1: blank-text") {
		t.Errorf("exit %d: %s", code, r.stderr)
	}
}

func TestNoStrictAnswersAll(t *testing.T) {
	r := runCommand(t, "-no-strict")
	if status, _ := post(t, r.url, invalid); status != 200 {
		t.Errorf("status %d", status)
	}
	if code := r.end(t); code != 0 {
		t.Errorf("exit %d: %s", code, r.stderr)
	}
}

func TestRequireKey(t *testing.T) {
	r := runCommand(t, "-require-key", "any")
	if status, _ := post(t, r.url, valid); status != 401 {
		t.Errorf("status %d", status)
	}
	if code := r.end(t); code != exitFailed {
		t.Errorf("exit %d: %s", code, r.stderr)
	}
}

func TestRefusesToStart(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte(`[[{"txt": ""}]]`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   []string
		code   int
		reason string
	}{
		{[]string{"-nonsense"}, exitUsage, "flag provided but not defined"},
		{[]string{"extra"}, exitUsage, "unexpected argument"},
		{[]string{"-addr", "0.0.0.0:0"}, exitFailed, "not a loopback address"},
		{[]string{"-script", "does-not-exist"}, exitFailed, "does-not-exist"},
		{[]string{"-script", bad}, exitFailed, "answer 1: step 1: no step has the keys"},
		{[]string{"-addr-file", filepath.Join(t.TempDir(), "no", "dir")}, exitFailed, "no"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), tt.args, &stdout, &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.reason) || stdout.Len() != 0 {
			t.Errorf("%q: exit %d, %q, %q", tt.args, code, &stdout, &stderr)
		}
	}
}
