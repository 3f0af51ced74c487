package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"codework/internal/plugin"
)

const (
	// layout is the version of how the store is laid out.
	layout = "v1"
	// markerName is the file that makes a generation complete.
	markerName = ".complete.json"
	// askedName is the file that holds the last answer about newer revisions.
	askedName = ".asked.json"
	// stagingPrefix begins the names of what is being made.
	stagingPrefix = ".staging-"
	// keptGenerations are never removed: what sessions run at this moment is
	// one of them, as a rule.
	keptGenerations = 2
	// generationAge is how old others get before they are removed.
	generationAge = 7 * 24 * time.Hour
	// stagingAge is far longer than any fetch may take.
	stagingAge = time.Hour
	// lockWait is how long a fetch of the same module is waited for.
	lockWait = 2 * time.Minute
	// lockPoll is how often the lock is tried again.
	lockPoll = 50 * time.Millisecond
	// answerAge is how long an answer about newer revisions is good for.
	answerAge = time.Hour
	// fetchLimit bounds one fetch: a large package over a slow network.
	fetchLimit = 10 * time.Minute
	// askLimit bounds one question for newer revisions.
	askLimit = time.Minute
	// maxMarker bounds the store's own files, in bytes.
	maxMarker = 64 << 10
)

// Options are what a store needs.
type Options struct {
	Home string // settings of the user lie here, and the store below
	// Trusted tells whether a project's .npmrc counts; nil trusts none.
	Trusted func(root string) bool
	// Client fetches archives; nil is the default.
	Client *http.Client
	Log    *slog.Logger
}

// Store is the store of one home. It holds nothing open and is safe for
// concurrent use, also between processes.
type Store struct {
	dir string
	opt Options
	now func() time.Time
}

// Open is the store of a home. Nothing is read or made yet.
func Open(opt Options) *Store {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Trusted == nil {
		opt.Trusted = func(string) bool { return false }
	}
	if opt.Client == nil {
		opt.Client = &http.Client{}
	}
	return &Store{dir: filepath.Join(opt.Home, "cache", "plugins", layout), opt: opt, now: time.Now}
}

// Installed is a module in the store.
type Installed struct {
	Spec Spec
	// Version is what a person calls the revision, which is exact: a version,
	// a commit or a checksum.
	Version  string
	Revision string
	Dir      string // of the package
	// Generation changes whenever the module is fetched anew.
	Generation string
	Created    time.Time
}

// Name is the module and its version, for a person.
func (i Installed) Name() string {
	base, sub, ok := strings.Cut(i.Spec.Base(), "#")
	if ok {
		return base + "@" + i.Version + sub
	}
	return base + "@" + i.Version
}

// marker is the file that says what a generation is.
type marker struct {
	Spec       string `json:"spec"`
	Name       string `json:"name"`
	Version    string `json:"version"`
	Revision   string `json:"revision"`
	Entrypoint string `json:"entrypoint"` // the package's folder, in the generation
	CreatedAt  int64  `json:"createdAt"`  // ms
}

// parseMarker reads a marker. What it names stays in the generation.
func parseMarker(b []byte) (marker, error) {
	var m marker
	if err := json.Unmarshal(b, &m); err != nil {
		return m, errors.New("it is no JSON object of texts and a time")
	}
	switch {
	case m.Revision == "" || m.Version == "" || m.Spec == "":
		return m, errors.New("spec, version or revision is missing")
	case !filepath.IsLocal(m.Entrypoint):
		return m, errors.New("entrypoint is not inside")
	}
	return m, nil
}

func fault(e plugin.Entry, slug, format string, args ...any) *plugin.Error {
	return &plugin.Error{Slug: slug, Reference: e.Reference(), File: e.File, Detail: fmt.Sprintf(format, args...), Required: true}
}

// spec takes an entry's module apart. The error is a *plugin.Error.
func spec(e plugin.Entry) (Spec, error) {
	s, err := Parse(e.Spec)
	if err != nil {
		f := fault(e, plugin.UnsupportedSource, "%v", err)
		switch {
		case s.Kind == Archive:
			f.Hint = "a server that speaks MCP over HTTP is an entry with url; an archive is https://….tar.gz#sha256=…"
		case s.Kind == "":
			f.Hint = "a module is " + forms
		}
		return s, f
	}
	return s, nil
}

var notName = lazy(`[^a-z0-9]+`)

