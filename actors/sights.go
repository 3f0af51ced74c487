package actors

import (
	"slices"
	"sync"

	"codework/internal/tools"
)

// sightsKept is how many sessions' sights are kept beside those in memory.
const sightsKept = 64

// sights keeps what sessions have seen of files for longer than the sessions are
// in memory: a person may look at an answer, and change a file, for an hour, and
// the model must not overwrite that. Those of the sessions that were loaded last
// are kept. It is safe for concurrent use, never waits for anything else, and is
// empty after a restart.
type sights struct {
	mu    sync.Mutex // guards what follows
	known map[string]*tools.Seen
	order []string // the keys of known, the newest last
}

// of is what a session has seen: nothing, if it is new or was forgotten.
func (s *sights) of(session string) *tools.Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.known[session]
	if seen != nil {
		s.order = slices.DeleteFunc(s.order, func(id string) bool { return id == session })
	} else {
		if s.known == nil {
			s.known = make(map[string]*tools.Seen)
		}
		seen = &tools.Seen{}
		s.known[session] = seen
	}
	s.order = append(s.order, session)
	if len(s.order) > sightsKept {
		delete(s.known, s.order[0])
		s.order = slices.Delete(s.order, 0, 1)
	}
	return seen
}
