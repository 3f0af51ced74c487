package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"codework/integration/mockmodel"
)

// knock sends a request as it is written and returns the answer.
func knock(t *testing.T, addr, request string) (*http.Response, string) {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, callLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(callLimit))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("no answer to %q: %v", request, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, ""
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // what came is what matters
	return resp, string(body)
}

// upgrade is a WebSocket handshake for a path with a Host and further lines.
func upgrade(path, host string, lines ...string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + strings.Join(append(lines, "", ""), "\r\n")
}

// A web page, also one that is served on this machine or that has made its name
// point here, gets in nowhere.
func TestServerTurnsWebPagesAway(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--log-level", "debug", "--allow-origin", "https://good.example", "--allow-host", "box.example")
	_, port, _ := net.SplitHostPort(s.addr)
	for _, path := range []string{"/rpc/v1", "/rpc"} {
		for _, k := range []struct {
			host   string
			lines  []string
			status int
		}{
			{s.addr, nil, 101},
			{"localhost:1", nil, 101}, // a forwarded port
			{"LocalHost.", nil, 101},
			{"[::1]:" + port, nil, 101},
			{"192.0.2.7", nil, 101}, // an address cannot be rebound
			{"box.example:" + port, nil, 101},
			{s.addr, []string{"Origin: https://good.example"}, 101},
			{s.addr, []string{"Origin: https://evil.example"}, 403},
			{s.addr, []string{"Origin: null"}, 403},
			{s.addr, []string{"Origin: http://" + s.addr}, 403},
			{s.addr, []string{"Origin: http://127.0.0.1:8080"}, 403},
			{s.addr, []string{"Origin: http://localhost:" + port}, 403},
			{s.addr, []string{"Origin: file://"}, 403},
			{s.addr, []string{"Origin: http://good.example"}, 403},
			{s.addr, []string{"Origin: https://good.example:444"}, 403},
			{s.addr, []string{"Origin: https://good.example", "Origin: https://evil.example"}, 403},
			{s.addr, []string{"Origin: https://good.example.evil.example"}, 403},
			{"evil.example:7433", nil, 403},
			{"evil.example", nil, 403},
			{"localhost.evil.example", nil, 403},
			{"127.0.0.1.nip.example:" + port, nil, 403},
			{"evil.example:" + port, []string{"Origin: http://evil.example:" + port}, 403}, // rebound
			{"box.example.evil.example", nil, 403},
			{"", nil, 403},
		} {
			resp, _ := knock(t, s.addr, upgrade(path, k.host, k.lines...))
			if resp.StatusCode != k.status {
				t.Errorf("%s, Host %s, %v: answered %d instead of %d", path, k.host, k.lines, resp.StatusCode, k.status)
			}
			for name := range resp.Header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%s, Host %s, %v: the answer has %s", path, k.host, k.lines, name)
				}
			}
		}
	}
	body := "tag=session.create&payload=%7B%7D"
	form := func(path, lines string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: " + s.addr + "\r\nContent-Type: application/x-www-form-urlencoded\r\n" + lines +
			"Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	for _, path := range []string{"/", "/rpc", "/rpc/v1", "/rpc/v1/", "/rpc/v1/session.create", "/rpc/v2", "/acp", "/debug/pprof/", "/metrics/", "/health", "/index.html", "//rpc/v1", "/rpc/../rpc/v1"} {
		served := path == "/rpc" || path == "/rpc/v1"
		for name, k := range map[string]struct {
			request string
			status  int
		}{
			"a form":             {form(path, ""), 400},
			"a form of a page":   {form(path, "Origin: https://evil.example\r\n"), 403},
			"a text of a page":   {strings.Replace(form(path, "Origin: null\r\n"), "application/x-www-form-urlencoded", "text/plain", 1), 403},
			"a GET":              {"GET " + path + "?tag=session.create HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n", 400},
			"a GET of a page":    {"GET " + path + " HTTP/1.1\r\nHost: " + s.addr + "\r\nOrigin: https://evil.example\r\n\r\n", 403},
			"a GET of a rebound": {"GET " + path + " HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403},
			"a preflight": {"OPTIONS " + path + " HTTP/1.1\r\nHost: " + s.addr +
				"\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n", 403},
			"an upgrade of a page": {upgrade(path, s.addr, "Origin: https://evil.example"), 403},
		} {
			resp, text := knock(t, s.addr, k.request)
			switch {
			case served && resp.StatusCode != k.status,
				!served && resp.StatusCode != 404 && (resp.StatusCode < 300 || resp.StatusCode > 399):
				t.Errorf("%s to %s: answered %d", name, path, resp.StatusCode)
			case strings.Contains(text, "ses_") || len(text) > 200:
				t.Errorf("%s to %s: answered %q", name, path, text)
			}
		}
		if !served {
			if resp, _ := knock(t, s.addr, upgrade(path, s.addr)); resp.StatusCode == 101 {
				t.Errorf("%s is upgraded", path)
			}
		}
	}
	c := s.dial(t)
	if got := c.call("server.info", o{}); at(got, "sessions", "total") != "0" {
		t.Errorf("somebody got in: %s", got)
	}
}

