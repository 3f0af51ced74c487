package integration

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"codework/sandboxes/supervisor/modes"
)

// The processes above a command begin before the packages of the product are
// initialised, which would take them most of their start. Without a control
// socket they end at once.
func TestProcessesAboveCommandsInitialiseLittle(t *testing.T) {
	for _, args := range [][]string{{modes.SupervisorArg, "1"}, {modes.RunnerArg}} {
		var trace bytes.Buffer
		cmd := exec.Command(built.program, args...)
		cmd.Env = []string{"GODEBUG=inittrace=1"}
		cmd.Stderr = &trace
		if err := cmd.Run(); err == nil {
			t.Errorf("%q ran", args)
		}
		seen := map[string]bool{}
		for line := range strings.Lines(trace.String()) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "init" {
				seen[f[1]] = true
			}
		}
		if !seen["os"] {
			t.Fatalf("%q: the runtime tells nothing of what it initialises:\n%s", args, trace.String())
		}
		for _, late := range []string{"encoding/gob", "net/http", "regexp", "encoding/json", "golang.org/x/sys/unix", "github.com/dgraph-io/badger/v4/pb"} {
			if seen[late] {
				t.Errorf("%q: %s was initialised first:\n%s", args, late, trace.String())
			}
		}
	}
}
