package prompt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"codework/sandboxes"
)

const (
	// MaxFile and MaxAll bound instruction files, in bytes: more than anybody
	// writes by hand, and a small part of any model's window.
	MaxFile = 64 << 10
	MaxAll  = 256 << 10
	// maxDepth bounds the walk upwards; paths of 4096 bytes have fewer levels.
	maxDepth = 2048
	// foldersAtOnce is how many folders are looked into at the same time.
	foldersAtOnce = 8
	// maxGitFile is more than any of git's files that hold one path.
	maxGitFile = 8 << 10
	// maxReason bounds, in bytes, what an error may add to a warning.
	maxReason = 200
)

// fileNames are the instruction files of a folder, in the order in which they
// are looked for.
var fileNames = []string{
	"AGENTS.override.md", "CLAUDE.override.md",
	"AGENTS.md", "AGENTS.MD", "CLAUDE.md", "CLAUDE.MD",
}

// userFile is the user's own file in the home folder.
const userFile = "AGENTS.md"

const leadIn = "Instructions for this project, from the outermost folder to the innermost; where they differ, the later hold."

// attribute escapes a path for its place between quotes.
var attribute = strings.NewReplacer("&", "&amp;", `"`, "&quot;", "<", "&lt;", ">", "&gt;", "\n", "&#10;")

// Options say where else to look.
type Options struct {
	// Home is CodeWork's home folder on this machine; "" has no user file.
	Home string
	// Host tells that the mount is this machine itself: then files of other
	// users are left out.
	Host bool
	// Linked is another folder of the same sandbox whose project the session
	// belongs to; its files go before those of the working directory.
	Linked string
}

// Instructions are the instruction files of a session.
type Instructions struct {
	Text     string   // for the project_context section; "" if there are none
	Used     []string // the files, in the order of the text
	Warnings []string // one line each: files that were skipped or cut
}

// ReadInstructions reads the instruction files for the mount's working
// directory: of each folder up to the root the first there is, outermost
// first, after the user's own. What is wrong with a file is a warning; an
// error means only that ctx ended.
func ReadInstructions(ctx context.Context, m sandboxes.Mount, o Options) (Instructions, error) {
	r := reader{ctx: ctx, mount: m, host: o.Host}
	dirs := upwards(m.Dir())
	worktree, checkout := r.nested(dirs)
	if o.Linked != "" && path.Clean(o.Linked) != dirs[0] {
		dirs = append(dirs, upwards(o.Linked)...)
	}
	r.folders(dirs)
	if err := ctx.Err(); err != nil {
		return Instructions{}, err
	}
	r.dropCheckout(worktree, checkout)
	r.user(o.Home)
	slices.Reverse(r.files) // outermost first
	r.dropTwins()
	r.limit()
	if err := ctx.Err(); err != nil {
		return Instructions{}, err
	}
	out := Instructions{Warnings: r.warnings}
	var b strings.Builder
	for _, f := range r.files {
		if len(bytes.TrimSpace(f.content)) == 0 {
			continue
		}
		out.Used = append(out.Used, f.path)
		b.WriteString("\n\n<project_instructions path=\"")
		b.WriteString(attribute.Replace(f.path))
		b.WriteString("\">\n")
		b.Write(f.content)
		if !bytes.HasSuffix(f.content, []byte("\n")) {
			b.WriteByte('\n')
		}
		b.WriteString("</project_instructions>")
	}
	if b.Len() > 0 {
		out.Text = leadIn + b.String()
	}
	return out, nil
}

// upwards are a folder and those above it, innermost first.
func upwards(dir string) []string {
	dirs := []string{path.Clean(dir)}
	for dir := dirs[0]; dir != "/" && dir != "." && len(dirs) < maxDepth; {
		dir = path.Dir(dir)
		dirs = append(dirs, dir)
	}
	return dirs
}

// found is an instruction file.
type found struct {
	dir, name string
	path      string
	real      string // without links
	content   []byte
	size      int64 // of the file, which may be larger than what was read
}

// reader collects instruction files, innermost first.
type reader struct {
	ctx      context.Context
	mount    sandboxes.Mount
	host     bool
	files    []found
	warnings []string
}

func (r *reader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// folders finds the files of all folders; where there is a round trip for each
// name, several at once.
func (r *reader) folders(dirs []string) {
	each := make([]reader, len(dirs))
	room := make(chan struct{}, foldersAtOnce)
	var wg sync.WaitGroup
	for i, dir := range dirs {
		each[i] = reader{ctx: r.ctx, mount: r.mount, host: r.host}
		look := func() {
			if f, ok := each[i].file(dir); ok {
				each[i].files = []found{f}
			}
		}
		if r.host {
			look()
			continue
		}
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			look()
		})
	}
	wg.Wait()
	for _, e := range each {
		r.files = append(r.files, e.files...)
		r.warnings = append(r.warnings, e.warnings...)
	}
}