// Who does not know the token is turned away, and the token is told to nobody.
func TestServerAsksForItsToken(t *testing.T) {
	t.Parallel()
	const token = "a-secret-token-1234"
	w := newServerWorld(t)
	file := filepath.Join(w.dir, "token")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(says string, args ...string) {
		t.Helper()
		s := w.beginServe(t, nil, args...)
		s.ended = true
		code, err := s.proc.finish(endLimit)
		if text := s.proc.err.String(); code != 2 || err != nil || !strings.Contains(text, says) || strings.Contains(text, token) || s.proc.out.String() != "" {
			t.Errorf("serve %v: exit code %d, %v, %s", args, code, err, text)
		}
	}
	for _, host := range []string{"0.0.0.0", "::", "[::]", "192.0.2.7", "box.example", "", "localhost.example", "0"} {
		refused("--host", "--host", host)
	}
	write(token+"\n", 0o644)
	refused("others can read it", "--token-file", file)
	write("\n", 0o600)
	refused("no token", "--token-file", file)
	write(token+" "+token, 0o600)
	refused("one word", "--token-file", file)
	refused("no such file", "--token-file", file+"x")
	refused("--port", "--port", "70000")
	refused("--max-running", "--max-running", "-1")

	write("  "+token+"\r\n", 0o600)
	s := w.serveHere(t, nil, "--token-file", file, "--log-level", "debug")
	for _, k := range []struct {
		path   string
		lines  []string
		status int
	}{
		{"/rpc/v1", nil, 401},
		{"/rpc/v1", []string{"Authorization: Bearer wrong"}, 401},
		{"/rpc/v1", []string{"Authorization: Bearer"}, 401},
		{"/rpc/v1", []string{"Authorization: " + token}, 401},
		{"/rpc/v1", []string{"Authorization: Basic " + token}, 401},
		{"/rpc/v1", []string{"Authorization: Bearer " + token[:len(token)-1]}, 401},
		{"/rpc/v1", []string{"Authorization: Bearer " + token + "x"}, 401},
		{"/rpc/v1", []string{"Authorization: Bearer wrong", "Authorization: Bearer " + token}, 401},
		{"/rpc/v1", []string{"Cookie: token=" + token}, 401},
		{"/rpc/v1", []string{"Sec-WebSocket-Protocol: " + token}, 401},
		{"/rpc/v1?token=" + token, nil, 401},
		{"/rpc/v1?access_token=" + token + "&authorization=Bearer%20" + token, nil, 401},
		{"/rpc?token=" + token, nil, 401},
		{"/rpc/v1", []string{"Authorization: Bearer " + token, "Origin: https://evil.example"}, 403},
		{"/rpc/v1", []string{"Authorization: bearer " + token}, 101},
		{"/rpc/v1?anything=else", []string{"Authorization: Bearer " + token}, 101},
		{"/" + token, nil, 404},
	} {
		resp, text := knock(t, s.addr, upgrade(k.path, s.addr, k.lines...))
		if resp.StatusCode != k.status || strings.Contains(text, token) {
			t.Errorf("%s %v: answered %d (%s) instead of %d", k.path, k.lines, resp.StatusCode, text, k.status)
		}
		if asks := resp.Header.Get("WWW-Authenticate"); k.status == 401 && asks == "" {
			t.Errorf("%s %v: the answer does not say what is asked for", k.path, k.lines)
		}
	}
	// A plain request is no way around it.
	if resp, _ := knock(t, s.addr, "GET /rpc/v1 HTTP/1.1\r\nHost: "+s.addr+"\r\n\r\n"); resp.StatusCode != 401 {
		t.Errorf("a plain GET: answered %d", resp.StatusCode)
	}
	c, err := dialWith(t, s.url, http.Header{"Authorization": {"Bearer " + token}})
	if err != nil {
		t.Fatal(err)
	}
	// Nor do the commands learn it.
	st := c.begin("sandbox.exec", o{"sandboxId": "local", "argv": []string{"sh", "-c", "env; cat /proc/$PPID/cmdline"}}).stream
	st.wait(t)
	if out, errs, _ := outputs(t, st); strings.Contains(out+errs, token) {
		t.Error("a command has the token")
	}
	if log := s.proc.err.String() + w.log(); strings.Contains(log, token) || strings.Contains(log, token[:len(token)-1]) {
		t.Error("the token is in the log")
	}
}

