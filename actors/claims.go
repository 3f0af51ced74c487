package actors

import "sync"

// claims are the prompt ids that are on their way into a log. The store knows
// those that have arrived; in between two sessions must not take the same one,
// or the later append would fail and cost its session the running work.
type claims struct {
	mu   sync.Mutex        // guards held
	held map[string]string // session, by prompt id
}

// take claims an id for a session; false means another session has it.
func (c *claims) take(id, session string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner, ok := c.held[id]; ok {
		return owner == session
	}
	if c.held == nil {
		c.held = map[string]string{}
	}
	c.held[id] = session
	return true
}

// dropFor gives a session's id back: it has arrived, or it never will.
func (c *claims) dropFor(id, session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[id] == session {
		delete(c.held, id)
	}
}

// dropAll gives back what a session that ends still holds.
func (c *claims) dropAll(session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, owner := range c.held {
		if owner == session {
			delete(c.held, id)
		}
	}
}
