// Package integration tests the real program from outside: scripts in
// testdata/script and a few rounds of chance start codework as a person would,
// let it work with a scripted model server, and look at what it printed, what
// it asked the model, and what it left behind.
//
// Every test has a home, a folder and a model server of its own. At its end no
// process of it may be alive, its model script must be used up, no request may
// have been one that a provider refuses, and the log of its home process may
// tell neither of a panic nor of a data race.
package integration

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// long asks for the forms of tests that take minutes.
var long = flag.Bool("long", false, "run the long forms: hundreds of rounds of kills and edits")

// built are the programs under test.
var built struct {
	dir     string
	program string // codework itself

	newer     sync.Once // another build of it, made when a test asks for one
	newerPath string
	newerErr  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	moreAtOnce()
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(built.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// atOnce is how many tests run at the same time unless the command line says
// otherwise: most of the time they wait, for a limit to pass or a process to end.
const atOnce = "4"

func moreAtOnce() {
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", atOnce) // the testing package's own flag
	}
}

// prepare builds the program. The folder's name is short because the address
// of a socket will lie below it.
func prepare() error {
	dir, err := os.MkdirTemp("", "cw")
	if err != nil {
		return err
	}
	if built.dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	built.program = filepath.Join(built.dir, "codework", "codework")
	return build(built.program, "")
}

func build(path, version string) error {
	args := []string{"build", "-o", path}
	if raceDetector {
		args = append(args, "-race")
	}
	if version != "" {
		args = append(args, "-ldflags", "-X main.version="+version)
	}
	out, err := exec.Command("go", append(args, "codework/cmd/codework")...).CombinedOutput()
	if err != nil {
		return errors.Join(fmt.Errorf("build codework: %w", err), errors.New(string(out)))
	}
	return nil
}

// newerVersion is what the other build calls itself.
const newerVersion = "99.1.0"

// newerProgram is another build of codework, with a version.
func newerProgram() (string, error) {
	built.newer.Do(func() {
		built.newerPath = filepath.Join(built.dir, "newer", "codework")
		built.newerErr = build(built.newerPath, newerVersion)
	})
	return built.newerPath, built.newerErr
}
