package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"codework/integration/mockmodel"
)

// dialSocket connects to the socket of the home, as programs of its user do.
func (s *server) dialSocket(t *testing.T) *wire {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.home, "run", "home.sock"))
	}}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := dialOver(t, "ws://codework/rpc/v1", nil, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hello is what a client in a folder says about its world.
func hello(t *testing.T, dir string, env o) o {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	return o{"version": "1", "build": "b", "protocol": 1, "host": host, "mountNamespace": namespace, "cwd": dir, "umask": 0o027, "env": env}
}

// Clients on this machine bring their world along, to their own calls alone;
// what they tie to their connection ends with it.
func TestServerKnowsTheWorldOfLocalClients(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	local, remote := s.dialSocket(t), s.dial(t)
	dir := filepath.Join(s.dir, "elsewhere")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mine := hello(t, dir, o{"PATH": os.Getenv("PATH"), "MARK": "of-this-client", "DEPLOY_TOKEN": "of-this-client-secret"})
	for _, key := range []string{"host", "mountNamespace"} {
		other := hello(t, dir, o{})
		other[key] = "somewhere else"
		a := s.dialSocket(t).ask("server.hello", other)
		if a.kind != "Fail" || at(a.body, "_tag") != "WrongWorldError" || at(a.body, "reason") == "" {
			t.Errorf("another %s: %s", key, a)
		}
	}
	for _, key := range []string{"version", "build", "protocol", "host", "cwd", "umask", "env"} {
		lacking := hello(t, dir, o{})
		delete(lacking, key)
		s.dialSocket(t).dies("server.hello", lacking, key)
	}
	if info := local.call("server.hello", mine); at(info, "pid") != fmt.Sprint(s.proc.cmd.Process.Pid) || at(info, "name") != "codework" {
		t.Errorf("the answer is %s", info)
	}
	run := func(c *wire) string {
		st := c.begin("sandbox.exec", o{"sandboxId": "local", "argv": []string{"sh", "-c", `pwd; umask; echo "$MARK-$DEPLOY_TOKEN"`}}).stream
		if a := st.wait(t); a.kind != "Success" {
			t.Errorf("a command: %s", a)
		}
		out, _, _ := outputs(t, st)
		return out
	}
	if got := run(local); got != dir+"\n0027\nof-this-client-\n" {
		t.Errorf("in its world a command says %q", got)
	}
	if got := run(remote); strings.Contains(got, "of-this-client") || strings.HasPrefix(got, dir) {
		t.Errorf("in somebody else's world a command says %q", got)
	}
	id := local.create(o{})
	if info := remote.call("session.info", o{"sessionId": id}); at(info, "directory") != dir || at(info, "hostDir") != "" {
		t.Errorf("a session of a client in %s: %s", dir, info)
	}
	// A server hands its home over to nobody.
	local.dies("server.handover", o{}, "BusyError")
	remote.pong()

	// Bound work ends with its client, other work goes on.
	text := mockmodel.Answer{mockmodel.Text{Text: "ok"}}
	s.answers(t, "bound", mockmodel.Answer{mockmodel.Text{Text: "x"}, mockmodel.Hold{Name: "bound"}}, text)
	watch := remote.subscribe(o{})
	local.call("session.prompt", o{"sessionId": id, "text": "script=bound", "bound": true})
	s.reached(t, "bound")
	local.call("session.prompt", o{"sessionId": id, "text": "mine too", "bound": true, "delivery": "followUp", "id": "mine"})
	remote.call("session.prompt", o{"sessionId": id, "text": "of another", "delivery": "followUp", "id": "another"})
	local.vanish()
	ended := watch.toEnd(t, id)
	if last := ended[len(ended)-1]; last.Type != "session.execution.interrupted" || at(last.Data, "reason") != "shutdown" {
		t.Errorf("bound work ended with %s", last.raw)
	}
	ended = append(ended, watch.toEnd(t, id)...)
	if last := ended[len(ended)-1]; last.Type != "session.execution.succeeded" {
		t.Errorf("the other client's prompt ended with %s", last.raw)
	}
	inOrder(t, ended)
	for m, want := range map[string]string{"mine": "false", "another": "true"} {
		if got := remote.call("session.message", o{"sessionId": id, "messageId": m}); at(got, "found") != want {
			t.Errorf("message %s: %s", m, got)
		}
	}
	// Over the port nothing can be bound.
	s.answers(t, "loose", mockmodel.Answer{mockmodel.Text{Text: "x"}, mockmodel.Hold{Name: "loose"}, mockmodel.Text{Text: "y"}})
	gone := s.dial(t)
	gone.call("session.prompt", o{"sessionId": id, "text": "script=loose", "bound": true})
	s.reached(t, "loose")
	gone.vanish()
	remote.call("session.list", o{})
	s.model.Release("loose")
	ended = watch.toEnd(t, id)
	if last := ended[len(ended)-1]; last.Type != "session.execution.succeeded" {
		t.Errorf("work of a client that vanished ended with %s", last.raw)
	}
}

// Whatever clients do to the same sessions at once, every call has an answer
// that it may have, and the logs stay whole.
func TestServerStandsAnythingAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial(t)
	watch := c.subscribe(o{})
	const sessions, clients = 5, 5
	steps := rounds(60, 1500)
	var mu sync.Mutex // guards ids
	var ids []string
	for range sessions {
		id := c.create(o{})
		c.prompt(id, "mock=text:1")
		c.idle(id)
		ids = append(ids, id)
	}
	// what a call may die of when others are at the same session
	known := []string{"no conversation to fork", "before its log is mended"}
	var all sync.WaitGroup
	for n := range clients {
		d := s.dial(t)
		r := rand.New(rand.NewPCG(uint64(n), 5))
		all.Go(func() {
			for i := range steps {
				mu.Lock()
				k := r.IntN(len(ids))
				id := ids[k]
				mu.Unlock()
				var method string
				payload := o{"sessionId": id}
				switch r.IntN(16) {
				case 0, 1, 2, 3:
					method = "session.prompt"
					payload["text"] = fmt.Sprintf("mock=%s %d-%d", []string{"text:3:1", "tools:1", "500:1,text:2#" + fmt.Sprint(n, "-", i)}[r.IntN(3)], n, i)
					payload["delivery"] = []string{"steer", "followUp"}[r.IntN(2)]
				case 4, 5:
					method = "session.interrupt"
					payload["clearQueue"] = r.IntN(2) == 0
				case 6:
					method = "session.fork"
				case 7:
					method = "session.delete"
					payload["force"] = r.IntN(2) == 0
				case 8:
					method = "session.check"
					payload["repair"] = r.IntN(2) == 0
				case 9:
					method = "session.relink"
					payload["directory"] = "/"
				case 10:
					method, payload["title"] = "session.rename", fmt.Sprint(n, " ", i)
				case 11:
					method, payload["runtime"] = "session.configure", o{"thinkingLevel": "low"}
				case 12:
					method = "session.history"
				case 13:
					method, payload["clear"] = "session.queue", r.IntN(2) == 0
				case 14:
					method, payload = "session.list", o{}
				case 15:
					method = "session.wait"
				}
				a := d.ask(method, payload)
				if a.kind == "Die" {
					excused := false
					for _, k := range known {
						excused = excused || strings.Contains(a.String(), k)
					}
					if !excused {
						t.Errorf("%s %v: %s", method, payload, a)
					}
				}
				// A new one takes the place of one that is gone.
				fresh := ""
				switch {
				case method == "session.fork" && a.kind == "Success":
					fresh = at(a.body, "id")
				case method == "session.delete" && a.kind == "Success":
					fresh = at(d.ask("session.create", o{}).body, "id")
				}
				if fresh != "" {
					mu.Lock()
					ids[k] = fresh
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	for _, info := range items(t, c.call("session.list", o{})) {
		id := at(info, "id")
		c.call("session.interrupt", o{"sessionId": id, "clearQueue": true})
		c.idle(id)
		if got := c.call("session.check", o{"sessionId": id}); string(got) != `{"findings":[]}` {
			t.Errorf("the check of %s found %s", id, got)
		}
		c.prompt(id, "mock=text:1 the end")
		c.idle(id)
		inOrder(t, withTurns(logOf(t, c, id)))
	}
	if got := c.call("server.info", o{}); at(got, "sessions", "busy") != "0" {
		t.Errorf("at rest: %s", got)
	}
	mark := c.create(o{})
	c.call("session.rename", o{"sessionId": mark, "title": "mark"})
	watch.to(t, "mark", func(e event) bool { return e.session() == mark })
}

// However many ask at once about a session that is not there, each is told.
func TestServerAnswersEverybodyAboutAMissingSession(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c, d := s.dial(t), s.dial(t)
	id := c.create(o{})
	c.call("session.delete", o{"sessionId": id})
	for _, missing := range []string{id, noID} {
		var all []*pendingCall
		for i := range 150 {
			for _, over := range []*wire{c, d} {
				method := []string{"session.info", "session.wait", "session.queue"}[i%3]
				all = append(all, over.begin(method, o{"sessionId": missing}))
			}
		}
		for _, p := range all {
			if a := p.wait(t); a.kind != "Fail" || at(a.body, "_tag") != "SessionNotFoundError" {
				t.Errorf("%s: %s", p.method, a)
			}
		}
	}
}