// maxName bounds the readable part of a module's place in the store.
const maxName = 40

// slot is a module's folder.
func (s *Store) slot(e plugin.Entry, spec Spec) string {
	registry := ""
	if spec.Kind == NPM {
		registry = s.registry(e, spec)
	}
	sum := sha256.Sum256([]byte(registry + "\n" + spec.canonical()))
	name := strings.Trim(notName().ReplaceAllString(strings.ToLower(spec.Base()), "-"), "-")
	if len(name) > maxName {
		name = strings.Trim(name[len(name)-maxName:], "-")
	}
	return filepath.Join(s.dir, name, hex.EncodeToString(sum[:]))
}

// generations are the names of a module's generations, oldest first.
func generations(slot string) ([]string, error) {
	entries, err := os.ReadDir(slot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, d := range entries {
		if _, err := strconv.ParseInt(d.Name(), 10, 64); err == nil && d.IsDir() {
			out = append(out, d.Name())
		}
	}
	slices.SortFunc(out, func(a, b string) int { return int(number(a) - number(b)) })
	return out, err
}

func number(generation string) int64 {
	n, _ := strconv.ParseInt(generation, 10, 64) // generations has looked
	return n
}

// newest is the newest generation that is in order. None is a NotInstalled; one
// whose marker is damaged, and no older one, is a MarkerInvalid.
func (s *Store) newest(e plugin.Entry, spec Spec) (Installed, error) {
	slot := s.slot(e, spec)
	names, err := generations(slot)
	if err != nil {
		return Installed{}, fault(e, plugin.ResolveFailed, "%v", err)
	}
	var damaged error
	for _, name := range slices.Backward(names) {
		dir := filepath.Join(slot, name)
		b, err := readSmall(filepath.Join(dir, markerName))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not one of ours
		}
		var m marker
		if err == nil {
			m, err = parseMarker(b)
		}
		if err != nil {
			if damaged == nil {
				f := fault(e, plugin.MarkerInvalid, "%s: %v", filepath.Join(dir, markerName), err)
				f.Hint = "remove " + dir + ", then: codework plugin install"
				damaged = f
			}
			continue
		}
		return Installed{Spec: spec, Version: m.Version, Revision: m.Revision, Dir: filepath.Join(dir, m.Entrypoint), Generation: name,
			Created: time.UnixMilli(m.CreatedAt)}, nil
	}
	if damaged != nil {
		return Installed{}, damaged
	}
	f := fault(e, plugin.NotInstalled, "it is not installed")
	f.Hint = "codework plugin install"
	return Installed{}, f
}

func readSmall(file string) ([]byte, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxMarker:
		return nil, errors.New("it is no small file")
	}
	return os.ReadFile(file)
}

// Installed is what the store has of an entry's module, which is not local.
// The error is a *plugin.Error.
func (s *Store) Installed(e plugin.Entry) (Installed, error) {
	sp, err := spec(e)
	if err != nil {
		return Installed{}, err
	}
	return s.newest(e, sp)
}

// Resolve finds the program of a module. It only reads. The error is a
// *plugin.Error.
func (s *Store) Resolve(e plugin.Entry) (plugin.Program, error) {
	sp, err := spec(e)
	if err != nil {
		return plugin.Program{}, err
	}
	if sp.Kind == Local {
		return plugin.Local(e)
	}
	have, err := s.newest(e, sp)
	if err != nil {
		return plugin.Program{}, err
	}
	return program(e, have)
}

// program is what a module in the store runs.
func program(e plugin.Entry, have Installed) (plugin.Program, error) {
	var p plugin.Program
	_, err := os.Stat(filepath.Join(have.Dir, plugin.ManifestName))
	if have.Spec.Kind == NPM && errors.Is(err, fs.ErrNotExist) {
		p, err = nodeProgram(e, have)
	} else {
		p, err = plugin.Package(e, have.Dir)
	}
	if err != nil {
		return plugin.Program{}, err
	}
	p.Revision = have.Revision + " " + have.Generation
	if have.Spec.Kind == NPM {
		p.Names = append(p.Names, have.Spec.Name)
	}
	return p, nil
}

// fetched is what a fetch has put into a folder.
type fetched struct {
	entrypoint string // in the folder
	version    string
	revision   string
}

