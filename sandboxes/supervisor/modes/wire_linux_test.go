package modes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
	"testing/iotest"
)

var sampleJobs = []Job{
	{Path: "/bin/sh", Argv: []string{"sh", "-c", "echo\n"}, Env: []string{"A=1", "B="}, Dir: "/", Umask: -1},
	{Path: "/x", Argv: []string{""}, Env: []string{}, Dir: "/tmp/\xff", Umask: 0o777},
	{Path: "", Argv: []string{}, Env: []string{}, Dir: ""},
}

func TestJobsSurviveTheWire(t *testing.T) {
	for _, j := range sampleJobs {
		f := Frame{KindRun, 7, EncodeJob(j)}
		// One byte at a time: a frame may arrive in pieces.
		got, err := ReadFrame(iotest.OneByteReader(bytes.NewReader(f.Encode())))
		if err != nil || got.Kind != KindRun || got.ID != 7 {
			t.Fatal(got, err)
		}
		back, err := decodeJob(got.Body)
		if err != nil || !reflect.DeepEqual(back, j) {
			t.Errorf("%+v became %+v, %v", j, back, err)
		}
	}
}

func TestFramesThatEndEarly(t *testing.T) {
	whole := Frame{KindEnded, 1, encodeEnded(256, true)}.Encode()
	for n := range whole {
		_, err := ReadFrame(bytes.NewReader(whole[:n]))
		if n == 0 && err != io.EOF || n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// FuzzReadFrame: never a panic, never more memory than the limit, and what is
// read is what was written.
func FuzzReadFrame(f *testing.F) {
	for _, j := range sampleJobs {
		f.Add(Frame{KindRun, 1, EncodeJob(j)}.Encode())
	}
	f.Add(Frame{KindGone, 1, nil}.Encode())
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ReadFrame(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(got.Body) > MaxBody || !bytes.HasPrefix(b, got.Encode()) {
			t.Errorf("%x became %+v", b, got)
		}
	})
}

// FuzzDecodeJob: never a panic, and a job that is accepted survives another
// trip.
func FuzzDecodeJob(f *testing.F) {
	for _, j := range sampleJobs {
		f.Add(EncodeJob(j))
	}
	f.Add([]byte{1, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := decodeJob(b)
		if err != nil {
			return
		}
		again, err := decodeJob(EncodeJob(j))
		if err != nil || !reflect.DeepEqual(again, j) {
			t.Errorf("%+v became %+v, %v", j, again, err)
		}
	})
}

// FuzzDecodeEnded: accepted is exactly what encodeEnded writes.
func FuzzDecodeEnded(f *testing.F) {
	f.Add(encodeEnded(9, false))
	f.Add(encodeEnded(0xff00, true))
	f.Add([]byte{0, 0, 0, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		wait, left, err := DecodeEnded(b)
		if err == nil && !bytes.Equal(encodeEnded(wait, left), b) {
			t.Errorf("%x became %d %v", b, wait, left)
		}
	})
}

// FuzzParentInStat: a name in the parentheses, whatever it holds, does not
// change what is found behind them.
func FuzzParentInStat(f *testing.F) {
	f.Add("cat", 17)
	f.Add("a) R 1 (b", 1)
	f.Add("", 0)
	f.Fuzz(func(t *testing.T, name string, ppid int) {
		if ppid < 0 {
			return
		}
		got, ok := parentInStat(fmt.Appendf(nil, "12 (%s) S %d 12 12 0 -1 4194560", name, ppid))
		if !ok || got != ppid {
			t.Errorf("%q: %d %v, want %d", name, got, ok, ppid)
		}
		_, _ = parentInStat([]byte(name)) // no panic
	})
}
