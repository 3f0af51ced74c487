package effectrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// listen serves s on the loopback address until the test ends.
func listen(t testing.TB, s *testServer, opts AcceptOptions) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(endpoint(t, s.handle, opts, nil))
	t.Cleanup(server.Close)
	return server
}

// endpoint serves calls with handle; results of Serve go to ended, if not nil.
func endpoint(t testing.TB, handle func(*Call), opts AcceptOptions, ended chan<- error) http.Handler {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Done()
		conn, err := Accept(w, r, opts)
		if err != nil {
			return
		}
		err = NewServer(conn, ServerOptions{}).Serve(ctx, handle)
		if ended != nil {
			ended <- err
		}
	})
}

// upgrade sends a handshake with these header lines and returns the status.
func upgrade(t *testing.T, address, host string, lines ...string) int {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	head := "GET /rpc/v1?token=x HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(lines, "\r\n")
	if len(lines) > 0 {
		head += "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

var handshake = []string{
	"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
	"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
	"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",
}

func TestHostAndOriginAreCheckedBeforeTheUpgrade(t *testing.T) {
	server := listen(t, newTestServer(), AcceptOptions{
		AllowHosts:   []string{"Dev.Example", "boxed.example:7433"},
		AllowOrigins: []string{"https://app.example", "http://localhost:5173/"},
	})
	address := server.Listener.Addr().String()
	for _, x := range []struct {
		host   string
		origin string // "" for none
		want   int
	}{
		{"127.0.0.1", "", 101},
		{"127.0.0.1:7433", "", 101},
		{"localhost", "", 101},
		{"LOCALHOST.:99", "", 101},
		{"codework.localhost:99", "", 101},
		{"[::1]:7433", "", 101},
		{"[::1]", "", 101},
		{"192.168.7.9:7433", "", 101},
		{"dev.example", "", 101},
		{"DEV.example.:8080", "", 101},
		{"boxed.example:1", "", 101},
		{"evil.example", "", 403},
		{"evil.example:7433", "", 403},
		{"dev.example.evil.example", "", 403},
		{"notlocalhost", "", 403},
		{"localhost.evil.example", "", 403},
		{"127.0.0.1.evil.example", "", 403},
		{"", "", 403},
		{"127.0.0.1", "https://app.example", 101},
		{"127.0.0.1", "HTTPS://APP.example", 101},
		{"127.0.0.1", "http://localhost:5173", 101},
		{"127.0.0.1", "http://localhost:5174", 403},
		{"127.0.0.1", "http://localhost", 403},
		{"127.0.0.1", "http://127.0.0.1", 403},
		{"127.0.0.1", "http://app.example", 403},
		{"127.0.0.1", "https://app.example:444", 403},
		{"127.0.0.1", "https://app.example.evil.example", 403},
		{"127.0.0.1", "null", 403},
		{"evil.example", "http://evil.example", 403}, // DNS rebinding
		{"evil.example", "https://app.example", 403},
	} {
		lines := handshake
		if x.origin != "" {
			lines = append([]string{"Origin: " + x.origin}, handshake...)
		}
		if got := upgrade(t, address, x.host, lines...); got != x.want {
			t.Errorf("Host %q, Origin %q: %d, want %d", x.host, x.origin, got, x.want)
		}
	}
	if got := upgrade(t, address, "localhost", append([]string{"Origin: https://app.example", "Origin: null"}, handshake...)...); got != 403 {
		t.Errorf("two origins: %d", got)
	}
	if got := upgrade(t, address, "localhost", append([]string{"Origin: "}, handshake...)...); got != 403 {
		t.Errorf("empty origin: %d", got)
	}
}

func TestATrustedSocketAdmitsEveryHostButNoPage(t *testing.T) {
	address := listen(t, newTestServer(), AcceptOptions{TrustHost: true}).Listener.Addr().String()
	if got := upgrade(t, address, "codework", handshake...); got != 101 {
		t.Error(got)
	}
	if got := upgrade(t, address, "codework", append([]string{"Origin: http://codework"}, handshake...)...); got != 403 {
		t.Error(got)
	}
}

func TestATokenIsRequiredInTheHeaderOnly(t *testing.T) {
	server := listen(t, newTestServer(), AcceptOptions{Token: "x"})
	address := server.Listener.Addr().String()
	for header, want := range map[string]int{
		"Authorization: Bearer x":                            101,
		"authorization: bearer  x ":                          101,
		"Authorization: Bearer y":                            401,
		"Authorization: Bearer xx":                           401,
		"Authorization: Bearer":                              401,
		"Authorization: Basic x":                             401,
		"Authorization: x":                                   401,
		"X-Nothing: 1":                                       401, // the query of the request holds it: not looked at
		"Authorization: Bearer x\r\nAuthorization: Bearer y": 401,
		"Origin: null\r\nAuthorization: Bearer x":            403,
	} {
		if got := upgrade(t, address, "localhost", append([]string{header}, handshake...)...); got != want {
			t.Errorf("%s: %d, want %d", header, got, want)
		}
	}
	c := NewClient(dialTest(t, server, DialOptions{Token: "x"}), ClientOptions{})
	if err := c.Call(within(t), "void", nil, nil); err != nil {
		t.Error(err)
	}
	_ = c.Close()

	_, err := Dial(within(t), server.URL+"/?secret=s", DialOptions{HTTPClient: server.Client(), Token: "wrong-token"})
	var status *StatusError
	if !errors.As(err, &status) || *status != (StatusError{401, "token missing or wrong"}) {
		t.Errorf("dial: %v", err)
	}
	if strings.Contains(fmt.Sprint(err), "secret") || strings.Contains(fmt.Sprint(err), "wrong-token") {
		t.Errorf("the error repeats what is secret: %v", err)
	}
}

func TestRequestsThatAreNoUpgradeDoNotUpgrade(t *testing.T) {
	server := listen(t, newTestServer(), AcceptOptions{})
	address := server.Listener.Addr().String()
	if got := upgrade(t, address, "localhost"); got != 400 {
		t.Errorf("plain GET: %d", got)
	}
	if got := upgrade(t, address, "localhost", "Connection: Upgrade", "Upgrade: h2c"); got != 400 {
		t.Errorf("other upgrade: %d", got)
	}
	if got := upgrade(t, address, "localhost", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 12"); got != 400 {
		t.Errorf("old version: %d", got)
	}
	if got := upgrade(t, address, "localhost", "Upgrade: websocket"); got != 400 {
		t.Errorf("without Connection: %d", got)
	}
}

func TestCompressionIsDeclined(t *testing.T) {
	server := listen(t, newTestServer(), AcceptOptions{})
	ws, response, err := websocket.Dial(within(t), server.URL, &websocket.DialOptions{
		HTTPClient: server.Client(), CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if got := response.Header.Get("Sec-WebSocket-Extensions"); got != "" {
		t.Errorf("agreed to %s", got)
	}
}

func TestDialingNobodyIsAnError(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	if _, err := Dial(within(t), "ws://"+address+"/rpc/v1", DialOptions{}); err == nil || !strings.HasPrefix(err.Error(), "connect to ws://"+address+"/rpc/v1: dial tcp "+address) {
		t.Errorf("%v", err)
	}
}

func TestAUnixSocketServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: endpoint(t, newTestServer().handle, AcceptOptions{TrustHost: true}, nil)}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	defer running.Wait()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	conn, err := Dial(within(t), "ws://codework/rpc/v1", DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(conn, ClientOptions{})
	if err := c.Call(within(t), "void", nil, nil); err != nil {
		t.Error(err)
	}
	_ = c.Close()
}

// rawWebSocket dials with the library alone, to send what our client does not.
func rawWebSocket(t *testing.T, handler http.Handler) *websocket.Conn {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	ws, _, err := websocket.Dial(within(t), server.URL, &websocket.DialOptions{HTTPClient: server.Client()})
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(-1)
	t.Cleanup(func() { _ = ws.CloseNow() })
	return ws
}

func TestBinaryMessagesAreReadAndAnswersAreText(t *testing.T) {
	ws := rawWebSocket(t, endpoint(t, newTestServer().handle, AcceptOptions{}, nil))
	frame := request("1", "echo", `{"a":"漢"}`) + "\n"
	cut := strings.Index(frame, "漢") + 1 // inside the character
	for _, part := range []string{frame[:cut], frame[cut:]} {
		if err := ws.Write(within(t), websocket.MessageBinary, []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	kind, got, err := ws.Read(within(t))
	if err != nil || kind != websocket.MessageText || string(got) != success("1", `{"a":"漢"}`)+"\n" {
		t.Errorf("%v %s %v", kind, got, err)
	}
}

func TestOneMessageMayHoldMoreThanTheLineLimit(t *testing.T) {
	ws := rawWebSocket(t, endpoint(t, newTestServer().handle, AcceptOptions{}, nil))
	big := `{"a":"` + strings.Repeat("x", 9<<20) + `"}`
	frames := request("1", "void", big) + "\n" + request("2", "void", big) + "\n"
	if err := ws.Write(within(t), websocket.MessageText, []byte(frames)); err != nil {
		t.Fatal(err)
	}
	r := lineReader{limit: defaultLineLimit, read: func() ([]byte, error) {
		_, p, err := ws.Read(within(t))
		return p, err
	}}
	for _, id := range []string{"1", "2"} {
		if line, err := r.next(); err != nil || string(line) != success(id, "null") {
			t.Fatalf("answer %s: %s, %v", id, line, err)
		}
	}
}

func TestLongAnswersAreCutBetweenCharacters(t *testing.T) {
	s := newTestServer()
	ws := rawWebSocket(t, endpoint(t, s.handle, AcceptOptions{}, nil))
	for shift := range 4 {
		if err := ws.Write(within(t), websocket.MessageText, []byte(request("1", "hold", "{}")+"\n")); err != nil {
			t.Fatal(err)
		}
		value := `"` + strings.Repeat("x", shift) + strings.Repeat("🙂", 100000) + `"`
		(<-s.held).Succeed(json.RawMessage(value))
		var got []byte
		messages := 0
		for len(got) == 0 || got[len(got)-1] != '\n' {
			_, p, err := ws.Read(within(t))
			if err != nil {
				t.Fatal(err)
			}
			if strings.ToValidUTF8(string(p), "") != string(p) {
				t.Error("a text message is not UTF-8")
			}
			messages++
			got = append(got, p...)
		}
		if string(got) != success("1", value)+"\n" || messages < 6 {
			t.Errorf("%d bytes in %d messages", len(got), messages)
		}
	}
}

func TestALineOverTheLimitClosesAWebSocketWith1009(t *testing.T) {
	ended := make(chan error, 1)
	ws := rawWebSocket(t, endpoint(t, newTestServer().handle, AcceptOptions{}, ended))
	// The client is in the middle of its message when the server has seen
	// enough.
	write := make(chan error, 1)
	go func() {
		write <- ws.Write(context.Background(), websocket.MessageText, make([]byte, 20<<20))
	}()
	_, _, err := ws.Read(within(t))
	if websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("%v", err)
	}
	if err := <-ended; !errors.Is(err, ErrLineTooLong) {
		t.Errorf("Serve returned %v", err)
	}
	<-write
}

func TestBothSidesLearnHowAWebSocketWasClosed(t *testing.T) {
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := Accept(w, r, AcceptOptions{})
		if err == nil {
			ended <- NewServer(conn, ServerOptions{}).Serve(ctx, newTestServer().handle)
		}
	}))
	defer server.Close()

	c := NewClient(dialTest(t, server, DialOptions{}), ClientOptions{})
	_ = c.Close()
	if err := <-ended; err != nil {
		t.Errorf("client closed: Serve returned %v", err)
	}

	conn := dialTest(t, server, DialOptions{}).(*webSocketConn)
	_ = conn.ws.CloseNow()
	if err := <-ended; !errors.Is(err, ErrConnectionLost) {
		t.Errorf("client vanished: Serve returned %v", err)
	}
	conn.cut()

	c = NewClient(dialTest(t, server, DialOptions{}), ClientOptions{})
	cancel()
	<-c.Done()
	var closed *CloseError
	if !errors.As(c.Err(), &closed) || closed.Code != CloseGoingAway {
		t.Errorf("server closed: %v", c.Err())
	}
	if err := <-ended; err != nil {
		t.Errorf("server closed: Serve returned %v", err)
	}
	_ = c.Close()
}

func TestClosingDoesNotWaitLongForAStuckPeer(t *testing.T) {
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	started := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := Accept(w, r, AcceptOptions{})
		if err != nil {
			return
		}
		ended <- NewServer(conn, ServerOptions{}).Serve(ctx, func(c *Call) {
			c.Succeed(json.RawMessage(`"` + strings.Repeat("x", 15<<20) + `"`))
			started <- struct{}{}
		})
	}))
	defer server.Close()
	conn := dialTest(t, server, DialOptions{}) // which never reads
	if err := conn.Write([]byte(request("1", "x", "{}") + "\n")); err != nil {
		t.Fatal(err)
	}
	<-started
	start := time.Now()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve returned %v", err)
	}
	if d := time.Since(start); d > drainGrace+2*closeGrace {
		t.Errorf("took %v", d)
	}
	// Reading what had been sent ends in an error, and so the connection.
	for {
		if _, err := conn.Read(); err != nil {
			break
		}
	}
	_ = conn.Close(CloseNormal, "")
}

