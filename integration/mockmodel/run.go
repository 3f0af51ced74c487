package mockmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// run is one answer in the making. It belongs to the goroutine of its request.
type run struct {
	s    *Server
	w    http.ResponseWriter
	r    *http.Request
	d    dialect
	rec  *Request
	view *View
	id   int64

	out    *stream
	enc    encoder
	whole  *collector // enc of an answer without events
	usage  Usage
	calls  []Call      // so far
	signed []Reasoning // thinking so far
	left   bool
}

// answer goes through the steps.
func (run *run) answer(a Answer) {
	run.usage = Usage{Input: 100, Output: 10}
	run.out = &stream{run: run, newline: "\n"}
	for _, st := range a {
		switch st := st.(type) {
		case Usage:
			run.usage = st
		case Framing:
			if st.Newline != "" {
				run.out.newline = st.Newline
			}
			run.out.chop = st.Chop
		case After:
			run.out.after = append(run.out.after, st)
		}
	}
	slices.SortStableFunc(run.out.after, func(a, b After) int { return a.Events - b.Events })
	if run.view.Stream {
		run.enc = run.d.stream(run.out, run.view, run.id, run.usage)
	} else {
		run.whole = &collector{}
		run.enc = run.whole
	}
	ended := false
	for _, st := range a {
		if err := run.step(st); err != nil {
			run.fail(err)
			return
		}
		ended = ended || last(st)
	}
	if !ended {
		if err := run.step(End{}); err != nil {
			run.fail(err)
		}
	}
}

// fail takes note of why an answer ended early.
func (run *run) fail(err error) {
	switch {
	case errors.Is(err, errOver):
	case run.s.ctx.Err() == nil:
		run.left = true
	default:
		// The server closes. Half an answer must not look like a proper end; when
		// the connection is gone already, there is nothing to break.
		if conn, _, err := http.NewResponseController(run.w).Hijack(); err == nil {
			conn.Close()
		}
	}
}

func (run *run) settle() {
	events := 0
	if run.out != nil {
		events = run.out.events
	}
	run.s.settle(run.rec, events, run.left)
}

func (run *run) step(st Step) error {
	switch st := st.(type) {
	case Text:
		return run.paced(split(st.Text, st.Split), st.Delay, run.enc.text)
	case stamped:
		return run.stamp(st)
	case Reasoning:
		return run.reason(st)
	case Call:
		return run.call(st)
	case Args:
		c := run.calls[len(run.calls)-1]
		return run.paced(split(st.Args, st.Split), st.Delay, func(f string) error { return run.enc.args(c, f) })
	case End:
		if err := run.enc.end(st); err != nil {
			return err
		}
		if run.whole != nil {
			return run.body(run.d.whole(&run.whole.message, run.view, run.id, run.usage))
		}
		return nil
	case Error:
		return run.error(st)
	case HTTP:
		run.http(st)
		return nil
	case Headers:
		return run.out.start()
	case Cut, Stall, Hold, Comment, Garbage:
		return run.incident(st)
	}
	return nil // Usage, Framing and After are not bound to their place
}

// incident is a step that may also come after a number of events.
func (run *run) incident(st Step) error {
	switch st := st.(type) {
	case Stall:
		if st.For == 0 {
			<-run.r.Context().Done()
			return errLeft
		}
		return sleep(run.r.Context(), st.For)
	case Hold:
		return run.s.hold(run.r.Context(), st.Name)
	case Comment:
		if run.whole != nil {
			return nil // there are no comments in JSON
		}
		return run.paced(slices.Repeat([]string{st.Text}, max(st.Times, 1)), st.Delay, func(t string) error {
			return run.out.write([]byte(": " + t + run.out.newline + run.out.newline))
		})
	case Garbage:
		if st.Wire {
			return run.hangUp(CutClose, st.Bytes)
		}
		return run.out.write(st.Bytes)
	case Cut:
		return run.hangUp(st.Mode, nil)
	case Error:
		return run.error(st)
	}
	return fmt.Errorf("%s cannot happen here", st.kind())
}

