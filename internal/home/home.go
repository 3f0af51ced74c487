// Package home knows the folder that holds a user's settings and sessions, and
// sees to it that one process owns it at a time.
//
// A client connects to the owner's socket and starts an owner when nobody
// answers: Connect returns a connection or the reason why there is none,
// within the bound of its context. Any number of clients may do that at once.
// An owner takes the lock first, opens its store, then publishes its socket by
// a rename; when it stops it removes the socket last, and the lock goes with
// the process. A connection from another user is closed before a byte is read.
package home

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Paths are where a home and its database keep things. All are absolute.
type Paths struct {
	Home     string
	Database string // InMemory keeps nothing on disk
	Socket   string
	Lock     string
	Log      string
}

// InMemory as a database keeps sessions in the memory of one process.
const InMemory = ":memory:"

// maxSocketPath is the longest address of a unix socket that every system
// takes: 104 bytes on darwin, with room for the temporary name.
const maxSocketPath = 96

// Resolve finds the paths. home and database are what the user named; empty
// is the default. lookup reads the environment.
func Resolve(home, database string, lookup func(string) (string, bool)) (Paths, error) {
	if home == "" {
		home, _ = lookup("CODEWORK_HOME_DIR")
	}
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return Paths{}, fmt.Errorf("find the home directory: %w", err)
		}
		home = filepath.Join(user, ".codework")
	}
	home, err := Absolute(home)
	if err != nil {
		return Paths{}, err
	}
	p := Paths{Home: home, Log: filepath.Join(home, "log", "home.log")}
	own := filepath.Join(home, "data")
	switch database {
	case InMemory:
		p.Database = InMemory
		return p, nil
	case "":
		p.Database = own
	default:
		if p.Database, err = Absolute(database); err != nil {
			return Paths{}, err
		}
	}
	p.Lock = filepath.Join(p.Database, "home.lock")
	name := "home.sock"
	if p.Database != own {
		name = shortHash(p.Database) + ".sock"
	}
	p.Socket = filepath.Join(home, "run", name)
	if len(p.Socket) > maxSocketPath {
		p.Socket = shortSocket(shortHash(p.Database)+".sock", lookup)
	}
	return p, nil
}

// shortSocket is where a socket goes whose own place has too long a path: the
// first of the runtime directory and the temporary ones that is short enough.
func shortSocket(name string, lookup func(string) (string, bool)) string {
	own := "codework-" + strconv.Itoa(os.Getuid())
	if dir, _ := lookup("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		if s := filepath.Join(dir, "codework", name); len(s) <= maxSocketPath {
			return s
		}
	}
	if s := filepath.Join(os.TempDir(), own, name); len(s) <= maxSocketPath {
		return s
	}
	return filepath.Join(string(os.PathSeparator), "tmp", own, name)
}

// Absolute expands ~ and makes a path absolute.
func Absolute(path string) (string, error) {
	if path == "~" || strings.HasPrefix(path, "~/") {
		user, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("expand %s: %w", path, err)
		}
		path = filepath.Join(user, strings.TrimPrefix(path, "~"))
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", path, err)
	}
	return abs, nil
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// Prepare makes the folders that an owner needs, readable by this user only.
func (p Paths) Prepare() error {
	dirs := []string{p.Home, filepath.Dir(p.Log)}
	if p.Database != InMemory {
		dirs = append(dirs, p.Database, filepath.Dir(p.Socket))
	}
	for _, d := range dirs {
		if err := private(d); err != nil {
			return err
		}
	}
	return nil
}

// private makes a folder that only this user may enter. One that is there
// already keeps the permissions that somebody gave it; what Listen needs of the
// socket's, it sees to.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", dir, explain(err))
	}
	return nil
}

// explain leaves out the path that a PathError repeats.
func explain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
