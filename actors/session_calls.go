package actors

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"codework/messages"
)

// Bounds of a page of history.
const (
	historyLimit    = 50
	historyMost     = 500
	historyMaxBytes = 4 << 20 // a page ends early, far below a frame's limit
)

// history answers with a page of the conversation, once what is in it is on
// disk: a reader goes on from its position.
func (s *session) history(m messages.GetHistory, reply Reply) {
	entries := s.led.entries
	if m.Before != "" {
		i := slices.IndexFunc(entries, func(e messages.Message) bool { return e.ID == m.Before })
		if i < 0 {
			reply.Send(nil, errors.New("before: no such entry in this session"))
			return
		}
		entries = entries[:i]
	}
	page, more := lastPage(entries, pageLimit(m.Limit))
	h := messages.History{Entries: page, More: more, Seq: s.led.seq}
	s.out.whenDurable(s.out.mark(), func(err error) { reply.Send(h, err) })
}

// pageLimit is how many entries a page has at most.
func pageLimit(asked int) int {
	if asked == 0 {
		return historyLimit
	}
	return min(asked, historyMost)
}

// lastPage cuts the last entries off, and tells whether there are some before.
func lastPage(entries []messages.Message, limit int) (page []messages.Message, more bool) {
	first, size := len(entries), 0
	for first > 0 && len(entries)-first < limit {
		size += entrySize(entries[first-1])
		if size > historyMaxBytes && first < len(entries) {
			break
		}
		first--
	}
	// No entries are an empty list for clients, never null.
	return append([]messages.Message{}, entries[first:]...), first > 0
}

// entrySize is about what an entry takes in JSON.
func entrySize(m messages.Message) int {
	return 512 + 256*len(m.Parts) + textSize(m)
}

// maxTitleRunes bounds a title that somebody gives.
const maxTitleRunes = 200

func (s *session) rename(m messages.Rename, reply Reply) {
	title := strings.Join(strings.Fields(strings.ToValidUTF8(m.Title, "")), " ")
	if title == "" || utf8.RuneCountInString(title) > maxTitleRunes {
		reply.Send(nil, errors.New("title: expected text of at most 200 characters"))
		return
	}
	s.led.record.Title, s.led.record.TitleSet = title, true
	s.saveRecord(reply)
}

func (s *session) link(m messages.Link, reply Reply) {
	if err := m.Validate(); err != nil {
		reply.Send(nil, err)
		return
	}
	s.led.record.HostDir = m.HostDir
	s.saveRecord(reply)
}

// relink moves the session once the place has been looked at. What the old
// place left running ends.
func (s *session) relink(m messages.Relink, reply Reply) {
	if s.phase != idle {
		reply.Send(nil, s.relinkBusy())
		return
	}
	old := s.led.record
	q := placeQuery{ref: m.Sandbox, directory: m.Directory, hostDir: old.HostDir, world: s.world, old: &old}
	s.me.Go(func(ctx context.Context) any {
		to, err := s.places.find(ctx, q)
		return moved{to, err, reply}
	})
}

func (s *session) relinkBusy() error {
	return &messages.RelinkError{SessionID: s.id, Reason: "the session is busy; wait for it or interrupt it first"}
}

// moved is a place that was looked at.
type moved struct {
	to    placed
	err   error
	reply Reply
}

func (s *session) onMoved(m moved) {
	if m.err != nil {
		m.reply.Send(nil, m.err)
		return
	}
	if s.phase != idle { // it got work meanwhile
		s.me.Go(func(ctx context.Context) any {
			s.places.undo(ctx, m.to)
			return nil
		})
		m.reply.Send(nil, s.relinkBusy())
		return
	}
	s.led.record.Directory, s.led.record.SandboxID = m.to.dir, m.to.sandbox
	s.unmount(s.id, false)
	s.saveRecord(m.reply)
}

// saveRecord writes the session's record, answers with its info and tells
// readers.
func (s *session) saveRecord(reply Reply) {
	s.led.record.UpdatedAt = s.now.UnixMilli()
	info := s.info()
	s.append(write{record: true}, func(err error) {
		reply.Send(info, err)
		if err == nil {
			s.live(messages.EventSessionUpdated, messages.EventData{Session: &info})
		}
	})
	s.tellState()
}

// blobPiece is how much of a blob one answer holds.
const blobPiece = 1 << 20

// blob answers with a piece of an image that the conversation or the queue
// names.
func (s *session) blob(m messages.GetBlob, reply Reply) {
	if !s.led.names(m.Blob) {
		reply.Send(nil, &messages.BlobNotFound{Blob: m.Blob})
		return
	}
	store := s.store
	s.me.Go(func(context.Context) any {
		data, err := store.Blob(m.Blob)
		if err != nil {
			reply.Send(nil, &messages.BlobNotFound{Blob: m.Blob})
			return nil
		}
		from := min(max(m.Offset, 0), int64(len(data)))
		to := min(from+blobPiece, int64(len(data)))
		reply.Send(messages.BlobPiece{Data: data[from:to], More: to < int64(len(data))}, nil)
		return nil
	})
}

// names tells whether the session refers to a blob.
func (l *ledger) names(blob string) bool {
	has := func(parts []messages.Part) bool {
		return slices.ContainsFunc(parts, func(p messages.Part) bool {
			return p.Blob == blob || p.Result != nil && slices.ContainsFunc(p.Result.Content, func(q messages.Part) bool { return q.Blob == blob })
		})
	}
	if blob == "" {
		return false
	}
	if l.draft != nil && has(l.draft.message.Parts) {
		return true
	}
	return slices.ContainsFunc(l.entries, func(m messages.Message) bool { return has(m.Parts) }) ||
		slices.ContainsFunc(l.inbox, func(in input) bool { return has(in.body.Parts) })
}

// maxStarts is how often work that the process did not survive is begun by
// itself; after that a person must prompt.
const maxStarts = 3

// wakeQueued begins with the prompts that wait, as after a restart of the
// server that was told to.
func (s *session) wakeQueued() {
	if s.closing || s.phase != idle || len(s.led.next(true)) == 0 {
		return
	}
	if s.led.crashes < maxStarts {
		s.start(false)
		return
	}
	f := messages.Failure{Type: messages.FailCrashLoop, Message: "the process ended three times while this session worked; its prompts stay queued",
		Hint: "look at the log, then prompt the session again"}
	s.append(write{record: true}, nil, record{messages.EventExecutionStarted, messages.EventData{}},
		record{messages.EventExecutionFailed, messages.EventData{Error: &f}})
}

type wakeQueued struct{}
