package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"codework/sandboxes"
)

const (
	// maxCalls bounds the calls that are open at once, waiting ones included.
	maxCalls = 4096
	// endPatience is within what everything has ended after the connection.
	endPatience = 2 * time.Second
)

// never are variables that are not passed on unless they are listed: they
// change what every program is.
var never = []string{"LD_PRELOAD", "LD_LIBRARY_PATH"}

// server is the inside.
type server struct {
	link *link
	sb   sandboxes.Sandbox
	ctx  context.Context // of all calls
	runs sync.WaitGroup  // calls

	mu     sync.Mutex // guards the following
	calls  map[uint32]*serving
	mounts map[uint32]sandboxes.Mount
	next   uint32
}

// serving is a call that is being answered, or whose request arrives.
type serving struct {
	id     uint32
	ctx    context.Context
	cancel context.CancelFunc
	inbox  *inbox
	window *window
	ended  chan struct{} // closed when all the content has arrived
	parts  []byte        // of the request; the reader's
	begun  bool          // the reader's
}

// Serve answers calls for a sandbox until the connection or ctx ends. Then it
// ends everything that runs in the sandbox, closes it and the connection, and
// returns within two seconds. The error is nil when the connection ended
// cleanly.
func Serve(ctx context.Context, conn io.ReadWriteCloser, sb sandboxes.Sandbox) error {
	s := &server{link: newLink(conn), sb: sb, calls: make(map[uint32]*serving), mounts: make(map[uint32]sandboxes.Mount)}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, func() { s.link.fail(ctx.Err()) })()
	_ = s.link.send(ctx, helloFrame()) // the first one always has room
	go func() {
		r := bufio.NewReaderSize(conn, maxBody)
		f, err := readFrame(r)
		if err == nil {
			err = checkHello(f)
		}
		if err != nil {
			s.link.fail(err)
			return
		}
		s.link.read(r, s.handle)
	}()
	<-s.link.done
	cancel()
	end, stop := context.WithTimeout(context.Background(), endPatience)
	defer stop()
	err := s.sb.Close(end)
	over := make(chan struct{})
	go func() {
		s.runs.Wait()
		s.link.sent.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-end.Done(): // a disk that does not answer, say
	}
	if why := s.link.why(); !errors.Is(why, io.EOF) {
		err = errors.Join(why, err)
	}
	return err
}

// handle takes a frame. It waits for nothing but the queue.
func (s *server) handle(f frame) error {
	s.mu.Lock()
	c := s.calls[f.id]
	open := len(s.calls)
	s.mu.Unlock()
	switch f.kind {
	case kindPart, kindRequest:
		if c == nil {
			if open >= maxCalls {
				return protocolError("more than %d calls at once", maxCalls)
			}
			c = s.open(f.id)
		}
		if c.begun || len(c.parts)+len(f.body) > maxMessage {
			return protocolError("request in the middle of a call, or too large")
		}
		c.parts = append(c.parts, f.body...)
		if f.kind == kindRequest {
			return s.begin(c)
		}
		return nil
	case kindCancel, kindData, kindEnd, kindCredit:
	default:
		return protocolError("kind %d from outside", f.kind)
	}
	if c == nil {
		return nil // it ended meanwhile
	}
	switch f.kind {
	case kindCancel:
		c.cancel()
		if !c.begun {
			s.forget(c)
		}
	case kindData:
		return c.inbox.put(f)
	case kindEnd:
		select {
		case <-c.ended:
			return protocolError("content ends twice")
		default:
			close(c.ended)
		}
	case kindCredit:
		return c.window.add(f)
	}
	return nil
}

func (s *server) open(id uint32) *serving {
	c := &serving{id: id, inbox: newInbox(), window: newWindow(), ended: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[id] = c
	return c
}

func (s *server) forget(c *serving) {
	c.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c.id)
}

// begin answers a call, beside the reader.
func (s *server) begin(c *serving) error {
	var req request
	if err := json.Unmarshal(c.parts, &req); err != nil {
		return protocolError("request: %v", err)
	}
	c.begun, c.parts = true, nil
	s.runs.Go(func() {
		a, err := s.serve(c, req)
		a.Err = toWireError(err)
		// The number may be used again as soon as the answer is out.
		s.forget(c)
		_ = s.link.message(context.Background(), kindAnswer, c.id, a) // fails with the link only
	})
	return nil
}

