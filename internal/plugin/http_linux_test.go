package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"codework/messages"
)

const bearer = "Bearer secret-of-the-entry"

// webServer is an MCP server behind HTTP that wants a key.
func webServer(t *testing.T) (*httptest.Server, *mcp.Server) {
	t.Helper()
	s := mcp.NewServer(&mcp.Implementation{Name: "web", Version: "1"}, &mcp.ServerOptions{Instructions: "From afar."})
	mcp.AddTool(s, &mcp.Tool{Name: "hello", Description: "greets"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello from afar"}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait", Description: "waits"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != bearer {
			http.Error(w, "who is "+r.Header.Get("Authorization")+"?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	return web, s
}

func TestAServerIsReachedByHTTP(t *testing.T) {
	web, s := webServer(t)
	host := NewHost(Options{Version: "1"})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	p := Program{ID: "acme.tool.web", URL: web.URL, Headers: map[string]string{"Authorization": bearer}, Client: client, Secrets: []string{bearer}, Reference: web.URL}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	i, err := host.Start(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if i.ID != "acme.tool.web" || i.Instructions != "From afar." {
		t.Errorf("%+v", i)
	}
	r, err := i.Call(ctx, Call{Tool: "hello", Arguments: json.RawMessage(`{}`)})
	if err != nil || words(r) != "hello from afar" {
		t.Errorf("%+v %v", r, err)
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if _, err := i.Call(short, Call{Tool: "wait", Arguments: json.RawMessage(`{}`)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	mcp.AddTool(s, &mcp.Tool{Name: "later", Description: "new"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, nil
	})
	eventually(t, "the new tool", func() bool {
		tools, err := i.Tools(ctx)
		return err == nil && len(tools) == 3
	})
	begun := time.Now()
	i.Close()
	if d := time.Since(begun); d > stopGrace {
		t.Errorf("it took %s", d)
	}
	if i.Alive() {
		t.Error("closed and alive")
	}
}

func TestAServerThatTurnsUsAwayIsExplained(t *testing.T) {
	web, _ := webServer(t)
	host := NewHost(Options{})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	wrong := "Bearer another-secret-key"
	_, err := host.Start(context.Background(), Program{ID: "acme.tool.web", URL: web.URL, Headers: map[string]string{"Authorization": wrong}, Client: client, Secrets: []string{wrong}})
	var e *Error
	if !errors.As(err, &e) || e.Slug != HandshakeFailed {
		t.Fatalf("%v", err)
	}
	if strings.Contains(e.Error(), "another-secret-key") {
		t.Errorf("a secret is told: %v", e)
	}
	web.Close()
	if _, err = host.Start(context.Background(), Program{ID: "acme.tool.web", URL: web.URL, Client: client}); !errors.As(err, &e) || e.Slug != HandshakeFailed {
		t.Fatalf("%v", err)
	}
}

func TestKeysDoNotFollowARedirect(t *testing.T) {
	var stolen atomic.Bool
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Key") != "" {
			stolen.Store(true)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer thief.Close()
	front := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer front.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	_, err := NewHost(Options{}).Start(context.Background(), Program{ID: "acme.tool.web", URL: front.URL, Client: client,
		Headers: map[string]string{"Authorization": bearer, "X-Key": "k"}})
	if err == nil {
		t.Fatal("it started")
	}
	if stolen.Load() {
		t.Error("the key went to another server")
	}
}

func TestAServerThatFailsIsExplained(t *testing.T) {
	web, _ := webServer(t)
	behind, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(behind)
	forward.FlushInterval = -1
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || strings.Contains(string(b), "tools/call") {
			http.Error(w, "on fire", http.StatusInternalServerError)
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(b)))
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	i, err := NewHost(Options{}).Start(ctx, Program{ID: "acme.tool.web", URL: front.URL, Headers: map[string]string{"Authorization": bearer}, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	if r, err := i.Call(ctx, Call{Tool: "hello", Arguments: json.RawMessage(`{}`)}); err == nil || !strings.Contains(err.Error(), "Internal Server Error") {
		t.Errorf("%s %v", words(r), err)
	}
}

// A server that never answers the end of a session does not hold up ours, and
// one whose stream goes on for long is not cut off at the size of one message.
func TestAServerThatHangsDoesNotHoldUpTheEnd(t *testing.T) {
	web, s := webServer(t)
	mcp.AddTool(s, &mcp.Tool{Name: "much", Description: "says much"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		for range 20 {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Message: strings.Repeat("x", 1<<20)})
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "said"}}}, nil, nil
	})
	behind, err := url.Parse(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(behind)
	forward.FlushInterval = -1
	forward.ModifyResponse = func(r *http.Response) error {
		if r.Header.Get("Content-Type") == "text/event-stream" {
			r.Header.Set("Content-Type", "text/event-stream; charset=utf-8")
		}
		return nil
	}
	over := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			<-over
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	t.Cleanup(func() {
		close(over)
		for one := range s.Sessions() { // it does not hear of the end
			_ = one.Close()
		}
	})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	i, err := NewHost(Options{}).Start(ctx, Program{ID: "acme.tool.web", URL: front.URL, Headers: map[string]string{"Authorization": bearer}, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	r, err := i.Call(ctx, Call{Tool: "much", Arguments: json.RawMessage(`{}`), Progress: func(messages.ToolResult) {}})
	if err != nil || words(r) != "said" {
		t.Errorf("%+v %v", r, err)
	}
	begun := time.Now()
	i.Close()
	if d := time.Since(begun); d > stopGrace+2*time.Second {
		t.Errorf("it took %s", d)
	}
}
