package home

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// Listen publishes the owner's socket. It is made under a temporary name and
// renamed, so that a client never finds one that does not answer yet, and a
// stale one is replaced. Closing the listener does not remove the socket;
// Remove does.
func (p Paths) Listen() (net.Listener, error) {
	if err := p.checkSocketDir(); err != nil {
		return nil, err
	}
	tmp := p.Socket + "." + strconv.Itoa(os.Getpid())
	_ = os.Remove(tmp) // of an earlier process of this number
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", tmp, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		err = os.Rename(tmp, p.Socket)
	}
	if err != nil {
		l.Close()
		_ = os.Remove(tmp)
		return nil, fmt.Errorf("publish %s: %w", p.Socket, explain(err))
	}
	return &ownListener{UnixListener: l}, nil
}

// Remove takes the socket away: nobody answers here any more.
func (p Paths) Remove() error {
	if err := os.Remove(p.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", p.Socket, explain(err))
	}
	return nil
}

// checkSocketDir refuses a folder that others could put a socket into.
func (p Paths) checkSocketDir() error {
	dir := filepath.Dir(p.Socket)
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("socket folder %s: %w", dir, explain(err))
	}
	if !fi.IsDir() || !ownedByUser(fi) {
		return fmt.Errorf("socket folder %s does not belong to this user", dir)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("socket folder %s: %w", dir, explain(err))
		}
	}
	return nil
}

// ErrNobody means no owner answers.
var ErrNobody = errors.New("nobody answers")

// Dial connects to the owner's socket. It is ErrNobody when there is none.
func (p Paths) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", p.Socket)
	switch {
	case err == nil:
	case nobodyThere(err):
		return nil, ErrNobody
	default:
		return nil, fmt.Errorf("connect to %s: %w", p.Socket, err)
	}
	if err := checkPeer(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// ownListener accepts connections of this user only.
type ownListener struct {
	*net.UnixListener
	once sync.Once
}

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.UnixListener.Accept()
		if err != nil {
			return nil, err
		}
		if checkPeer(c) == nil {
			return c, nil
		}
		c.Close()
	}
}

func (l *ownListener) Close() error {
	var err error
	l.once.Do(func() { err = l.UnixListener.Close() })
	return err
}
