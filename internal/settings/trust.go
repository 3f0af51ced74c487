package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"github.com/tailscale/hujson"
)

// Trust is the list of trusted projects of one home. The file is read at each
// question, so that what another process adds counts at once; it is safe for
// concurrent use, also between processes.
type Trust struct {
	file string
}

const (
	// lockWait is long for a lock that is held while one small file is
	// written, and short for a person.
	lockWait = 10 * time.Second
	// lockPoll is how often the lock is tried again.
	lockPoll = 10 * time.Millisecond
)

// OpenTrust is the list in home. Nothing is read or made yet.
func OpenTrust(home string) *Trust {
	return &Trust{file: filepath.Join(home, "trust.json")}
}

// Trusted tells whether the project root, whichever links lead to it, is on
// the list. A path that is not absolute is not. A list that cannot be read trusts nobody; Roots says why.
func (t *Trust) Trusted(root string) bool {
	roots, err := t.Roots()
	if err != nil || len(roots) == 0 || !filepath.IsAbs(root) {
		return false
	}
	path, err := realPath(root)
	return err == nil && slices.Contains(roots, path)
}

// Roots are the trusted projects in the order in which they were added. No
// file means none; a file that is no list of absolute paths is an error.
func (t *Trust) Roots() ([]string, error) {
	data, err := readFile(t.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s", t.file, reason(err))
	}
	roots, err := parseRoots(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.file, err)
	}
	return roots, nil
}

var errTrustList = errors.New("is damaged: expected an array of absolute paths; correct or remove it")

func parseRoots(data []byte) ([]string, error) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	if tooDeep(data) >= 0 {
		return nil, errTrustList
	}
	text, err := hujson.Standardize(append(data[:len(data):len(data)], '\n'))
	if err != nil {
		return nil, errTrustList
	}
	var roots []string
	if err := json.Unmarshal(text, &roots); err != nil || roots == nil {
		return nil, errTrustList
	}
	for _, r := range roots {
		if !filepath.IsAbs(r) {
			return nil, errTrustList
		}
	}
	return roots, nil
}

// Trust puts the real path of root on the list for good. A list that cannot be
// read is an error and stays as it is.
func (t *Trust) Trust(root string) error {
	path, err := realPath(root)
	if err != nil {
		return fmt.Errorf("trust %s: %s", root, reason(err))
	}
	if err := os.MkdirAll(filepath.Dir(t.file), 0o700); err != nil {
		return fmt.Errorf("trust %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	lock := flock.New(t.file+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		return fmt.Errorf("trust %s: lock %s: %w", path, lock.Path(), err)
	}
	defer lock.Close()

	roots, err := t.Roots()
	if err != nil {
		return fmt.Errorf("trust %s: %w", path, err)
	}
	if slices.Contains(roots, path) {
		return nil
	}
	data, err := json.MarshalIndent(append(roots, path), "", "\t")
	if err != nil {
		return fmt.Errorf("trust %s: %w", path, err)
	}
	if err := writeFile(t.file, append(data, '\n')); err != nil {
		return fmt.Errorf("trust %s: %w", path, err)
	}
	return nil
}

// realPath is the one name of a directory.
func realPath(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", errors.New("is not a directory")
	}
	return real, nil
}

// writeFile replaces a file in one step. It keeps its mode; a new one is for its
// owner only. A link is followed, so that a file kept elsewhere stays there.
func writeFile(file string, data []byte) (err error) {
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	}
	// Made with mode 0600.
	tmp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tmp.Close()
			_ = os.Remove(tmp.Name())
		}
	}()
	if info, statErr := os.Stat(file); statErr == nil {
		if err = tmp.Chmod(info.Mode().Perm()); err != nil {
			return err
		}
	}
	if _, err = tmp.Write(data); err != nil {
		return err
	}
	if err = tmp.Sync(); err != nil {
		return err
	}
	if err = tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}