// error sends an error inside the stream, or as the body of a 200 answer where
// there is none: some servers do that.
func (run *run) error(st Error) error {
	body := run.d.errorBody(http.StatusOK, st)
	var err error
	if run.whole != nil {
		err = run.body(body)
	} else {
		err = run.out.event(run.d.errorEvent(), body)
	}
	if err != nil {
		return err
	}
	return errOver
}

func (run *run) reason(st Reasoning) error {
	if st.Signature == "" {
		// As opaque as a real one, and not two alike.
		st.Signature = fmt.Sprintf("sig-%08d-%d", run.id, len(run.signed)+1)
	}
	run.signed = append(run.signed, st)
	run.s.issued.thinking(run.view.Model, st)
	if !st.Redacted {
		err := run.paced(split(st.Text, st.Split), st.Delay, func(f string) error { return run.enc.reasoning(st, f) })
		if err != nil {
			return err
		}
	}
	return run.enc.reasoned(st)
}

func (run *run) call(st Call) error {
	if st.ID == "" {
		run.s.mu.Lock()
		run.s.ids++
		n := run.s.ids
		run.s.mu.Unlock()
		st.ID = run.d.callID(n)
	}
	run.calls = append(run.calls, st)
	run.s.issued.call(run.view.Model, st.ID, run.signed)
	if st.Whole {
		return run.enc.call(st, st.Args)
	}
	if err := run.enc.call(st, ""); err != nil || st.Args == "" {
		return err
	}
	return run.paced(split(st.Args, st.Split), st.Delay, func(f string) error { return run.enc.args(st, f) })
}

// stamp sends the deltas of a marker, each with the time of its writing and its
// number.
func (run *run) stamp(st stamped) error {
	n := st.n
	if st.cut {
		n = (n + 1) / 2
	}
	sent := 0
	err := run.paced(make([]string, n), st.delay, func(string) error {
		sent++
		return run.enc.text(fmt.Sprintf("@%d %d/%d mock text ", time.Now().UnixMicro(), sent, st.n))
	})
	if err == nil && st.cut {
		return run.hangUp(CutClose, nil)
	}
	return err
}

// paced calls f for each fragment, on a schedule counted from the first one: a
// late fragment does not delay the next.
func (run *run) paced(fragments []string, delay time.Duration, f func(string) error) error {
	start := time.Now()
	for i, s := range fragments {
		if delay > 0 && i > 0 {
			if err := sleep(run.r.Context(), time.Until(start.Add(time.Duration(i)*delay))); err != nil {
				return err
			}
		}
		if err := f(s); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errLeft
	}
}

// split cuts s into n parts of about the same number of runes; no part is empty
// unless s is.
func split(s string, n int) []string {
	r := []rune(s)
	n = min(n, len(r))
	if n < 2 {
		return []string{s}
	}
	parts := make([]string, n)
	for i := range n {
		parts[i] = string(r[i*len(r)/n : (i+1)*len(r)/n])
	}
	return parts
}

// body sends an answer without events. What is to happen after some events
// happens in the middle of it.
func (run *run) body(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	h := run.w.Header()
	h.Set("Content-Type", "application/json")
	if !run.out.started {
		h.Set("Content-Length", strconv.Itoa(len(b)))
	}
	half := 0
	if len(run.out.after) > 0 {
		half = len(b) / 2
	}
	if err := run.out.write(b[:half]); err != nil {
		return err
	}
	if half > 0 {
		for _, a := range run.out.after {
			if err := run.incident(a.Step); err != nil {
				return err
			}
		}
	}
	return run.out.write(b[half:])
}

var datePattern = regexp.MustCompile(`\{date([+-][0-9a-z.]+)?\}`)

// fillDates puts HTTP dates in the place of {date+3s}.
func fillDates(s string) string {
	return datePattern.ReplaceAllStringFunc(s, func(m string) string {
		at := time.Now()
		if off := datePattern.FindStringSubmatch(m)[1]; off != "" {
			d, err := time.ParseDuration(off)
			if err != nil {
				return m
			}
			at = at.Add(d)
		}
		return at.UTC().Format(http.TimeFormat)
	})
}

