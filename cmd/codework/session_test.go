package main

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

func TestAges(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		-time.Hour: "0s", // another machine's clock
		0:          "0s", 59 * time.Second: "59s", time.Minute: "1m", 59 * time.Minute: "59m", time.Hour: "1h",
		47 * time.Hour: "47h", 48 * time.Hour: "2d", 800 * time.Hour: "33d",
	} {
		if got := age(messages.ISOTime(now.Add(-ago).UnixMilli()), now); got != want {
			t.Errorf("%s ago is %s, want %s", ago, got, want)
		}
	}
	if got := age("", now); got != "-" {
		t.Errorf("no date is %s", got)
	}
}

func TestATableFitsTheTerminal(t *testing.T) {
	rows := [][]string{{"ID", "AGE", "TITLE"}, {"ses_1", "5m", "a rather long title, which ends here"}, {"ses_22", "10d", ""}}
	same(t, "at 24", aligned(rows, 24), "ID      AGE  TITLE\nses_1   5m   a rather l…\nses_22  10d\n")
	same(t, "at 5, which is hopeless", aligned(rows[:2], 5), "ID     AGE  TITLE\nses_1  5m   a rather long title, which ends here\n")
}

func toolCall(name, arguments, result string, state messages.CallState) messages.Part {
	r := messages.TextResult(result, state == messages.CallError)
	return messages.Part{Type: messages.PartToolCall, CallID: "c", Name: name, Arguments: arguments, Call: state, Result: &r}
}

func TestMarkdownOfAConversation(t *testing.T) {
	image := messages.Part{Type: messages.PartImage, MediaType: "image/png", Blob: "b", Bytes: 12345}
	withImage := toolCall("read", `{"path":"x.png"}`, "an image", messages.CallCompleted)
	withImage.Result.Content = append(withImage.Result.Content, image)
	open := messages.Part{Type: messages.PartToolCall, Name: "bash", Arguments: "no json", Call: messages.CallAborted}
	got := markdown(messages.SessionInfo{ID: session, Title: "A\ntitle"}, []messages.Message{
		{Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: "look\n"}, image}},
		{Role: messages.RoleAssistant, State: messages.EntryCommitted, Provider: "p", Model: "m", Parts: []messages.Part{
			{Type: messages.PartThinking, Text: "hm"}, {Type: messages.PartThinking, Redacted: true, Signature: "s"},
			{Type: messages.PartText, Text: "I look."}, withImage, toolCall("bash", "{}", "a ```` b", messages.CallError)}},
		{Role: messages.RoleAssistant, State: messages.EntryAborted, Parts: []messages.Part{{Type: messages.PartText, Text: "Half"}, open}},
		{Role: messages.RoleAssistant, State: messages.EntryAborted, Failure: &messages.Failure{Message: "no\nkey"}},
	})
	same(t, "markdown", got, strings.ReplaceAll("# A title\n\nSession `"+session+"`\n"+`
## User

look

*[image: image/png, 12,345 bytes]*

## Assistant (p/m)

Thinking:

~~~text
hm
~~~

I look.

### Tool call: read

~~~json
{
  "path": "x.png"
}
~~~

~~~text
an image
~~~

*[image: image/png, 12,345 bytes]*

### Tool call: bash (error)

~~~json
{}
~~~

`+"`````text\na ```` b\n`````\n"+`
## Assistant

Half

### Tool call: bash (aborted)

~~~json
no json
~~~

*Stopped here.*

## Assistant

*Failed: no key*
`, "~~~", "```"))
}

// Rule: whatever stands inside, the fence ends where it should: the first line
// that could close it is the last.
func FuzzAFenceEndsWhereItShould(f *testing.F) {
	for _, s := range []string{"", "a", "```", "a\n````\nb", "`", "\n", "\n\n", "``````````"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(strings.TrimSuffix(fenced("text", text), "\n"), "\n")
		fence := strings.TrimSuffix(lines[0], "text")
		if len(fence) < 3 || strings.Trim(fence, "`") != "" {
			t.Fatalf("begins with %q", lines[0])
		}
		for i, l := range lines[1:] {
			if closes := strings.HasPrefix(strings.TrimLeft(l, " "), fence); closes != (i == len(lines)-2) {
				t.Fatalf("line %d of %q", i, lines)
			}
		}
		inside := strings.Join(lines[1:len(lines)-1], "\n")
		if strings.TrimSuffix(text, "\n") != inside {
			t.Fatalf("%q became %q", text, inside)
		}
	})
}

