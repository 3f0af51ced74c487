package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes"
)

// A victim is a way to get out of a command's process group, session or
// parentage. Each appends to the file $F as long as it lives: that the file
// stands still is the proof that it does not, where listing processes would
// miss a fast forker.
type victim struct{ name, script string }

const beat = `while :; do echo >> "$F"; sleep 0.02; done`

func victims() []victim {
	return []victim{
		{"background", `( ` + beat + ` ) &`},
		{"nohup", `nohup sh -c '` + beat + `' >/dev/null 2>&1 &`},
		{"setsid", `setsid sh -c '` + beat + `' &`},
		{"daemon", `( setsid sh -c '( ` + beat + ` ) </dev/null >/dev/null 2>&1 & exit 0' & )`},
		{"deaf", `setsid sh -c 'trap "" TERM HUP INT; ` + beat + `' &`},
		{"env -i", `env -i F="$F" setsid sh -c '` + beat + `' &`},
		{"forker", `'` + os.Args[0] + `' ` + forkerArg + ` "$F" &`},
	}
}

// limit is within what everything must have ended.
const limit = 2 * time.Second

// forkForEver forks, leaves its session and lets the parent exit, as fast as it
// can; each generation writes one byte.
func forkForEver(file string) {
	fd, err := syscall.Open(file, syscall.O_WRONLY|syscall.O_APPEND|syscall.O_CREAT, 0o600)
	if err != nil {
		os.Exit(1)
	}
	forkLoop(uintptr(fd), []byte{'x'})
}

// forkLoop uses raw system calls only: behind a fork there is no runtime.
//
//go:norace
//go:nosplit
func forkLoop(fd uintptr, b []byte) {
	p := bytePointer(b)
	for {
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 || pid != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
		syscall.RawSyscall(syscall.SYS_WRITE, fd, p, 1)
	}
}

// children lists the children of this process.
func children(t *testing.T) []int {
	t.Helper()
	var out []int
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		t.Fatal("no lists of children", err)
	}
	for _, list := range lists {
		b, _ := os.ReadFile(list) // a thread may have ended
		for f := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, pid)
		}
	}
	return out
}

