//go:build amd64 || arm64

package isolated

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes"
)

// serverArg is a hidden mode of the test binary: a server with a sandbox.
const serverArg = "__test-server"

// A victim is a way to get away from who started it. Each appends to the file
// $F as long as it lives; that the file stands still is the proof that it does
// not.
const beat = `while :; do echo >> "$F"; sleep 0.02; done`

var victims = []string{
	`( ` + beat + ` ) &`,
	`nohup sh -c '` + beat + `' >/dev/null 2>&1 &`,
	`( setsid sh -c '( ` + beat + ` ) </dev/null >/dev/null 2>&1 & exit 0' & )`,
	`setsid sh -c 'trap "" TERM HUP INT; ` + beat + `' &`,
	`env -i PATH="$PATH" F="$F" setsid sh -c '` + beat + `' &`,
	`printf '%s\n' 'echo >> "$F"; setsid sh "$0" & exit' > "$F.sh"; setsid sh "$F.sh" &`,
	// Adopted by process 1: all between have been killed.
	`setsid sh -c 'trap "" TERM; ` + beat + `' & while [ ! -s "$F" ]; do sleep 0.02; done; read -r _ _ _ up _ < /proc/$PPID/stat; kill -9 $up $PPID`,
}

// limit is within what everything must have ended.
const limit = 2 * time.Second

func victimScript(file, script, then string) string {
	return "F='" + file + "'\nexport F\n" + script + "\n" + then
}

// serveVictims is a server with a sandbox that runs scripts until it is killed.
func serveVictims(state, dir string, scripts []string) {
	d := New(Options{StateDir: state})
	sb, err := d.Attach(bg, sandboxes.Spec{ID: "sbx_victims", Server: filepath.Base(filepath.Dir(state)), Project: dir}, sandboxes.Resource{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, script := range scripts {
		go func() {
			m, err := sb.Mount(bg, sandboxes.MountOptions{Umask: -1})
			if err == nil {
				_, err = m.Run(bg, sandboxes.Command{Script: script})
			}
			var se *sandboxes.ShellError // some kill what runs them
			if err != nil && !errors.As(err, &se) {
				fmt.Println(err)
				os.Exit(1)
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	time.Sleep(time.Minute) // the test kills it long before
	os.Exit(1)
}

func size(file string) int64 {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// beating waits until the victim lives.
func beating(file string) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if size(file) > 3 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("the victim never lived")
		}
	}
}

// allStill proves that no victim lives.
func allStill(t *testing.T, files []string) {
	t.Helper()
	var wg sync.WaitGroup
	for i, file := range files {
		wg.Go(func() {
			first := size(file)
			for range 2 {
				time.Sleep(500 * time.Millisecond) // this wait is the measurement
				if now := size(file); now != first || first == 0 {
					t.Errorf("victim %d lives: %d bytes became %d", i, first, now)
				}
			}
		})
	}
	wg.Wait()
}

// TestNothingOutlivesAKilledServer kills the process that holds the sandbox.
func TestNothingOutlivesAKilledServer(t *testing.T) {
	t.Parallel() // mostly waits
	dir := t.TempDir()
	name := "srv_" + rand.Text()
	args := []string{serverArg, filepath.Join(t.TempDir(), name, "state"), dir}
	var files []string
	for i, v := range victims[:len(victims)-1] { // the last one would end the others
		file := filepath.Join(dir, fmt.Sprint("counter", i))
		files = append(files, file)
		args = append(args, victimScript(file, v, "sleep 60"))
	}
	server := exec.Command(os.Args[0], args...)
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out strings.Builder
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	for i, file := range files {
		if err := beating(file); err != nil {
			t.Error(i, err)
		}
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = server.Wait()
	if out.Len() > 0 {
		t.Errorf("server said: %s", out.String())
	}
	time.Sleep(limit - time.Since(start)) // this wait is the limit
	allStill(t, files)
	// The next life finds what is left, which is a name at most.
	d := newDriver(t)
	if err := d.Sweep(bg, sandboxes.Spec{Server: name}); err != nil {
		t.Error(err)
	}
	if g := d.findGroups(); g != nil {
		if left, _ := filepath.Glob(filepath.Join(g.base, groupsOf(name)+"*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
}

// TestNothingOutlivesItsSandbox ends sandboxes with victims in them.
func TestNothingOutlivesItsSandbox(t *testing.T) {
	t.Parallel() // mostly waits
	for _, end := range []struct {
		name string
		end  func(d *Driver, spec sandboxes.Spec, s *sandbox) error
	}{
		{"close", func(_ *Driver, _ sandboxes.Spec, s *sandbox) error { return s.Close(bg) }},
		{"stop", func(d *Driver, spec sandboxes.Spec, _ *sandbox) error { return d.Stop(bg, spec, sandboxes.Resource{}) }},
		{"process 1 killed", func(_ *Driver, _ sandboxes.Spec, s *sandbox) error {
			err := s.cmd.Process.Kill()
			<-s.Lost()
			return err
		}},
		{"process 1 stopped", func(_ *Driver, _ sandboxes.Spec, s *sandbox) error {
			if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			return s.Close(ctx)
		}},
	} {
		t.Run(end.name, func(t *testing.T) {
			dir := t.TempDir()
			d := newDriver(t)
			spec := sandboxes.Spec{ID: "sbx_v", Project: dir}
			sb, err := d.Attach(bg, spec, sandboxes.Resource{})
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close(bg)
			var files []string
			for i, v := range victims {
				m := newMount(t, sb)
				file := filepath.Join(dir, fmt.Sprint("counter", i))
				files = append(files, file)
				_, err := m.Run(bg, sandboxes.Command{Script: victimScript(file, v, "")})
				var se *sandboxes.ShellError
				if err != nil && !errors.As(err, &se) {
					t.Fatal(err)
				}
			}
			for i, file := range files[:len(files)-1] { // the last victim ended all before it
				if err := beating(file); err != nil {
					t.Error(i, err)
				}
			}
			start := time.Now()
			if err := end.end(d, spec, sb.(*sandbox)); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took > limit {
				t.Errorf("took %v", took)
			}
			allStill(t, files)
		})
	}
}
