package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"codework/internal/tools"
	"codework/messages"
	"codework/protocol/client"
)

// conversation is a session with all of its entries, as JSON has it.
type conversation struct {
	Session messages.SessionInfo    `json:"session"`
	Entries []messages.Message      `json:"entries"`
	Queued  []messages.QueuedPrompt `json:"queued,omitempty"`
	Failure *messages.Failure       `json:"failure,omitempty"` // of the last work, if it failed; not in an export
}

// endEvents is how far from the end of a log the end of the last work is looked
// for: behind it come only prompts that were taken out of the queue.
const endEvents = 16

// lastFailure is why the last work of a session failed, nil when it did not or
// goes on.
func lastFailure(ctx context.Context, c *client.Client, info messages.SessionInfo) (*messages.Failure, error) {
	h, err := c.History(ctx, messages.GetHistory{SessionID: info.ID, Limit: 1})
	if err != nil || h.Seq == 0 || info.Status != messages.SessionIdle {
		return nil, err
	}
	f, err := failureBehind(ctx, c, info.ID, max(h.Seq-endEvents, 0), h.Seq)
	var refused *messages.Refused
	if errors.As(err, &refused) && refused.Name == messages.RefusedPosition {
		// The log of a fork begins with a later position than that.
		f, err = failureBehind(ctx, c, info.ID, 0, h.Seq)
	}
	return f, err
}

// failureBehind looks for the end of work in the events of a log that are behind
// one position and not behind another.
func failureBehind(ctx context.Context, c *client.Client, id string, after, until int64) (found *messages.Failure, err error) {
	events, err := c.Subscribe(ctx, messages.Subscribe{SessionID: id, After: map[string]int64{id: after}})
	if err != nil {
		return nil, err
	}
	defer events.Close()
	for at := after; at < until; {
		e, err := events.Next(ctx)
		if err != nil {
			return nil, err
		}
		at = max(at, e.Seq)
		if messages.Terminal(e.Type) {
			d, err := e.Decode()
			if err != nil {
				return nil, fmt.Errorf("event %s: %w", e.Type, err)
			}
			found = d.Error
		}
	}
	return found, nil
}

// historyPage is how many entries are asked for at once, the most there are.
const historyPage = 500

// fullHistory returns all entries of a session, oldest first.
func fullHistory(ctx context.Context, c *client.Client, id string) ([]messages.Message, error) {
	var pages [][]messages.Message
	q := messages.GetHistory{SessionID: id, Limit: historyPage}
	for {
		h, err := c.History(ctx, q)
		if err != nil {
			return nil, err
		}
		pages = append(pages, h.Entries)
		if !h.More || len(h.Entries) == 0 {
			break
		}
		q.Before = h.Entries[0].ID
	}
	all := []messages.Message{}
	for i := len(pages) - 1; i >= 0; i-- {
		all = append(all, pages[i]...)
	}
	return all, nil
}

func newSessionShow(g *global) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show ID",
		Short: "Print a session and its conversation",
		Args:  oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c, args[0], asJSON, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				entries, err := fullHistory(ctx, cl, info.ID)
				if err != nil {
					return err
				}
				queue, err := cl.Queue(ctx, messages.GetQueue{SessionID: info.ID})
				if err != nil {
					return err
				}
				failure, err := lastFailure(ctx, cl, info)
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(g.out).Encode(conversation{info, entries, queue.Queued, failure})
				}
				var b bytes.Buffer
				showSession(&b, info, failure)
				v := view{out: &b, width: g.width(), result: shownResult}
				for _, m := range entries {
					v.entry(m)
				}
				for _, p := range queue.Queued {
					v.rule("waits")
					v.text(p.Text)
				}
				_, err = g.out.Write(b.Bytes())
				return err
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print session and entries as one JSON object")
	return c
}

// width is that of rules on standard output.
func (g *global) width() int { return ruleWidth(g.out) }

