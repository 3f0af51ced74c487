//go:build !unix

package source

import "os/exec"

func inGroup(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Kill() }
}
