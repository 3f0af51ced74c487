// Package logs keeps the log of a process that nobody watches, in a file that
// does not grow without end.
//
// A File holds whole lines: each Write is one, and goes into one file. When the
// file would become longer than it may, it is renamed to its name with ".1", in
// the place of an older one, and a new one is begun; so at most twice the limit
// is kept. Writes are not buffered: what was written before the process is
// killed is there. A log that cannot be written is nobody's failure: what does
// not fit is lost, and a file that cannot be renamed grows on.
package logs

import (
	"fmt"
	"os"
	"sync"
)

// File is a log that is open. Any goroutine may write.
type File struct {
	path  string
	limit int64
	moved func(*os.File) // hears of each new file

	mu   sync.Mutex // guards what follows
	f    *os.File
	size int64
	grow int64 // the file could not be renamed at this size: not tried again before it has doubled
}

// Open opens the log at path, or makes it, for its owner only. limit is the
// size in bytes at which a new file is begun. moved, if not nil, is called with
// each file that follows the first, before anything is written to it; it must
// not write to the log.
func Open(path string, limit int64, moved func(*os.File)) (*File, error) {
	f, size, err := open(path)
	if err != nil {
		return nil, err
	}
	return &File{path: path, limit: limit, moved: moved, f: f, size: size}, nil
}

func open(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	return f, fi.Size(), nil
}

// Write appends a line.
func (l *File) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(line)) > max(l.limit, l.grow) {
		l.rotate()
	}
	n, err := l.f.Write(line)
	l.size += int64(n)
	return n, err
}

// rotate begins a new file; if that fails, the old one goes on.
func (l *File) rotate() {
	l.grow = 2 * l.size
	// Another process may have made room meanwhile, and begun the next file.
	if mine, err := l.f.Stat(); err == nil {
		if there, err := os.Stat(l.path); err == nil && os.SameFile(mine, there) && os.Rename(l.path, l.path+".1") != nil {
			return
		}
	}
	f, size, err := open(l.path)
	if err != nil {
		return
	}
	if l.moved != nil {
		l.moved(f)
	}
	l.f.Close()
	l.f, l.size, l.grow = f, size, 0
}

// Close ends the log; nothing may be written after it.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