// http answers with a plain status.
func (run *run) http(st HTTP) {
	h := run.w.Header()
	h.Set("Content-Type", "application/json")
	if strings.HasPrefix(strings.TrimSpace(st.Body), "<") {
		h.Set("Content-Type", "text/html; charset=utf-8")
	}
	run.requestID(h)
	for k, v := range st.Header {
		h.Set(k, fillDates(v))
	}
	body := []byte(st.Body)
	if st.Body == "" {
		e := Error{Type: st.Type, Message: st.Message, Code: st.Code}
		if e.Message == "" {
			e.Message = http.StatusText(st.Status)
		}
		body = []byte(text(run.d.errorBody(st.Status, e)))
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	run.s.update(run.rec, func(r *Request) { r.Status = st.Status })
	run.w.WriteHeader(st.Status)
	if _, err := run.w.Write(body); err != nil {
		run.fail(errLeft)
	}
}

// requestID sets the header by which providers name a request.
func (run *run) requestID(h http.Header) {
	id := fmt.Sprintf("req_%08d", run.id)
	h.Set("X-Request-Id", id)
	h.Set("Request-Id", id)
}

// hangUp ends the connection; more goes on the socket before.
func (run *run) hangUp(mode CutMode, more []byte) error {
	if mode == CutEnd {
		if err := run.out.start(); err != nil {
			return err
		}
		return errOver // the server writes the proper end of the body
	}
	conn, _, err := http.NewResponseController(run.w).Hijack()
	if err != nil {
		return fmt.Errorf("take over the connection: %w", err)
	}
	defer conn.Close()
	if len(more) > 0 {
		// A client that left does not read it; the answer is over either way.
		conn.Write(more)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && mode == CutReset {
		tcp.SetLinger(0) // nothing to wait for: Close sends a reset
	}
	return errOver
}

// stream writes events. Every event is flushed by itself.
type stream struct {
	run     *run
	started bool
	events  int
	after   []After // still to happen, in order
	newline string
	chop    int
}

// start sends the headers.
func (o *stream) start() error {
	if o.started {
		return nil
	}
	o.started = true
	h := o.run.w.Header()
	if o.run.view.Stream {
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
	} else if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/json")
	}
	o.run.requestID(h)
	o.run.s.update(o.run.rec, func(r *Request) { r.Status = http.StatusOK })
	o.run.w.WriteHeader(http.StatusOK)
	if err := o.flush(); err != nil {
		return err
	}
	if o.run.whole != nil {
		return nil // without events they come in the middle of the body
	}
	return o.fire()
}

// write sends bytes in the body as they are.
func (o *stream) write(b []byte) error {
	if err := o.start(); err != nil {
		return err
	}
	size := len(b)
	if o.chop > 0 {
		size = o.chop
	}
	for len(b) > 0 {
		n := min(size, len(b))
		if _, err := o.run.w.Write(b[:n]); err != nil {
			return errLeft
		}
		if err := o.flush(); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (o *stream) flush() error {
	if o.run.r.Context().Err() != nil || http.NewResponseController(o.run.w).Flush() != nil {
		return errLeft
	}
	return nil
}

// event sends one event: v as JSON, or as it is when it is a string.
func (o *stream) event(name string, v any) error {
	if err := o.start(); err != nil {
		return err
	}
	data, ok := v.(string)
	if !ok {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		data = string(b)
	}
	var b strings.Builder
	if name != "" {
		b.WriteString("event: " + name + o.newline)
	}
	b.WriteString("data: " + data + o.newline + o.newline)
	if err := o.write([]byte(b.String())); err != nil {
		return err
	}
	o.events++
	o.run.s.update(o.run.rec, func(r *Request) { r.Events = o.events })
	return o.fire()
}

// fire does what is due after the events so far.
func (o *stream) fire() error {
	for len(o.after) > 0 && o.after[0].Events <= o.events {
		st := o.after[0].Step
		o.after = o.after[1:]
		if err := o.run.incident(st); err != nil {
			return err
		}
	}
	return nil
}