func TestAClientThatIsWritingLearnsThatTheServerWentAway(t *testing.T) {
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		called := make(chan struct{}, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := Accept(w, r, AcceptOptions{})
			if err != nil {
				return
			}
			_ = NewServer(conn, ServerOptions{}).Serve(ctx, func(c *Call) {
				c.Succeed(nil)
				select {
				case called <- struct{}{}:
				default:
				}
			})
		}))
		c := NewClient(dialTest(t, server, DialOptions{}), ClientOptions{})
		var calling sync.WaitGroup
		for range 4 {
			calling.Go(func() {
				for c.Call(context.Background(), "m", nil, nil) == nil {
				}
			})
		}
		<-called
		cancel()
		<-c.Done()
		calling.Wait()
		var closed *CloseError
		if !errors.As(c.Err(), &closed) || closed.Code != CloseGoingAway {
			t.Errorf("the client saw %v", c.Err())
		}
		server.Close()
	}
}

func TestClientsThatDoNotReadHarmNoOther(t *testing.T) {
	value := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	ended := make(chan error, 8)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := Accept(w, r, AcceptOptions{})
		if err != nil {
			return
		}
		ended <- NewServer(conn, ServerOptions{MaxQueuedBytes: 8 << 20}).Serve(context.Background(), func(c *Call) {
			if c.Method() == "large" {
				c.Succeed(value)
				return
			}
			c.Succeed(nil)
		})
	}))
	defer server.Close()
	calm := NewClient(dialTest(t, server, DialOptions{}), ClientOptions{})
	defer calm.Close()
	stuck := dialTest(t, server, DialOptions{})
	for i := range 200 {
		if err := stuck.Write([]byte(request(fmt.Sprint(i), "large", "{}") + "\n")); err != nil {
			break // cut off
		}
		if err := calm.Call(within(t), "small", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; !errors.Is(err, ErrPeerStuck) {
		t.Errorf("the stuck one ended with %v", err)
	}
	if err := calm.Call(within(t), "small", nil, nil); err != nil {
		t.Error(err)
	}
	for {
		if _, err := stuck.Read(); err != nil {
			break
		}
	}
	_ = stuck.Close(CloseNormal, "")
}
