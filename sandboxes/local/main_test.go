package local

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"codework/sandboxes/supervisor"
)

func TestMain(m *testing.M) {
	if handled, code := supervisor.Main(os.Args); handled {
		os.Exit(code)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		fmt.Fprint(os.Stderr)
		os.Exit(code)
	}))
}
