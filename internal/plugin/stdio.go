package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"codework/protocol/plugin"
)

const (
	// maxLine bounds one message of a plugin.
	maxLine = 16 << 20
	// maxUnsent bounds what waits for a plugin that does not read.
	maxUnsent = 32 << 20
	// discoverPatience is how long a server may leave the newest handshake
	// unanswered before it is taken for one that does not know it. Old servers
	// may ignore what they don't know.
	discoverPatience = 2 * time.Second
	// maxHostCalls is how many calls of one plugin to the host run at once.
	maxHostCalls = 16

	methodDiscover = "server/discover"
)

var (
	errLineTooLong = fmt.Errorf("it sent a message of more than %d MiB", maxLine>>20)
	errNotReading  = fmt.Errorf("it does not read its input; %d MiB wait for it", maxUnsent>>20)
	errClosed      = errors.New("connection closed")
)

// fromPlugin takes the messages of the extension that a plugin sends. A call
// answers with a result or an error; a notification is not answered. It is
// called beside the reading, so it may take its time.
type fromPlugin func(ctx context.Context, method string, params json.RawMessage) (any, error)

// pipes is an mcp.Transport and its only mcp.Connection: messages as lines
// over a process's standard input and output. It takes the extension's
// messages out of the stream, for which the library has no place.
type pipes struct {
	in      *os.File // the plugin's standard input
	out     *os.File // its standard output
	handle  fromPlugin
	noise   func(line string) // the first line that is no message
	arrived chan jsonrpc.Message
	over    chan struct{} // closed when the connection has ended
	slots   chan struct{} // one token per call of the plugin under way
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu       sync.Mutex // guards the following
	unsent   [][]byte
	bytes    int // of unsent
	writing  bool
	err      error // why it ended
	discover jsonrpc.ID
	waiting  bool // the answer to discover has not come
	answered bool // the plugin has sent a message
}

func newPipes(in, out *os.File, handle fromPlugin, noise func(string)) *pipes {
	p := &pipes{in: in, out: out, handle: handle, noise: noise, arrived: make(chan jsonrpc.Message, 64), over: make(chan struct{}), slots: make(chan struct{}, maxHostCalls)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.work.Add(1)
	go p.listen()
	return p
}

// Connect returns the connection, which is open already.
func (p *pipes) Connect(context.Context) (mcp.Connection, error) { return p, nil }

// SessionID is empty: the connection is the session.
func (p *pipes) SessionID() string { return "" }

// Read returns the next message.
func (p *pipes) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-p.arrived:
		return m, nil
	default:
	}
	select {
	case m := <-p.arrived:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.over:
		return nil, io.EOF
	}
}

// Write queues a message and never waits for the plugin.
func (p *pipes) Write(_ context.Context, m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.Method == methodDiscover {
		p.expectDiscovery(r.ID)
	}
	return p.send(append(b, '\n'))
}

func (p *pipes) send(line []byte) error {
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return errClosed
	}
	if p.bytes+len(line) > maxUnsent {
		p.mu.Unlock()
		p.end(errNotReading)
		return errNotReading
	}
	p.unsent = append(p.unsent, line)
	p.bytes += len(line)
	if !p.writing {
		p.writing = true
		p.work.Add(1)
		go p.write()
	}
	p.mu.Unlock()
	return nil
}

// write sends what waits, until nothing does.
func (p *pipes) write() {
	defer p.work.Done()
	for {
		p.mu.Lock()
		if len(p.unsent) == 0 || p.err != nil {
			p.writing, p.unsent, p.bytes = false, nil, 0
			p.mu.Unlock()
			return
		}
		line := p.unsent[0]
		p.unsent = p.unsent[1:]
		p.mu.Unlock()
		if _, err := p.in.Write(line); err != nil {
			p.end(fmt.Errorf("write to it: %w", err))
			continue
		}
		p.mu.Lock()
		p.bytes -= len(line)
		p.mu.Unlock()
	}
}

// Close ends the connection; the plugin sees the end of its input.
func (p *pipes) Close() error {
	p.end(errClosed)
	return nil
}

// end ends the connection, the first time for a reason.
func (p *pipes) end(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	p.err = why
	close(p.over)
	p.cancel()
	_ = p.in.Close()
	_ = p.out.Close()
}

// reason is why the connection ended; nil while it has not.
func (p *pipes) reason() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// onlyAsked tells that the plugin has not sent anything yet but was asked the
// newest handshake.
func (p *pipes) onlyAsked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting && !p.answered
}

// expectDiscovery answers for a server that stays silent.
func (p *pipes) expectDiscovery(id jsonrpc.ID) {
	p.mu.Lock()
	p.discover, p.waiting = id, true
	p.mu.Unlock()
	late := time.AfterFunc(discoverPatience, func() {
		if p.discovered(id) {
			p.deliver(&jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no answer"}})
		}
	})
	context.AfterFunc(p.ctx, func() { late.Stop() })
}

// discovered takes the answer to the newest handshake, and tells whether it is
// the first.
func (p *pipes) discovered(id jsonrpc.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.discover != id {
		return true // of something else
	}
	first := p.waiting
	p.waiting = false
	return first
}

// listen reads messages until the end of the output.
func (p *pipes) listen() {
	defer p.work.Done()
	r := bufio.NewReaderSize(p.out, 64<<10)
	noisy := false
	for {
		line, err := readLine(r)
		if errors.Is(err, errLineTooLong) && !startsMessage(line) {
			err = nil
			line = append(line, "…"...)
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
				err = errors.New("its output has ended")
			}
			p.end(err)
			return
		}
		found, ok := decodeLine(line)
		if !ok {
			if id := answerID(line); id.IsValid() {
				p.take(&jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "its answer cannot be read: it is no valid JSON-RPC"}})
				continue
			}
			if !noisy && len(bytes.TrimSpace(line)) > 0 {
				noisy = true
				p.noise(shortLine(line))
			}
			continue
		}
		for _, m := range found {
			p.take(m)
		}
	}
}

