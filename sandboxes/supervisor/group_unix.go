//go:build unix && !linux

package supervisor

import (
	"os"
	"os/exec"
	"syscall"
)

// group is the process group of a command, which is also a session.
type group struct{ id int }

func startGroup(cmd *exec.Cmd) (*group, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &group{cmd.Process.Pid}, nil
}

func (g *group) ask()        { _ = syscall.Kill(-g.id, syscall.SIGTERM) }
func (g *group) kill()       { _ = syscall.Kill(-g.id, syscall.SIGKILL) }
func (g *group) alive() bool { return syscall.Kill(-g.id, 0) == nil }
func (g *group) close()      {}

func statusOfState(s *os.ProcessState) Status { return statusOf(s.Sys().(syscall.WaitStatus)) }
