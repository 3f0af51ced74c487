// Package driver is codework's part in a load program that compares agent
// servers: bench/budgets copies codework.go, and only that, among the other
// drivers of that program. Like them it speaks to its server itself, over the
// program's own small WebSocket client, so that what clients cost is alike.
//
// What is behind a lost connection is not looked for: its calls fail, its
// sessions stay unfinished, and the program counts them. A subscription that was
// cut off because its reader was too slow goes on behind the last durable event
// it saw, as the protocol intends; the pieces of text of the time between are
// gone, and the program counts their sessions as short.
package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// codework drives codework serve. One connection has one subscription to
// everything; of several, each session has a subscription of its own on one.
type codework struct {
	p, ws string // where the programs and homes are, and the sessions work

	links   []*codeworkLink
	of      sync.Map // session -> *codeworkLink
	resumed atomic.Int64
}

func (d *codework) argv(port int) []string {
	return []string{d.p + "/codework/codework", "serve", "--port", fmt.Sprint(port)}
}

func (d *codework) env() []string {
	return []string{"HOME=" + d.p + "/homes/codework-serve", "CODEWORK_MODELS_TTL=off"}
}

func (d *codework) stdio() bool { return false }

func (d *codework) ready(port int) error {
	return httpOK(fmt.Sprintf("http://127.0.0.1:%d/readyz", port))
}

// retries counts the subscriptions that were cut off and went on.
func (d *codework) retries() int64 { return d.resumed.Load() }

func (d *codework) connect(port int, _ *exec.Cmd, _ io.WriteCloser, _ io.Reader, conns int, on func(event)) error {
	for range conns {
		w, err := wsDial(fmt.Sprintf("127.0.0.1:%d", port), "/rpc/v1", nil)
		if err != nil {
			return err
		}
		l := &codeworkLink{w: w, on: on, resumed: &d.resumed, calls: map[uint64]chan codeworkExit{}, streams: map[uint64]*codeworkStream{}}
		go l.read()
		d.links = append(d.links, l)
	}
	if conns > 1 {
		return nil
	}
	return d.links[0].subscribe("")
}

func (d *codework) create(i int) (string, error) {
	l := d.links[i%len(d.links)]
	var info struct {
		ID string `json:"id"`
	}
	if err := l.call("session.create", map[string]any{"hostDir": d.ws}, &info); err != nil {
		return "", err
	}
	d.of.Store(info.ID, l)
	if len(d.links) > 1 {
		return info.ID, l.subscribe(info.ID)
	}
	return info.ID, nil
}

// prompt returns when the prompt is on the server's disk.
func (d *codework) prompt(sess, text string) error {
	return d.link(sess).call("session.prompt", map[string]any{"sessionId": sess, "text": text}, nil)
}

func (d *codework) abort(sess string) error {
	return d.link(sess).call("session.interrupt", map[string]any{"sessionId": sess}, nil)
}

func (d *codework) link(sess string) *codeworkLink {
	l, _ := d.of.Load(sess)
	return l.(*codeworkLink)
}

// codeworkLink is one connection.
type codeworkLink struct {
	w       *wsConn
	on      func(event)
	resumed *atomic.Int64

	mu      sync.Mutex // guards what follows
	next    uint64
	calls   map[uint64]chan codeworkExit
	streams map[uint64]*codeworkStream
	dead    error // why it cannot be used any more
}

// codeworkStream is a subscription. Only the goroutine that reads uses it once
// it is asked for.
type codeworkStream struct {
	session string           // "" is all
	began   chan error       // told once, when it has begun or cannot
	seen    map[string]int64 // last durable event of each session
}

// codeworkExit is how a call ended.
type codeworkExit struct {
	Tag   string          `json:"_tag"` // Success or Failure
	Value json.RawMessage `json:"value"`
	Cause json.RawMessage `json:"cause"`
}

func (x codeworkExit) err() error {
	if x.Tag == "Success" {
		return nil
	}
	return fmt.Errorf("%.200s", x.Cause)
}

// codeworkFrame is one line from the server.
type codeworkFrame struct {
	Tag       string          `json:"_tag"`
	RequestID uint64          `json:"requestId"`
	Exit      codeworkExit    `json:"exit"`
	Values    []codeworkEvent `json:"values"`
}

type codeworkEvent struct {
	Type    string `json:"type"`
	Durable struct {
		Seq int64 `json:"seq"`
	} `json:"durable"`
	Data struct {
		SessionID string `json:"sessionId"`
		Delta     string `json:"delta"`
		Error     struct {
			Message string `json:"message"`
		} `json:"error"`
	} `json:"data"`
}

// codeworkPatience is how long an answer may take, as with the other drivers.
const codeworkPatience = time.Minute