// showSession prints what is known of a session, a line each; failure is that of
// its last work, if any.
func showSession(w io.Writer, s messages.SessionInfo, failure *messages.Failure) {
	o := &output{err: w}
	line := func(label, value string) {
		if value != "" {
			o.say(label, value)
		}
	}
	line("session", s.ID)
	line("title", s.Title)
	status := string(s.Status)
	if s.Queued > 0 {
		status += fmt.Sprintf(" · %d waiting", s.Queued)
	}
	line("status", status)
	if failure != nil {
		line("failed", failure.Message)
	}
	line("folder", s.Directory)
	line("linked", s.HostDir)
	if s.Sandbox != nil {
		line("sandbox", s.Sandbox.Driver+" · "+s.Sandbox.ID)
	}
	if s.Model != nil {
		line("model", s.Model.Provider+"/"+s.Model.ID)
	}
	line("thinking", string(s.ThinkingLevel))
	line("forked", s.ParentID)
	line("created", localTime(s.CreatedAt))
	line("changed", localTime(s.UpdatedAt))
	if u := s.Usage; u != nil && u.TotalTokens > 0 {
		line("tokens", thousands(u.TotalTokens))
		line("cost", dollars(u.Cost.Total))
		if u.ProviderCost > 0 {
			line("billed", dollars(u.ProviderCost)+" by the provider's own count")
		}
	}
}

// localTime is a date as people here write it.
func localTime(iso string) string {
	t, err := time.Parse(time.RFC3339, iso)
	if err != nil {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// shownResult is how many lines of a tool's result are shown; all of it is in
// the JSON and in an export.
const shownResult = 10

// view prints entries of a conversation for a person.
type view struct {
	out    io.Writer
	width  int
	result int  // lines of a tool's result
	answer bool // the entry before was part of an answer
}

func (v *view) rule(name string) {
	o := &output{err: v.out, width: v.width}
	fmt.Fprintln(v.out)
	o.rule(name)
}

func (v *view) text(s string) {
	if s = strings.TrimRight(plainText(s), "\n"); s != "" {
		fmt.Fprintln(v.out, s)
	}
}

func (v *view) entry(m messages.Message) {
	switch {
	case m.Role == messages.RoleUser:
		v.rule("prompt")
	case !v.answer:
		v.rule("answer")
	default:
		fmt.Fprintln(v.out)
	}
	v.answer = m.Role == messages.RoleAssistant
	for _, p := range m.Parts {
		switch p.Type {
		case messages.PartText:
			v.text(p.Text)
		case messages.PartImage:
			fmt.Fprintln(v.out, imageNote(p))
		case messages.PartToolCall:
			v.call(p)
		}
	}
	if m.Failure != nil {
		fmt.Fprintln(v.out, oneLine("· failed: "+m.Failure.Message))
	} else if m.State == messages.EntryAborted {
		fmt.Fprintln(v.out, "· stopped here")
	}
}

// callLine says which call that was and how it ended, unless well.
func callLine(p messages.Part) string {
	label := p.Label
	if label == "" {
		label = tools.Label(p.Name, p.Arguments)
	}
	line := "· " + label
	switch {
	case p.Call == messages.CallCompleted || p.Call == "":
	case p.Call == messages.CallError:
		line += " · failed"
	default:
		line += " · " + string(p.Call)
	}
	return oneLine(line)
}

func (v *view) call(p messages.Part) {
	fmt.Fprintln(v.out, callLine(p))
	if p.Result == nil || v.result == 0 {
		return
	}
	var lines []string
	for _, c := range p.Result.Content {
		if c.Type == messages.PartImage {
			lines = append(lines, imageNote(c))
			continue
		}
		if text := strings.TrimRight(plainText(c.Text), "\n"); text != "" {
			lines = append(lines, strings.Split(text, "\n")...)
		}
	}
	more := len(lines) - v.result
	for _, l := range lines[:min(len(lines), v.result)] {
		fmt.Fprintln(v.out, "  "+l)
	}
	if more > 0 {
		fmt.Fprintf(v.out, "  … %d more lines\n", more)
	}
}

// imageNote stands where an image is.
func imageNote(p messages.Part) string {
	return oneLine(fmt.Sprintf("[image: %s, %s bytes]", p.MediaType, thousands(p.Bytes)))
}

func newSessionExport(g *global) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "export ID",
		Short: "Print a whole conversation as Markdown or JSON",
		Args:  oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			if format != "md" && format != "json" {
				return usagef("--format: expected md or json, not %q", format)
			}
			return g.withSession(c, args[0], format == "json", func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				entries, err := fullHistory(ctx, cl, info.ID)
				if err != nil {
					return err
				}
				if format == "json" {
					return json.NewEncoder(g.out).Encode(conversation{Session: info, Entries: entries})
				}
				_, err = io.WriteString(g.out, markdown(info, entries))
				return err
			})
		},
	}
	c.Flags().StringVar(&format, "format", "md", "md or json")
	return c
}