// reapAdopted waits for the supervisor of a server that was killed: it has
// fallen to us, another subreaper, and ends by itself.
func reapAdopted(t *testing.T) {
	t.Helper()
	for _, child := range children(t) {
		err := eventually("the supervisor has ended", func() bool {
			pid, _ := syscall.Wait4(child, nil, syscall.WNOHANG, nil)
			return pid == child
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// eventually polls until the condition holds.
func eventually(what string, cond func() bool) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if cond() {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("never happened: " + what)
		}
	}
}

// beating waits until the victim lives.
func beating(file string) error {
	return eventually("the victim writes", func() bool { return size(file) > 3 })
}

// still proves that the victim is dead.
func still(file string) error {
	first := size(file)
	if first == 0 {
		return errors.New("the victim never lived")
	}
	for range 2 {
		time.Sleep(500 * time.Millisecond) // this wait is the measurement
		if now := size(file); now != first {
			return fmt.Errorf("the victim lives: %d bytes became %d", first, now)
		}
	}
	return nil
}

// scene is a victim in a sandbox of its own.
type scene struct {
	sandbox *Sandbox
	mount   sandboxes.Mount
	script  string // starts the victim and ends
	file    string
}

func (sc *scene) run(ctx context.Context, then string, timeout time.Duration) (sandboxes.Exit, error) {
	return sc.mount.Run(ctx, sandboxes.Command{
		Script: sc.script + "\n" + then, Env: map[string]string{"F": sc.file}, Timeout: timeout,
	})
}

// leave runs the victim's command to its end and checks that the victim lives
// on.
func (sc *scene) leave() error {
	exit, err := sc.run(context.Background(), "", 0)
	if err != nil || exit.Code != 0 || !exit.Background {
		return fmt.Errorf("leave the victim behind: %+v %v", exit, err)
	}
	if err := beating(sc.file); err != nil {
		return err
	}
	now := size(sc.file)
	return eventually("the victim outlives its command", func() bool { return size(sc.file) > now })
}

// within fails when it took too long, with room for a machine that runs other
// tests as well.
func within(start time.Time) error {
	if d := time.Since(start); d > 2*limit {
		return fmt.Errorf("took %v", d)
	}
	return nil
}

// isClosed is what a command reports that the end of its mount ended.
func isClosed(err error) bool {
	var se *sandboxes.ShellError
	return errors.As(err, &se) && errors.Is(err, sandboxes.ErrClosed)
}

// isLost is what a command reports whose runner or supervisor was killed.
func isLost(err error) bool {
	var se *sandboxes.ShellError
	return errors.As(err, &se) && !errors.Is(err, sandboxes.ErrClosed)
}

const (
	killRunner     = `sleep 0.3; kill -9 $PPID; sleep 60`
	killSupervisor = `sleep 0.3; read -r _ _ _ up _ < /proc/$PPID/stat; kill -9 $up; sleep 60`
	killBoth       = `sleep 0.3; read -r _ _ _ up _ < /proc/$PPID/stat; kill -9 $up $PPID; sleep 60`
	stopRunner     = `kill -STOP $PPID; echo > "$F.stopped"; sleep 60`
	stopBoth       = `read -r _ _ _ up _ < /proc/$PPID/stat; kill -STOP $up $PPID; echo > "$F.stopped"; sleep 60`
)

// TestNothingOutlivesItsEnd runs every victim against every end.
func TestNothingOutlivesItsEnd(t *testing.T) {
	cancelled := func(then, wait string) func(*scene) error {
		return func(sc *scene) error {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				_, err := sc.run(ctx, then, 0)
				done <- err
			}()
			err := beating(sc.file)
			if err == nil && wait != "" {
				err = eventually("the victim stops those above it", func() bool { return size(sc.file+wait) > 0 })
			}
			start := time.Now()
			cancel()
			if got := <-done; !errors.Is(got, context.Canceled) {
				return fmt.Errorf("cancelled: %v (%v)", got, err)
			}
			return errors.Join(err, within(start))
		}
	}
	lost := func(then string) func(*scene) error {
		return func(sc *scene) error {
			start := time.Now()
			_, err := sc.run(context.Background(), then, 0)
			if !isLost(err) {
				return fmt.Errorf("lost: %v", err)
			}
			if d := time.Since(start); d > limit+20*time.Second {
				return fmt.Errorf("took %v", d)
			}
			// The sandbox works again.
			exit, err := sc.mount.Run(context.Background(), sandboxes.Command{Script: "exit 7"})
			if err != nil || exit.Code != 7 {
				return fmt.Errorf("next command: %+v %v", exit, err)
			}
			return nil
		}
	}
	ends := []struct {
		name string
		end  func(*scene) error
	}{
		{"cancel", cancelled("sleep 60", "")},
		{"cancel while waiting for the victim", cancelled("wait; sleep 60", "")},
		{"time limit", func(sc *scene) error {
			start := time.Now()
			exit, err := sc.run(context.Background(), "sleep 60", time.Second)
			if err != nil || !exit.TimedOut {
				return fmt.Errorf("time limit: %+v %v", exit, err)
			}
			return within(start.Add(time.Second))
		}},
		{"mount closed", func(sc *scene) error {
			if err := sc.leave(); err != nil {
				return err
			}
			start := time.Now()
			return errors.Join(sc.mount.Close(), within(start))
		}},
		{"mount closed while it runs", func(sc *scene) error {
			done := make(chan error, 1)
			go func() {
				_, err := sc.run(context.Background(), "sleep 60", 0)
				done <- err
			}()
			err := beating(sc.file)
			start := time.Now()
			err = errors.Join(err, sc.mount.Close(), within(start))
			if got := <-done; !isClosed(got) {
				return fmt.Errorf("closed: %v", got)
			}
			return err
		}},
		{"sandbox closed", func(sc *scene) error {
			if err := sc.leave(); err != nil {
				return err
			}
			start := time.Now()
			return errors.Join(sc.sandbox.Close(context.Background()), within(start))
		}},
		{"runner killed by the command", lost(killRunner)},
		{"supervisor killed by the command", lost(killSupervisor)},
		{"runner and supervisor killed by the command", lost(killBoth)},
		{"cancel with the runner stopped", cancelled(stopRunner, ".stopped")},
		{"cancel with runner and supervisor stopped", cancelled(stopBoth, ".stopped")},
	}
	for _, e := range ends {
		t.Run(e.name, func(t *testing.T) {
			var wg sync.WaitGroup
			for _, v := range victims() {
				s := newSandbox(t)
				m := newMount(t, s)
				sc := &scene{s, m, v.script, filepath.Join(m.Dir(), "counter")}
				wg.Go(func() {
					if err := e.end(sc); err != nil {
						t.Errorf("%s: %v", v.name, err)
					}
					if err := still(sc.file); err != nil {
						t.Errorf("%s: %v", v.name, err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestNothingOutlivesAKilledServer kills the process that hosts the sandbox,
// with commands that run and with what commands left behind.
func TestNothingOutlivesAKilledServer(t *testing.T) {
	for _, then := range []string{"sleep 60", "exit 0"} {
		t.Run(then, func(t *testing.T) {
			dir := t.TempDir()
			args := []string{serverArg, t.TempDir(), dir}
			var files []string
			for i, v := range victims() {
				file := filepath.Join(dir, fmt.Sprint("counter", i))
				files = append(files, file)
				args = append(args, "F='"+file+"'\nexport F\n"+v.script+"\n"+then)
			}
			server := exec.Command(os.Args[0], args...)
			var out strings.Builder
			server.Stdout, server.Stderr = &out, &out
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				if err := beating(file); err != nil {
					t.Error(err)
				}
			}
			if err := server.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			// The output ends when nobody below holds it: the supervisor must
			// not, and the commands have pipes of their own.
			_ = server.Wait()
			if out.Len() > 0 {
				t.Errorf("server said: %s", out.String())
			}
			time.Sleep(limit - time.Since(start)) // this wait is the limit
			reapAdopted(t)
			var wg sync.WaitGroup
			for i, v := range victims() {
				wg.Go(func() {
					if err := still(files[i]); err != nil {
						t.Errorf("%s: %v", v.name, err)
					}
				})
			}
			wg.Wait()
		})
	}
}
