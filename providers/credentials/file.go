package credentials

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// document is the credential file: its members as they stand there, so that
// whatever this version does not know survives a change.
type document map[string]json.RawMessage

// parseLogin finds one provider's login in a credential file.
func parseLogin(data []byte, provider string) (*Login, error) {
	doc, err := parseDocument(data)
	if err != nil {
		return nil, err
	}
	return doc.login(provider)
}

func trimmed(data []byte) []byte {
	return bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
}

// parseDocument never repeats what the file holds in its errors: those of
// encoding/json may quote a part of a token. The same goes for login.
func parseDocument(data []byte) (document, error) {
	data = trimmed(data)
	if len(data) == 0 {
		return nil, errors.New("no content")
	}
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil || doc == nil {
		if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
			return nil, fmt.Errorf("not JSON at byte %d", s.Offset)
		}
		return nil, errors.New("expected a JSON object")
	}
	return doc, nil
}

// nested are the members of providers, nil when there are none.
func (d document) nested() (document, error) {
	if absent(d["providers"]) {
		return nil, nil
	}
	var nested document
	if err := json.Unmarshal(d["providers"], &nested); err != nil {
		return nil, errors.New("providers: expected an object")
	}
	return nested, nil
}

// listed is the entry under a provider's id, at the top or under providers.
func (d document) listed(provider string) (json.RawMessage, error) {
	if raw := d[provider]; !absent(raw) {
		return raw, nil
	}
	nested, err := d.nested()
	if raw := nested[provider]; !absent(raw) {
		return raw, nil
	}
	return nil, err
}

func (d document) login(provider string) (*Login, error) {
	raw, err := d.listed(provider)
	if err == nil && raw == nil && d.owner() == provider {
		raw, err = json.Marshal(d)
	}
	if err != nil || raw == nil {
		return nil, err
	}
	var login Login
	if err := json.Unmarshal(raw, &login); err != nil {
		if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
			return nil, fmt.Errorf("%s: wrong type of value", cmp.Or(t.Field, provider))
		}
		return nil, fmt.Errorf("%s: expected an object", provider)
	}
	if login.Access = strings.TrimSpace(login.Access); login.Access == "" {
		return nil, fmt.Errorf("%s: no access token", provider)
	}
	return &login, nil
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// owner tells whose login the file is as a whole, empty when it is none. It
// matters: the token of one provider must not be sent to the other. A Codex
// login always has its account, and its token is a JWT, which has three parts.
func (d document) owner() string {
	if absent(d["access"]) {
		return ""
	}
	var access string
	_ = json.Unmarshal(d["access"], &access) // another type is reported by login
	if !absent(d["accountId"]) || strings.Count(access, ".") == 2 {
		return CodexID
	}
	return CopilotID
}

// put stores a login under its provider's id, wherever it stood before. What
// else the old entry had stays.
func (d document) put(provider string, login *Login) error {
	var entry document
	if raw, err := d.listed(provider); err == nil {
		_ = json.Unmarshal(raw, &entry) // what is no object has nothing to keep
	}
	if entry == nil {
		entry = document{}
	}
	dropLogin(entry)
	// A providers that is no object stays as it is: the new entry counts first.
	_, _ = d.remove(provider)
	known, err := json.Marshal(login)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(known, &entry); err != nil {
		return err
	}
	d[provider], err = entry.encode()
	return err
}

// remove takes a provider's login out of every place where it may stand, and
// tells whether there was one.
func (d document) remove(provider string) (found bool, err error) {
	_, found = d[provider]
	delete(d, provider)
	if d.owner() == provider {
		found = true
		dropLogin(d)
	}
	nested, err := d.nested()
	if err != nil {
		return found, err
	}
	if _, ok := nested[provider]; ok {
		found = true
		delete(nested, provider)
		d["providers"], err = nested.encode()
	}
	return found, err
}

// loginFields are the members of a Login in the file.
var loginFields = []string{"access", "refresh", "expires", "accountId", "enterpriseUrl", "apiEndpoint", "availableModelIds"}

// dropLogin removes the members of a login, also in the other spellings that
// reading accepts.
func dropLogin(d document) {
	for name := range d {
		for _, field := range loginFields {
			if strings.EqualFold(name, field) {
				delete(d, name)
			}
		}
	}
}

// encode keeps texts as they were written, also those that HTML would not like.
func (d document) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "\t")
	if err := e.Encode(d); err != nil {
		return nil, err
	}
	if b.Len() > maxFile {
		return nil, errors.New("would be larger than 1 MiB")
	}
	return b.Bytes(), nil
}

