package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"codework/integration/mockmodel"
	"codework/integration/peer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how long a test waits for something that must come.
const limit = 20 * time.Second

// settings name the scripted model.
const settings = `{
  "model": {"provider": "mock", "id": "mock-model"},
  "models": [{
    "id": "mock-model", "name": "Mock", "protocol": "openai-compatible", "baseUrl": "%s/v1",
    "provider": {"id": "mock", "name": "Mock", "source": "config", "env": []},
    "reasoning": false, "input": ["text"], "contextWindow": 200000, "maxTokens": 8000,
    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
  }]
}`

// serve starts the driver's server as the load program does, and connects.
func serve(t *testing.T, conns int) (d driver, events <-chan event) {
	t.Helper()
	model := mockmodel.StartTest(t, mockmodel.Options{})
	p := t.TempDir()
	home := filepath.Join(p, "homes", "codework-serve", ".codework")
	work := filepath.Join(p, "ws")
	for _, dir := range []string{home, work} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "settings.jsonc"), fmt.Appendf(nil, settings, model.URL()), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(p, "codework", "codework"), "codework/cmd/codework")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build codework: %v\n%s", err, out)
	}

	d = &codework{p: p, ws: work}
	port := freePort(t)
	argv := d.argv(port)
	c := exec.Command(argv[0], argv[1:]...)
	c.Dir, c.Env = work, append(d.env(), "PATH="+os.Getenv("PATH"))
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("%v\n%s", err, log.String())
		}
		for _, l := range d.(*codework).links {
			l.w.Close()
		}
	})
	for late := time.Now().Add(limit); d.ready(port) != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the server is not ready")
		}
	}
	told := make(chan event, 1024)
	if err := d.connect(port, c, nil, nil, conns, func(e event) { told <- e }); err != nil {
		t.Fatal(err)
	}
	return d, told
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// next returns the next event of one of the kinds.
func next(t *testing.T, events <-chan event, kinds ...string) event {
	t.Helper()
	late := time.After(limit)
	for {
		select {
		case e := <-events:
			for _, k := range kinds {
				if e.kind == k {
					return e
				}
			}
		case <-late:
			t.Fatalf("no event of %v", kinds)
		}
	}
}

// piece is one of the model server's.
var piece = regexp.MustCompile(`@\d{16} \d+/\d+ `)

// Every piece of text of every session is told once, alone or with others that
// waited with it, then how it ended.
func TestPiecesAndEndsOfSessionsAreTold(t *testing.T) {
	for _, conns := range []int{1, 2} {
		t.Run(fmt.Sprint(conns, " connections"), func(t *testing.T) {
			d, events := serve(t, conns)
			const sessions, pieces = 3, 7
			for i := range sessions {
				id, err := d.create(i)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.prompt(id, fmt.Sprintf("mock=text:%d#s%d", pieces, i)); err != nil {
					t.Fatal(err)
				}
			}
			told := map[string]int{}
			for ended := 0; ended < sessions; {
				switch e := next(t, events, "delta", "done"); {
				case e.kind == "delta":
					told[e.sess] += len(piece.FindAllString(e.text, -1))
				case e.text != "completed" || told[e.sess] != pieces:
					t.Errorf("%s ended as %q after %d pieces", e.sess, e.text, told[e.sess])
					fallthrough
				default:
					ended++
				}
			}
			if len(told) != sessions {
				t.Errorf("events of %d sessions", len(told))
			}
		})
	}
}

func TestInterruptedCommandIsReported(t *testing.T) {
	d, events := serve(t, 1)
	id, err := d.create(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.prompt(id, "mock=sleep:60"); err != nil {
		t.Fatal(err)
	}
	if e := next(t, events, "tool", "done"); e.kind != "tool" {
		t.Fatalf("%+v instead of a command", e)
	}
	if err := d.abort(id); err != nil {
		t.Fatal(err)
	}
	if e := next(t, events, "done"); e.sess != id || e.text != "interrupted" {
		t.Errorf("%+v", e)
	}
}

// A reader that falls behind is cut off. It goes on behind the last durable event
// it saw, so that how its sessions ended is told even then.
func TestCutOffSubscriptionGoesOn(t *testing.T) {
	asked := make(chan []byte, 16) // the frames of the driver
	answer := make(chan string)    // the frames of the server
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		go func() {
			for frame := range answer {
				// Where a message ends means nothing.
				for _, piece := range []string{frame[:10], frame[10:] + "\n"} {
					if err := c.Write(context.Background(), websocket.MessageText, []byte(piece)); err != nil {
						t.Error(err)
					}
				}
			}
		}()
		for {
			_, b, err := c.Read(context.Background())
			if err != nil {
				return
			}
			asked <- b
		}
	}))
	defer server.Close()
	defer close(answer)

	d := &codework{}
	events := make(chan event, 16)
	connected := make(chan error, 1)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	go func() { connected <- d.connect(port, nil, nil, nil, 1, func(e event) { events <- e }) }()
	expect := func(want string) {
		t.Helper()
		select {
		case b := <-asked:
			var got, exp any
			if err := errors.Join(json.Unmarshal(b, &got), json.Unmarshal([]byte(want), &exp)); err != nil || !reflect.DeepEqual(got, exp) {
				t.Fatalf("%s, wanted %s", b, want)
			}
		case <-time.After(limit):
			t.Fatal("nothing came, wanted", want)
		}
	}
	expect(`{"_tag":"Request","id":0,"tag":"event.subscribe","payload":{},"headers":[]}`)
	answer <- `{"_tag":"Chunk","requestId":0,"values":[{"type":"server.connected","data":{}}]}`
	expect(`{"_tag":"Ack","requestId":0}`)
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	defer d.links[0].w.Close()
	answer <- `{"_tag":"Chunk","requestId":0,"values":[{"type":"session.prompt.admitted","durable":{"seq":9},"data":{"sessionId":"ses_1"}}]}`
	expect(`{"_tag":"Ack","requestId":0}`)
	answer <- `{"_tag":"Exit","requestId":0,"exit":{"_tag":"Failure","cause":[{"_tag":"Fail","error":{"_tag":"SubscriptionOverflowError","capacity":4096}}]}}`
	expect(`{"_tag":"Request","id":1,"tag":"event.subscribe","payload":{"after":{"ses_1":9}},"headers":[]}`)
	answer <- `{"_tag":"Chunk","requestId":1,"values":[{"type":"server.connected","data":{}},{"type":"session.execution.succeeded","durable":{"seq":10},"data":{"sessionId":"ses_1"}}]}`
	expect(`{"_tag":"Ack","requestId":1}`)
	if e := next(t, events, "done"); e.sess != "ses_1" || e.text != "completed" || d.retries() != 1 {
		t.Errorf("%+v, %d resumed", e, d.retries())
	}
}

// The script makes the load program with this driver in it, if the comparison's
// programs are there.
func TestDriverFitsTheLoadProgram(t *testing.T) {
	peer.Wanted(t, "BENCH")
	shared := os.Getenv("CODEWORK_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	bench := filepath.Join(shared, "bench")
	if _, err := os.Stat(filepath.Join(bench, "peers", "load")); err != nil {
		peer.Missing(t, "BENCH", err, "name the folder that holds bench/ in CODEWORK_SHARED")
	}
	if out, err := exec.Command("bash", filepath.Join("..", "budgets"), "--parts", "build", "--out", t.TempDir(), bench).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
