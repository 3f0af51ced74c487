package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"codework/actors"
	"codework/internal/home"
	"codework/messages"
	"codework/protocol/acp"
	"codework/protocol/contract"
)

const (
	// bridgePiece is how much is read from the editor, or written to it, at once.
	bridgePiece = 64 << 10
	// partLimit is when a bridge ends whose work has not settled.
	partLimit = 5 * time.Second
	// unreadLimit is how long, at the end, the editor may take to read one
	// piece: one that has stopped reading would hold up the end of the work
	// behind what it does not read.
	unreadLimit = 500 * time.Millisecond
	// moveWait is how long a bridge that was handed over waits for the next
	// owner before it starts one.
	moveWait = time.Second
	// refuseLimit is how long a bridge without an owner waits for a request
	// that it can answer.
	refuseLimit = 30 * time.Second
)

func newACP(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "acp",
		Short: "Speak the Agent Client Protocol with an editor",
		Long: `Speak the Agent Client Protocol (version 1) on standard input and output. Editors
start this command; it takes no flags of its own. What it says besides the
protocol goes to standard error.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("quiet") {
				return usagef("acp takes no --quiet: it prints nothing but the protocol")
			}
			return g.acp(c.Context())
		},
	}
}

// acp is the life of a bridge between an editor and the owner of the home.
func (g *global) acp(ctx context.Context) error {
	out, err := protocolOutput(g.out, g.err)
	if err != nil {
		return err
	}
	// An editor that is gone shows as a write that fails, on which the work is
	// settled; the signal would end the process at once.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, brokenPipe...)
	defer signal.Stop(pipe)

	b := &bridge{in: pieces(g.in), out: out, said: g.err}
	p, err := g.paths()
	if err != nil {
		return b.refuse(ctx, err)
	}
	hello, err := g.hello()
	if err != nil {
		return b.refuse(ctx, err)
	}
	if g.embedded || p.Database == home.InMemory || aloneInNamespace() {
		conn, stop, err := g.editorEmbedded(ctx, p, hello)
		if err != nil {
			return b.refuse(ctx, err)
		}
		defer stop()
		_, err = b.carry(ctx, conn)
		return err
	}
	conn, err := g.dialEditor(ctx, p, hello)
	if err != nil {
		return b.refuse(ctx, err)
	}
	for {
		state, err := b.carry(ctx, conn)
		if err != nil || state == nil {
			return err
		}
		if conn, err = g.nextOwner(ctx, p, hello, state); err != nil {
			return err
		}
	}
}

// bridge copies bytes between an editor and a gateway.
type bridge struct {
	in   <-chan []byte // closed at the end of input
	out  io.Writer
	said io.Writer
}

// pieces reads until the end of input, whatever becomes of the reader: a read
// that waits cannot be given up.
func pieces(in io.Reader) <-chan []byte {
	c := make(chan []byte)
	go func() {
		defer close(c)
		for {
			buf := make([]byte, bridgePiece)
			n, err := in.Read(buf)
			if n > 0 {
				c <- buf[:n]
			}
			if err != nil {
				return // whatever it is, nothing more comes
			}
		}
	}()
	return c
}

var errOwnerDied = &problem{slug: "connection", err: errors.New("the process that owns the home has ended"),
	hint: "the editor loads its sessions again when it starts codework acp again"}

// carry copies until the editor is gone, or until the gateway hands it over:
// then it returns the state with which the next one goes on.
func (b *bridge) carry(ctx context.Context, conn acp.Conn) (json.RawMessage, error) {
	defer conn.Close()
	words, broken, gone := make(chan acp.Word), make(chan struct{}), make(chan struct{})
	over, parting := make(chan struct{}), make(chan struct{})
	defer close(over)
	out := deliver(b.out, parting)
	go func() {
		defer close(gone)
		defer out.close()
		for {
			f, err := conn.Read()
			if err != nil {
				return
			}
			if !f.Control {
				if !out.write(f.Data) {
					close(broken)
				}
				continue
			}
			w, err := acp.Heard(f)
			if err != nil {
				return
			}
			select {
			case words <- w:
			case <-over:
				return
			}
		}
	}()
	in, done, stop := b.in, ctx.Done(), broken
	var late <-chan time.Time
	ending, given := false, false // up; up because the editor has said all it has to say
	var state json.RawMessage
	end := func() {
		in, done, stop, ending = nil, nil, nil, true
		close(parting)
		late = time.After(partLimit)
		_ = acp.Say(conn, acp.Word{End: true}) // a gateway that is gone has nothing to end
	}
	for {
		select {
		case piece, ok := <-in:
			if !ok {
				given = true
				end()
				continue
			}
			_ = conn.Write(acp.Frame{Data: piece}) // the reader hears of the end
		case <-done:
			end()
		case <-stop:
			end()
		case w := <-words:
			if w.Pause {
				in = nil
				_ = acp.Say(conn, acp.Word{Paused: true})
			}
			if w.State != nil {
				state = w.State
			}
		case <-gone:
			switch {
			case state != nil && (given || !ending):
				return state, nil // what was said last may be in it
			case ending:
				return nil, nil
			}
			return nil, errOwnerDied
		case <-late:
			return nil, nil
		}
	}
}

// delivery writes to an editor from a goroutine of its own, because a write
// that waits cannot be given up.
type delivery struct {
	pieces  chan []byte
	results chan error
	parting <-chan struct{} // closed when the end has begun
	dead    bool            // the editor reads no more
}

func deliver(w io.Writer, parting <-chan struct{}) *delivery {
	d := &delivery{pieces: make(chan []byte), results: make(chan error, 1), parting: parting}
	go func() {
		for p := range d.pieces {
			_, err := w.Write(p)
			d.results <- err
		}
	}()
	return d
}

// write waits until the editor has read, at the end for unreadLimit. It
// reports false once, when the editor is found to read no more; what is
// written from then on is dropped.
func (d *delivery) write(p []byte) bool {
	if d.dead {
		return true
	}
	for part := range slices.Chunk(p, bridgePiece) {
		d.pieces <- part
		var late <-chan time.Time
		for parting, waits := d.parting, true; waits; {
			select {
			case err := <-d.results:
				d.dead, waits = err != nil, false
			case <-parting:
				parting, late = nil, time.After(unreadLimit)
			case <-late:
				d.dead, waits = true, false
			}
		}
		if d.dead {
			return false
		}
	}
	return true
}

func (d *delivery) close() { close(d.pieces) }

// refuse answers the first request with the reason why there is nobody to
// answer it.
func (b *bridge) refuse(ctx context.Context, why error) error {
	limit, cancel := context.WithTimeout(ctx, refuseLimit)
	defer cancel()
	lines := acp.NewLines(func() ([]byte, error) {
		select {
		case piece, ok := <-b.in:
			if ok {
				return piece, nil
			}
		case <-limit.Done():
		}
		return nil, io.EOF
	})
	for {
		line, err := lines.Next()
		if errors.Is(err, acp.ErrLineTooLong) {
			continue
		}
		if err != nil {
			return why
		}
		in := acp.Decode(line)
		if in.ID == nil {
			continue
		}
		text := oneLine(why.Error())
		var p *problem
		if errors.As(why, &p) && p.hint != "" {
			text += ". " + p.hint
		}
		_, _ = b.out.Write(acp.Failure(in.ID, acp.Internal(text))) // whoever is there
		return why
	}
}

// dialEditor returns a connection to the gateway of the home's owner, which is
// started if there is none.
func (g *global) dialEditor(ctx context.Context, p home.Paths, hello messages.Hello) (acp.Conn, error) {
	limit, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var conn acp.Conn
	err := p.Connect(limit, func(ctx context.Context) error {
		return p.StartBackground(ctx, g.ownerCommand(p), ownerEnvironment())
	}, func(c net.Conn) error {
		var err error
		conn, err = greetEditor(limit, p, c, hello, false)
		return err
	})
	if err != nil {
		return nil, connectProblem(ctx, err, p)
	}
	return conn, nil
}

// nextOwner goes on with the owner that follows.
func (g *global) nextOwner(ctx context.Context, p home.Paths, hello messages.Hello, state json.RawMessage) (acp.Conn, error) {
	conn, err := waitForOwner(ctx, p, hello)
	if err != nil {
		if conn, err = g.dialEditor(ctx, p, hello); err != nil {
			return nil, err
		}
	}
	if err := acp.Say(conn, acp.Word{State: state}); err != nil {
		conn.Close()
		return nil, errOwnerDied
	}
	return conn, nil
}

// waitForOwner looks for an owner for a while: whoever asked the one before to
// leave is about to take its place.
func waitForOwner(ctx context.Context, p home.Paths, hello messages.Hello) (acp.Conn, error) {
	limit, cancel := context.WithTimeout(ctx, moveWait)
	defer cancel()
	for {
		c, err := p.Dial(limit)
		if err == nil {
			var conn acp.Conn
			if conn, err = greetEditor(limit, p, c, hello, true); err == nil {
				return conn, nil
			}
		}
		select {
		case <-limit.Done():
			return nil, err
		case <-time.After(moveStep):
		}
	}
}

// moveStep is how often a bridge looks for the next owner.
const moveStep = 10 * time.Millisecond

// greetEditor says hello to an owner that accepted. One that is stopping, or
// that another build sent away, counts as nobody. An editor that moves goes on
// with any owner that it can talk to: that one has just taken the place of the
// one before, and two builds would go on sending each other away.
func greetEditor(ctx context.Context, p home.Paths, c net.Conn, hello messages.Hello, moves bool) (acp.Conn, error) {
	conn, err := acp.Dial(ctx, c)
	var status *acp.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		// A build that knows no editors: it may give way.
		return nil, errors.Join(sameOwner(ctx, p, hello), home.ErrNobody)
	}
	if err != nil {
		return nil, home.ErrNobody
	}
	info, err := introduce(ctx, conn, hello)
	if err == nil && info.Build != hello.Build && !(moves && info.Protocol == contract.Version) {
		err = sameOwner(ctx, p, hello)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// sameOwner asks an owner of another build to give way if it should; nil says
// that this build can go on with it.
func sameOwner(ctx context.Context, p home.Paths, hello messages.Hello) error {
	c, err := p.Dial(ctx)
	if err != nil {
		return err
	}
	other, err := greet(ctx, c, hello)
	if err != nil {
		return err
	}
	other.Close()
	return nil
}

// introduce says hello and hears who answers.
func introduce(ctx context.Context, conn acp.Conn, hello messages.Hello) (messages.ServerInfo, error) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := acp.Say(conn, acp.Word{Hello: &hello}); err != nil {
		return messages.ServerInfo{}, home.ErrNobody
	}
	f, err := conn.Read()
	if err != nil {
		return messages.ServerInfo{}, home.ErrNobody
	}
	w, err := acp.Heard(f)
	switch {
	case err != nil:
		return messages.ServerInfo{}, err
	case w.Refused != nil && w.Refused.World:
		return messages.ServerInfo{}, &messages.WrongWorld{Reason: w.Refused.Message}
	case w.Info == nil:
		return messages.ServerInfo{}, home.ErrNobody
	}
	return *w.Info, nil
}

// editorEmbedded makes this process the owner.
func (g *global) editorEmbedded(ctx context.Context, p home.Paths, hello messages.Hello) (acp.Conn, func(), error) {
	here, there := acp.Pipe()
	end, err := g.ownHere(ctx, p, func(s *actors.System) error { return s.ServeEditor(context.Background(), there) })
	if err != nil {
		return nil, nil, err
	}
	stop := func() {
		here.Close()
		end()
	}
	if _, err := introduce(ctx, here, hello); err != nil {
		stop()
		return nil, nil, fmt.Errorf("start: %w", err)
	}
	return here, stop, nil
}