// request sends a call; note is told of its number before it is on the wire.
func (l *codeworkLink) request(method string, payload any, note func(id uint64)) error {
	l.mu.Lock()
	if l.dead != nil {
		defer l.mu.Unlock()
		return l.dead
	}
	id := l.next
	l.next++
	note(id)
	l.mu.Unlock()
	return l.send(map[string]any{"_tag": "Request", "id": id, "tag": method, "payload": payload, "headers": []any{}})
}

func (l *codeworkLink) send(frame any) error {
	b, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	return l.w.Write(append(b, '\n'))
}

func (l *codeworkLink) call(method string, payload, result any) error {
	answer := make(chan codeworkExit, 1)
	if err := l.request(method, payload, func(id uint64) { l.calls[id] = answer }); err != nil {
		return err
	}
	select {
	case x, ok := <-answer:
		switch {
		case !ok:
			return errors.New("connection lost")
		case x.err() != nil || result == nil:
			return x.err()
		}
		return json.Unmarshal(x.Value, result)
	case <-time.After(codeworkPatience):
		return fmt.Errorf("%s: no answer in %s", method, codeworkPatience)
	}
}

// subscribe returns once the server follows.
func (l *codeworkLink) subscribe(session string) error {
	s := &codeworkStream{session: session, began: make(chan error, 1), seen: map[string]int64{}}
	if err := l.follow(s); err != nil {
		return err
	}
	select {
	case err := <-s.began:
		return err
	case <-time.After(codeworkPatience):
		return fmt.Errorf("no events in %s", codeworkPatience)
	}
}

func (l *codeworkLink) follow(s *codeworkStream) error {
	payload := map[string]any{}
	if s.session != "" {
		payload["sessionId"] = s.session
	}
	if len(s.seen) > 0 {
		payload["after"] = maps.Clone(s.seen)
	}
	return l.request("event.subscribe", payload, func(id uint64) { l.streams[id] = s })
}

// read takes what the server sends until the connection ends.
func (l *codeworkLink) read() {
	var rest []byte // of a line that is not whole: messages may end anywhere
	for {
		message, err := l.w.Read()
		if err != nil {
			l.end(err)
			return
		}
		rest = append(rest, message...)
		for {
			line, after, whole := bytes.Cut(rest, []byte("\n"))
			if !whole {
				break
			}
			if err := l.take(line); err != nil {
				l.end(err)
				return
			}
			rest = after
		}
	}
}

func (l *codeworkLink) end(err error) {
	l.w.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = err
	for _, answer := range l.calls {
		close(answer)
	}
	clear(l.calls)
}

// take handles a line. Errors end the connection.
func (l *codeworkLink) take(line []byte) error {
	var f codeworkFrame
	if err := json.Unmarshal(line, &f); err != nil {
		return fmt.Errorf("a line that is no frame: %w", err)
	}
	switch f.Tag {
	case "Chunk":
		// Like the protocol's own client: acknowledged once it is here.
		if err := l.send(map[string]any{"_tag": "Ack", "requestId": f.RequestID}); err != nil {
			return err
		}
		l.mu.Lock()
		s := l.streams[f.RequestID]
		l.mu.Unlock()
		if s != nil {
			for i := range f.Values {
				l.tell(s, &f.Values[i])
			}
		}
	case "Exit":
		l.mu.Lock()
		answer, s := l.calls[f.RequestID], l.streams[f.RequestID]
		delete(l.calls, f.RequestID)
		delete(l.streams, f.RequestID)
		l.mu.Unlock()
		switch {
		case answer != nil:
			answer <- f.Exit
		case s != nil && strings.Contains(string(f.Exit.Cause), "SubscriptionOverflowError"):
			l.resumed.Add(1)
			return l.follow(s)
		case s != nil:
			select {
			case s.began <- fmt.Errorf("the subscription ended: %.200s", f.Exit.Cause):
			default: // it had begun; its sessions stay unfinished
			}
		}
	case "Defect":
		return fmt.Errorf("refused: %.200s", line)
	}
	return nil
}

// tell hands an event on.
func (l *codeworkLink) tell(s *codeworkStream, e *codeworkEvent) {
	id := e.Data.SessionID
	if e.Durable.Seq > 0 {
		s.seen[id] = e.Durable.Seq
	}
	switch e.Type {
	case "server.connected":
		select {
		case s.began <- nil:
		default: // the subscription goes on after it was cut off
		}
	case "session.llm.text.delta":
		l.on(event{id, "delta", e.Data.Delta})
	case "session.tool.started":
		l.on(event{id, "tool", ""})
	case "session.execution.succeeded":
		l.on(event{id, "done", "completed"})
	case "session.execution.interrupted":
		l.on(event{id, "done", "interrupted"})
	case "session.execution.failed":
		l.on(event{id, "done", "failed: " + e.Data.Error.Message})
	}
}