// Another user of this machine is not let in by the socket, whatever its
// permissions came to be.
func TestServerKnowsItsUserOnTheSocket(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: only root can be somebody else")
	}
	s := newServer(t)
	socket := filepath.Join(s.home, "run", "home.sock")
	if fi, err := os.Stat(socket); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", fi, err)
	}
	if fi, err := os.Stat(filepath.Dir(socket)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("its folder: %v, %v", fi, err)
	}
	for uid, want := range map[int]bool{0: true, 65534: false} {
		answered, err := asUser(uid, socket)
		if err != nil {
			t.Fatal(err)
		}
		if answered != want {
			t.Errorf("user %d: answered %v", uid, answered)
		}
	}
	s.dial(t).pong()
}

// asUser connects to a socket with another user's credentials, though with
// root's access to files, and tells whether a handshake is answered.
func asUser(uid int, socket string) (answered bool, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		// Of this thread alone.
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			err = e
			return
		}
		if _, e := unix.SetfsuidRetUid(0); e != nil {
			err = e
			return
		}
		fd, e := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if e != nil {
			err = e
			return
		}
		defer unix.Close(fd)
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(callLimit / time.Second)}); err != nil {
			return
		}
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
			return
		}
		// It may have hung up already.
		_, _ = unix.Write(fd, []byte(upgrade("/rpc/v1", "codework")))
		b := make([]byte, 100)
		n, e := unix.Read(fd, b)
		if e == unix.EAGAIN {
			err = fmt.Errorf("user %d was neither answered nor turned away", uid)
			return
		}
		answered = n > 0 && strings.Contains(string(b[:n]), " 101 ")
	}()
	<-done
	return answered, err
}

// What one connection sends harms no other: lines without end, calls without
// number, rubbish.
func TestServerSurvivesItsClients(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	good := s.dial(t)
	id := good.create(o{})
	watch := good.subscribe(o{})

	t.Run("a line without end", func(t *testing.T) {
		c := s.dial(t)
		piece := make([]byte, 1<<20)
		for i := range piece {
			piece[i] = 'x'
		}
		for range 17 {
			if c.write(websocket.MessageBinary, piece) != nil {
				break // turned away
			}
		}
		if code := c.code(); code != websocket.StatusMessageTooBig {
			t.Errorf("closed with %d: %v", code, c.why)
		}
	})
	t.Run("a prompt that is too long", func(t *testing.T) {
		c := s.dial(t)
		c.dies("session.prompt", o{"sessionId": id, "text": strings.Repeat("x", 8<<20+1)}, "text")
		c.pong()
	})
	t.Run("calls without number", func(t *testing.T) {
		s.answers(t, "flood", mockmodel.Answer{mockmodel.Text{Text: "x"}, mockmodel.Hold{Name: "flood"}})
		good.prompt(id, "script=flood")
		s.reached(t, "flood")
		const most, more = 8192, 5
		c := s.dial(t)
		p := &pendingCall{method: "session.wait", done: make(chan answer, most+more)}
		var text strings.Builder
		c.mu.Lock()
		for i := range most + more {
			c.calls[strconv.Itoa(i)] = p
			fmt.Fprintf(&text, `{"_tag":"Request","id":%d,"tag":"session.wait","payload":{"sessionId":"%s"},"headers":[]}`+"\n", i, id)
		}
		c.mu.Unlock()
		c.send(text.String())
		for range more {
			if a := p.wait(t); a.kind != "Die" || at(a.body, "name") != "BusyError" {
				t.Errorf("one call too many: %s", a)
			}
		}
		c.pong()
		good.call("session.list", o{})
		s.model.Release("flood")
		for range most {
			if a := p.wait(t); a.kind != "Success" {
				t.Fatalf("a wait among many: %s", a)
			}
		}
	})
	t.Run("rubbish", func(t *testing.T) {
		const long = 2 * time.Second
		until := time.Now().Add(long)
		var all sync.WaitGroup
		for n := range 4 {
			all.Go(func() { rubbish(s, rand.New(rand.NewPCG(uint64(n), 11)), until) })
		}
		slowest := time.Duration(0)
		for i := 0; time.Now().Before(until); i++ {
			begin := time.Now()
			good.prompt(id, fmt.Sprintf("mock=text:3 %d", i))
			good.idle(id)
			good.pong()
			slowest = max(slowest, time.Since(begin))
		}
		all.Wait()
		t.Logf("the slowest exchange beside it took %s", slowest)
		if n := len(good.defects); n > 0 {
			t.Errorf("%d defects on a connection that did nothing wrong", n)
		}
	})
	good.call("session.rename", o{"sessionId": id, "title": "the end"})
	inOrder(t, watch.to(t, "rename", func(e event) bool { return at(e.Data, "session", "title") == "the end" }))
}

