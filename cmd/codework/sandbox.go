package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"codework/messages"
	"codework/protocol/client"
)

// newSandboxes is the group of commands about where tools run.
func newSandboxes(g *global) *cobra.Command {
	c := &cobra.Command{
		Use:   "sandbox",
		Short: "Look at sandboxes, make them, run commands in them, stop and remove them",
		Long: `Look at sandboxes, make them, run commands in them, stop and remove them. An id
may be cut short as long as it is the only one that begins so; "local" is this
machine itself.

Without --server these are the sandboxes of this machine's home. What was made
there is stopped when its process in the background ends, which is soon after
its last client has gone; codework serve keeps it until the server ends.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for codework sandbox", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	g.addServerFlag(c)
	c.AddCommand(newSandboxDrivers(g), newSandboxList(g), newSandboxCreate(g), newSandboxRegister(g), newSandboxStop(g),
		newSandboxDestroy(g), newSandboxExec(g))
	return c
}

func newSandboxDrivers(g *global) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "drivers",
		Short: "List what sandboxes can be made with, and whether that works here",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withServer(c, asJSON, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.SandboxDrivers(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(g.out).Encode(list)
				}
				var rows [][]string
				for _, d := range list {
					state := "available"
					if d.Available != nil && !*d.Available {
						state = "not available: " + d.Reason
					}
					rows = append(rows, []string{d.Name, string(d.Kind), state})
				}
				return g.printRows([]string{"DRIVER", "KIND", "STATE"}, rows)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return c
}

func newSandboxList(g *global) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List all sandboxes, the host first",
		Long: `List all sandboxes, the host first, then in order of creation; removed ones too.
The status is the last that was observed: nobody is asked for it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withServer(c, asJSON, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.Sandboxes(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(g.out).Encode(list)
				}
				var rows [][]string
				for _, s := range list {
					resource := "-"
					if s.ProviderResourceID != nil {
						resource = *s.ProviderResourceID
					}
					rows = append(rows, []string{s.ID, s.Driver, string(s.Status), s.Usage, s.Ownership, age(s.UpdatedAt, time.Now()), resource})
				}
				return g.printRows([]string{"ID", "DRIVER", "STATUS", "USAGE", "OWNERSHIP", "SEEN", "RESOURCE"}, rows)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return c
}

// driverOptions is the configuration that a call brings along.
type driverOptions struct {
	config string
	asJSON bool
}

func (o *driverOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.config, "config", "", "the driver's configuration as a JSON object, or @file; laid over the settings")
	c.Flags().BoolVar(&o.asJSON, "json", false, "print the sandbox as JSON")
}

func (o *driverOptions) read() (json.RawMessage, error) {
	text, err := addendum(o.config)
	if err != nil {
		return nil, usagef("--config: %w", errors.Unwrap(err))
	}
	if text == "" {
		return nil, nil
	}
	config := json.RawMessage(text)
	if !json.Valid(config) {
		return nil, usagef("--config: expected a JSON object")
	}
	if err := messages.ValidateSandboxConfig(config); err != nil {
		return nil, usagef("--%w", err)
	}
	return config, nil
}

// made prints a sandbox that is there now.
func (o *driverOptions) made(g *global, info messages.SandboxInfo) error {
	if o.asJSON {
		return json.NewEncoder(g.out).Encode(info)
	}
	_, err := fmt.Fprintln(g.out, info.ID)
	return err
}

func newSandboxCreate(g *global) *cobra.Command {
	var o driverOptions
	c := &cobra.Command{
		Use:   "create <driver>",
		Short: "Make a sandbox and print its id",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := o.read()
			if err != nil {
				return err
			}
			return g.withServer(c, o.asJSON, func(ctx context.Context, cl *client.Client) error {
				info, err := cl.CreateSandbox(ctx, messages.CreateSandbox{Driver: args[0], Config: config})
				if err != nil {
					return err
				}
				if server, err := cl.Info(ctx); err == nil && !server.Foreground && !g.quiet {
					what := "it is stopped"
					if info.Kind == messages.KindVirtual {
						what = "it is gone, with its files,"
					}
					fmt.Fprintln(g.err, "note: "+what+" when the process of this home ends, soon after its last client has gone; codework serve keeps it")
				}
				return o.made(g, info)
			})
		},
	}
	o.flags(c)
	return c
}

