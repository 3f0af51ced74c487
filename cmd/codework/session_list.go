package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"codework/messages"
	"codework/protocol/client"
)

func newSessionList(g *global) *cobra.Command {
	var q messages.ListSessions
	var all, asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List this directory's sessions, newest first",
		Long: `List the sessions of this directory, or all of them, the newest first: id, status,
age and title. Into a pipe the columns have tabs between them.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.withServer(c, asJSON, func(ctx context.Context, cl *client.Client) error {
				if !all {
					here, err := os.Getwd()
					if err != nil {
						return fmt.Errorf("find the working directory: %w", err)
					}
					q.HostDir = here
				}
				list, err := listSessions(ctx, cl, q)
				switch {
				case err != nil:
					return err
				case asJSON:
					return printList(g, list)
				case len(list) == 0 && !all && !g.quiet:
					fmt.Fprintln(g.err, "no such session was started here; --all lists those of other directories")
				}
				rows := make([][]string, 0, len(list))
				for _, s := range list {
					rows = append(rows, []string{s.ID, string(s.Status), age(s.UpdatedAt, time.Now()), s.Title})
				}
				return g.printRows([]string{"ID", "STATUS", "AGE", "TITLE"}, rows)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also the sessions of other directories")
	c.Flags().StringVar(&q.Search, "search", "", "only sessions whose title has this text in it, in upper or lower case, with or without accents")
	c.Flags().BoolVar(&asJSON, "json", false, "print an array of everything that is known of them")
	return c
}

func newSessionQueue(g *global) *cobra.Command {
	var q messages.GetQueue
	var asJSON bool
	c := &cobra.Command{
		Use:   "queue ID",
		Short: "List the prompts that wait in a session, or remove some",
		Long: `List the prompts that wait in a session: id, delivery, age and text. With --remove
or --clear the prompts are taken out first, and what is left is listed.`,
		Args: oneSession(0),
		RunE: func(c *cobra.Command, args []string) error {
			if q.Clear && q.Remove != "" {
				return usagef("--remove and --clear do not go together")
			}
			return g.withSession(c, args[0], asJSON, func(ctx context.Context, cl *client.Client, info messages.SessionInfo) error {
				q.SessionID = info.ID
				if q.Remove != "" {
					if err := waits(ctx, cl, q); err != nil {
						return err
					}
				}
				queue, err := cl.Queue(ctx, q)
				switch {
				case err != nil:
					return err
				case asJSON:
					return printList(g, queue.Queued)
				}
				rows := make([][]string, 0, len(queue.Queued))
				for _, p := range queue.Queued {
					rows = append(rows, []string{p.ID, string(p.Delivery), age(p.AdmittedAt, time.Now()), p.Text})
				}
				return g.printRows([]string{"PROMPT", "DELIVERY", "AGE", "TEXT"}, rows)
			})
		},
	}
	c.Flags().StringVar(&q.Remove, "remove", "", "take the prompt with this id out")
	c.Flags().BoolVar(&q.Clear, "clear", false, "take all prompts out")
	c.Flags().BoolVar(&asJSON, "json", false, "print an array")
	return c
}

// waits refuses to remove a prompt that is not in the queue.
func waits(ctx context.Context, cl *client.Client, q messages.GetQueue) error {
	queue, err := cl.Queue(ctx, messages.GetQueue{SessionID: q.SessionID})
	if err != nil {
		return err
	}
	for _, p := range queue.Queued {
		if p.ID == q.Remove {
			return nil
		}
	}
	return &problem{slug: "prompt-not-queued", err: fmt.Errorf("no prompt %s waits in this session", q.Remove), fields: []field{{"session", q.SessionID}}}
}

// oneSession wants a session and at most so many further arguments.
func oneSession(more int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &problem{err: fmt.Errorf("%s: which session?", c.CommandPath()), code: exitUsage, hint: "see: codework session list"}
		}
		return cobra.RangeArgs(1, 1+more)(c, args)
	}
}
