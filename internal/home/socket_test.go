//go:build linux

package home

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// otherUser is nobody: a user that exists nowhere as an owner of files.
const otherUser = 65534

func prepared(t *testing.T) Paths {
	t.Helper()
	p := newHome(t)
	if err := p.Prepare(); err != nil {
		t.Fatal(err)
	}
	return p
}

func listen(t *testing.T, p Paths) net.Listener {
	t.Helper()
	l, err := p.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestTheSocketIsTheUsersAlone(t *testing.T) {
	p := prepared(t)
	listen(t, p)
	fi, err := os.Stat(p.Socket)
	if err != nil || fi.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if list, err := os.ReadDir(filepath.Dir(p.Socket)); err != nil || len(list) != 1 {
		t.Errorf("beside the socket: %v, %v", list, err)
	}
}

func TestAStaleSocketIsNobodyAndIsReplaced(t *testing.T) {
	p := prepared(t)
	if _, err := p.Dial(soon(t)); !errors.Is(err, ErrNobody) {
		t.Errorf("without a socket: %v", err)
	}
	old := listen(t, p)
	old.Close()
	if _, err := os.Stat(p.Socket); err != nil {
		t.Fatal("closing the listener removed the socket:", err)
	}
	if _, err := p.Dial(soon(t)); !errors.Is(err, ErrNobody) {
		t.Errorf("with a stale socket: %v", err)
	}
	l := listen(t, p)
	go func() {
		if c, err := l.Accept(); err == nil {
			fmt.Fprintln(c, os.Getpid())
			c.Close()
		}
	}()
	c, err := p.Dial(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := askPID(c); err != nil || pid != os.Getpid() {
		t.Error(pid, err)
	}
}

// An owner that was killed between listening and publishing has left its
// temporary name behind.
func TestALeftOverTemporaryNameIsNoObstacle(t *testing.T) {
	p := prepared(t)
	if err := os.WriteFile(fmt.Sprintf("%s.%d", p.Socket, os.Getpid()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listen(t, p)
}

func TestRemoveTakesTheSocketAwayOnce(t *testing.T) {
	p := prepared(t)
	l := listen(t, p)
	for range 2 {
		if err := p.Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.Dial(soon(t)); !errors.Is(err, ErrNobody) {
		t.Error(err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error("closing, perhaps twice:", err)
		}
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestASocketFolderOpenToOthersIsClosedToThem(t *testing.T) {
	p := prepared(t)
	dir := filepath.Dir(p.Socket)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	listen(t, p)
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

func TestASocketFolderThatIsNotOursIsRefused(t *testing.T) {
	p := prepared(t)
	dir := filepath.Dir(p.Socket)
	refused := func(what string) {
		t.Helper()
		if l, err := p.Listen(); err == nil {
			l.Close()
			t.Errorf("%s was accepted", what)
		} else if strings.Count(err.Error(), dir) != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	refused("a missing folder")
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	refused("a link to a folder")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: a folder of another user can only be made as root")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, otherUser, otherUser); err != nil {
		t.Fatal(err)
	}
	refused("a folder of another user")
}

// asOther starts this program in a role as another user, in a folder that is
// open to it.
func asOther(t *testing.T, dir, role, arg string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: another user can only be had as root")
	}
	program := filepath.Join(dir, "program")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, rolePrefix+role, arg)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	c.Dir, c.Env, c.Stderr = "/", []string{"PATH=/"}, os.Stderr
	return c
}

func open(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAConnectionOfAnotherUserIsClosedUnread(t *testing.T) {
	p := prepared(t)
	l := listen(t, p)
	open(t, p.Home, filepath.Dir(p.Socket), p.Socket)
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	out, err := asOther(t, p.Home, "dials", p.Socket).Output()
	if err != nil || string(out) != "read 0\n" {
		t.Errorf("the other user: %q, %v", out, err)
	}
	// Nobody was let in; the listener still works for its own user.
	select {
	case <-accepted:
		t.Fatal("the other user was let in")
	default:
	}
	c, err := p.Dial(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if in := <-accepted; in == nil {
		t.Error("the own user was not let in")
	} else {
		in.Close()
	}
}

func TestAnOwnerOfAnotherUserIsRefused(t *testing.T) {
	p := prepared(t)
	open(t, p.Home, filepath.Dir(p.Socket))
	c := asOther(t, p.Home, "listens", p.Socket)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	if _, err := io.ReadFull(out, make([]byte, len("listening\n"))); err != nil {
		t.Fatal(err)
	}
	conn, err := p.Dial(soon(t))
	if err == nil {
		conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(otherUser)) {
		t.Errorf("got %v", err)
	}
}

func TestDialingEndsWithItsContext(t *testing.T) {
	p := prepared(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	listen(t, p)
	if c, err := p.Dial(ctx); err == nil {
		c.Close()
		t.Error("connected")
	} else if errors.Is(err, ErrNobody) {
		t.Error("an ended context is not an absent owner")
	}
}