// rubbish sends what no client should, on connections of its own.
func rubbish(s *server, r *rand.Rand, until time.Time) {
	frames := []string{
		`{"_tag":"Request","id":1,"tag":"session.list","payload":{},"headers":[]}`,
		`{"_tag":"Request","id":2,"tag":"event.subscribe","payload":{"after":{"ses_x":1}},"headers":[]}`,
		`{"_tag":"Request","id":"3","tag":"session.prompt","payload":{"sessionId":"ses_x","text":"x","parts":[{"type":"image","mediaType":"image/png","data":"AAAA"}]}}`,
		`{"_tag":"Request","id":4,"tag":"session.history","payload":{"sessionId":"ses_x","limit":9e99}}`,
		`{"_tag":"Ack","requestId":2}`, `{"_tag":"Interrupt","requestId":2}`, `{"_tag":"Ping"}`, `{"_tag":"Eof"}`, `null`, `{"_tag":"Exit"}`,
		strings.Repeat(`[{"a":`, 5000), `{"_tag":"Request","id":` + strings.Repeat("9", 3000) + `,"tag":"server.info","payload":{}}`,
	}
	for time.Now().Before(until) {
		if r.IntN(3) == 0 {
			c, err := net.DialTimeout("tcp", s.addr, time.Second)
			if err != nil {
				continue
			}
			b := make([]byte, r.IntN(2000))
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			switch r.IntN(3) {
			case 0: // no HTTP at all
			case 1: // no WebSocket behind the handshake
				_, _ = io.WriteString(c, upgrade("/rpc/v1", s.addr))
			case 2: // half a handshake
				b = []byte(upgrade("/rpc/v1", s.addr)[:r.IntN(100)])
			}
			_, _ = c.Write(b) // it may have been turned away
			c.Close()
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), callLimit)
		ws, _, err := websocket.Dial(ctx, s.url, nil)
		if err != nil {
			cancel()
			continue
		}
		ws.SetReadLimit(-1)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			for err := error(nil); err == nil; {
				_, _, err = ws.Read(ctx)
			}
		}()
		for range r.IntN(40) {
			b := []byte(frames[r.IntN(len(frames))] + "\n")
			for range r.IntN(4) {
				switch i := r.IntN(len(b)); r.IntN(3) {
				case 0:
					b[i] = byte(r.Uint32())
				case 1:
					b = append(b[:i], b[i+1:]...)
				case 2:
					b = append(b, frames[r.IntN(len(frames))]...)
				}
				if len(b) == 0 {
					b = []byte{'\n'}
				}
			}
			kind := websocket.MessageBinary
			if r.IntN(2) == 0 {
				kind = websocket.MessageText
			}
			if ws.Write(ctx, kind, b) != nil {
				break // turned away
			}
		}
		_ = ws.CloseNow()
		<-gone
		cancel()
	}
}

