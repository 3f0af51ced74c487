package supervisor

import (
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if handled, code := Main(os.Args); handled {
		syscall.Exit(code) // os.Exit takes a second under the race detector
	}
	if err := Subreaper(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
