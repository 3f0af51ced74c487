package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"

	"codework/messages"
	"codework/protocol/contract"
)

// output prints a run: the answer to standard output, the rest to standard
// error.
//
// On a terminal text appears as it comes. Into a pipe a message's text goes
// when the message counts: what a dropped attempt had written would otherwise
// stand beside the answer of the next one.
type output struct {
	out, err io.Writer
	format   string
	live     bool // text is printed as it comes
	plain    bool // without control characters
	joined   bool // out and err are one
	progress bool // tool calls and waits are told
	quiet    bool
	width    int

	session string
	model   string
	message string          // being written
	got     strings.Builder // of that message
	text    strings.Builder // of that, what is not printed yet
	shown   bool            // some of that message was printed
	any     bool            // some text was printed
	last    byte            // of what was printed
	answer  strings.Builder // all text that counts, for json
	usage   messages.Usage
	turns   int
	stop    messages.StopReason
	writeEr error
}

const (
	ruleDefault = 72
	ruleLeast   = 32
	ruleMost    = 100
	labelWidth  = 9
)

func newOutput(g *global, format string) *output {
	o := &output{out: g.out, err: g.err, format: format, quiet: g.quiet || format != "text", width: ruleDefault}
	o.live = format == "text" && terminal(g.out)
	o.plain, o.joined = o.live, o.live
	o.progress = !o.quiet && terminal(g.err)
	o.width = ruleWidth(g.err)
	return o
}

// follows makes an output of one that prints all that happens in a session to
// standard output.
func (o *output) follows(g *global) {
	o.err, o.plain, o.joined, o.progress, o.width = o.out, true, true, true, ruleWidth(g.out)
}

// ruleWidth is how wide rules in a file are.
func ruleWidth(f *os.File) int {
	if w, _, err := term.GetSize(int(f.Fd())); err == nil {
		return min(max(w, ruleLeast), ruleMost)
	}
	return ruleDefault
}

func (o *output) say(label, value string) {
	if len(label) >= labelWidth {
		label += " "
	}
	fmt.Fprintf(o.err, "%-*s%s\n", labelWidth, label, oneLine(value))
}

// tell prints a line about the work. On a terminal it begins one, behind text
// that has not ended its own.
func (o *output) tell(line string) {
	o.endLine()
	fmt.Fprintln(o.err, line)
}

// endLine ends a line of text where something else follows it.
func (o *output) endLine() {
	if o.joined && o.any && o.last != '\n' {
		o.print("\n")
	}
}

func (o *output) rule(name string) {
	head := "── " + name + " "
	fmt.Fprintln(o.err, head+strings.Repeat("─", max(0, o.width-len([]rune(head)))))
}

// header says in which session and where the work happens.
func (o *output) header(info messages.SessionInfo) {
	again := o.session == info.ID
	o.session = info.ID
	if o.quiet || again {
		return
	}
	o.say("session", info.ID)
	driver := "local"
	if info.Sandbox != nil {
		driver = info.Sandbox.Driver
	}
	o.say("sandbox", driver+" · "+info.Directory)
	if info.Sandbox != nil {
		o.say("sandbox-id", info.Sandbox.ID)
	}
	fmt.Fprintln(o.err)
	o.rule("response")
}

// event prints an event as a line, where that was asked for.
func (o *output) event(e messages.Event) {
	if o.format != "stream-json" {
		return
	}
	b, err := contract.EncodeEvent(e)
	if err == nil {
		o.print(string(b) + "\n")
	}
}

func (o *output) notice(text string) {
	if !o.quiet {
		o.tell("warning: " + oneLine(text))
	}
}

// reads tells whether work looks into an event of this type. Most events are only
// counted, or nothing here at all: what they hold need not be decoded.
func (o *output) reads(kind string) bool {
	switch kind {
	case messages.EventLLMTextDelta, messages.EventLLMEnded, messages.EventLLMFailed:
		return true
	case messages.EventToolStarted, messages.EventRetryScheduled:
		return o.progress
	}
	return false
}

// work prints what an event of the prompt's own exchange says. d may be empty for
// an event that it does not look into.
func (o *output) work(kind string, d messages.EventData) {
	switch kind {
	case messages.EventLLMTextDelta:
		if d.Delta != nil {
			o.delta(d.MessageID, *d.Delta)
		}
	case messages.EventLLMEnded:
		o.ended(d)
	case messages.EventLLMFailed:
		o.failed(d)
	case messages.EventTurnEnded:
		o.turns++
	case messages.EventToolStarted:
		if o.progress {
			o.tell("· " + oneLine(d.Label))
		}
	case messages.EventRetryScheduled:
		if o.progress && d.DelayMs != nil && d.Error != nil {
			wait := time.Duration(*d.DelayMs) * time.Millisecond
			o.tell(fmt.Sprintf("· waiting %s before attempt %d: %s", wait, d.Attempt+1, oneLine(d.Error.Message)))
		}
	}
}

