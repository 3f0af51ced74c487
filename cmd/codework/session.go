package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"codework/messages"
	"codework/protocol/client"
)

// newSession is the group of commands about sessions that exist.
func newSession(g *global) *cobra.Command {
	c := &cobra.Command{
		Use:   "session",
		Short: "Look at sessions, follow them, stop them, copy them",
		Long: `Look at sessions, follow them, stop them, copy them. An id may be cut short as
long as it is the only one that begins so.

Without --server these are the sessions of this machine's home, with it those of
the server.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for codework session", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	g.addServerFlag(c)
	c.AddCommand(newSessionList(g), newSessionShow(g), newSessionAttach(g), newSessionQueue(g), newSessionInterrupt(g),
		newSessionWait(g), newSessionLink(g), newSessionRename(g), newSessionFork(g), newSessionDelete(g),
		newSessionExport(g), newSessionCheck(g))
	return c
}

// withServer connects, does something and explains what went wrong.
func (g *global) withServer(c *cobra.Command, asJSON bool, f func(context.Context, *client.Client) error) error {
	ctx := c.Context()
	if err := g.chooseServer(c); err != nil {
		return err
	}
	cl, closeClient, err := g.connect(ctx)
	if err == nil {
		err = f(ctx, cl)
		closeClient()
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = context.Cause(ctx) // the signal, which a call only knows as its end
	}
	return g.inJSON(g.explain(err), asJSON)
}

// withSession does something with one session, which exists.
func (g *global) withSession(c *cobra.Command, ref string, asJSON bool, f func(context.Context, *client.Client, messages.SessionInfo) error) error {
	return g.withServer(c, asJSON, func(ctx context.Context, cl *client.Client) error {
		id, err := findSession(ctx, cl, ref)
		if err != nil {
			return err
		}
		info, err := cl.Session(ctx, id)
		if err != nil {
			return err
		}
		return f(ctx, cl, info)
	})
}

// deleted says of a session that was there and is missing now what became of it.
func deleted(err error) error {
	var missing *messages.SessionNotFound
	if !errors.As(err, &missing) {
		return err
	}
	return &problem{slug: messages.FailSessionNotFound, err: &explained{fmt.Errorf("session %s was deleted", missing.SessionID), err}}
}

// explain gives an error the form that a person reads.
func (g *global) explain(err error) error {
	var p *problem
	var s stopped
	if err == nil || errors.As(err, &p) || errors.As(err, &s) {
		return err
	}
	var missing *messages.SessionNotFound
	switch {
	case errors.As(err, &missing):
		return &problem{slug: messages.FailSessionNotFound, err: err, fields: []field{{"server", g.server}},
			hint: "see: codework session list --all" + g.serverFlag()}
	case errors.Is(err, client.ErrConnectionLost) && g.remote():
		return &problem{slug: "connection", err: &explained{errors.New("the connection to the server is lost"), err}, fields: []field{{"server", g.server}}}
	case lostOwner(err) && !g.remote():
		return &problem{slug: "connection", err: &explained{errors.New("the process that owns this home ended meanwhile"), err}, hint: "try again"}
	}
	return explain(err, "")
}

// inJSON prints an error that is no wrong use on standard output too, for the
// programs that asked for JSON.
func (g *global) inJSON(err error, asJSON bool) error {
	var p *problem
	var s stopped
	if err == nil || !asJSON || errors.As(err, &s) || errors.As(err, &p) && (p.silent || p.code == exitUsage) {
		return err
	}
	e := resultError{Type: messages.FailUnknown, Message: err.Error()}
	if p != nil && p.slug != "" {
		e.Type = p.slug
	}
	return errors.Join(err, json.NewEncoder(g.out).Encode(map[string]resultError{"error": e}))
}

// sessionIDLength is how long the ids are that servers make.
const sessionIDLength = len("ses_") + len("00000000-0000-0000-0000-000000000000")

// sessionIDLeast is how much of an id must be given: what is shorter was
// hardly meant, and session delete takes ids too.
const sessionIDLeast = len("ses_0000")

// findSession completes an id that was cut short.
func findSession(ctx context.Context, c *client.Client, ref string) (string, error) {
	switch {
	case !messages.ValidSessionID(ref):
		return "", &messages.SessionNotFound{SessionID: ref}
	case len(ref) >= sessionIDLength:
		return ref, nil
	}
	all, err := listSessions(ctx, c, messages.ListSessions{})
	if err != nil {
		return "", err
	}
	var found []string
	for _, s := range all {
		if s.ID == ref {
			return ref, nil
		}
		if len(ref) >= sessionIDLeast && strings.HasPrefix(s.ID, ref) {
			found = append(found, s.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", &messages.SessionNotFound{SessionID: ref}
	case 1:
		return found[0], nil
	}
	return "", &problem{slug: "session-ambiguous", err: fmt.Errorf("%d sessions begin with %s", len(found), ref), hint: "give more of the id"}
}

// listPage is how many sessions are asked for at once: what most have in one
// folder, and 1.3 MB of JSON.
const listPage = 2000

// listSessions returns all sessions that match, newest first.
func listSessions(ctx context.Context, c *client.Client, q messages.ListSessions) ([]messages.SessionInfo, error) {
	growHeap() // collecting what little a list leaves behind took a quarter of its time
	q.Limit = listPage
	all := []messages.SessionInfo{}
	seen := map[string]bool{} // one that is worked in meanwhile moves to the front
	for {
		page, err := c.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			if !seen[s.ID] {
				seen[s.ID] = true
				all = append(all, s)
			}
		}
		if len(page) < listPage {
			return all, nil
		}
		q.Before = page[len(page)-1].ID
	}
}

// printRows prints a table: aligned and with a heading on a terminal, where the
// last column is cut to the width, otherwise with tabs.
func (g *global) printRows(heading []string, rows [][]string) error {
	var b strings.Builder
	for _, r := range rows {
		for i := range r {
			r[i] = oneLine(r[i])
		}
	}
	if !terminal(g.out) {
		for _, r := range rows {
			b.WriteString(strings.Join(r, "\t") + "\n")
		}
		_, err := io.WriteString(g.out, b.String())
		return err
	}
	if len(rows) == 0 {
		return nil
	}
	room, _, err := term.GetSize(int(g.out.Fd()))
	if err != nil {
		room = ruleDefault
	}
	_, err = io.WriteString(g.out, aligned(append([][]string{heading}, rows...), room))
	return err
}

// aligned writes rows in columns two spaces apart, the last one cut to room.
func aligned(rows [][]string, room int) string {
	var b strings.Builder
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, r := range rows {
		line, left := "", room
		for i, cell := range r[:len(r)-1] {
			line += fmt.Sprintf("%-*s  ", widths[i], cell)
			left -= widths[i] + 2
		}
		last := []rune(r[len(r)-1])
		if left > 1 && len(last) > left {
			last = append(last[:left-1], '…')
		}
		b.WriteString(strings.TrimRight(line+string(last), " ") + "\n")
	}
	return b.String()
}

// age says how long ago something was, with one unit.
func age(iso string, now time.Time) string {
	t, err := time.Parse(time.RFC3339, iso)
	if err != nil {
		return "-"
	}
	switch d := max(now.Sub(t), 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// plainText makes text of several lines safe to print: no control sequences,
// nothing that turns the direction of reading.
func plainText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\u2028' || r == '\u2029':
			return '\n'
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, s)
}