// Fetch gets the newest revision of an entry's module. What cannot change and
// is there is not fetched again; fresh tells that there is something new. The
// error is a *plugin.Error, unless ctx has ended.
func (s *Store) Fetch(ctx context.Context, e plugin.Entry) (have Installed, fresh bool, err error) {
	sp, err := spec(e)
	if err != nil {
		return Installed{}, false, err
	}
	if sp.Kind == Local {
		return Installed{}, false, fault(e, plugin.UnsupportedSource, "a path is used where it lies")
	}
	slot := s.slot(e, sp)
	if err := os.MkdirAll(slot, 0o700); err != nil {
		return Installed{}, false, fault(e, plugin.FetchFailed, "%v", err)
	}
	unlock, err := lock(ctx, e, slot+".lock")
	if err != nil {
		return Installed{}, false, err
	}
	defer unlock()
	have, missing := s.newest(e, sp)
	if missing == nil && sp.Fixed() {
		if _, err := program(e, have); err == nil {
			return have, false, nil
		}
	}
	made, err := s.make(ctx, e, sp, slot, have, missing == nil)
	if err != nil {
		return Installed{}, false, err
	}
	// What is known of newer revisions is so no longer.
	_ = os.Remove(filepath.Join(slot, askedName))
	if err := s.collect(slot); err != nil {
		s.opt.Log.Warn("old plugins cannot be removed", "slug", plugin.CollectFailed, "err", err)
	}
	return made, made.Generation != have.Generation, nil
}