// delta takes a piece of text. Messages are kept apart by a blank line.
func (o *output) delta(message, text string) {
	if message != o.message {
		o.message, o.shown = message, false
		o.text.Reset()
		o.got.Reset()
	}
	o.got.WriteString(text)
	o.text.WriteString(text)
	if o.live {
		o.flush()
	}
}

// whole takes the text of a message that is over. It is what came in pieces,
// unless this reader was too slow for some of them.
func (o *output) whole(message string, m *messages.Message) {
	var full strings.Builder
	if m != nil {
		for _, p := range m.Parts {
			if p.Type == messages.PartText {
				full.WriteString(p.Text)
			}
		}
	}
	got := ""
	if message == o.message {
		got = o.got.String()
	}
	if rest, ok := strings.CutPrefix(full.String(), got); ok && rest != "" {
		o.delta(message, rest)
	} else if !ok && full.Len() > len(got) {
		o.message = "" // what is there has holes
		if o.joined && o.shown {
			o.tell("· the whole of it:")
		}
		o.delta(message, full.String())
	}
	if message == o.message {
		o.flush()
	}
}

func (o *output) flush() {
	text := o.text.String()
	if text == "" {
		return
	}
	o.text.Reset()
	if o.answer.Len() > 0 && !o.shown {
		o.answer.WriteString("\n\n")
	}
	o.answer.WriteString(text)
	if o.plain {
		text = plainText(text)
	}
	if o.format == "text" {
		if o.any && !o.shown {
			text = strings.Repeat("\n", o.newlines()) + text
		}
		o.print(text)
		o.any = true
	}
	o.shown = true
}

// newlines is how many it takes to a blank line.
func (o *output) newlines() int {
	if o.last == '\n' {
		return 1
	}
	return 2
}

func (o *output) print(text string) {
	if o.writeEr != nil || text == "" {
		return
	}
	_, o.writeEr = io.WriteString(o.out, text)
	o.last = text[len(text)-1]
}

// ended takes a finished message: its text counts.
func (o *output) ended(d messages.EventData) {
	o.whole(d.MessageID, d.Message)
	if m := d.Message; m != nil {
		o.model = m.Provider + "/" + m.Model
		if m.Usage != nil {
			o.usage = o.usage.Add(*m.Usage)
		}
		o.stop = m.StopReason
	}
}

// failed takes a message that came to nothing: a stopped one keeps its text,
// what a failed attempt wrote does not count.
func (o *output) failed(d messages.EventData) {
	if d.Reason == "aborted" {
		o.whole(d.MessageID, d.Message)
		return
	}
	if d.MessageID != o.message {
		return
	}
	o.text.Reset()
	if o.shown && o.format == "text" {
		o.tell("· the text above is of an attempt that failed and does not count")
	}
}

// end finishes the output and returns the error to exit with.
func (o *output) end(w *watch, err error) error {
	var s stopped
	if errors.As(err, &s) {
		err = &problem{err: err, code: s.code, silent: true}
	} else if errors.Is(err, errTimeout) {
		err = &problem{slug: "timeout", err: errors.New("the time limit of this run is over; the work was interrupted"),
			hint: fmt.Sprintf("continue with: codework run --session %s \"…\"", w.session)}
	}
	if o.format != "text" {
		return o.endJSON(w, err)
	}
	if o.any && o.last != '\n' {
		o.print("\n")
	}
	if o.turns > 0 && !o.quiet {
		o.printUsage()
	}
	if s.code != 0 && w.session != "" && !o.quiet {
		fmt.Fprintf(o.err, "interrupted; continue with: codework run --session %s \"…\"\n", w.session)
	}
	return o.written(explain(err, o.session))
}

func (o *output) printUsage() {
	u := o.usage
	o.rule("usage")
	o.say("model", o.model)
	parts := []string{thousands(u.Input) + " input", thousands(u.Output) + " output"}
	if u.Reasoning > 0 {
		parts = append(parts, thousands(u.Reasoning)+" reasoning")
	}
	o.say("tokens", strings.Join(append(parts, thousands(u.TotalTokens)+" total"), " · "))
	o.say("cache", thousands(u.CacheRead)+" read · "+thousands(u.CacheWrite)+" write")
	o.say("cost", dollars(u.Cost.Total)+" · "+turns(o.turns))
	if u.ProviderCost > 0 {
		o.say("billed", dollars(u.ProviderCost)+" by the provider's own count")
	}
}

func turns(n int) string {
	if n == 1 {
		return "1 turn"
	}
	return strconv.Itoa(n) + " turns"
}