// markdown writes a conversation down. What tools were given and gave is in
// fences that nothing inside can close. Control characters are left out: such
// a file is read in terminals too, and the JSON has everything.
func markdown(info messages.SessionInfo, entries []messages.Message) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nSession `%s`", oneLine(info.Title), info.ID)
	if t := localTime(info.CreatedAt); t != "" {
		fmt.Fprintf(&b, ", begun %s", t)
	}
	b.WriteString("\n")
	for _, m := range entries {
		switch {
		case m.Role == messages.RoleUser:
			b.WriteString("\n## User\n")
		case m.Model == "":
			b.WriteString("\n## Assistant\n")
		default:
			fmt.Fprintf(&b, "\n## Assistant (%s/%s)\n", oneLine(m.Provider), oneLine(m.Model))
		}
		for _, p := range m.Parts {
			markdownPart(&b, p)
		}
		if m.Failure != nil {
			fmt.Fprintf(&b, "\n*Failed: %s*\n", oneLine(m.Failure.Message))
		} else if m.State == messages.EntryAborted {
			b.WriteString("\n*Stopped here.*\n")
		}
	}
	return plainText(b.String())
}

func markdownPart(b *strings.Builder, p messages.Part) {
	switch p.Type {
	case messages.PartText:
		if text := strings.TrimSpace(p.Text); text != "" {
			b.WriteString("\n" + text + "\n")
		}
	case messages.PartThinking:
		if p.Text != "" {
			b.WriteString("\nThinking:\n\n" + fenced("text", p.Text))
		}
	case messages.PartImage:
		fmt.Fprintf(b, "\n*%s*\n", imageNote(p))
	case messages.PartToolCall:
		state := ""
		if p.Call != messages.CallCompleted && p.Call != "" {
			state = " (" + string(p.Call) + ")"
		}
		fmt.Fprintf(b, "\n### Tool call: %s%s\n\n", oneLine(p.Name), state)
		b.WriteString(fenced("json", indented(p.Arguments)))
		if p.Result == nil {
			return
		}
		for _, c := range p.Result.Content {
			if c.Type == messages.PartImage {
				fmt.Fprintf(b, "\n*%s*\n", imageNote(c))
				continue
			}
			b.WriteString("\n" + fenced("text", c.Text))
		}
	}
}

// indented makes JSON readable; what is no JSON stays as it is.
func indented(arguments string) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(arguments), "", "  ") != nil {
		return arguments
	}
	return b.String()
}

// fenced puts text into a code fence that is longer than any run of backticks
// in it.
func fenced(kind, text string) string {
	longest, run := 0, 0
	for _, r := range text {
		if r != '`' {
			run = 0
			continue
		}
		run++
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", max(3, longest+1))
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return fence + kind + "\n" + text + fence + "\n"
}

func newSessionAttach(g *global) *cobra.Command {
	var after string
	var asJSON bool
	c := &cobra.Command{
		Use:   "attach ID",
		Short: "Follow a session until ctrl-c, which leaves its work alone",
		Long: `Print the end of a session's conversation, then follow what happens in it, whoever
prompts it. Ctrl-c leaves; the work goes on. A connection that is lost is made
again, and what was recorded meanwhile is printed.

With --after the log behind that position comes first instead: 0 is all of it.
With --json every event is a line, and its position is durable.seq.`,
		Args: oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			from := int64(-1)
			if c.Flags().Changed("after") {
				n, err := strconv.ParseInt(after, 10, 64)
				if err != nil || n < 0 {
					return usagef("--after: expected a position in the log, 0 or more, not %q", after)
				}
				from = n
			}
			err := g.withSession(c, args[0], asJSON, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				return g.attach(ctx, cl, info, from, asJSON)
			})
			var s stopped
			if errors.As(err, &s) && s.code == exitInterrupt {
				return nil
			}
			return err
		},
	}
	c.Flags().StringVar(&after, "after", "", "begin with the log behind this position")
	c.Flags().BoolVar(&asJSON, "json", false, "print every event as a line of JSON")
	return c
}