// file is the instruction file of a folder.
func (r *reader) file(dir string) (found, bool) {
	warned := false // a folder that cannot be looked into gives one warning, not one for each name
	for _, name := range fileNames {
		p := path.Join(dir, name)
		info, err := r.mount.Stat(r.ctx, p)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, sandboxes.ErrNotDirectory) || r.ctx.Err() != nil {
			continue
		}
		if err == nil && !info.Mode.IsRegular() {
			continue
		}
		f := found{dir: dir, name: name, path: p, real: p}
		if err == nil && r.host {
			err = ownFile(p)
		}
		if err == nil {
			f.content, err = r.mount.Read(r.ctx, p, 0, MaxFile+1)
		}
		if err != nil {
			if r.ctx.Err() == nil && !warned {
				r.warn("instruction file %s skipped: %s", p, why(err))
				warned = true
			}
			continue
		}
		if real, err := r.mount.RealPath(r.ctx, p); err == nil {
			f.real = real
		}
		f.size = max(info.Size, int64(len(f.content)))
		return f, true
	}
	return found{}, false
}

// user adds the user's own file, which is on this machine whatever the
// sandbox is. It goes outermost.
func (r *reader) user(home string) {
	if home == "" {
		return
	}
	p := filepath.Join(home, userFile)
	info, err := os.Stat(p)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return
	}
	f := found{dir: home, name: userFile, path: p, real: p}
	if err == nil {
		err = ownFile(p)
	}
	if err == nil {
		f.content, err = readFile(p)
	}
	if err != nil {
		r.warn("instruction file %s skipped: %s", p, why(err))
		return
	}
	if real, err := filepath.EvalSymlinks(p); err == nil {
		f.real = real
	}
	if !r.host {
		f.real = "host:" + f.real // never the same file as one of the sandbox
	} else if slices.ContainsFunc(r.files, func(g found) bool { return g.real == f.real }) {
		return
	}
	f.size = max(info.Size(), int64(len(f.content)))
	r.files = append(r.files, f)
}

func readFile(p string) ([]byte, error) {
	f, err := os.Open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxFile+1))
}

// dropTwins leaves out files that were there before under another name.
func (r *reader) dropTwins() {
	seen := make(map[string]bool)
	r.files = slices.DeleteFunc(r.files, func(f found) bool {
		twin := seen[f.real]
		seen[f.real] = true
		return twin
	})
}

// limit cuts files that are too large, and when all together are, those
// farthest out: the nearest matter most.
func (r *reader) limit() {
	left := MaxAll
	for i := len(r.files) - 1; i >= 0; i-- {
		f := &r.files[i]
		room := min(MaxFile, left)
		content := bytes.TrimPrefix(f.content, []byte("\xef\xbb\xbf"))
		if len(content) <= room {
			f.content = bytes.ToValidUTF8(content, []byte("\uFFFD"))
			left -= len(content)
			continue
		}
		for room > 0 && !utf8.RuneStart(content[room]) {
			room--
		}
		left -= room
		r.warn("instruction file %s cut: only the first %d of %d bytes are used", f.path, room, f.size)
		kept := bytes.ToValidUTF8(content[:room], []byte("\uFFFD"))
		f.content = fmt.Appendf(kept, "\n\n[cut: the first %d of %d bytes]\n", room, f.size)
	}
}

// nested tells whether the walk begins in a linked worktree that lies inside
// its main checkout, and gives the roots of both; "" if not.
func (r *reader) nested(dirs []string) (worktree, checkout string) {
	for i, dir := range dirs {
		info, err := r.mount.Lstat(r.ctx, path.Join(dir, ".git"))
		if err != nil {
			continue
		}
		if !info.Mode.IsRegular() {
			return "", "" // a checkout of its own
		}
		line, ok := r.gitFile(path.Join(dir, ".git"))
		gitDir, isLink := strings.CutPrefix(line, "gitdir:")
		if !ok || !isLink {
			return "", ""
		}
		gitDir = from(dir, strings.TrimSpace(gitDir))
		common, ok := r.gitFile(path.Join(gitDir, "commondir")) // only worktrees have one
		if !ok {
			return "", ""
		}
		common = from(gitDir, common)
		if path.Base(common) != ".git" {
			return "", "" // a bare repository has no checkout
		}
		root := r.real(path.Dir(common))
		for _, outer := range dirs[i+1:] {
			if r.real(outer) == root {
				return dir, outer
			}
		}
		return "", ""
	}
	return "", ""
}

// gitFile is the content of one of git's files of one line.
func (r *reader) gitFile(p string) (string, bool) {
	b, err := r.mount.Read(r.ctx, p, 0, maxGitFile)
	return strings.TrimSpace(string(b)), err == nil
}

func (r *reader) real(p string) string {
	if real, err := r.mount.RealPath(r.ctx, p); err == nil {
		return real
	}
	return p
}

// from is p as seen from dir.
func from(dir, p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(dir, p)
}

// dropCheckout leaves out the main checkout's file when the worktree has the
// same: it is the same file, on another branch.
func (r *reader) dropCheckout(worktree, checkout string) {
	if worktree == "" {
		return
	}
	i := slices.IndexFunc(r.files, func(f found) bool { return f.dir == worktree })
	if i < 0 {
		return
	}
	name := r.files[i].name
	r.files = slices.DeleteFunc(r.files, func(f found) bool { return f.dir == checkout && f.name == name })
}

var errForeign = errors.New("it belongs to another user")

func why(err error) string {
	var fe *sandboxes.FileError
	if errors.As(err, &fe) && fe.Err != nil {
		err = fe.Err
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	s := collapse(err.Error())
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