func newSandboxRegister(g *global) *cobra.Command {
	var o driverOptions
	c := &cobra.Command{
		Use:   "register <driver> <resource id>",
		Short: "Make a sandbox known that somebody else made, and print its id",
		Long: `Make a sandbox known that somebody else made, such as ssh://user@host/folder, and
print its id. It is never stopped or removed from here. Registering the same one
again prints the same id.`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := o.read()
			if err != nil {
				return err
			}
			return g.withServer(c, o.asJSON, func(ctx context.Context, cl *client.Client) error {
				info, err := cl.RegisterSandbox(ctx, messages.RegisterSandbox{Driver: args[0], ProviderResourceID: args[1], Config: config})
				if err != nil {
					return err
				}
				return o.made(g, info)
			})
		},
	}
	o.flags(c)
	return c
}

func newSandboxStop(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "stop <id>",
		Short: "Take a sandbox offline; its files stay where the driver can",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withServer(c, false, func(ctx context.Context, cl *client.Client) error {
				id, err := findSandbox(ctx, cl, args[0])
				if err != nil {
					return err
				}
				return cl.StopSandbox(ctx, id)
			})
		},
	}
}

func newSandboxDestroy(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "destroy <id>",
		Short: "Remove a stopped sandbox with its files",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withServer(c, false, func(ctx context.Context, cl *client.Client) error {
				id, err := findSandbox(ctx, cl, args[0])
				if err != nil {
					return err
				}
				return cl.DestroySandbox(ctx, id)
			})
		},
	}
}

func newSandboxExec(g *global) *cobra.Command {
	var cwd string
	var env []string
	var limit time.Duration
	c := &cobra.Command{
		Use:   "exec <id> -- <program> [argument]...",
		Short: "Run a command in a sandbox; its output and exit code are passed on",
		Long: `Run a command in a sandbox, without a shell and with empty standard input. Its
output and its exit code are passed on. One that is offline is woken.`,
		Example: `  codework sandbox exec local -- uname -a
  codework sandbox exec sbx_0199f3c2 -- sh -c 'ls | wc -l'`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			m := messages.ExecSandbox{Argv: args[1:], Cwd: cwd, TimeoutMs: limit.Milliseconds()}
			if limit < 0 || limit > 0 && m.TimeoutMs == 0 {
				return usagef("--timeout: expected a duration of at least 1ms")
			}
			for _, kv := range env {
				name, value, ok := strings.Cut(kv, "=")
				if !ok || name == "" {
					return usagef("--env: expected NAME=value, not %q", kv)
				}
				if m.Env == nil {
					m.Env = map[string]string{}
				}
				m.Env[name] = value
			}
			return g.withServer(c, false, func(ctx context.Context, cl *client.Client) (err error) {
				if m.SandboxID, err = findSandbox(ctx, cl, args[0]); err != nil {
					return err
				}
				return g.execIn(ctx, cl, m)
			})
		},
	}
	c.Flags().StringVarP(&cwd, "cwd", "C", "", "working directory inside of the sandbox")
	c.Flags().StringArrayVarP(&env, "env", "e", nil, "NAME=value for the command (repeatable)")
	c.Flags().DurationVar(&limit, "timeout", 0, "end the command after this time, such as 90s")
	c.Flags().SetInterspersed(true)
	return c
}

// execIn runs a command and ends as it does.
func (g *global) execIn(ctx context.Context, cl *client.Client, m messages.ExecSandbox) error {
	var failed error
	write := func(e messages.ExecOutput) {
		to := g.out
		if e.Stream == "stderr" {
			to = g.err
		}
		if _, err := to.Write(e.Data); err != nil && failed == nil && to == g.out {
			failed = err
		}
	}
	exit, err := cl.Exec(ctx, m, write)
	switch {
	case err != nil:
		return err
	case exit.TimedOut:
		return &problem{slug: "timeout", err: errors.New("the time limit is over; the command was ended")}
	case *exit.ExitCode != 0:
		return &problem{err: fmt.Errorf("the command ended with %d", *exit.ExitCode), code: *exit.ExitCode, silent: true}
	case failed != nil && !errors.Is(failed, os.ErrClosed):
		return fmt.Errorf("write the output: %w", failed)
	}
	return nil
}

// findSandbox completes an id that was cut short.
func findSandbox(ctx context.Context, c *client.Client, ref string) (string, error) {
	const least = len("sbx_0000")
	if ref == messages.LocalSandbox || len(ref) < least || !strings.HasPrefix(ref, "sbx_") {
		return ref, nil // what it is not is for the server to say
	}
	list, err := c.Sandboxes(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, s := range list {
		if s.ID == ref {
			return ref, nil
		}
		if strings.HasPrefix(s.ID, ref) {
			found = append(found, s.ID)
		}
	}
	switch len(found) {
	case 0:
		return ref, nil
	case 1:
		return found[0], nil
	}
	return "", &problem{slug: "sandbox-ambiguous", err: fmt.Errorf("%d sandboxes begin with %s", len(found), ref), hint: "give more of the id"}
}
