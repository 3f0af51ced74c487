package actors

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"codework/messages"
)

// shelf is what is known of all sandboxes: their records as they are stored,
// and who uses them. Whoever shows a sandbox looks here, so that no list ever
// waits for a provider.
type shelf struct {
	host messages.SandboxInfo

	mu      sync.Mutex // guards what follows
	records map[string]messages.SandboxRecord
	users   map[string]map[string]bool // by sandbox; sessions that work, commands, looks at a directory
}

func newShelf(started time.Time) *shelf {
	at := messages.ISOTime(started.UnixMilli())
	return &shelf{
		host: messages.SandboxInfo{ID: messages.LocalSandbox, Driver: messages.LocalSandbox, Kind: messages.KindLocal,
			Ownership: messages.SandboxExternal, Status: messages.SandboxOnline, Usage: messages.SandboxPinned, CreatedAt: at, UpdatedAt: at},
		records: map[string]messages.SandboxRecord{}, users: map[string]map[string]bool{},
	}
}

func (s *shelf) put(r messages.SandboxRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[r.ID] = r
}

func (s *shelf) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
}

func (s *shelf) get(id string) (messages.SandboxRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[id]
	return r, ok
}

// kind is where a sandbox lives; an unknown one lives far away.
func (s *shelf) kind(id string) messages.SandboxKind {
	if messages.IsHost(id) {
		return messages.KindLocal
	}
	if r, ok := s.get(id); ok {
		return r.Kind
	}
	return messages.KindRemote
}

// driver is the name of a sandbox's driver.
func (s *shelf) driver(id string) string {
	if r, ok := s.get(id); ok {
		return r.Driver
	}
	return messages.LocalSandbox
}

// all are the records in order of creation.
func (s *shelf) all() []messages.SandboxRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]messages.SandboxRecord, 0, len(s.records))
	for _, r := range s.records {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b messages.SandboxRecord) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// infos is the list for clients: the host, then in order of creation.
func (s *shelf) infos() []messages.SandboxInfo {
	out := []messages.SandboxInfo{s.host}
	for _, r := range s.all() {
		out = append(out, r.Info(s.count(r.ID)))
	}
	return out
}

// info is a session's sandbox as clients are told of it; nil on the host. One
// whose record is lost must not look like the host.
func (s *shelf) info(id string) *messages.SandboxInfo {
	if messages.IsHost(id) {
		return nil
	}
	r, ok := s.get(id)
	if !ok {
		r = messages.SandboxRecord{ID: id, Driver: "unknown", Kind: messages.KindRemote, Ownership: messages.SandboxManaged, Status: messages.SandboxUnavail}
	}
	i := r.Info(s.count(id))
	return &i
}

// hold counts holder among the users of a sandbox.
func (s *shelf) hold(id, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] == nil {
		s.users[id] = map[string]bool{}
	}
	s.users[id][holder] = true
}

func (s *shelf) release(id, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.users[id], holder)
	if len(s.users[id]) == 0 {
		delete(s.users, id)
	}
}

// count is how many use a sandbox.
func (s *shelf) count(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.users[id])
}

// row is the record of one sandbox, stored and on the shelf. Only one piece of
// work changes it at a time.
type row struct {
	id    string
	store Store
	shelf *shelf
}

// recordLimit bounds a write of a record, which is finished also when what it
// belongs to was stopped.
const recordLimit = 10 * time.Second

func (r row) record() messages.SandboxRecord {
	rec, _ := r.shelf.get(r.id)
	return rec
}

// insert begins a sandbox.
func (r row) insert(ctx context.Context, rec messages.SandboxRecord) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	if err := r.store.SwapSandbox(ctx, rec); err != nil {
		return err
	}
	r.shelf.put(rec)
	return nil
}

// move changes the status of a sandbox that has one of from, and what change
// says; in the store first. Why it failed before is forgotten.
func (r row) move(ctx context.Context, to messages.SandboxStatus, change func(*messages.SandboxRecord), from ...messages.SandboxStatus) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	rec := r.record()
	rec.Status, rec.UpdatedAt, rec.Failure, rec.Waking = to, time.Now().UnixMilli(), nil, false
	if change != nil {
		change(&rec)
	}
	if err := r.store.SwapSandbox(ctx, rec, from...); err != nil {
		return err
	}
	r.shelf.put(rec)
	return nil
}

// remove forgets a sandbox of which nothing ever was.
func (r row) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	r.shelf.drop(r.id)
	return r.store.DropSandbox(ctx, r.id)
}