// make fetches into a staging folder, checks what came, and puts it in place.
// The same revision as before is dropped.
func (s *Store) make(ctx context.Context, e plugin.Entry, sp Spec, slot string, old Installed, has bool) (_ Installed, err error) {
	limit, cancel := context.WithTimeoutCause(ctx, fetchLimit, fault(e, plugin.FetchFailed, "it took longer than %s", fetchLimit))
	defer cancel()
	now := s.now()
	staging, err := os.MkdirTemp(slot, fmt.Sprintf("%s%d-", stagingPrefix, now.UnixMilli()))
	if err != nil {
		return Installed{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	defer func() {
		if gone := os.RemoveAll(staging); gone != nil {
			s.opt.Log.Warn("what was fetched cannot be removed", "folder", staging, "err", gone)
		}
	}()
	var got fetched
	switch sp.Kind {
	case NPM:
		got, err = s.fetchNPM(limit, e, sp, staging)
	case Git:
		got, err = s.fetchGit(limit, e, sp, staging)
	case Archive:
		got, err = s.fetchArchive(limit, e, sp, staging)
	}
	if limit.Err() != nil {
		return Installed{}, context.Cause(limit)
	}
	if err != nil {
		return Installed{}, err
	}
	made := Installed{Spec: sp, Version: got.version, Revision: got.revision, Dir: filepath.Join(staging, got.entrypoint), Created: now}
	if _, err := program(e, made); err != nil {
		return Installed{}, inStaging(err, staging)
	}
	if has && old.Revision == got.revision {
		if _, err := program(e, old); err == nil {
			return old, nil
		}
	}
	b, err := json.Marshal(marker{Spec: sp.Text, Name: sp.Base(), Version: got.version, Revision: got.revision, Entrypoint: got.entrypoint, CreatedAt: now.UnixMilli()})
	if err != nil {
		return Installed{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	names, err := generations(slot)
	if err == nil {
		err = writeSynced(filepath.Join(staging, markerName), b)
	}
	if err != nil {
		return Installed{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	// A clock that was set back must not make the newest one look old.
	generation := now.UnixMilli()
	if n := len(names); n > 0 {
		generation = max(generation, number(names[n-1])+1)
	}
	made.Generation = strconv.FormatInt(generation, 10)
	place := filepath.Join(slot, made.Generation)
	if err := os.Rename(staging, place); err != nil {
		return Installed{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	made.Dir = filepath.Join(place, got.entrypoint)
	return made, nil
}

// inStaging leaves the folder, which is gone when somebody reads it, out of an
// error.
func inStaging(err error, staging string) error {
	var known *plugin.Error
	if errors.As(err, &known) {
		known.Detail = strings.ReplaceAll(known.Detail, staging+string(filepath.Separator), "")
	}
	return err
}

func writeSynced(file string, b []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// lock waits until no other process fetches the module.
func lock(ctx context.Context, e plugin.Entry, file string) (unlock func(), err error) {
	limit, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	l := flock.New(file, flock.SetPermissions(0o600))
	if _, err := l.TryLockContext(limit, lockPoll); err != nil {
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case limit.Err() != nil:
			f := fault(e, plugin.LockTimeout, "another process has been fetching it for %s", lockWait)
			f.Hint = "wait for it, or end it"
			return nil, f
		}
		return nil, fault(e, plugin.FetchFailed, "lock %s: %v", file, err)
	}
	return func() { _ = l.Close() }, nil
}

// collect removes what nobody uses any more. The module is locked.
func (s *Store) collect(slot string) error {
	entries, err := os.ReadDir(slot)
	if err != nil {
		return err
	}
	var complete []string
	names, err := generations(slot)
	for _, name := range names {
		if _, missing := os.Stat(filepath.Join(slot, name, markerName)); missing == nil {
			complete = append(complete, name)
		}
	}
	old := func(ms int64, age time.Duration) bool { return s.now().Sub(time.UnixMilli(ms)) > age }
	remove := func(name string) {
		err = errors.Join(err, os.RemoveAll(filepath.Join(slot, name)))
	}
	if n := len(complete) - keptGenerations; n > 0 {
		for _, name := range complete[:n] {
			if old(number(name), generationAge) {
				remove(name)
			}
		}
	}
	for _, d := range entries {
		made, ok := strings.CutPrefix(d.Name(), stagingPrefix)
		made, _, _ = strings.Cut(made, "-")
		if ms, bad := strconv.ParseInt(made, 10, 64); ok && (bad != nil || old(ms, stagingAge)) {
			remove(d.Name())
		}
	}
	return err
}

// answer is what a source has said about its newest revision.
type answer struct {
	Asked    int64  `json:"asked"` // ms
	Version  string `json:"version"`
	Revision string `json:"revision"`
}

// Latest is the newest revision of an entry's module, as its source says; an
// answer that is less than an hour old is used again unless refresh. The error
// is a *plugin.Error, unless ctx has ended.
func (s *Store) Latest(ctx context.Context, e plugin.Entry, refresh bool) (version, revision string, err error) {
	sp, err := spec(e)
	if err != nil {
		return "", "", err
	}
	if sp.Fixed() {
		have, err := s.newest(e, sp)
		return have.Version, have.Revision, err
	}
	file := filepath.Join(s.slot(e, sp), askedName)
	var a answer
	if b, err := readSmall(file); err == nil && !refresh && json.Unmarshal(b, &a) == nil && a.Revision != "" {
		if age := s.now().Sub(time.UnixMilli(a.Asked)); age >= 0 && age < answerAge {
			return a.Version, a.Revision, nil
		}
	}
	limit, cancel := context.WithTimeoutCause(ctx, askLimit, fault(e, plugin.FetchFailed, "no answer within %s", askLimit))
	defer cancel()
	a = answer{Asked: s.now().UnixMilli()}
	switch sp.Kind {
	case NPM:
		a.Version, err = s.askNPM(limit, e, sp)
		a.Revision = a.Version
	case Git:
		a.Revision, err = s.askGit(limit, e, sp)
		a.Version = shortCommit(a.Revision)
	default:
		err = fault(e, plugin.UnsupportedSource, "a path has no revisions")
	}
	if limit.Err() != nil {
		return "", "", context.Cause(limit)
	}
	if err != nil {
		return "", "", err
	}
	s.remember(file, a)
	return a.Version, a.Revision, nil
}

// remember keeps an answer. Without it, the next one asks again.
func (s *Store) remember(file string, a answer) {
	b, err := json.Marshal(a)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		var tmp *os.File
		if tmp, err = os.CreateTemp(filepath.Dir(file), askedName+"-*"); err == nil {
			_, err = tmp.Write(b)
			err = errors.Join(err, tmp.Close())
			if err == nil {
				err = os.Rename(tmp.Name(), file)
			} else {
				_ = os.Remove(tmp.Name())
			}
		}
	}
	if err != nil {
		s.opt.Log.Warn("the answer about newer plugins is not kept", "err", err)
	}
}

// lastLine is the last line of a program's messages that says something.
func lastLine(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	line := strings.ToValidUTF8(string(bytes.TrimSpace(lines[len(lines)-1])), "\uFFFD")
	if r := []rune(line); len(r) > 300 {
		line = string(r[:300]) + "…"
	}
	return line
}
