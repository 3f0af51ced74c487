// Package sse reads server-sent events.
//
// Events come in the order they were sent, each as soon as the blank line that
// ends it has arrived: the reader never waits for a byte beyond it. Comments
// and unknown fields are skipped. Nothing is closed here; the caller owns the
// underlying reader.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// MaxLine is the longest line and the most data of one event that is read.
// Providers send a whole tool call or an encrypted reasoning item as one line;
// the largest seen are a few MiB.
const MaxLine = 16 << 20

// keepBuffer is how much of a grown buffer is kept from event to event: enough
// for any usual delta, so that one huge event does not stay in memory.
const keepBuffer = 64 << 10

// readBuffer is small because the transport below buffers too and a process
// has many streams open at once.
const readBuffer = 4 << 10

// ErrTooLong means a line or an event is longer than MaxLine.
var ErrTooLong = errors.New("event longer than 16 MiB")

// Event is one server-sent event. Data is valid until the next call of Next.
type Event struct {
	Type string // "" when the server named none
	ID   string
	Data []byte // data lines joined by line feeds
}

// Reader reads events from a stream of bytes.
type Reader struct {
	br      *bufio.Reader
	line    []byte
	data    []byte
	started bool // the first line may carry a byte-order mark
	skipLF  bool // the last line ended in CR; a following LF belongs to it
	err     error
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{br: bufio.NewReaderSize(r, readBuffer)}
}

// Next returns the next event that has data. At the end of the stream it
// returns io.EOF, or io.ErrUnexpectedEOF when the stream ends inside an event;
// any other error of the underlying reader is returned as it is. After an
// error every call returns that error.
func (r *Reader) Next() (Event, error) {
	if r.err != nil {
		return Event{}, r.err
	}
	e, err := r.next()
	r.err = err
	return e, err
}

func (r *Reader) next() (Event, error) {
	if cap(r.data) > keepBuffer {
		r.data = nil
	}
	r.data = r.data[:0]
	var e Event
	fields, hasData := false, false
	for {
		line, err := r.readLine()
		if err == io.EOF {
			if fields || (len(line) > 0 && line[0] != ':') {
				return Event{}, io.ErrUnexpectedEOF
			}
			return Event{}, io.EOF
		}
		if err != nil {
			return Event{}, err
		}
		if len(line) == 0 {
			if hasData {
				e.Data = r.data
				return e, nil
			}
			// An event without data is none; its name does not carry over.
			e, fields = Event{}, false
			continue
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		if len(name) == 0 {
			continue // a comment, the usual keep-alive
		}
		fields = true
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(name) {
		case "data":
			if hasData {
				r.data = append(r.data, '\n')
			}
			if len(r.data)+len(value) > MaxLine {
				return Event{}, ErrTooLong
			}
			hasData = true
			r.data = append(r.data, value...)
		case "event":
			e.Type = string(value)
		case "id":
			e.ID = string(value)
		}
	}
}

// readLine returns the next line without its end. With io.EOF it returns what
// was read of an unfinished one.
func (r *Reader) readLine() ([]byte, error) {
	if cap(r.line) > keepBuffer {
		r.line = nil
	}
	r.line = r.line[:0]
	for {
		if _, err := r.br.Peek(1); err != nil {
			return r.line, err
		}
		chunk, _ := r.br.Peek(r.br.Buffered())
		if r.skipLF {
			r.skipLF = false
			if chunk[0] == '\n' {
				r.br.Discard(1)
				continue
			}
		}
		end := bytes.IndexByte(chunk, '\n')
		if cr := bytes.IndexByte(chunk, '\r'); cr >= 0 && (end < 0 || cr < end) {
			end = cr
			r.skipLF = true
		}
		take := end
		if end < 0 {
			take = len(chunk)
		}
		// The name of the field comes on top of the longest data.
		if len(r.line)+take > MaxLine+len("data: ") {
			return nil, ErrTooLong
		}
		r.line = append(r.line, chunk[:take]...)
		if end < 0 {
			r.br.Discard(take)
			continue
		}
		r.br.Discard(end + 1)
		if !r.started {
			r.started = true
			r.line = bytes.TrimPrefix(r.line, []byte("\xef\xbb\xbf"))
		}
		return r.line, nil
	}
}
