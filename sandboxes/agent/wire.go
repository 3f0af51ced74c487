package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"codework/sandboxes"
)

// version is that of the protocol. Both sides must have the same: they are the
// same program in two places, and an old one inside is simply replaced.
const version = 1

// A frame is a header (one byte kind, little-endian 32-bit id of the call, and
// 32-bit length of the body) and the body.

type kind uint8

const (
	kindHello kind = iota + 1 // both ways, first of all; body: hello; id 0

	// Outside to inside.
	kindRequest // begins a call; body: the last part of a request
	kindCancel  // the caller has given up, or gives its lock back
	kindEnd     // end of the content

	// Inside to outside.
	kindAnswer // ends a call; body: the last part of an answer
	kindHeld   // the lock is taken
	kindStdout
	kindStderr

	// Both ways.
	kindPart   // a part of a request or an answer; more follows
	kindData   // content of a file, or of a list
	kindCredit // body: 32-bit number of further bytes that the peer may send
)

const (
	headerSize = 9
	// pieceSize is the most that one frame carries of something larger: other
	// calls wait only as long as that takes to send.
	pieceSize = 32 << 10
	// maxBody bounds a frame. No side sends more than pieceSize.
	maxBody = 64 << 10
	// maxMessage bounds a request or an answer: argument list and environment
	// together may have 6 MiB on Linux, which base64 makes a third longer.
	maxMessage = 12 << 20
	// windowSize is how much of a call's output or content may be on its way,
	// and how much of it waits for a slow consumer. It bounds the throughput
	// of one call over a slow line: 512 KiB per round trip.
	windowSize = 512 << 10
	// creditSize is when what was consumed is told to the sender.
	creditSize = windowSize / 4
)

// frame is one of the protocol.
type frame struct {
	kind kind
	id   uint32
	body []byte
}

// errProtocol means that the peer broke the protocol; nothing that it says is
// to be trusted any more.
var errProtocol = errors.New("malformed message")

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errProtocol}, args...)...)
}

// header writes the header of a frame with a body of n bytes.
func header(b []byte, k kind, id uint32, n int) []byte {
	b = append(b, byte(k))
	b = binary.LittleEndian.AppendUint32(b, id)
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

// encode is the frame as it travels.
func (f frame) encode() []byte {
	b := header(make([]byte, 0, headerSize+len(f.body)), f.kind, f.id, len(f.body))
	return append(b, f.body...)
}

// readFrame reads one frame. A clean end between frames is io.EOF, one within
// a frame io.ErrUnexpectedEOF; a frame that cannot be is errProtocol.
func readFrame(r io.Reader) (frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: kind(h[0]), id: binary.LittleEndian.Uint32(h[1:])}
	n := binary.LittleEndian.Uint32(h[5:])
	if f.kind == 0 || f.kind > kindCredit {
		return frame{}, protocolError("kind %d", h[0])
	}
	if n > maxBody {
		return frame{}, protocolError("body of %d bytes", n)
	}
	if n == 0 {
		return f, nil
	}
	f.body = make([]byte, n)
	if _, err := io.ReadFull(r, f.body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return f, nil
}

// hello is the handshake.
type hello struct {
	Protocol string `json:"protocol"`
	Version  int    `json:"version"`
}

const protocolName = "codework-sandbox-agent"

func helloFrame() frame {
	b, err := json.Marshal(hello{protocolName, version})
	if err != nil {
		panic(err) // a string and a number
	}
	return frame{kind: kindHello, body: b}
}

// checkHello tells whether the peer can be talked to.
func checkHello(f frame) error {
	var h hello
	if f.kind != kindHello || json.Unmarshal(f.body, &h) != nil || h.Protocol != protocolName {
		return protocolError("no handshake")
	}
	if h.Version != version {
		return fmt.Errorf("sandbox agent: the other side speaks version %d of the protocol, this one version %d: use the same program on both", h.Version, version)
	}
	return nil
}

// The operations.
const (
	opMount    = "mount"
	opUnmount  = "unmount"
	opClose    = "close"
	opRead     = "read"
	opWrite    = "write"
	opStat     = "stat"
	opLstat    = "lstat"
	opList     = "list"
	opMkdir    = "mkdir"
	opRemove   = "remove"
	opRealPath = "realpath"
	opLock     = "lock"
	opRun      = "run"
)

// request is what a call asks for. Names of files, arguments and values are
// bytes: they need not be UTF-8.
type request struct {
	Op     string       `json:"op"`
	Mount  uint32       `json:"mount,omitempty"`
	Path   []byte       `json:"path,omitempty"`
	Offset int64        `json:"offset,omitempty"`
	Limit  int64        `json:"limit,omitempty"`
	Make   *wireMount   `json:"make,omitempty"`
	Run    *wireCommand `json:"run,omitempty"`
}

// wireMount is sandboxes.MountOptions. The caller's environment stays outside.
type wireMount struct {
	Session  string            `json:"session,omitempty"`
	Dir      []byte            `json:"dir,omitempty"`
	Umask    int               `json:"umask"`
	Pass     []string          `json:"pass,omitempty"`
	Set      map[string][]byte `json:"set,omitempty"`
	Withhold []string          `json:"withhold,omitempty"`
}

// wireCommand is sandboxes.Command.
type wireCommand struct {
	Script  []byte            `json:"script,omitempty"`
	Argv    [][]byte          `json:"argv,omitempty"`
	Dir     []byte            `json:"dir,omitempty"`
	Env     map[string][]byte `json:"env,omitempty"`
	Timeout time.Duration     `json:"timeout,omitempty"`
	Silent  bool              `json:"silent,omitempty"` // nobody wants the output
	Joined  bool              `json:"joined,omitempty"`
	Full    []byte            `json:"full,omitempty"`
}

// answer ends a call.
type answer struct {
	Err     *wireError      `json:"err,omitempty"`
	Mount   uint32          `json:"mount,omitempty"`
	Dir     []byte          `json:"dir,omitempty"`
	Scratch []byte          `json:"scratch,omitempty"`
	Path    []byte          `json:"path,omitempty"`
	Info    *wireInfo       `json:"info,omitempty"`
	Exit    *sandboxes.Exit `json:"exit,omitempty"`
}

// wireInfo is sandboxes.Info. Lists are JSON values of it, one after the other.
type wireInfo struct {
	Name    []byte      `json:"name"`
	Size    int64       `json:"size,omitempty"`
	Mode    fs.FileMode `json:"mode"`
	ModTime *time.Time  `json:"modTime,omitempty"`
}

func toWireInfo(i sandboxes.Info) wireInfo {
	w := wireInfo{Name: []byte(i.Name), Size: i.Size, Mode: i.Mode}
	if !i.ModTime.IsZero() {
		w.ModTime = &i.ModTime
	}
	return w
}

func (w wireInfo) info() sandboxes.Info {
	i := sandboxes.Info{Name: string(w.Name), Size: w.Size, Mode: w.Mode}
	if w.ModTime != nil {
		i.ModTime = *w.ModTime
	}
	return i
}

func toBytes(m map[string]string) map[string][]byte {
	if m == nil {
		return nil
	}
	out := make(map[string][]byte, len(m))
	for name, value := range m {
		out[name] = []byte(value)
	}
	return out
}

func toStrings(m map[string][]byte) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for name, value := range m {
		out[name] = string(value)
	}
	return out
}
