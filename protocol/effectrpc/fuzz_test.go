package effectrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

var frameSeeds = []string{
	request("0", "session.info", `{"sessionId":"ses_0192"}`),
	`{"_tag":"Request","id":"a\"\\","tag":"x\u0061","payload":null,"discard":true,"isNotification":false,"headers":[["a","b"]]}`,
	ack("9"), interrupt("8"), ping, pong, `{"_tag":"Eof"}`,
	success("0", "null"),
	failure("1", `{"_tag":"Fail","error":{"_tag":"E"}},{"_tag":"Die","defect":"x"},`+interruptReason),
	chunk("9", `{"a":[1,{"b":"]}"}]}`, `"\\"`, "-1.5e3", "null"),
	defect(`{"name":"E","message":""}`),
	`{"_t\u0061g":"\u0041ck","requestId":9}`, `null`, `[]`, `{}`, ` `, `{"a":1,"a":2}`, "{\"_tag\":\"\xff\"}", strings.Repeat("[", 20000), `{"_tag":"Exit","requestId":1,"exit":[]}`,
}

// FuzzLines: how a connection cuts its bytes into pieces does not change the
// lines, and the lines are those of splitting the whole at line feeds.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\r\n\n\nb\r\r\nc"), uint8(1))
	f.Add([]byte(strings.Join(frameSeeds, "\n")), uint8(7))
	f.Fuzz(func(t *testing.T, all []byte, size uint8) {
		const limit = 64
		var want [][]byte
		var wantErr = io.EOF
		for rest := all; ; {
			line, next, found := bytes.Cut(rest, []byte{'\n'})
			if len(line) > limit {
				wantErr = ErrLineTooLong
				break
			}
			if !found {
				break
			}
			if line = bytes.TrimSuffix(line, []byte{'\r'}); len(line) > 0 {
				want = append(want, line)
			}
			rest = next
		}
		left := all
		piece := make([]byte, int(size)+1) // used again for every piece, as a Conn may
		r := lineReader{limit: limit, read: func() ([]byte, error) {
			if len(left) == 0 {
				return nil, io.EOF
			}
			n := copy(piece, left)
			left = left[n:]
			return piece[:n], nil
		}}
		var got [][]byte
		for {
			line, err := r.next()
			if err != nil {
				if err != wantErr {
					t.Fatalf("ended with %v, want %v", err, wantErr)
				}
				break
			}
			got = append(got, line)
		}
		if len(got) != len(want) {
			t.Fatalf("%d lines, want %d", len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("line %d is %q, want %q", i, got[i], want[i])
			}
		}
	})
}

// FuzzFrame: parsing never panics; it agrees with encoding/json on what is
// malformed; every part of a frame is JSON; and a frame that was parsed survives
// being written and parsed again.
func FuzzFrame(f *testing.F) {
	for _, s := range frameSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := parseFrame(line)
		valid := json.Valid(line) && utf8.Valid(line)
		if malformed := errors.Is(err, errMalformed); malformed == valid {
			t.Fatalf("valid: %v, error: %v", valid, err)
		}
		if !valid {
			return
		}
		if err != nil {
			return
		}
		if got.kind == kindRequest {
			var id any
			if json.Unmarshal(got.id, &id) != nil {
				t.Fatalf("id %q is not JSON", got.id)
			}
			switch id.(type) {
			case string, float64:
			default:
				t.Fatalf("id %q", got.id)
			}
		}
		parts := []*json.RawMessage{&got.id, &got.payload, &got.exit.body, &got.defect}
		for i := range got.values {
			parts = append(parts, &got.values[i])
		}
		for _, part := range parts {
			if *part != nil && !json.Valid(*part) {
				t.Fatalf("cut out %q", *part)
			}
			*part = oneLine(*part)
		}
		wire := got.appendTo(nil)
		if i := bytes.IndexByte(wire, '\n'); i != len(wire)-1 || !json.Valid(wire) || !utf8.Valid(wire) {
			t.Fatalf("written as %q", wire)
		}
		again, err := parseFrame(wire[:len(wire)-1])
		if err != nil || again.kind != got.kind || !bytes.Equal(again.id, got.id) && len(again.id) > 0 ||
			len(again.values) != len(got.values) || again.exit.kind != got.exit.kind || again.method != got.method {
			t.Fatalf("written as %q, read as %+v, %v", wire, again, err)
		}
	})
}

