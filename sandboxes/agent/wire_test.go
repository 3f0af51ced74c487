package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"codework/sandboxes"
)

func TestFramesComeBack(t *testing.T) {
	for _, f := range []frame{{kind: kindEnd, id: 1}, {kindData, 1<<32 - 1, []byte("x")}, {kindPart, 0, make([]byte, maxBody)}} {
		got, err := readFrame(bytes.NewReader(f.encode()))
		if err != nil || got.kind != f.kind || got.id != f.id || !bytes.Equal(got.body, f.body) {
			t.Errorf("%v became %v %v", f, got, err)
		}
	}
	whole := frame{kindData, 7, []byte("body")}.encode()
	for n := range whole {
		_, err := readFrame(bytes.NewReader(whole[:n]))
		if want := io.ErrUnexpectedEOF; n > 0 && err != want || n == 0 && err != io.EOF {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// sink is a connection whose input is given and whose output is dropped.
type sink struct{ io.Reader }

func (sink) Write(b []byte) (int, error) { return len(b), nil }
func (sink) Close() error                { return nil }

func seeds(f *testing.F) {
	f.Add([]byte{})
	f.Add(helloFrame().encode())
	var all []byte
	for k := range kindCredit {
		all = append(all, frame{k + 1, 1, []byte(`{"op":"read"}`)}.encode()...)
	}
	f.Add(all)
	for _, op := range []string{opMount, opRead, opWrite, opList, opRun, opLock, opClose, "x"} {
		b, err := json.Marshal(request{Op: op, Mount: 1, Make: &wireMount{}, Run: &wireCommand{}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(frame{kindRequest, 1, b}.encode(), frame{kindEnd, 1, nil}.encode()...))
	}
	f.Add(append(frame{kindStdout, 1, []byte("out")}.encode(), frame{kindAnswer, 1, []byte(`{"exit":{"Code":1}}`)}.encode()...))
}

// FuzzOutside gives arbitrary bytes from inside to a client with a call open.
// The rule: it ends, keeps no more than the window allows, and either the call
// has a whole answer or the link has ended with a reason.
func FuzzOutside(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Client{link: &link{conn: sink{}, out: make(chan []byte, queueLength), done: make(chan struct{})}, calls: map[uint32]*call{}}
		call, err := c.open()
		if err != nil {
			t.Fatal(err)
		}
		c.link.read(bytes.NewReader(data), c.handle)
		held := 0
		for _, f := range call.inbox.take() {
			held += len(f.body)
		}
		if held > windowSize || len(call.parts) > maxMessage {
			t.Errorf("keeps %d and %d bytes", held, len(call.parts))
		}
		if c.link.why() == nil {
			t.Error("ended without a reason")
		}
	})
}

// FuzzInside gives arbitrary bytes from outside to the server of a sandbox that
// refuses everything. The rule: it ends, with the sandbox closed and no call
// left.
func FuzzInside(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		sb := &refusing{}
		_ = Serve(context.Background(), sink{io.MultiReader(bytes.NewReader(helloFrame().encode()), bytes.NewReader(data))}, sb)
		if !sb.closed.Load() {
			t.Error("the sandbox was not closed")
		}
	})
}

// refusing is a sandbox that has nothing.
type refusing struct{ closed atomic.Bool }

func (r *refusing) Mount(context.Context, sandboxes.MountOptions) (sandboxes.Mount, error) {
	return nil, errors.New("refused")
}

func (r *refusing) Close(context.Context) error {
	r.closed.Store(true)
	return nil
}

// FuzzNoise looks for the marker in arbitrary bytes. The rule: what follows the
// first line that is the marker, and only that, is left to read.
func FuzzNoise(f *testing.F) {
	f.Add("motd\n\nMARK\nrest", "MARK")
	f.Add("MARK", "MARK")
	f.Add("xMARK\nMARKx\nMARK\r\nrest", "MARK")
	f.Fuzz(func(t *testing.T, data, marker string) {
		if marker == "" || strings.ContainsAny(marker, "\r\n") || len(data) > maxNoise {
			return
		}
		r := bufio.NewReader(strings.NewReader(data))
		err := skipNoise(r, marker)
		rest, _ := io.ReadAll(r)
		want, found := "", false
		for at := 0; at < len(data) && !found; {
			line, _, whole := strings.Cut(data[at:], "\n")
			at += len(line) + 1
			if whole && strings.TrimSuffix(line, "\r") == marker {
				want, found = data[at:], true
			}
		}
		if found != (err == nil) || string(rest) != want {
			t.Errorf("left %q (%v), want %q", rest, err, want)
		}
	})
}
