package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"codework/messages"
	"codework/protocol/client"
)

func newSessionInterrupt(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "interrupt ID",
		Short: "Stop a session's work, whoever asked for it",
		Long: `Stop a session's work, whoever asked for it. Prompts that wait stay in the queue
until the session's next prompt. It does not wait for the work to settle; session
wait does.`,
		Args: oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c, args[0], false, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				stopped, err := cl.Interrupt(ctx, messages.Interrupt{SessionID: info.ID})
				if err != nil {
					return err
				}
				if !stopped {
					return g.done("%s has nothing to interrupt", info.ID)
				}
				return g.done("interrupted %s", info.ID)
			})
		},
	}
}

func newSessionWait(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "wait ID",
		Short: "Wait until a session has nothing more to do",
		Args:  oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c, args[0], false, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				f, err := client.Follow(ctx, cl, client.FollowOptions{Session: info.ID, Dial: g.dialAgain, Patience: patience})
				if err != nil {
					return err
				}
				defer f.Close()
				return deleted(f.Do(ctx, func(cl *client.Client) error { return cl.Wait(ctx, info.ID) }))
			})
		},
	}
}

// dialAgain connects as connect did.
func (g *global) dialAgain(ctx context.Context) (*client.Client, error) {
	c, _, err := g.connect(ctx) // an owner in this process is never lost
	return c, err
}

func newSessionLink(g *global) *cobra.Command {
	var unlink bool
	c := &cobra.Command{
		Use:   "link ID [path]",
		Short: "Say which directory a session belongs to",
		Long: `Say which directory on the session's machine it belongs to: whose settings and
project it has. The path is this directory unless another one is given.`,
		Args: oneSession(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir := ""
			switch {
			case unlink && len(args) > 1:
				return usagef("--unlink goes without a path")
			case !unlink:
				var err error
				if dir, err = absolute(append(args, ".")[1]); err != nil {
					return err
				}
			}
			return g.withSession(c, args[0], false, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				if _, err := cl.Link(ctx, info.ID, dir); err != nil {
					return err
				}
				if unlink {
					return g.done("unlinked %s", info.ID)
				}
				return g.done("linked %s to %s", info.ID, dir)
			})
		},
	}
	c.Flags().BoolVar(&unlink, "unlink", false, "the session belongs to no directory")
	return c
}

// maxTitle is the longest title, in characters.
const maxTitle = 200

func newSessionRename(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "rename ID TITLE",
		Short: "Give a session another title",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			title := strings.TrimSpace(strings.Join(args[1:], " "))
			if title == "" || utf8.RuneCountInString(title) > maxTitle {
				return usagef("expected a title of at most %d characters", maxTitle)
			}
			return g.withSession(c, args[0], false, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				info, err := cl.Rename(ctx, info.ID, title)
				if err != nil {
					return err
				}
				return g.done("renamed %s to %s", info.ID, info.Title)
			})
		},
	}
}

func newSessionFork(g *global) *cobra.Command {
	var at string
	c := &cobra.Command{
		Use:   "fork ID",
		Short: "Make a session with the same conversation, and print its id",
		Args:  oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c, args[0], false, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				if at != "" {
					if ok, err := cl.HasMessage(ctx, info.ID, at); err != nil {
						return err
					} else if !ok {
						return &problem{slug: "entry-not-found", err: fmt.Errorf("no entry %s in this session", at), fields: []field{{"session", info.ID}},
							hint: "their ids are in: codework session show --json " + info.ID + g.serverFlag()}
					}
				}
				forked, err := cl.Fork(ctx, info.ID, at)
				if err != nil {
					return err
				}
				return g.done("%s", forked.ID)
			})
		},
	}
	c.Flags().StringVar(&at, "at", "", "only the conversation up to and with this entry")
	return c
}

func newSessionDelete(g *global) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "delete ID",
		Short: "Remove a session for good",
		Args:  oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c, args[0], false, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				err := cl.Delete(ctx, info.ID, force)
				var busy *messages.SessionBusy
				if errors.As(err, &busy) {
					return &problem{slug: kebab(busy.Tag()), err: err, hint: "wait for it, interrupt it, or delete it with --force"}
				}
				if err != nil {
					return err
				}
				return g.done("deleted %s", info.ID)
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also while it works; the work is stopped")
	return c
}

func newSessionCheck(g *global) *cobra.Command {
	var repair, asJSON bool
	c := &cobra.Command{
		Use:   "check ID",
		Short: "Look whether a session's log is whole, and mend it",
		Long: `Look whether a session's log and its place in the list are whole, and whether its
checkpoints, from which a long session is read, say what the log says. Findings are
printed one a line; exit 1 when some are left.`,
		Args: oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withServer(c, asJSON, func(ctx context.Context, cl *client.Client) error {
				// Not withSession: one that is damaged may have no info.
				id, err := findSession(ctx, cl, args[0])
				if err != nil {
					return err
				}
				r, err := cl.Check(ctx, id, repair)
				if err != nil {
					return err
				}
				return g.printFindings(id, r.Findings, asJSON)
			})
		},
	}
	c.Flags().BoolVar(&repair, "repair", false, "mend what can be mended; what is torn off is kept aside")
	c.Flags().BoolVar(&asJSON, "json", false, "print the findings as an array")
	return c
}

func (g *global) printFindings(id string, list []messages.Finding, asJSON bool) error {
	left := 0
	for _, f := range list {
		if !f.Repaired {
			left++
		}
	}
	if asJSON {
		if err := printList(g, list); err != nil {
			return err
		}
	} else {
		for _, f := range list {
			mended := ""
			if f.Repaired {
				mended = " (mended)"
			}
			if _, err := fmt.Fprintln(g.out, oneLine(f.Code+": "+f.Detail)+mended); err != nil {
				return err
			}
		}
	}
	if left == 0 {
		return nil
	}
	if !g.quiet && !asJSON {
		fmt.Fprintln(g.err, "hint: mend it with: codework session check --repair "+id+g.serverFlag())
	}
	return &problem{err: errors.New("findings are left"), silent: true}
}

// done prints the one line that a command leaves behind.
func (g *global) done(format string, args ...any) error {
	_, err := fmt.Fprintln(g.out, oneLine(fmt.Sprintf(format, args...)))
	return err
}
