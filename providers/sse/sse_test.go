package sse

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type got struct{ typ, id, data string }

func readAll(r io.Reader) ([]got, error) {
	rd := NewReader(r)
	var out []got
	for {
		e, err := rd.Next()
		if err != nil {
			return out, err
		}
		out = append(out, got{e.Type, e.ID, string(e.Data)})
	}
}

func TestReadsEvents(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []got
		err      error
	}{
		{"line feeds", "data: a\n\ndata: b\n\n", []got{{data: "a"}, {data: "b"}}, io.EOF},
		{"carriage returns", "data: a\r\rdata: b\r\r", []got{{data: "a"}, {data: "b"}}, io.EOF},
		{"both", "data: a\r\n\r\ndata: b\r\n\r\n", []got{{data: "a"}, {data: "b"}}, io.EOF},
		{"mixed", "data: a\r\n\ndata: b\n\r\n", []got{{data: "a"}, {data: "b"}}, io.EOF},
		{"byte-order mark", "\xef\xbb\xbfdata: a\n\n", []got{{data: "a"}}, io.EOF},
		{"comments", ": ping\n\n:\ndata: a\n: in between\ndata: b\n\n", []got{{data: "a\nb"}}, io.EOF},
		{"several data lines", "data: a\ndata:\ndata: b\n\n", []got{{data: "a\n\nb"}}, io.EOF},
		{"name and id", "event: x\nid: 7\ndata: a\n\n", []got{{"x", "7", "a"}}, io.EOF},
		{"name without data is forgotten", "event: x\n\ndata: a\n\n", []got{{data: "a"}}, io.EOF},
		{"one space only is taken off", "data:  a\ndata:b\n\n", []got{{data: " a\nb"}}, io.EOF},
		{"unknown field", "foo: x\nretry: 5\ndata: a\n\n", []got{{data: "a"}}, io.EOF},
		{"colon in data", "data: {\"a\":1}\n\n", []got{{data: `{"a":1}`}}, io.EOF},
		{"empty data is an event", "data\n\n", []got{{data: ""}}, io.EOF},
		{"cut in a line", "data: a\n\ndata: b", []got{{data: "a"}}, io.ErrUnexpectedEOF},
		{"cut before the blank line", "data: a\n\ndata: b\n", []got{{data: "a"}}, io.ErrUnexpectedEOF},
		{"cut after the name", "event: x\n", nil, io.ErrUnexpectedEOF},
		{"cut in a comment", "data: a\n\n: pi", []got{{data: "a"}}, io.EOF},
		{"nothing", "", nil, io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"whole":       strings.NewReader(c.in),
				"byte a time": iotest.OneByteReader(strings.NewReader(c.in)),
			} {
				out, err := readAll(r)
				if !errors.Is(err, c.err) {
					t.Errorf("%s: error %v, want %v", how, err, c.err)
				}
				if len(out) != len(c.want) {
					t.Fatalf("%s: %q, want %q", how, out, c.want)
				}
				for i := range out {
					if out[i] != c.want[i] {
						t.Errorf("%s: event %d is %q, want %q", how, i, out[i], c.want[i])
					}
				}
			}
		})
	}
}

func TestALineOfTheLimitIsReadAndOneByteMoreIsNot(t *testing.T) {
	exact := strings.Repeat("x", MaxLine)
	out, err := readAll(strings.NewReader("data: " + exact + "\n\ndata: next\n\n"))
	if err != io.EOF || len(out) != 2 || out[0].data != exact || out[1].data != "next" {
		t.Fatalf("%d events, %v", len(out), err)
	}
	if _, err = readAll(strings.NewReader("data: " + exact + "y\n\n")); err != ErrTooLong {
		t.Fatalf("one byte more: %v", err)
	}
	if _, err = readAll(strings.NewReader("data: " + exact + "\ndata: y\n\n")); err != ErrTooLong {
		t.Fatalf("two lines: %v", err)
	}
}

// A reader that asked for a byte after the blank line would hang a stream that
// is silent after an event.
func TestAnEventIsGivenOutBeforeTheNextByteArrives(t *testing.T) {
	for _, end := range []string{"\n\n", "\r\r", "\r\n\r\n"} {
		pr, pw := io.Pipe()
		go pw.Write([]byte("data: a" + end))
		e, err := NewReader(pr).Next()
		if err != nil || string(e.Data) != "a" {
			t.Fatalf("%q: %q %v", end, e.Data, err)
		}
		pr.Close()
	}
}

func TestAnErrorStays(t *testing.T) {
	broken := errors.New("broken")
	r := NewReader(io.MultiReader(strings.NewReader("data: a\n\nda"), iotest.ErrReader(broken)))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := r.Next(); err != broken {
			t.Fatalf("got %v", err)
		}
	}
}

// The rule: whatever the bytes and however they are cut into reads, the same
// events come out; a line end of another kind changes nothing; and it ends.
func FuzzReader(f *testing.F) {
	f.Add([]byte("event: a\ndata: b\r\n\r\n: c\rdata: d\r\r"))
	f.Add([]byte("\xef\xbb\xbfdata\n\n\n\ndata: \xff\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		whole, errWhole := readAll(bytes.NewReader(in))
		bits, errBits := readAll(iotest.OneByteReader(bytes.NewReader(in)))
		if errWhole != errBits || len(whole) != len(bits) {
			t.Fatalf("whole %q %v, byte by byte %q %v", whole, errWhole, bits, errBits)
		}
		for i := range whole {
			if whole[i] != bits[i] {
				t.Fatalf("event %d: %q and %q", i, whole[i], bits[i])
			}
		}
		if bytes.IndexByte(in, '\r') >= 0 {
			return
		}
		crlf, errCRLF := readAll(bytes.NewReader(bytes.ReplaceAll(in, []byte("\n"), []byte("\r\n"))))
		if errCRLF != errWhole || len(crlf) != len(whole) {
			t.Fatalf("with CRLF %q %v, before %q %v", crlf, errCRLF, whole, errWhole)
		}
	})
}