const (
	// lockWait outlasts a process that renews a login over a slow network,
	// and is still bearable for a person.
	lockWait = requestTimeout + 10*time.Second
	// lockPoll is how often the lock is tried again.
	lockPoll = 10 * time.Millisecond
	// maxLinks is where a chain of links counts as a circle, as in Linux.
	maxLinks = 40
	// reserve is written before a refresh token is spent, so that a full disk
	// shows while the old login is still good. A file with both logins and
	// their lists of models is a fraction of it.
	reserve = 64 << 10
)

// held is the credential file while this process alone may write it.
type held struct {
	file string // behind all links
	lock *flock.Flock
	tmp  *os.File // what will replace the file, once staged
}

// hold waits for the lock, which is a file of its own beside the credential
// file because that one is replaced by each change.
func hold(ctx context.Context, file string) (*held, error) {
	if file == "" {
		return nil, errors.New("no credential file is configured")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("credential file %s: %w", file, err)
	}
	file = follow(file)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, fmt.Errorf("credential file %s: %w", file, err)
	}
	lock := flock.New(file+".lock", flock.SetPermissions(0o600))
	limited, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if _, err := lock.TryLockContext(limited, lockPoll); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("credential file %s: another process has kept it busy for %v; try again", file, lockWait)
		}
		return nil, fmt.Errorf("lock %s: %w", lock.Path(), reason(err))
	}
	return &held{file: file, lock: lock}, nil
}

// release lets others write. A staged file that was not used goes away.
func (h *held) release() {
	if h.tmp != nil {
		_ = h.tmp.Close()
		_ = os.Remove(h.tmp.Name())
	}
	_ = h.lock.Close() // the lock ends with the descriptor
}

// follow is the file behind a name, so that a credential file that is kept
// elsewhere stays there and has one lock. It need not exist.
func follow(file string) string {
	for range maxLinks {
		if dir, err := filepath.EvalSymlinks(filepath.Dir(file)); err == nil {
			file = filepath.Join(dir, filepath.Base(file))
		}
		target, err := os.Readlink(file)
		if err != nil {
			break // no link, or nothing there
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(file), target)
		}
		file = target
	}
	return file
}

// read returns what is stored; no file and an empty one hold nothing. damaged
// is why the content could not be understood; such a file must not be written
// over.
func (h *held) read() (doc document, damaged, err error) {
	data, err := read(h.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, reason(err)
	}
	if len(trimmed(data)) == 0 {
		return document{}, nil, nil
	}
	doc, damaged = parseDocument(data)
	return doc, damaged, nil
}

// setAside renames a file that could not be understood, so that whatever it
// holds can still be saved by hand, and returns its new path.
func (h *held) setAside(now time.Time) (string, error) {
	base := h.file + ".bad-" + now.UTC().Format("20060102T150405Z")
	kept := base
	for n := 2; ; n++ {
		if _, err := os.Lstat(kept); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
		kept = fmt.Sprintf("%s-%d", base, n)
	}
	if err := os.Rename(h.file, kept); err != nil {
		return "", err
	}
	// There may be tokens in it. If this fails it is no worse than before.
	_ = os.Chmod(kept, 0o600)
	return kept, nil
}

// stage makes the file that will replace the credential file, with room for
// its content. It has one name: what a killed process left behind must not
// stay around with its tokens.
func (h *held) stage() error {
	name := h.file + ".new"
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	h.tmp = f
	_, err = f.Write(make([]byte, reserve))
	return err
}

// write replaces the credential file in one step.
func (h *held) write(doc document) error {
	data, err := doc.encode()
	if err != nil {
		return err
	}
	if h.tmp == nil {
		if err := h.stage(); err != nil {
			return err
		}
	}
	if _, err := h.tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := h.tmp.Write(data); err != nil {
		return err
	}
	if err := h.tmp.Truncate(int64(len(data))); err != nil {
		return err
	}
	if err := h.tmp.Sync(); err != nil {
		return err
	}
	if err := h.tmp.Close(); err != nil {
		return err
	}
	if err := os.Rename(h.tmp.Name(), h.file); err != nil {
		return err
	}
	h.tmp = nil
	// The old content may hold a refresh token that is spent, so the new name
	// should outlast a power failure too. Not every file system can do this.
	if dir, err := os.Open(filepath.Dir(h.file)); err == nil {
		_ = dir.Sync()
		_ = dir.Close()
	}
	return nil
}
