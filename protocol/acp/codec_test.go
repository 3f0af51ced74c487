package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pieces hands out data in pieces of n bytes.
func pieces(data []byte, n int) func() ([]byte, error) {
	return func() ([]byte, error) {
		if len(data) == 0 {
			return nil, io.EOF
		}
		k := min(n, len(data))
		p := bytes.Clone(data[:k])
		data = data[k:]
		return p, nil
	}
}

func all(l *Lines) (lines []string, long int) {
	for {
		line, err := l.Next()
		switch {
		case errors.Is(err, ErrLineTooLong):
			long++
		case err != nil:
			return lines, long
		default:
			lines = append(lines, string(line))
		}
	}
}

func TestLinesSurviveEveryCut(t *testing.T) {
	data := []byte("{\"a\":1}\r\n\n  \t\n{\"b\":\"\u2028é\"}\nlast")
	for n := 1; n <= len(data); n++ {
		got, _ := all(NewLines(pieces(data, n)))
		if strings.Join(got, "|") != "{\"a\":1}\r|{\"b\":\"\u2028é\"}|last" {
			t.Errorf("pieces of %d: %q", n, got)
		}
	}
}

func TestALineOverTheLimitCostsItselfOnly(t *testing.T) {
	for n := 1; n < 40; n++ {
		l := NewLines(pieces([]byte("one\n"+strings.Repeat("x", 30)+"\ntwo\n"+strings.Repeat("y", 31)), n))
		l.limit = 20
		got, long := all(l)
		if strings.Join(got, "|") != "one|two" || long != 2 {
			t.Errorf("pieces of %d: %q, %d too long", n, got, long)
		}
	}
	exact := NewLines(pieces([]byte(strings.Repeat("x", 20)+"\n"), 7))
	exact.limit = 20
	if got, long := all(exact); len(got) != 1 || long != 0 {
		t.Errorf("%q, %d too long", got, long)
	}
}

func TestWhatIsHandedOverIsWhatWasNotReturned(t *testing.T) {
	stop := errors.New("stop")
	read := pieces([]byte("one\ntw"), 100)
	l := NewLines(func() ([]byte, error) {
		p, err := read()
		if err == io.EOF {
			err = stop
		}
		return p, err
	})
	if line, err := l.Next(); err != nil || string(line) != "one" {
		t.Fatal(string(line), err)
	}
	if _, err := l.Next(); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	if got := string(l.Rest()); got != "tw" {
		t.Errorf("%q", got)
	}
}

// Whatever a line holds, it is a message, is refused with a code of the
// protocol, or is a response; and an id that is answered comes back as it was.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, `{"jsonrpc":"2.0","id":"1","method":"x"}`, `[]`, `null`, `{`, `7`,
		`{"jsonrpc":"2.0","id":1.5e300,"method":"x","params":[1]}`, `{"jsonrpc":"2.0","id":null,"result":1}`, "{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}",
		`{"jsonrpc":"2.0","id":true,"method":"x"}`, `{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if blank(line) || bytes.IndexByte(line, '\n') >= 0 {
			return // Lines hands out none
		}
		in := Decode(line)
		if in.Refused != nil {
			switch in.Refused.Code {
			case CodeParse, CodeInvalidRequest, CodeInvalidParams:
			default:
				t.Errorf("code %d", in.Refused.Code)
			}
			if in.Method != "" || in.ID == nil {
				t.Errorf("refused, and still %q with id %q", in.Method, in.ID)
			}
		}
		if in.ID == nil {
			return
		}
		out := Failure(in.ID, UnknownMethod(in.Method))
		if bytes.Count(out, []byte("\n")) != 1 || !json.Valid(out) {
			t.Errorf("answered with %q", out)
		}
		var back struct{ ID json.RawMessage }
		if json.Unmarshal(out, &back) != nil || in.Refused == nil && !bytes.Equal(back.ID, bytes.ToValidUTF8(in.ID, []byte("\uFFFD"))) {
			t.Errorf("id %q came back as %q", in.ID, back.ID)
		}
		_, _ = DecodePrompt(in.Params)
		_, _ = DecodeOpen(in.Params, true)
		_, _ = DecodeSetConfig(in.Params)
		_, _ = DecodeList(in.Params)
		_, _ = DecodeInitialize(in.Params)
	})
}

func TestIdsKeepEveryDigitAndTheirType(t *testing.T) {
	for _, id := range []string{`7`, `"7"`, `-1`, `123456789012345678901234567890`, `1.0`, `"a\u00e9"`, `null`} {
		in := Decode([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"x"}`))
		if string(in.ID) != id || !bytes.Contains(Result(in.ID, Done{}), []byte(`"id":`+id+`,`)) {
			t.Errorf("%s became %s", id, in.ID)
		}
	}
}

