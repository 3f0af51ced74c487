// Command mockmodel runs the scripted model server of package mockmodel for
// tests that are scripts and for load runs.
//
// When it is ready it prints its URL on standard output, as the only line, and
// writes it to the file of -addr-file. It ends on SIGINT or SIGTERM: with 0, or
// with 1 when requests have violated a rule, which it then lists on standard
// error.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"codework/integration/mockmodel"
)

// The exit codes beside 0.
const (
	exitFailed = 1 // violations, or it could not run
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run serves until the context ends and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mockmodel", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:0", "loopback `HOST:PORT` to listen on")
	script := flags.String("script", "", "`file` with the script or scripts")
	addrFile := flags.String("addr-file", "", "`file` to write the URL to when ready")
	lenient := flags.Bool("no-strict", false, "answer histories that a provider would refuse")
	key := flags.String("require-key", "", "`key` that requests must carry; any takes every key")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "mockmodel: unexpected argument %q\n", flags.Arg(0))
		return exitUsage
	}
	if err := serve(ctx, mockmodel.Options{Addr: *addr, Lenient: *lenient, RequireKey: *key}, *script, *addrFile, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "mockmodel: %v\n", err)
		return exitFailed
	}
	return 0
}

func serve(ctx context.Context, o mockmodel.Options, script, addrFile string, stdout, stderr io.Writer) error {
	if script != "" {
		data, err := os.ReadFile(script)
		if err != nil {
			return err
		}
		if o.Scripts, err = mockmodel.ParseScripts(data); err != nil {
			return fmt.Errorf("%s: %w", script, err)
		}
	}
	s := mockmodel.New(o)
	if err := s.Start(); err != nil {
		return err
	}
	defer s.Close()
	if addrFile != "" {
		if err := writeWhole(addrFile, s.URL()+"\n"); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, s.URL())
	<-ctx.Done()
	if err := s.Close(); err != nil {
		return err
	}
	violations := s.Violations()
	for _, v := range violations {
		fmt.Fprintf(stderr, "%s\n", v)
	}
	if len(violations) > 0 {
		return fmt.Errorf("%d violations", len(violations))
	}
	return nil
}

// writeWhole writes a file under another name and renames it: who waits for the
// file must not read half of it.
func writeWhole(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