// serve does what a call asks for.
func (s *server) serve(c *serving, req request) (answer, error) {
	switch req.Op {
	case opMount:
		return s.mount(c.ctx, req.Make)
	case opClose:
		return answer{}, s.sb.Close(c.ctx)
	}
	s.mu.Lock()
	m := s.mounts[req.Mount]
	if req.Op == opUnmount {
		delete(s.mounts, req.Mount)
	}
	s.mu.Unlock()
	if m == nil {
		return answer{}, sandboxes.ErrClosed
	}
	path := string(req.Path)
	switch req.Op {
	case opUnmount:
		return answer{}, m.Close()
	case opRun:
		return s.run(c, m, req.Run)
	case opRead:
		// In one go: the file may be replaced between two.
		data, err := m.Read(c.ctx, path, req.Offset, req.Limit)
		if err == nil {
			err = s.link.stream(c.ctx, kindData, c.id, c.window, data)
		}
		return answer{}, err
	case opWrite:
		data, err := s.content(c)
		if err == nil {
			err = m.Write(c.ctx, path, data)
		}
		return answer{}, err
	case opStat, opLstat:
		stat := m.Stat
		if req.Op == opLstat {
			stat = m.Lstat
		}
		info, err := stat(c.ctx, path)
		if err != nil {
			return answer{}, err
		}
		w := toWireInfo(info)
		return answer{Info: &w}, nil
	case opList:
		return answer{}, s.list(c, m, path)
	case opMkdir:
		return answer{}, m.Mkdir(c.ctx, path)
	case opRemove:
		return answer{}, m.Remove(c.ctx, path)
	case opRealPath:
		got, err := m.RealPath(c.ctx, path)
		return answer{Path: []byte(got)}, err
	case opLock:
		unlock, err := m.Lock(c.ctx, path)
		if err != nil {
			return answer{}, err
		}
		defer unlock()
		if s.link.send(c.ctx, frame{kindHeld, c.id, nil}) == nil {
			<-c.ctx.Done()
		}
		return answer{}, nil
	}
	return answer{}, protocolError("unknown operation %q", req.Op)
}

func (s *server) mount(ctx context.Context, o *wireMount) (answer, error) {
	if o == nil {
		return answer{}, protocolError("no options")
	}
	m, err := s.sb.Mount(ctx, sandboxes.MountOptions{
		Session: o.Session, Dir: string(o.Dir), Umask: o.Umask, Pass: o.Pass, Set: toStrings(o.Set),
		Withhold: append(o.Withhold, never...), Caller: os.Environ(),
	})
	if err != nil {
		return answer{}, err
	}
	s.mu.Lock()
	s.next++
	id := s.next
	s.mounts[id] = m
	s.mu.Unlock()
	return answer{Mount: id, Dir: []byte(m.Dir()), Scratch: []byte(m.Scratch())}, nil
}

// content is what a call sends along.
func (s *server) content(c *serving) ([]byte, error) {
	data := []byte{}
	take := func() error {
		for _, f := range c.inbox.take() {
			data = append(data, f.body...)
			if n := c.inbox.eaten(len(f.body)); n > 0 {
				if err := s.link.credit(c.ctx, c.id, n); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for {
		select {
		case <-c.inbox.news:
			if err := take(); err != nil {
				return nil, err
			}
		case <-c.ended:
			return data, take()
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
	}
}

func (s *server) list(c *serving, m sandboxes.Mount, path string) error {
	list, err := m.List(c.ctx, path)
	if err != nil {
		return err
	}
	var piece []byte
	for i, info := range list {
		b, err := json.Marshal(toWireInfo(info))
		if err != nil {
			return err
		}
		piece = append(piece, b...)
		if len(piece) >= pieceSize || i == len(list)-1 {
			if err := s.link.stream(c.ctx, kindData, c.id, c.window, piece); err != nil {
				return err
			}
			piece = piece[:0]
		}
	}
	return nil
}

func (s *server) run(c *serving, m sandboxes.Mount, w *wireCommand) (answer, error) {
	if w == nil {
		return answer{}, protocolError("no command")
	}
	command := sandboxes.Command{
		Script: string(w.Script), Dir: string(w.Dir), Env: toStrings(w.Env), Timeout: w.Timeout,
		Joined: w.Joined, Full: string(w.Full),
	}
	for _, arg := range w.Argv {
		command.Argv = append(command.Argv, string(arg))
	}
	if !w.Silent {
		command.Output = func(stream sandboxes.Stream, b []byte) {
			k := kindStdout
			if stream == sandboxes.Stderr {
				k = kindStderr
			}
			// When nobody waits for it any more, what the window does not take
			// is dropped.
			_ = s.link.stream(c.ctx, k, c.id, c.window, b)
		}
	}
	exit, err := m.Run(c.ctx, command)
	return answer{Exit: &exit}, err
}
