//go:build amd64 || arm64

package isolated

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codework/sandboxes"
)

// probeAge is how long an answer about what works here is kept: settings of the
// kernel change seldom, and a try costs what a sandbox does.
const probeAge = 5 * time.Minute

// probed is what was found out about this machine.
type probed struct {
	at    time.Time
	level Level
	err   error // why it is not Full
}

// ReasonError is why a level cannot be had, in words for people.
type ReasonError struct {
	Reason string
	Err    error
}

func (e *ReasonError) Error() string { return e.Reason + " (" + e.Err.Error() + ")" }
func (e *ReasonError) Unwrap() error { return e.Err }

// Available tells whether the level can be had that the configuration, or else
// the options demand.
func (d *Driver) Available(ctx context.Context, spec sandboxes.Spec) error {
	cfg, err := sandboxes.ReadConfig[Config](spec.Config)
	if err != nil {
		return err
	}
	if err := cfg.check(); err != nil {
		return err
	}
	_, err = d.reach(ctx, d.demanded(&cfg))
	return err
}

// demanded is the least level that will do.
func (d *Driver) demanded(c *Config) Level {
	if c.Level != "" {
		return c.Level
	}
	return d.opt.Level
}

// Level is the best that works here, found out by trying.
func (d *Driver) Level(ctx context.Context) Level { return d.probe(ctx).level }

// reach gives the best level, or an error when it is less than demanded.
func (d *Driver) reach(ctx context.Context, demanded Level) (Level, error) {
	found := d.probe(ctx)
	if found.level.rank() < demanded.rank() {
		return None, fmt.Errorf("level %q is demanded and %q is what works here: %w", demanded, found.level, found.err)
	}
	return found.level, nil
}

func (l Level) rank() int {
	switch l {
	case Full:
		return 2
	case Landlock:
		return 1
	}
	return 0
}

func (d *Driver) probe(ctx context.Context) probed {
	d.probing.Lock()
	defer d.probing.Unlock()
	if !d.probed.at.IsZero() && time.Since(d.probed.at) < probeAge {
		return d.probed
	}
	d.groups = findGroups()
	found := probed{at: time.Now(), level: Full}
	if found.err = d.try(ctx, Full); found.err != nil {
		found.level = Landlock
		if err := d.try(ctx, Landlock); err != nil {
			found.level = None
			found.err = fmt.Errorf("%w; nor does %q: %w", found.err, Landlock, err)
		}
	}
	if ctx.Err() == nil {
		d.probed = found
	}
	return found
}

// try builds a sandbox of a level around an empty folder, which then tests its
// own walls.
func (d *Driver) try(ctx context.Context, level Level) error {
	if d.opt.StateDir == "" {
		return errors.New("no state folder given")
	}
	if err := os.MkdirAll(d.opt.StateDir, 0o700); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	dir, err := os.MkdirTemp("", "codework-probe-")
	if err != nil {
		return fmt.Errorf("make folder to try in: %w", err)
	}
	defer os.RemoveAll(dir)
	spec := sandboxes.Spec{ID: "probe-" + rand.Text(), Project: dir}
	defer removeAll(d.dirOf(spec))
	p, _, err := d.plan(spec, Config{}, level, nil)
	if err != nil {
		return err
	}
	p.Try = true
	b, err := d.launch(p, nil)
	if err != nil {
		return reason(err)
	}
	err = b.built(ctx)
	if err != nil {
		b.kill()
		return reason(err)
	}
	<-b.ended
	b.conn.Close()
	if b.err != nil {
		return fmt.Errorf("try a sandbox: %w (%s)", b.err, b.said.String())
	}
	return nil
}

// reason finds the usual causes behind why a sandbox could not be built.
func reason(err error) error {
	var se *stepError
	var e syscall.Errno
	if !errors.As(err, &se) || !errors.As(err, &e) {
		return err
	}
	text := ""
	switch {
	case e == unix.ENOSYS || e == unix.EOPNOTSUPP && se.step == landlockStep:
		text = "the kernel is too old, or was built without what is needed: Linux 5.13 or newer with Landlock switched on"
	case e == unix.ENOSPC && se.step == startStep:
		text = "the number of user namespaces is limited; raise /proc/sys/user/max_user_namespaces and its neighbours"
	case (e == unix.EPERM || e == unix.EACCES) && se.step == procStep:
		text = "a fresh /proc cannot be mounted, as is usual inside a container; run the container with an unmasked /proc, or set the level landlock"
	case (e == unix.EPERM || e == unix.EACCES) && se.step != landlockStep && se.step != checkStep:
		text = "user namespaces are denied by policy: by AppArmor (sysctl kernel.apparmor_restrict_unprivileged_userns, a profile for this program helps), by sysctl kernel.unprivileged_userns_clone, or by the container that this runs in"
	case e == unix.EINVAL && se.step == startStep:
		text = "the kernel was built without the namespaces that are needed"
	default:
		return err
	}
	return &ReasonError{Reason: text, Err: err}
}
