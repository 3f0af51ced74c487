package messages

// ToSession is a command that one session answers by itself.
type ToSession interface {
	// Target is the id of that session.
	Target() string
}

// Target is the id of the session.
func (m GetSession) Target() string { return m.SessionID }

// Target is the id of the session.
func (m Configure) Target() string { return m.SessionID }

// Target is the id of the session.
func (m GetQueue) Target() string { return m.SessionID }

// Target is the id of the session.
func (m Interrupt) Target() string { return m.SessionID }

// Target is the id of the session.
func (m HasMessage) Target() string { return m.SessionID }

// Target is the id of the session.
func (m Wait) Target() string { return m.SessionID }

// Target is the id of the session.
func (m GetHistory) Target() string { return m.SessionID }

// Target is the id of the session.
func (m Rename) Target() string { return m.SessionID }

// Target is the id of the session.
func (m Link) Target() string { return m.SessionID }

// Target is the id of the session.
func (m Relink) Target() string { return m.SessionID }

// Target is the id of the session.
func (m GetBlob) Target() string { return m.SessionID }
