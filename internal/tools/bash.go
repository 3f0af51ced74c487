package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"codework/messages"
	"codework/sandboxes"
)

const (
	// DefaultBashTimeout ends every command: nothing a model waits for takes
	// longer, and a forgotten one must not hold a session for ever.
	DefaultBashTimeout = 30 * time.Minute
	// progressGap is the least time between two looks at a running command:
	// more often than people can read.
	progressGap = 50 * time.Millisecond
	// steadyGap is what that grows to, in twos, while there is something new at
	// every look: what passes by is not read, and each look costs all who follow.
	steadyGap = 250 * time.Millisecond
)

var bashTool = Tool{
	Name:        "bash",
	Label:       "Bash",
	On:          true,
	Description: "Run a shell command in the working directory. Gives stdout and stderr; long output is cut to its last 2000 lines or 50KB and kept whole in a file. No stdin, no terminal; cd does not last.",
	Snippet:     "run a shell command",
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"command":{"type":"string"},` +
		`"timeout":{"type":"number","description":"seconds"}},` +
		`"required":["command"],"additionalProperties":false}`),
	Run: runBash,
}

// commandDetails are the details of a bash call.
type commandDetails struct {
	Output         string  `json:"output"`
	ExitCode       *int    `json:"exitCode,omitempty"`
	Signal         string  `json:"signal,omitempty"`
	TimeoutSeconds float64 `json:"timeoutSeconds,omitempty"`
	Background     bool    `json:"background,omitempty"`
	Cut
	FullOutputPath string `json:"fullOutputPath,omitempty"`
}

// fullNames numbers the files that hold whole outputs.
var fullNames atomic.Int64

func runBash(ctx context.Context, c Context, raw json.RawMessage) (messages.ToolResult, error) {
	var args struct {
		Command string
		Timeout *float64
	}
	if err := json.Unmarshal(raw, &args); err != nil {
		return messages.ToolResult{}, err
	}
	if strings.TrimSpace(args.Command) == "" {
		return failed("command is empty")
	}
	if strings.ContainsRune(args.Command, 0) {
		return failed("command holds a NUL byte")
	}
	limit := c.BashTimeout
	if limit <= 0 {
		limit = DefaultBashTimeout
	}
	if args.Timeout != nil {
		limit = min(limit, time.Duration(whole(args.Timeout, 1, 1))*time.Second)
	}
	full := path.Join(c.Mount.Scratch(), fmt.Sprintf("output-%d.txt", fullNames.Add(1)))

	view := newViewer(c.Progress)
	exit, err := c.Mount.Run(ctx, sandboxes.Command{
		Script: args.Command, Joined: true, Timeout: limit, Full: full, Output: view.add,
	})
	text, cut := view.close(err != nil && ctx.Err() != nil)

	d := commandDetails{Output: text, Cut: cut}
	if cut.Truncated {
		d.FullOutputPath = full
	} else {
		// Where this fails only space is lost, and that goes with the mount.
		_ = c.Mount.Remove(context.WithoutCancel(ctx), full)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return messages.ToolResult{}, ctx.Err()
	case err != nil && cut.TotalLines == 0:
		return failed("the command could not be run: %s", shellReason(err))
	case err != nil:
		r := messages.TextResult(notice(text, "the command was lost: "+shellReason(err), cutNotice(cut, d.FullOutputPath, exit)), true)
		return withDetails(r, d)
	}

	var notes []string
	isError := true
	switch {
	case exit.TimedOut:
		d.TimeoutSeconds = limit.Seconds()
		notes = append(notes, fmt.Sprintf("timed out after %v s and was stopped", limit.Seconds()))
	case exit.Code != 0:
		note := fmt.Sprintf("exit code %d", exit.Code)
		if exit.Signal != "" {
			note += ", killed by " + exit.Signal
		}
		notes = append(notes, note)
		fallthrough
	default:
		d.ExitCode, d.Signal = &exit.Code, exit.Signal
		isError = exit.Code != 0
	}
	if exit.Background {
		d.Background = true
		notes = append(notes, "processes it started still run in the background")
	}
	notes = append(notes, cutNotice(cut, d.FullOutputPath, exit))
	if strings.TrimSpace(text) == "" {
		text = noOutputText
	}
	return withDetails(messages.TextResult(notice(text, notes...), isError), d)
}

// shellReason is why a command could not be run or was lost.
func shellReason(err error) string {
	var se *sandboxes.ShellError
	if errors.As(err, &se) {
		return reason(se)
	}
	return fileReason(err)
}

// cutNotice says what of an output is shown and where the rest is.
func cutNotice(cut Cut, full string, exit sandboxes.Exit) string {
	if !cut.Truncated {
		return ""
	}
	first := cut.TotalLines - cut.OutputLines + 1
	text := fmt.Sprintf("lines %d-%d of %d", first, cut.TotalLines, cut.TotalLines)
	if cut.TruncatedBy == byBytes {
		text += fmt.Sprintf(" (%s limit)", formatSize(MaxBytes))
		if cut.OutputLines == 1 {
			text = fmt.Sprintf("the last %s of line %d of %d", formatSize(int64(cut.OutputBytes)), first, cut.TotalLines)
		}
	}
	text += ". Full output: " + full
	if exit.FullCut {
		text += fmt.Sprintf(" (its first %s of %s)", formatSize(sandboxes.FullLimit), formatSize(exit.FullBytes))
	}
	return text
}

// viewer collects a command's output and shows it while it grows. New output
// is shown at once, and then at most once in a gap; what comes in
// between is in the next look. Ending does not wait for a look.
type viewer struct {
	mu     sync.Mutex // guards screen
	screen screen

	changed chan struct{} // capacity 1: something new is there
	stop    chan struct{}
	stopped chan struct{}
	show    func(messages.ToolResult)
}

func newViewer(show func(messages.ToolResult)) *viewer {
	v := &viewer{
		changed: make(chan struct{}, 1),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		show:    show,
	}
	go v.watch()
	return v
}

func (v *viewer) add(stream sandboxes.Stream, b []byte) {
	v.mu.Lock()
	v.screen.add(stream, b)
	v.mu.Unlock()
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

func (v *viewer) watch() {
	defer close(v.stopped)
	gap := progressGap / 2 // doubled for the first look if something is there by then
	over := time.NewTimer(0)
	defer over.Stop()
	for {
		select {
		case <-over.C:
		case <-v.stop:
			return
		}
		select {
		case <-v.changed:
			gap = min(2*gap, steadyGap)
		default:
			gap = progressGap
			select {
			case <-v.changed:
			case <-v.stop:
				return
			}
		}
		v.look()
		over.Reset(gap)
	}
}

func (v *viewer) look() {
	v.mu.Lock()
	text, _ := v.screen.output()
	v.mu.Unlock()
	if text != "" && v.show != nil {
		v.show(messages.TextResult(text, false))
	}
}

// close ends the looks and gives the output. With last, what was not shown yet
// is shown before: a stopped call's result is the last that was shown.
func (v *viewer) close(last bool) (string, Cut) {
	close(v.stop)
	<-v.stopped
	v.screen.finish()
	if last {
		v.look()
	}
	return v.screen.output()
}
