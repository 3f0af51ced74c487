package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"codework/messages"
	"codework/protocol/client"
)

// topPause is the time between two looks: what is faster nobody can read.
const topPause = time.Second

type topFlags struct {
	once   bool
	asJSON bool
	limit  int
}

func newTop(g *global) *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what every session and actor is doing, live",
		Long: `Show what every session and actor of this machine's home, or of a server, is doing:
for how long, and what waits for it. On a terminal the table is renewed every
second until ctrl-c; into a pipe, or with --once, it is printed once.

The first table are the sessions in memory, those that work first. QUEUE are the
prompts that wait, MAIL the messages in the mailbox: more than a few, for longer,
say that it is behind. The second are the other actors; BESIDE is what runs for
them, such as requests.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.limit < 0 {
				return usagef("--limit: expected 0 or more")
			}
			return g.withServer(c, f.asJSON, func(ctx context.Context, cl *client.Client) error { return f.run(ctx, g, cl) })
		},
	}
	g.addServerFlag(c)
	c.Flags().BoolVar(&f.once, "once", false, "print it once")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print everything that is known as JSON, once")
	c.Flags().IntVar(&f.limit, "limit", 0, fmt.Sprintf("show at most this many sessions; 0 is %d", messages.TopLimit))
	return c
}

func (f *topFlags) run(ctx context.Context, g *global, cl *client.Client) error {
	q := messages.GetTop{Limit: f.limit}
	if f.asJSON || f.once || !terminal(g.out) {
		t, err := cl.Top(ctx, q)
		switch {
		case err != nil:
			return err
		case f.asJSON:
			return json.NewEncoder(g.out).Encode(t)
		}
		_, err = io.WriteString(g.out, topText(t, g.topWidth(), 0))
		return err
	}
	return f.live(ctx, g, cl, q)
}

// What a terminal is told: to show another screen, without a cursor, and to go
// back; to begin at the top; to clear the rest of a line, and of the screen.
const (
	screenBegin = "\x1b[?1049h\x1b[?25l"
	screenEnd   = "\x1b[?25h\x1b[?1049l"
	screenTop   = "\x1b[H"
	lineRest    = "\x1b[K"
	screenRest  = "\x1b[J"
)

// live renews the table until the signal that ends it, which is how to leave it.
func (f *topFlags) live(ctx context.Context, g *global, cl *client.Client, q messages.GetTop) error {
	if _, err := io.WriteString(g.out, screenBegin); err != nil {
		return err
	}
	defer io.WriteString(g.out, screenEnd) //nolint:errcheck // the terminal may be gone
	tick := time.NewTicker(topPause)
	defer tick.Stop()
	for {
		t, err := cl.Top(ctx, q)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		width, height, err := term.GetSize(int(g.out.Fd()))
		if err != nil {
			width, height = ruleDefault, 0
		}
		text := strings.ReplaceAll(topText(t, width, height), "\n", lineRest+"\r\n")
		if _, err := io.WriteString(g.out, screenTop+strings.TrimSuffix(text, "\r\n")+screenRest); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// topPipeWidth is how wide the table is where there is no terminal: labels are
// cut, as they may be long.
const topPipeWidth = 160

func (g *global) topWidth() int {
	if width, _, err := term.GetSize(int(g.out.Fd())); err == nil {
		return width
	}
	return topPipeWidth
}

// topText is the table, cut to height lines unless that is 0.
func topText(t messages.Top, width, height int) string {
	working, queued := 0, 0
	var sessions [][]string
	for _, s := range t.Sessions {
		if s.State != "idle" {
			working++
		}
		queued += s.Queued
		sessions = append(sessions, []string{s.SessionID, orDash(s.State), since(s.TopActor), strconv.Itoa(s.Queued), mail(s.TopActor), what(s)})
	}
	var actors [][]string
	for _, a := range t.Actors {
		actors = append(actors, []string{a.Kind, orDash(oneLine(a.Name)), orDash(a.State), since(a), mail(a),
			strconv.FormatInt(a.Beside, 10), thousands(a.Handled), strconv.FormatInt(a.Restarts, 10), oneLine(a.Detail + hanging(a))})
	}
	head := fmt.Sprintf("codework %s · process %d · up %s · %s in memory, %d working, %d stored", orUnknown(t.Server.Version), t.Server.PID,
		upFor(t), count(len(t.Sessions)+t.Omitted, "session"), working, t.Server.Sessions.Total)
	if queued > 0 {
		head += " · " + count(queued, "prompt") + " queued"
	}
	if r := t.Subscribers; r != nil {
		head += " · " + count(r.Count, "reader")
		if r.Queued > 0 {
			head += fmt.Sprintf(", %s behind", count(r.Queued, "event"))
		}
	}
	var b strings.Builder
	b.WriteString(cut(head, width) + "\n")
	if !t.Complete {
		b.WriteString(cut("warning: a part of the process does not answer; titles or numbers are missing below", width) + "\n")
	}
	most := len(sessions)
	if height > 0 {
		// The head, two headings with their blank lines, and the line that says
		// what is missing.
		most = max(min(most, height-len(actors)-7), 1)
	}
	if len(sessions) > 0 {
		shown := sessions[:min(most, len(sessions))]
		b.WriteString("\n" + aligned(append([][]string{{"SESSION", "DOING", "FOR", "QUEUE", "MAIL", "WHAT"}}, shown...), width))
	}
	if more := len(sessions) - most + t.Omitted; more > 0 {
		b.WriteString(fmt.Sprintf("and %d more\n", more))
	}
	b.WriteString("\n" + aligned(append([][]string{{"ACTOR", "NAME", "DOING", "FOR", "MAIL", "BESIDE", "HANDLED", "RESTARTS", "WHAT"}}, actors...), width))
	return firstLines(b.String(), height)
}

// what says what a session is about: its tools, else its title; first of all
// whether it hangs.
func what(s messages.TopSession) string {
	text := s.Title
	if s.Detail != "" {
		text = s.Detail
	}
	return oneLine(strings.TrimSpace(hanging(s.TopActor) + " " + text))
}

// hangsAfter is how long an actor is at a message before that is worth saying.
const hangsAfter = time.Second

func hanging(a messages.TopActor) string {
	if a.HandlingMs < hangsAfter.Milliseconds() {
		return ""
	}
	return " [has been at " + a.Handling + " for " + lasting(a.HandlingMs) + "]"
}

// since is how long an actor has done what it does, if it says what that is.
func since(a messages.TopActor) string {
	if a.State == "" {
		return "-"
	}
	return lasting(a.ForMs)
}

func mail(a messages.TopActor) string { return strconv.Itoa(a.Mailbox) }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// lasting writes milliseconds with one unit, or two where that says more.
func lasting(ms int64) string {
	switch d := time.Duration(ms) * time.Millisecond; {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// upFor is how long the process has run, by its own clock.
func upFor(t messages.Top) string {
	now, err := time.Parse(time.RFC3339, t.At)
	since, bad := time.Parse(time.RFC3339, t.Server.StartedAt)
	if err != nil || bad != nil {
		return "-"
	}
	return lasting(max(now.Sub(since), 0).Milliseconds())
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// cut shortens a line to width.
func cut(line string, width int) string {
	if r := []rune(line); width > 1 && len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return line
}

// firstLines are the first n lines; 0 is all.
func firstLines(text string, n int) string {
	if n <= 0 {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[:min(n, len(lines))], "")
}