// Rule: nothing that a terminal obeys is left, and nothing else is gone.
func FuzzPlainTextIsPlain(f *testing.F) {
	f.Add(hostile)
	f.Add("plain\n\ttext – ünï")
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		got := plainText(s)
		noControls(t, "plain text", strings.ReplaceAll(got, "\t", " "))
		if plainText(got) != got {
			t.Errorf("%q changes again", got)
		}
		printable := func(s string) string { return strings.Join(strings.Fields(oneLine(s)), "") }
		if printable(got) != printable(s) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func TestWhatIsShownOfASessionCannotDriveATerminal(t *testing.T) {
	var b strings.Builder
	showSession(&b, messages.SessionInfo{ID: session, Title: hostile, Directory: "/d" + hostile, HostDir: hostile,
		Model: &messages.ModelRef{Provider: hostile, ID: "m"}, Sandbox: &messages.SandboxInfo{Driver: hostile}}, &messages.Failure{Message: hostile})
	v := view{out: &b, width: 40, result: 5}
	v.entry(messages.Message{Role: messages.RoleUser, Parts: []messages.Part{{Type: messages.PartText, Text: hostile}, {Type: messages.PartImage, MediaType: hostile}}})
	v.entry(messages.Message{Role: messages.RoleAssistant, Failure: &messages.Failure{Message: hostile}, Parts: []messages.Part{
		toolCall(hostile, hostile, hostile, messages.CallError), {Type: messages.PartToolCall, Label: hostile, Call: messages.CallState(hostile)}}})
	noControls(t, "show", b.String())
	noControls(t, "markdown", markdown(messages.SessionInfo{Title: hostile}, []messages.Message{{Role: messages.RoleAssistant, Provider: hostile, Model: hostile,
		Parts: []messages.Part{{Type: messages.PartText, Text: hostile}, toolCall(hostile, hostile, hostile, messages.CallError)}}}))
	o, out, _ := buffered("text")
	o.err, o.plain, o.joined, o.progress = o.out, true, true, true
	a := attached{out: o, calls: map[string]bool{}}
	for typ, d := range map[string]messages.EventData{
		messages.EventPromptPromoted:  {Prompt: &messages.PromptBody{Text: hostile}},
		messages.EventLLMTextDelta:    {MessageID: "m", Delta: ptr(hostile)},
		messages.EventLLMEnded:        {MessageID: "m", Message: &messages.Message{Parts: []messages.Part{{Type: messages.PartText, Text: hostile}}}},
		messages.EventToolStarted:     {CallID: "x", Label: hostile},
		messages.EventToolSettled:     {CallID: "y", Part: ptr(toolCall(hostile, hostile, hostile, messages.CallError))},
		messages.EventNotice:          {Text: hostile},
		messages.EventExecutionFailed: {Error: &messages.Failure{Message: hostile}},
	} {
		if err := a.take(messages.Event{Type: typ, Data: encode(t, d)}); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(out.String(), "failed: ") {
		t.Errorf("printed %q", out)
	}
	noControls(t, "attach", out.String())
}

// The end of the last work is near the end of the log, which in a fork may begin
// behind the position that is asked for.
func TestWhyTheLastWorkFailedIsFoundInForksToo(t *testing.T) {
	for _, c := range []struct {
		typ  string
		want string
	}{{messages.EventExecutionFailed, "broken"}, {messages.EventExecutionSucceeded, ""}} {
		synctest.Test(t, func(t *testing.T) {
			s, _, _, _ := newScript(t)
			s.set(func() {
				s.position = 40
				s.onCall[contract.EventSubscribe] = func(call *effectrpc.Call) bool {
					var q messages.Subscribe
					if err := json.Unmarshal(call.Payload(), &q); err != nil {
						t.Error(err)
					}
					if q.After[session] == 0 {
						return false
					}
					call.Die(&effectrpc.Defect{Name: messages.RefusedPosition})
					return true
				}
			})
			found := make(chan *messages.Failure, 1)
			go func() {
				f, err := lastFailure(t.Context(), s.client, messages.SessionInfo{ID: session, Status: messages.SessionIdle})
				if err != nil {
					t.Error(err)
				}
				found <- f
			}()
			synctest.Wait()
			s.set(func() { s.position = 36 })
			s.send(messages.EventExecutionFailed, messages.EventData{Error: &messages.Failure{Message: "before"}})
			s.send(messages.EventExecutionStarted, messages.EventData{})
			s.send(c.typ, messages.EventData{Error: map[string]*messages.Failure{"broken": {Message: "broken"}}[c.want]})
			s.send(messages.EventPromptRemoved, messages.EventData{MessageID: mine})
			got := ""
			if f := <-found; f != nil {
				got = f.Message
			}
			same(t, c.typ, got, c.want)
		})
	}
}

// sessions answers session.list with these ids, a page at a time, and takes
// note of the calls.
func sessions(t *testing.T, ids ...string) *client.Client {
	here, there := effectrpc.Pipe()
	server := effectrpc.NewServer(there, effectrpc.ServerOptions{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(t.Context(), func(c *effectrpc.Call) {
			var q messages.ListSessions
			if err := json.Unmarshal(c.Payload(), &q); err != nil || c.Method() != contract.SessionList {
				t.Errorf("%s: %v", c.Method(), err)
			}
			page := []messages.SessionInfo{}
			on := q.Before == ""
			for _, id := range ids {
				if on && len(page) < q.Limit {
					page = append(page, messages.SessionInfo{ID: id})
				}
				on = on || id == q.Before
			}
			c.Succeed(encode(t, page))
		})
	}()
	c := client.Over(here)
	t.Cleanup(func() {
		c.Close()
		<-served
	})
	return c
}

func TestAnIdMayBeCutShortWhereThatIsClear(t *testing.T) {
	const a, b = "ses_01a22bb7-0000-7000-8000-000000000001", "ses_01a22bc8-0000-7000-8000-000000000002"
	c := sessions(t, a, b, "ses_odd")
	for _, x := range []struct{ ref, want, err string }{
		{a, a, ""},
		{"ses_01a22bb7", a, ""},
		{"ses_01a22bc", b, ""},
		{"ses_odd", "ses_odd", ""}, // an id of its own, not a beginning
		{"ses_01a22b", "", "2 sessions begin with ses_01a22b"},
		{"ses_01", "", "no session ses_01"}, // too little to be meant
		{"ses", "", "no session ses"},
		{"ses_ffff", "", "no session ses_ffff"},
		{"01a22bb7", "", "no session 01a22bb7"},
		{"", "", "no session "},
	} {
		got, err := findSession(t.Context(), c, x.ref)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got != x.want || text != x.err {
			t.Errorf("%q is %q, %q", x.ref, got, text)
		}
	}
}

func TestLongListsComeInPages(t *testing.T) {
	var ids []string
	for i := range listPage*2 + 3 {
		ids = append(ids, "ses_"+string(rune('a'+i%26))+strings.Repeat("x", i))
	}
	ids[listPage+1] = ids[0] // moved while we were reading: it is there twice
	list, err := listSessions(t.Context(), sessions(t, ids...), messages.ListSessions{})
	if err != nil || len(list) != len(ids)-1 {
		t.Fatalf("%d of %d, %v", len(list), len(ids), err)
	}
}

func TestFindingsThatAreLeftAreAFailure(t *testing.T) {
	mended := messages.Finding{Code: "log", Detail: "torn" + hostile, Repaired: true}
	left := messages.Finding{Code: "list", Detail: "not there"}
	for _, x := range []struct {
		list []messages.Finding
		fail bool
	}{{nil, false}, {[]messages.Finding{mended}, false}, {[]messages.Finding{mended, left}, true}} {
		g := &global{streams: devNull(t)}
		err := g.printFindings(session, x.list, false)
		var p *problem
		if (err != nil) != x.fail || x.fail && (!errors.As(err, &p) || !p.silent || report(g.err, err) != exitFailed) {
			t.Errorf("%v: %v", x.list, err)
		}
	}
}

// devNull are streams that nobody looks at.
func devNull(t *testing.T) streams {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return streams{f, f, f}
}
