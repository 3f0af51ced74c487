package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"codework/sandboxes"
	"codework/sandboxes/supervisor"
)

// pieceSize is what is read of a pipe at a time: all that it holds.
const pieceSize = 64 << 10

// drainTime is how long output is still read when the main process has ended
// and a background job holds it open: enough for what a job says at its start.
const drainTime = 250 * time.Millisecond

// Of what a command prints the first outputBurst is read as fast as it comes, the
// rest at outputRate, and what is too much even for a file that keeps the whole at
// lostRate: nobody will read it. Without such a file whoever runs the command gets
// the whole, and nothing is lost. A command that prints without end would take the
// processors from everybody, and with it we.
const (
	outputBurst = 8 << 20
	outputRate  = 16 << 20 // bytes a second
	lostRate    = 4 << 20
	// outputNap is how far the reading gets ahead before it waits, and how much it
	// may make up for when nobody had time for it: what a pipe holds. Woken for
	// less, reader and command would spend more on waking than on the output.
	outputNap = time.Second * pieceSize / outputRate
)

// pace holds back the reading of a pipe. The zero value is for a new one, of
// which nothing is lost.
type pace struct {
	kept int64 // bytes that are not lost; 0: all
	read int64 // bytes
	due  time.Time
}

// hold is called behind n bytes.
func (p *pace) hold(n int) {
	p.read += int64(n)
	rate := outputRate
	switch {
	case p.read <= outputBurst:
		return
	case p.kept > 0 && p.read > p.kept:
		rate = lostRate
	}
	now := time.Now()
	if late := now.Add(-outputNap); p.due.Before(late) {
		p.due = late
	}
	p.due = p.due.Add(time.Duration(n) * time.Second / time.Duration(rate))
	if ahead := p.due.Sub(now); ahead >= outputNap {
		time.Sleep(ahead)
	}
}

var pieceBuffers = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// output takes what a command prints: to the consumer, and to the file that
// keeps the whole.
type output struct {
	deliver func(sandboxes.Stream, []byte)
	full    *os.File
	total   int64
	written int64
	cut     bool
}

// open makes the file named by Full, which must lie in the mount's scratch
// folder. It is new: commands can write there, and could have left a link.
func (o *output) open(m *mount, full string) error {
	if full == "" {
		return nil
	}
	path := full
	if !filepath.IsAbs(path) {
		path = filepath.Join(m.scratch, path)
	}
	if filepath.Dir(path) != m.scratch {
		return &sandboxes.ShellError{Reason: "file for full output: not in scratch: " + full}
	}
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = makeScratch(m.scratch)
	}
	if err == nil {
		o.full, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return &sandboxes.ShellError{Reason: "file for full output", Err: err}
	}
	return nil
}

func (o *output) take(stream sandboxes.Stream, b []byte) {
	o.total += int64(len(b))
	if o.full != nil && !o.cut {
		keep := b
		if room := sandboxes.FullLimit - o.written; int64(len(keep)) > room {
			keep, o.cut = keep[:room], true
		}
		n, err := o.full.Write(keep)
		o.written += int64(n)
		if err != nil { // a full disk, say: the command goes on
			o.cut = true
		}
	}
	if o.deliver != nil {
		o.deliver(stream, b)
	}
}

func (o *output) close(exit *sandboxes.Exit) {
	exit.FullBytes, exit.FullCut = o.total, o.cut
	if o.full != nil {
		if o.full.Close() != nil {
			exit.FullCut = true
		}
	}
}

// piece is what one read gave; b is nil at the end of the stream.
type piece struct {
	stream sandboxes.Stream
	b      []byte
}

// pipes carry a command's output to this process. One goroutine per pipe reads,
// and waits until its piece was taken.
type pipes struct {
	count  int
	kept   int64 // as in pace, of each
	near   [2]*os.File
	far    [2]*os.File
	pieces chan piece
	next   chan struct{} // the piece was taken
	drop   chan struct{} // closed when nobody takes pieces any more
}

// openPipes makes the pipes and puts their far ends into the job. Joined streams
// share one, which keeps their order exact. Kept is as in pace.
func openPipes(job *supervisor.Job, joined bool, kept int64) (*pipes, error) {
	p := &pipes{
		count:  2,
		kept:   kept,
		pieces: make(chan piece),
		next:   make(chan struct{}),
		drop:   make(chan struct{}),
	}
	if joined {
		p.count = 1
	}
	for i := range p.count {
		var err error
		if p.near[i], p.far[i], err = os.Pipe(); err != nil {
			p.closeFar()
			p.close()
			return nil, err
		}
	}
	job.Stdout, job.Stderr = p.far[0], p.far[p.count-1]
	return p, nil
}

func (p *pipes) closeFar() {
	for _, f := range p.far {
		if f != nil {
			f.Close()
		}
	}
}

// close ends the readers.
func (p *pipes) close() {
	select {
	case <-p.drop:
	default:
		close(p.drop)
	}
	for _, f := range p.near {
		if f != nil {
			f.Close()
		}
	}
}

// discard lets a background job print into nothing until it is gone: it would
// die of a closed pipe.
func (p *pipes) discard(gone <-chan struct{}) {
	close(p.drop)
	go func() {
		<-gone
		p.close()
	}()
}

// read starts the readers.
func (p *pipes) read() {
	for i := range p.count {
		go p.readOne(sandboxes.Stdout+sandboxes.Stream(i), p.near[i])
	}
}

// deliver hands pieces on until the main process has ended and the pipes have
// too, or the time to drain them is over; eof tells which. After is called when
// the main process has ended.
func (p *pipes) deliver(ended <-chan struct{}, take func(sandboxes.Stream, []byte), after func()) (eof bool) {
	var drained <-chan time.Time
	for open := p.count; open > 0 || ended != nil; {
		select {
		case piece := <-p.pieces:
			if piece.b == nil {
				open--
				continue
			}
			take(piece.stream, piece.b)
			p.next <- struct{}{}
		case <-ended:
			after()
			ended = nil
			drained = time.After(drainTime)
		case <-drained:
			return false
		}
	}
	return true
}

func (p *pipes) readOne(stream sandboxes.Stream, f *os.File) {
	if !p.readPieces(stream, f) {
		return
	}
	var small [4 << 10]byte
	for {
		if _, err := f.Read(small[:]); err != nil {
			return
		}
	}
}

// readPieces reads until the end of the stream, or until nobody takes pieces.
func (p *pipes) readPieces(stream sandboxes.Stream, f *os.File) (more bool) {
	buf := pieceBuffers.Get().(*[pieceSize]byte)
	defer pieceBuffers.Put(buf)
	speed := pace{kept: p.kept}
	for {
		n, err := f.Read(buf[:])
		if n > 0 {
			select {
			case p.pieces <- piece{stream, buf[:n]}:
				<-p.next
				speed.hold(n)
			case <-p.drop:
				return true
			}
		}
		if err != nil {
			select {
			case p.pieces <- piece{stream, nil}:
			case <-p.drop:
			}
			return false
		}
	}
}
