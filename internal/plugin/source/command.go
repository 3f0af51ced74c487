package source

import (
	"context"
	"os/exec"
	"time"
)

// lastOutput is how long the output of a program that was killed is read.
const lastOutput = 2 * time.Second

// command is a program that ends with ctx, and all it has started with it.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	inGroup(cmd)
	cmd.WaitDelay = lastOutput
	return cmd
}

// maxMessages is how much of a program's messages is kept, in bytes.
const maxMessages = 64 << 10

// capped keeps the end of what is written.
type capped struct{ b []byte }

func (c *capped) Write(p []byte) (int, error) {
	c.b = append(c.b, p...)
	if n := len(c.b) - maxMessages; n > 0 {
		c.b = append(c.b[:0], c.b[n:]...)
	}
	return len(p), nil
}