// FuzzServer: whatever a client sends, what it gets are frames of a server, its
// end ends everything of its connection, and another client is served as if
// nothing had happened.
func FuzzServer(f *testing.F) {
	methods := []string{"echo", "void", "missing", "die", "panic", "hold", "work", "empty", "overflow", "feed", "nobody"}
	var all []string
	for _, m := range methods {
		all = append(all, request(`"`+m+`"`, m, "{}"), ack(`"`+m+`"`), interrupt(`"`+m+`"`))
	}
	f.Add([]byte(strings.Join(all, "\n")+"\n"), uint8(13))
	f.Add([]byte(strings.Join(frameSeeds, "\n")+"\n"), uint8(255))
	f.Fuzz(func(t *testing.T, bytes []byte, size uint8) {
		s := newTestServer()
		calm, _, _ := s.serve(t, ServerOptions{})
		c := startClient(t, calm)

		near, far := Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- NewServer(far, ServerOptions{MaxLineBytes: 4096, MaxInFlight: 16}).Serve(context.Background(), s.handle)
		}()
		read := make(chan error, 1)
		go func() {
			r := lineReader{read: near.Read, limit: defaultLineLimit}
			for {
				line, err := r.next()
				if err != nil {
					read <- nil
					return
				}
				frame, err := parseFrame(line)
				if err != nil || frame.kind < kindExit {
					read <- errors.New(string(line))
					return
				}
			}
		}()
		for rest := bytes; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if near.Write(rest[:n]) != nil {
				break // closed: the line was too long
			}
			rest = rest[n:]
		}
		var got string
		if err := c.Call(within(t), "echo", "still here", &got); err != nil || got != "still here" {
			t.Errorf("the other client: %q, %v", got, err)
		}
		_ = near.Close(CloseNormal, "")
		if err := <-read; err != nil {
			t.Errorf("not a frame of a server: %v", err)
		}
		if err := <-ended; err != nil && !errors.Is(err, ErrLineTooLong) {
			t.Errorf("ended with %v", err)
		}
	})
}

// FuzzClient: whatever a server sends, the client ends in good order, and what
// was in flight ends with it.
func FuzzClient(f *testing.F) {
	f.Add([]byte(strings.Join(frameSeeds, "\n")+"\n"), uint8(255))
	f.Add([]byte(chunk("1", "1", "2")+"\n"+chunk("0", "1")+"\n"+success("1", "null")+"\n"), uint8(3))
	f.Fuzz(func(t *testing.T, bytes []byte, size uint8) {
		near, far := Pipe()
		c := NewClient(near, ClientOptions{MaxLineBytes: 4096})
		called := make(chan error, 1)
		go func() { called <- c.Call(within(t), "call", nil, nil) }()
		stream, err := c.Stream(within(t), "stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan struct{})
		go func() { // the server reads, so that the client can write
			defer close(read)
			for {
				if _, err := far.Read(); err != nil {
					return
				}
			}
		}()
		for rest := bytes; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if far.Write(rest[:n]) != nil {
				break // the client has had enough
			}
			rest = rest[n:]
		}
		_ = far.Close(CloseGoingAway, "")
		<-c.Done()
		<-read
		<-called // with whatever the server said, or the loss
		if _, err := readAll(within(t), stream); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stream ended with %v", err)
		}
		if err := c.Err(); !errors.Is(err, ErrConnectionLost) {
			t.Errorf("ended with %v", err)
		}
	})
}
