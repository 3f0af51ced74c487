package plugin

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	// logHalf is when a plugin's log becomes the old one: both together hold
	// 5 MiB.
	logHalf = 5 << 20 / 2
	// tailLines is how many of its last lines a report about a plugin repeats.
	tailLines = 20
)

// logFile is the log of one plugin id, shared by its processes.
type logFile struct {
	path string

	mu    sync.Mutex // guards the following
	users int
	file  *os.File
	size  int64
}

// logs are the open logs of a host.
type logs struct {
	dir string // "" keeps none

	mu   sync.Mutex // guards open
	open map[string]*logFile
}

// use opens the log of a plugin; the caller calls done once.
func (l *logs) use(id string) (write func(line string), done func()) {
	if l.dir == "" {
		return func(string) {}, func() {}
	}
	path := filepath.Join(l.dir, fileName(id)+".log")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[string]*logFile{}
	}
	f := l.open[path]
	if f == nil {
		f = &logFile{path: path}
		l.open[path] = f
	}
	f.users++
	return f.write, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if f.users--; f.users == 0 {
			delete(l.open, path)
			f.close()
		}
	}
}

// fileName makes a file name of an id, which may be no id yet.
func fileName(id string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_", r) {
			return r
		}
		return '-'
	}, id)
	return strings.TrimLeft(name, ".")
}

// write adds a line. What cannot be written is lost: a full disk must not stop
// a plugin.
func (f *logFile) write(line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.size >= logHalf {
		_ = f.file.Close()
		f.file = nil
		_ = os.Rename(f.path, f.path+".old")
	}
	if f.file == nil {
		f.size = 0
		if os.MkdirAll(filepath.Dir(f.path), 0o700) != nil {
			return
		}
		file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return
		}
		if info, err := file.Stat(); err == nil {
			f.size = info.Size()
		}
		f.file = file
	}
	n, _ := f.file.WriteString(line + "\n")
	f.size += int64(n)
}

func (f *logFile) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
}

// voice is what a plugin writes to its standard error: the last lines, and
// all of them in the log of its id, once that is known.
type voice struct {
	tail tail

	mu      sync.Mutex // guards the following
	pending []string   // lines from before the id was known
	write   func(line string)
	done    func()
}

// maxPending is how many lines are kept until a plugin has an id.
const maxPending = 1000

func (w *voice) line(s string) {
	w.tail.add(shortLine([]byte(s)))
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.write != nil:
		w.write(s)
	case len(w.pending) < maxPending:
		w.pending = append(w.pending, s)
	}
}

// name opens the log, if none is open.
func (w *voice) name(l *logs, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.write != nil {
		return
	}
	w.write, w.done = l.use(id)
	for _, s := range w.pending {
		w.write(s)
	}
	w.pending = nil
}

func (w *voice) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done()
}

// tail keeps the last lines of a plugin's standard error.
type tail struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, line)
}

func (t *tail) last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}

// follow hands on the lines of r until its end.
func follow(r io.Reader, line func(string)) {
	b := bufio.NewReaderSize(r, 16<<10)
	for {
		text, err := b.ReadSlice('\n')
		if len(text) > 0 {
			if s := strings.TrimRight(strings.ToValidUTF8(string(text), "\uFFFD"), "\r\n"); s != "" {
				line(s)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
