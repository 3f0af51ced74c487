package modes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame on a control socket is a header of three little-endian 32-bit
// numbers (kind, id, length of the body) and the body. Descriptors travel with
// the first byte of the header.

// Kind is what a frame says.
type Kind uint32

const (
	// Server to supervisor; id is the runner's.
	KindSpawn Kind = iota + 1 // with the runner's end of its socket
	KindKill                  // also server to runner; id is the command's there

	// Supervisor to server.
	KindGone // the runner and all it left behind have ended; body: why it could not be started, or empty

	// Server to runner; id is the command's.
	KindRun // with stdout, stderr and stdin if there is one; body: the job

	// Runner to server.
	KindEnded  // body: wait status, and whether anything of the tree is left
	KindFailed // the program could not be started; nothing is left
	KindEmpty  // nothing is left of a tree whose main process ended before
)

const (
	headerSize = 12
	// MaxBody bounds a frame: argument list and environment together may have
	// 6 MiB at most on Linux.
	MaxBody = 8 << 20
)

// Frame is one message on a control socket.
type Frame struct {
	Kind Kind
	ID   uint32
	Body []byte
}

// ErrFrame is what cannot be read as a frame, or as the body of one.
var ErrFrame = errors.New("malformed frame")

// Encode writes a frame as ReadFrame reads it.
func (f Frame) Encode() []byte {
	b := make([]byte, headerSize, headerSize+len(f.Body))
	binary.LittleEndian.PutUint32(b[0:], uint32(f.Kind))
	binary.LittleEndian.PutUint32(b[4:], f.ID)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(f.Body)))
	return append(b, f.Body...)
}

// ReadFrame reads one frame. A clean end between frames is io.EOF.
func ReadFrame(r io.Reader) (Frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(binary.LittleEndian.Uint32(h[0:])), ID: binary.LittleEndian.Uint32(h[4:])}
	n := binary.LittleEndian.Uint32(h[8:])
	if n > MaxBody {
		return Frame{}, fmt.Errorf("%w: body of %d bytes", ErrFrame, n)
	}
	if n > 0 {
		f.Body = make([]byte, n)
		if _, err := io.ReadFull(r, f.Body); err != nil {
			return Frame{}, io.ErrUnexpectedEOF
		}
	}
	return f, nil
}

// Job is what a runner needs of a command: Path and Dir are absolute, Env is
// complete, Umask is -1 for the runner's own.
type Job struct {
	Path  string
	Argv  []string
	Env   []string
	Dir   string
	Umask int
}

// EncodeJob writes what a runner needs of a job: umask, folder, path, arguments
// and environment, each string behind its length.
func EncodeJob(j Job) []byte {
	n := 16 + len(j.Dir) + len(j.Path)
	for _, s := range j.Argv {
		n += len(s) + 5
	}
	for _, s := range j.Env {
		n += len(s) + 5
	}
	b := make([]byte, 0, n)
	b = binary.AppendVarint(b, int64(j.Umask))
	b = appendString(b, j.Dir)
	b = appendString(b, j.Path)
	b = appendStrings(b, j.Argv)
	return appendStrings(b, j.Env)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendStrings(b []byte, list []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

// decodeJob reads what EncodeJob wrote. Anything else is ErrFrame.
func decodeJob(b []byte) (Job, error) {
	var j Job
	umask, n := binary.Varint(b)
	if n <= 0 || umask < -1 || umask > 0o777 {
		return j, ErrFrame
	}
	j.Umask = int(umask)
	b = b[n:]
	var err error
	if j.Dir, b, err = takeString(b); err != nil {
		return j, err
	}
	if j.Path, b, err = takeString(b); err != nil {
		return j, err
	}
	if j.Argv, b, err = takeStrings(b); err != nil {
		return j, err
	}
	if j.Env, b, err = takeStrings(b); err != nil {
		return j, err
	}
	if len(b) != 0 {
		return j, ErrFrame
	}
	return j, nil
}

func takeString(b []byte) (string, []byte, error) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return "", nil, ErrFrame
	}
	b = b[k:]
	return string(b[:n]), b[n:], nil
}

func takeStrings(b []byte) ([]string, []byte, error) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) { // each string takes a byte at least
		return nil, nil, ErrFrame
	}
	b = b[k:]
	list := make([]string, 0, n)
	for range n {
		var s string
		var err error
		if s, b, err = takeString(b); err != nil {
			return nil, nil, err
		}
		list = append(list, s)
	}
	return list, b, nil
}

// encodeEnded writes how a main process ended.
func encodeEnded(wait uint32, left bool) []byte {
	b := binary.LittleEndian.AppendUint32(nil, wait)
	if left {
		return append(b, 1)
	}
	return append(b, 0)
}

// DecodeEnded reads the body of KindEnded; anything else is ErrFrame.
func DecodeEnded(b []byte) (wait uint32, left bool, err error) {
	if len(b) != 5 || b[4] > 1 {
		return 0, false, ErrFrame
	}
	return binary.LittleEndian.Uint32(b), b[4] == 1, nil
}

// encodeFailed writes why a program could not be started.
func encodeFailed(errno uint32, dir bool) []byte { return encodeEnded(errno, dir) }

// DecodeFailed reads the body of KindFailed: the error number, and whether the
// working folder was the reason.
func DecodeFailed(b []byte) (errno uint32, dir bool, err error) { return DecodeEnded(b) }
