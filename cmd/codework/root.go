package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"codework/internal/home"
	"codework/messages"
)

// streams are a command's input and outputs.
type streams struct {
	in  *os.File
	out *os.File
	err *os.File
}

func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// global are the flags that every command takes.
type global struct {
	streams
	home      string
	database  string
	configDir string
	server    string // "" is the home's owner
	embedded  bool
	quiet     bool
	logLevel  string
	begun     bool // flags and arguments are good
}

// paths are where this call's home keeps things.
func (g *global) paths() (home.Paths, error) {
	p, err := home.Resolve(g.home, g.database, os.LookupEnv)
	if err != nil {
		return p, &problem{err: err, code: exitUsage}
	}
	return p, nil
}

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string, s streams) int {
	g := &global{streams: s}
	root := newRoot(g)
	root.SetArgs(args)
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	err := root.ExecuteContext(ctx)
	var p *problem
	if err != nil && !g.begun && !errors.As(err, &p) {
		err = &problem{err: err, code: exitUsage} // the wrong arguments, in cobra's words
	}
	return report(s.err, err)
}

func newRoot(g *global) *cobra.Command {
	showVersion := false
	root := &cobra.Command{
		Use:   "codework",
		Short: "A coding agent that you can leave running",
		Long: `CodeWork sends your prompt to a model, runs the tools the model asks for in your
project, and keeps the conversation. Try it without a key or network:

  codework run --model offline/guide "Summarize the open TODOs in this repo"`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q", args[0])
			}
			return nil
		},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			_, err := newLogger(g.logLevel, g.err)
			g.begun = err == nil
			return err
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if !showVersion {
				return c.Help()
			}
			_, err := fmt.Fprintln(g.out, "codework "+version)
			return err
		},
	}
	// Not cobra's own: its template would bring text/template into the program,
	// and with that every method of every type.
	root.Flags().BoolVarP(&showVersion, "version", "v", false, "print the version")
	root.CompletionOptions.DisableDefaultCmd = false
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &problem{err: err, code: exitUsage, hint: "see: " + c.CommandPath() + " --help"}
	})
	f := root.PersistentFlags()
	f.StringVar(&g.home, "home", "", "folder of settings, credentials and data (default ~/.codework, or CODEWORK_HOME_DIR)")
	f.StringVar(&g.database, "database", "", `folder of the session store (default <home>/data; ":memory:" keeps nothing)`)
	f.StringVar(&g.configDir, "user-config-dir", "", "folder whose settings.jsonc replaces the user settings")
	f.BoolVar(&g.embedded, "embedded", false, "do everything in this process, without the home process in the background")
	f.BoolVar(&g.quiet, "quiet", false, "print no header, usage or progress")
	f.StringVar(&g.logLevel, "log-level", "warn", "what goes into the log: debug, info, warn, error")
	root.AddCommand(newRun(g), newACP(g), newModels(g), newConfig(g), newServe(g), newSession(g), newSandboxes(g), newPlugin(g), newAuth(g), newTrust(g), newTop(g), newVersion(g), newHomeProcess(g))
	return root
}

// Exit codes beside those of other signals.
const (
	exitFailed    = 1
	exitUsage     = 2
	exitInterrupt = 130 // by ctrl-c
)

// problem is an error as a person gets to see it.
type problem struct {
	slug   string
	err    error
	fields []field
	hint   string
	told   *messages.Failure // what the server said, for programs
	code   int               // 0 is exitFailed
	silent bool              // said already
}

type field struct{ key, value string }

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

func usagef(format string, args ...any) error {
	return &problem{err: fmt.Errorf(format, args...), code: exitUsage}
}

// report prints an error and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var p *problem
	if !errors.As(err, &p) {
		p = &problem{err: err}
		var s stopped
		if errors.As(err, &s) {
			p.code, p.silent = s.code, true
		}
	}
	if !p.silent {
		printProblem(w, p)
	}
	if p.code == 0 {
		return exitFailed
	}
	return p.code
}

func printProblem(w io.Writer, p *problem) {
	head := "error"
	if p.slug != "" {
		head += "[" + p.slug + "]"
	}
	fmt.Fprintf(w, "%s: %s\n", head, oneLine(p.Error()))
	for _, f := range p.fields {
		if f.value != "" {
			fmt.Fprintf(w, "%s: %s\n", f.key, oneLine(f.value))
		}
	}
	if p.hint != "" {
		fmt.Fprintf(w, "hint: %s\n", oneLine(p.hint))
	}
}

func newVersion(g *global) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if !asJSON {
				_, err := fmt.Fprintln(g.out, "codework "+version)
				return err
			}
			return json.NewEncoder(g.out).Encode(map[string]string{"version": version, "commit": commit(), "go": runtime.Version()})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print version, commit and Go version as JSON")
	return c
}