func (p *pipes) take(m jsonrpc.Message) {
	p.mu.Lock()
	p.answered = true
	p.mu.Unlock()
	switch m := m.(type) {
	case *jsonrpc.Request:
		if strings.HasPrefix(m.Method, plugin.MethodPrefix) {
			p.serve(m)
			return
		}
	case *jsonrpc.Response:
		if !p.discovered(m.ID) {
			return
		}
	}
	p.deliver(m)
}

func (p *pipes) deliver(m jsonrpc.Message) {
	select {
	case p.arrived <- m:
	case <-p.over:
	}
}

// serve answers a message of the extension.
func (p *pipes) serve(m *jsonrpc.Request) {
	if !m.IsCall() {
		_, _ = p.handle(p.ctx, m.Method, m.Params) // nobody to tell
		return
	}
	select {
	case p.slots <- struct{}{}:
	default:
		p.answer(m.ID, nil, fmt.Errorf("more than %d calls to the host at once", maxHostCalls))
		return
	}
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		defer func() { <-p.slots }()
		result, err := p.handle(p.ctx, m.Method, m.Params)
		p.answer(m.ID, result, err)
	}()
}

func (p *pipes) answer(id jsonrpc.ID, result any, err error) {
	r := &jsonrpc.Response{ID: id}
	if err == nil {
		r.Result, err = json.Marshal(result)
	}
	if err != nil {
		var w *jsonrpc.Error
		if !errors.As(err, &w) {
			w = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
		}
		r.Error = w
	}
	b, err := jsonrpc.EncodeMessage(r)
	if err == nil {
		_ = p.send(append(b, '\n')) // else the connection has ended
	}
}

// readLine reads up to the next line end. Of a line that is longer than
// maxLine it gives the beginning, with errLineTooLong, and skips the rest.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		if len(line)+len(piece) > maxLine {
			line = line[:min(len(line), shownLine)]
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
			if err == nil {
				err = errLineTooLong
			}
			return line, err
		}
		line = append(line, piece...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil // the end comes with the next call
		default:
			return nil, err
		}
	}
}

// startsMessage tells whether a line looks like one of the protocol's.
func startsMessage(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && (line[0] == '{' || line[0] == '[')
}

// decodeLine reads the messages of a line: one, or a list of them, which one
// version of the protocol allows.
func decodeLine(line []byte) ([]jsonrpc.Message, bool) {
	line = bytes.TrimSpace(line)
	if !startsMessage(line) {
		return nil, false
	}
	raw := []json.RawMessage{line}
	if line[0] == '[' && json.Unmarshal(line, &raw) != nil {
		return nil, false
	}
	var out []jsonrpc.Message
	for _, r := range raw {
		m, err := jsonrpc.DecodeMessage(r)
		if err != nil {
			return nil, false
		}
		out = append(out, m)
	}
	return out, len(out) > 0
}

// answerID is the id of the call that a line wants to answer, though it is no
// valid message: it may hold NaN, an error that is a text, or a value that is
// nested too deep. Whoever made the call must hear of that. The id is looked for
// without understanding the rest; one that is not there is invalid.
func answerID(line []byte) jsonrpc.ID {
	var (
		raw                []byte // the value of "id"
		key                string
		depth, begin       int
		answers, speaks    bool
		inString, valueNow bool
	)
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case inString && c == '\\':
			i++
		case inString && c == '"':
			inString = false
			if depth == 1 && !valueNow {
				key = string(line[begin:i])
			}
		case inString:
		case c == '"':
			inString = true
			if depth == 1 && !valueNow {
				begin = i + 1
			}
		case c == '{' || c == '[':
			depth++
		case depth == 1 && c == ':':
			valueNow, begin = true, i+1
		case depth == 1 && (c == ',' || c == '}'):
			switch key {
			case "id":
				raw = line[begin:i]
			case "result", "error":
				answers = true
			case "jsonrpc":
				speaks = true
			}
			valueNow = false
			if c == '}' {
				depth--
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	var value any
	if !answers || !speaks || json.Unmarshal(raw, &value) != nil {
		return jsonrpc.ID{}
	}
	id, err := jsonrpc.MakeID(value)
	if err != nil {
		return jsonrpc.ID{}
	}
	return id
}

// shownLine is how much of a line a warning or a report shows, in bytes.
const shownLine = 200

// shortLine is a line made fit to be shown.
func shortLine(line []byte) string {
	s := strings.ToValidUTF8(strings.TrimSpace(string(line)), "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) > shownLine {
		cut := shownLine
		for cut > 0 && s[cut]&0xc0 == 0x80 {
			cut--
		}
		s = s[:cut] + "…"
	}
	return s
}
