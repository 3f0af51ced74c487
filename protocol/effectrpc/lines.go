package effectrpc

import (
	"bytes"
	"slices"
)

// defaultLineLimit is the longest line in bytes that either side accepts: the
// stock client fails every call on the connection for more than 16 Mi UTF-16
// units, and the stock server closes with 1009.
const defaultLineLimit = 16 << 20

// lineReader cuts a connection's bytes into lines. Both "\n" and "\r\n" end a
// line, empty lines are skipped, and what follows the last line end is dropped
// when the connection ends.
type lineReader struct {
	read    func() ([]byte, error)
	limit   int
	piece   []byte // what is left of the last read
	pending []byte // the line whose end has not arrived
}

// next returns the next line without its end. The line is the caller's to keep.
// It fails with ErrLineTooLong as soon as more than limit bytes came without a
// line end, and otherwise with the error of the connection.
func (r *lineReader) next() ([]byte, error) {
	for {
		i := bytes.IndexByte(r.piece, '\n')
		end := i
		if i < 0 {
			end = len(r.piece)
		}
		if len(r.pending)+end > r.limit {
			return nil, ErrLineTooLong
		}
		if len(r.pending)+end > cap(r.pending) { // twice as much: a line of megabytes comes in many pieces
			r.pending = slices.Grow(r.pending, max(end, len(r.pending)))
		}
		r.pending = append(r.pending, r.piece[:end]...)
		if i >= 0 {
			line := bytes.TrimSuffix(r.pending, []byte{'\r'})
			r.piece, r.pending = r.piece[i+1:], nil
			if len(line) > 0 {
				return line, nil
			}
			continue
		}
		piece, err := r.read()
		if err != nil {
			return nil, err
		}
		r.piece = piece
	}
}
