// Command codework is a coding agent: it sends prompts to a model, runs the
// tools the model asks for, and keeps the conversation.
//
// Standard output carries a command's result and nothing else. Everything else
// goes to standard error. Exit codes: 0 success, 1 failure, 2 wrong use,
// 130 and 143 interrupted by SIGINT and SIGTERM.
//
// For tests, CODEWORK_SIGNIN_URL is an address on this machine where a server
// plays all services that one signs in with: https://host/path is asked for
// below it at /host/path.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"codework/sandboxes/agent"
	"codework/sandboxes/container"
	"codework/sandboxes/isolated"
)

func main() {
	// The same program is what becomes a sandbox, and what serves the inside of
	// one. Where it supervises the commands of one, it does not come here.
	if handled, code := isolated.Main(os.Args); handled {
		os.Exit(code)
	}
	if handled, code := container.Main(os.Args); handled {
		os.Exit(code)
	}
	if handled, code := agent.Main(os.Args); handled {
		os.Exit(code)
	}
	ctx, stop := signals()
	code := execute(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

// stopped is the cause of a context that a signal ended.
type stopped struct{ code int }

func (s stopped) Error() string { return "interrupted" }

// signals returns a context that the first signal ends; the second ends the
// process at once.
func signals() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	c := make(chan os.Signal, 2)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup wants it
		signal.Notify(c, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case s := <-c:
				if n > 0 {
					os.Exit(exitCode(s))
				}
				cancel(stopped{exitCode(s)})
			case <-done:
				return
			}
		}
	}()
	return ctx, func() { signal.Stop(c); close(done); cancel(nil) }
}

func exitCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 1
}
