package daytona

import (
	"bytes"

	"codework/sandboxes"
)

// marks stand in a command's log before what comes from either stream: three
// bytes of the stream's number, as the published clients take them.
var marks = [...][]byte{{1, 1, 1}, {2, 2, 2}}

const markLength = 3

// demux takes a log apart. What comes before the first mark is standard output.
type demux struct {
	stream sandboxes.Stream // 0 before the first mark
	held   []byte           // what may be the beginning of a mark
}

// take hands the bytes of the streams out, in order, in as few pieces as there
// are changes. A piece is valid during the call only.
func (d *demux) take(b []byte, out func(sandboxes.Stream, []byte)) {
	d.held = append(d.held, b...)
	rest := d.held
	run := make([]byte, 0, len(rest)) // of the current stream
	flush := func() {
		if len(run) > 0 {
			out(max(d.stream, sandboxes.Stdout), run)
			run = run[:0]
		}
	}
	for {
		i := bytes.IndexAny(rest, "\x01\x02")
		if i < 0 {
			run = append(run, rest...)
			rest = nil
			break
		}
		run = append(run, rest[:i]...)
		rest = rest[i:]
		if len(rest) < markLength && len(bytes.Trim(rest, string(rest[:1]))) == 0 {
			break // the rest may follow
		}
		stream := sandboxes.Stream(rest[0])
		if !bytes.HasPrefix(rest, marks[stream-1]) {
			run = append(run, rest[0])
			rest = rest[1:]
			continue
		}
		if max(d.stream, sandboxes.Stdout) != stream {
			flush()
		}
		d.stream = stream
		rest = rest[markLength:]
	}
	flush()
	d.held = append(d.held[:0], rest...)
}

// ending finds the line in one stream that says how the command ended: a line
// feed, the token, a space, the verdict and a line feed. What comes after it is
// dropped.
type ending struct {
	begin   []byte
	held    []byte // what may be the beginning of the line
	done    bool
	verdict string
}

// maxVerdict bounds what follows the token.
const maxVerdict = 64

func newEnding(token string) *ending { return &ending{begin: []byte("\n" + token + " ")} }

// take gives what of the bytes is output. It is valid until the next call.
func (e *ending) take(b []byte) []byte {
	if e.done {
		return nil
	}
	all := append(e.held, b...)
	if i := bytes.Index(all, e.begin); i >= 0 {
		line := all[i+len(e.begin):]
		if j := bytes.IndexByte(line, '\n'); j >= 0 {
			e.done, e.verdict = true, string(line[:min(j, maxVerdict)])
		} else if len(line) > maxVerdict {
			e.done = true // it says nothing that is known
		}
		e.held = bytes.Clone(all[i:])
		return all[:i]
	}
	keep := 0
	for n := min(len(all), len(e.begin)-1); n > 0; n-- {
		if bytes.HasPrefix(e.begin, all[len(all)-n:]) {
			keep = n
			break
		}
	}
	e.held = bytes.Clone(all[len(all)-keep:])
	return all[:len(all)-keep]
}

// rest gives what is still held of a stream that ended without the line.
func (e *ending) rest() []byte {
	if e.done || bytes.HasPrefix(e.held, e.begin) {
		return nil
	}
	return e.held
}