// thousands writes a number with separators.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// dollars writes a cost: small ones with more digits, so that they are not 0.
func dollars(c float64) string {
	if c > 0 && c < 0.01 {
		return fmt.Sprintf("$%.6f", c)
	}
	return fmt.Sprintf("$%.4f", c)
}

// result is what --output-format json prints.
type result struct {
	Session    string              `json:"session"`
	Status     string              `json:"status"`
	Text       string              `json:"text"`
	StopReason messages.StopReason `json:"stopReason,omitempty"`
	Usage      messages.Usage      `json:"usage"`
	Cost       float64             `json:"cost"`
	Turns      int                 `json:"turns"`
	Error      *resultError        `json:"error,omitempty"`
}

type resultError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Status  int    `json:"status,omitempty"`
}

func (o *output) endJSON(w *watch, err error) error {
	r := result{Session: o.session, Status: w.status, Text: o.answer.String(), StopReason: o.stop,
		Usage: o.usage, Cost: o.usage.Cost.Total, Turns: o.turns}
	if err = explain(err, o.session); err != nil {
		var p *problem
		if !errors.As(err, &p) {
			p = &problem{slug: messages.FailUnknown, err: err}
		}
		if r.Status == "" || r.Status == "succeeded" {
			r.Status = "failed"
		}
		if p.silent {
			r.Status = "interrupted"
		} else {
			r.Error = &resultError{Type: p.slug, Message: p.Error()}
			if p.told != nil {
				r.Error.Message, r.Error.Status = p.told.Message, p.told.Status
			}
		}
	}
	b, encErr := json.Marshal(r)
	if encErr != nil {
		return errors.Join(err, encErr)
	}
	o.print(string(b) + "\n")
	return o.written(err)
}

// written adds to the outcome that the answer could not be printed.
func (o *output) written(err error) error {
	if err == nil && o.writeEr != nil {
		return fmt.Errorf("write the answer: %w", o.writeEr)
	}
	return err
}

// explain gives an error the form that a person reads; session is where it
// happened, if it did in one.
func explain(err error, session string) error {
	if err == nil {
		return nil
	}
	var p *problem
	if errors.As(err, &p) {
		return err
	}
	var f *messages.Failure
	if errors.As(err, &f) {
		return explainFailure(f, session)
	}
	var missing *messages.SessionNotFound
	var noDriver *messages.SandboxDriverNotRegistered
	var busyBox *messages.SandboxBusy
	var runs *messages.SandboxMustBeStopped
	var tagged messages.Tagged
	var refused *messages.Refused
	switch {
	case errors.As(err, &missing):
		return &problem{slug: messages.FailSessionNotFound, err: err, hint: "the newest session of a directory continues with: codework run --continue"}
	case errors.As(err, &noDriver):
		return &problem{slug: "sandbox-driver-not-registered", err: err, fields: []field{{"registered", strings.Join(noDriver.Registered, ", ")}}}
	case errors.As(err, &busyBox):
		return &problem{slug: kebab(busyBox.Tag()), err: err, hint: "wait for the work in it, or interrupt that first"}
	case errors.As(err, &runs):
		return &problem{slug: kebab(runs.Tag()), err: err, hint: "first: codework sandbox stop " + runs.ID}
	case errors.As(err, &tagged):
		return &problem{slug: kebab(tagged.Tag()), err: err}
	case errors.As(err, &refused):
		return &problem{slug: kebab(refused.Name), err: err}
	}
	return err
}

func explainFailure(f *messages.Failure, session string) *problem {
	p := &problem{slug: f.Type, err: f, told: f, hint: f.Hint, fields: []field{{"session", session}, {"request", f.Request}}}
	if f.Status != 0 {
		p.fields = append(p.fields, field{"status", strconv.Itoa(f.Status)})
	}
	if f.Type == messages.FailSettings && strings.HasPrefix(f.Code, "settings-") {
		p.slug = f.Code
		if file, rest, ok := strings.Cut(f.Message, ": "); ok {
			_, detail, _ := strings.Cut(rest, ": ")
			p.err, p.fields = errors.New(file), []field{{"detail", detail}}
		}
	}
	if f.Type == messages.FailCatalog && f.Code != "" {
		p.slug = strings.TrimSuffix(f.Type, "error") + f.Code
	}
	if strings.HasPrefix(f.Type, "provider-") && f.Model != "" {
		p.err = fmt.Errorf("%s: %w", f.Model, f)
	}
	return p
}

// kebab turns the name of an error into a slug: SessionBusyError is
// session-busy.
func kebab(name string) string {
	var b strings.Builder
	for i, r := range strings.TrimSuffix(name, "Error") {
		switch {
		case r == '.':
			continue
		case unicode.IsUpper(r) && i > 0:
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// oneLine makes text safe to print as a part of a line: no line ends, no
// control sequences, nothing that turns the direction of reading.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r' || r == '\u2028' || r == '\u2029':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, strings.TrimSpace(s))
}