// openFiles counts the descriptors of a process.
func openFiles(t *testing.T, pid int) int {
	t.Helper()
	l, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// resident is how much memory a process holds, in KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		t.Fatal("the kernel does not tell of memory")
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

// Clients come, work and vanish, or hang up halfway. Nothing of them stays.
func TestServerForgetsVanishedClients(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	pid := s.proc.cmd.Process.Pid
	cycles, first := 200, 40
	if *long {
		cycles, first = 2000, 100
	}
	const together = 4
	run := func(n int) {
		var all sync.WaitGroup
		next := make(chan int)
		for range together {
			all.Go(func() {
				for i := range next {
					c, err := dialWith(t, s.url, nil)
					if err != nil {
						t.Error(err)
						continue
					}
					id := at(c.ask("session.create", o{}).body, "id")
					c.begin("event.subscribe", o{})
					c.begin("event.subscribe", o{"sessionId": id, "after": o{id: 0}}).stream.stall(true)
					c.ask("session.prompt", o{"sessionId": id, "text": fmt.Sprintf("mock=tools:1 %d", i)})
					if a := c.ask("session.wait", o{"sessionId": id}); a.kind != "Success" {
						t.Errorf("cycle %d: %s", i, a)
					}
					if i%2 == 0 {
						// Halfway through something.
						c.begin("sandbox.exec", o{"sandboxId": "local", "argv": []string{"sleep", "600"}})
					}
					c.vanish()
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		all.Wait()
		for range 10 { // and half-closed ones
			conn, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, upgrade("/rpc/v1", s.addr))
			_, _ = http.ReadResponse(bufio.NewReader(conn), nil)
			_ = conn.(*net.TCPConn).CloseWrite()
			t.Cleanup(func() { conn.Close() })
		}
	}
	run(first)
	quiet := func() {
		t.Helper()
		if err := until(endLimit, func() string {
			for _, p := range processesOf(s.dir) {
				if strings.Contains(p.command, "sleep 600") {
					return "there still runs " + p.command
				}
			}
			return ""
		}); err != nil {
			t.Error(err)
		}
	}
	quiet()
	files, memory := openFiles(t, pid), resident(t, pid)
	run(cycles - first)
	quiet()
	if err := until(endLimit, func() string {
		if now := openFiles(t, pid); now > files+files/10+2 {
			return fmt.Sprintf("%d descriptors are open, after the first %d cycles there were %d", now, first, files)
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
	now := resident(t, pid)
	t.Logf("%d descriptors and %d KiB after %d cycles, %d and %d KiB after %d", files, memory, first, openFiles(t, pid), now, cycles)
	// The sessions themselves stay in memory for a while; 150 KiB each are
	// allowed for.
	if most := memory + memory/10 + 150*(cycles-first); !raceDetector && now > most {
		t.Errorf("%d KiB instead of at most %d", now, most)
	}
	// What goroutines there are, the process tells when it is asked to abort.
	s.ended = true
	_ = s.proc.cmd.Process.Signal(syscall.SIGQUIT)
	if _, err := s.proc.finish(endLimit); err != nil {
		t.Fatal(err)
	}
	dump := s.proc.err.String()
	s.proc.err = buffer{}
	goroutines := strings.Split(dump, "\n\ngoroutine ")
	if len(goroutines) < 5 || len(goroutines) > 100 {
		t.Errorf("%d goroutines", len(goroutines))
	}
	for _, g := range goroutines {
		if strings.Contains(g, "protocol/effectrpc") || strings.Contains(g, "actors.(*gateway)") {
			t.Errorf("of a client that is gone there is still:\n%s", g[:min(len(g), faultLimit)])
			break
		}
	}
}

// A connection that says nothing more after a refusal does not stay for ever.
func TestServerClosesConnectionsThatSayNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for what, request := range map[string]string{
		"nothing": "", "half a request": "GET /rpc/v1 HTTP/1.1\r\nHost: ",
		"one request": "GET /rpc/v1 HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(endLimit))
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Errorf("it is still open: %v", err)
			}
		})
	}
}

// connectionsAtMost is how many clients the port takes at once.
const connectionsAtMost = 4096

// One client too many is told so, and the next one comes in when one has left.
func TestServerTakesSoManyConnections(t *testing.T) {
	if !*long {
		t.Skip("NOT TESTED: thousands of connections, without -long")
	}
	s := newServer(t)
	good := s.dial(t)
	open := make([]net.Conn, 0, connectionsAtMost)
	enter := func() int {
		t.Helper()
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatalf("after %d connections: %v", len(open), err)
		}
		_ = c.SetDeadline(time.Now().Add(endLimit))
		if _, err := io.WriteString(c, upgrade("/rpc/v1", s.addr)); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("after %d connections: %v", len(open), err)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			c.Close()
			return resp.StatusCode
		}
		open = append(open, c)
		return resp.StatusCode
	}
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range connectionsAtMost - 1 {
		if status := enter(); status != http.StatusSwitchingProtocols {
			t.Fatalf("connection %d was answered %d", len(open)+2, status)
		}
	}
	if status := enter(); status != http.StatusServiceUnavailable {
		t.Errorf("one too many was answered %d", status)
	}
	good.call("session.list", o{})
	good.pong()
	open[0].Close()
	if err := until(endLimit, func() string {
		if status := enter(); status != http.StatusSwitchingProtocols {
			return fmt.Sprint("after one has left the next is answered ", status)
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
}
