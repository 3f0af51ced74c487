//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codework/internal/home"
	"codework/messages"
)

func topOf(sessions int) messages.Top {
	t := messages.Top{At: "2026-01-01T01:02:04.000Z", Complete: true, Subscribers: &messages.TopSubscribers{Count: 1, Queued: 12, Longest: 12},
		Server: messages.ServerInfo{Version: "1.2.3", PID: 42, StartedAt: "2026-01-01T00:00:00.000Z", Sessions: messages.SessionCount{Total: 70}},
		Actors: []messages.TopActor{
			{Kind: "hub", Mailbox: 3, Handled: 12345, Handling: "publish", HandlingMs: 61_000},
			{Kind: "plugin", Name: "lint\x1b[2J", State: "given up", ForMs: 3_700_000, Restarts: 2, Beside: 1},
		}}
	for range sessions {
		t.Sessions = append(t.Sessions, messages.TopSession{SessionID: "ses_1", Title: "a\ntitle", Queued: 2,
			TopActor: messages.TopActor{State: "running tools", Detail: "bash  go test ./...", ForMs: 65_000, Mailbox: 7}})
	}
	return t
}

func TestTopsTableSaysWhatHappens(t *testing.T) {
	top := topOf(1)
	top.Sessions = append(top.Sessions, messages.TopSession{SessionID: "ses_22", Title: "a\ntitle", TopActor: messages.TopActor{State: "idle", ForMs: 1500}})
	want := `codework 1.2.3 · process 42 · up 1h02m · 2 sessions in memory, 1 working, 70 stored · 2 prompts queued · 1 reader, 12 events behind

SESSION  DOING          FOR    QUEUE  MAIL  WHAT
ses_1    running tools  1m05s  2      7     bash  go test ./...
ses_22   idle           1.5s   0      0     a title

ACTOR   NAME     DOING     FOR    MAIL  BESIDE  HANDLED  RESTARTS  WHAT
hub     -        -         -      3     0       12,345   0         [has been at publish for 1m01s]
plugin  lint[2J  given up  1h01m  0     1       0        2
`
	if got := topText(top, 200, 0); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTopsTableFitsTheScreen(t *testing.T) {
	for _, height := range []int{1, 2, 5, 9, 12, 20, 40} {
		text := topText(topOf(30), 60, height)
		rows := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(rows) > height {
			t.Errorf("%d lines on %d", len(rows), height)
		}
		for _, r := range rows[:1] {
			if n := len([]rune(r)); n > 60 {
				t.Errorf("%d columns on 60: %q", n, r)
			}
		}
		if height == 20 && (!strings.Contains(text, "and 19 more\n") || !strings.Contains(text, "\nplugin")) {
			t.Errorf("what is left out is not said, or the actors are missing:\n%s", text)
		}
	}
	if text := topText(messages.Top{}, 80, 24); !strings.Contains(text, "0 sessions in memory") || !strings.Contains(text, "does not answer") {
		t.Errorf("an empty answer:\n%s", text)
	}
}

func TestTheHomesLogMakesRoomAndStderrFollows(t *testing.T) {
	p := home.Paths{Home: t.TempDir()}
	p.Log = filepath.Join(p.Home, "log")
	stderr, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	lines, end := homeLog(p, stderr)
	defer end()
	write := func(w interface{ Write([]byte) (int, error) }, s string) {
		t.Helper()
		if _, err := w.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	write(lines, strings.Repeat("x", home.MaxLog-1)+"\n")
	write(lines, "in the new one\n")
	write(stderr, "a crash\n")
	if b, err := os.ReadFile(p.Log); err != nil || string(b) != "in the new one\na crash\n" {
		t.Errorf("the log holds %.100q, %v", b, err)
	}
	if fi, err := os.Stat(p.Log + ".1"); err != nil || fi.Size() != home.MaxLog {
		t.Errorf("the older log: %v", err)
	}
}

func TestALogThatSomebodyReadsIsLeftAlone(t *testing.T) {
	p := home.Paths{Home: t.TempDir()}
	p.Log = filepath.Join(p.Home, "log")
	if err := os.WriteFile(p.Log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(filepath.Join(p.Home, "terminal"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	if lines, _ := homeLog(p, stderr); lines != stderr {
		t.Error("a log that leads elsewhere was taken for the home's")
	}
}