func TestEqualIdsHaveOneKey(t *testing.T) {
	key := func(id string) string {
		return Decode([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"x"}`)).Key()
	}
	if key(`"a\u00e9/"`) != key(`"aé\/"`) || key(`7`) == key(`"7"`) || key(`null`) == key(`"null"`) {
		t.Error("keys and ids do not go together")
	}
	if DecodeCancelled(Params{"requestId": json.RawMessage(`"\u0041"`)}) != key(`"A"`) {
		t.Error("a cancelled request is not found by its id")
	}
}

// An error may repeat what the client sent, but not 9 MiB of it.
func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("é", 5<<20)
	for _, err := range []*Error{UnknownMethod(long), NotFound(long), Internal(long), Invalid(long)} {
		line := Failure(ID("1"), err)
		if len(line) > 16<<10 || !strings.Contains(string(line), "…") || Decode(line).Response != true {
			t.Errorf("%d bytes", len(line))
		}
	}
	for _, notices := range []bool{true, false} {
		if line := Notify("s", Note(notices, "id", "warning", "title", long)); len(line) > 16<<10 {
			t.Errorf("a notice of %d bytes", len(line))
		}
	}
	for s, want := range map[string]string{"": "", "abc": "abc", "abcd": "ab…", "äöüß": "äö…"} {
		if got := clip(s, 3); got != want {
			t.Errorf("%q became %q", s, got)
		}
	}
}

// Null says the same as nothing, in the envelope too.
func TestAResponseMayHaveANullMethod(t *testing.T) {
	for _, text := range []string{`{"jsonrpc":"2.0","id":1,"result":null,"method":null}`, `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`} {
		if in := Decode([]byte(text)); !in.Response {
			t.Errorf("%s: %+v", text, in)
		}
	}
}

func TestInitializeTakesAnyIntegerAsVersion(t *testing.T) {
	for version, good := range map[string]bool{"0": true, "-1": true, "65535": true, "99999999999999999999": true, "null": true, `"1"`: false, "1.5": false, "1e3": false, "[]": false, "true": false} {
		if _, err := DecodeInitialize(Params{"protocolVersion": json.RawMessage(version)}); (err == nil) != good {
			t.Errorf("%s: %v", version, err)
		}
	}
}

func TestNoOptionIsABoolean(t *testing.T) {
	for kind, good := range map[string]bool{`"select"`: true, `null`: true, `"boolean"`: false} {
		p := Params{"sessionId": json.RawMessage(`"s"`), "configId": json.RawMessage(`"model"`), "value": json.RawMessage(`"a/b"`), "type": json.RawMessage(kind)}
		if _, err := DecodeSetConfig(p); (err == nil) != good {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestInitializeLooksAtNoticesOnly(t *testing.T) {
	for params, want := range map[string]bool{
		`{}`: false, `{"clientCapabilities":null}`: false, `{"clientCapabilities":7}`: false,
		`{"clientCapabilities":{"session":null}}`: false, `{"clientCapabilities":{"session":{"notices":null}}}`: false,
		`{"clientCapabilities":{"session":{"notices":{}}}}`: true, `{"protocolVersion":65535,"clientCapabilities":{"session":{"notices":false}}}`: false,
	} {
		var p Params
		if err := json.Unmarshal([]byte(params), &p); err != nil {
			t.Fatal(err)
		}
		got, err := DecodeInitialize(p)
		if err != nil || got.Notices != want {
			t.Errorf("%s: %+v %v", params, got, err)
		}
	}
}
