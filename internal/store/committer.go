package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
)

// Bounds of the committer.
const (
	// A transaction takes at most this much when batches are waiting: more
	// saves no more syncs and makes the first of them wait longer.
	groupEvents = 500
	groupBytes  = 1 << 20
	// maxBatchBytes is what one batch may take of a transaction, which Badger
	// bounds at 15 % of the memtable: 2.4 MiB, key and version bytes included.
	maxBatchBytes = 2 << 20
	// maxBatchRows bounds the rows of one batch; Badger takes some 25000.
	maxBatchRows = 10_000
	// maxInline is the longest value kept in the database. Longer ones are
	// blobs, so that tables stay small and compactions cheap.
	maxInline = 256 << 10
	// smallInline is used instead for a batch that would not fit otherwise.
	smallInline = 4 << 10
	// queueBytes is what may wait for the disk. Over it, batches are refused
	// as busy: memory is bounded, and nobody waits in Append.
	queueBytes = 64 << 20
	// rowOverhead is what a row costs beside its key and value, about.
	rowOverhead = 64
	// blobWriters is how many sessions' blobs are written at a time. They mostly
	// wait for the disk; more would make what is committed wait for it longer.
	blobWriters = 4
	// headCache is how many sessions' log ends are remembered. A forgotten
	// one costs a look into the database.
	headCache = 4096
)

// Batch is what is written together: all of it or nothing.
type Batch struct {
	Session string
	// Record replaces the session's record and its place in the list. A
	// session begins to exist with its first Record.
	Record *messages.SessionRecord
	// Events carry the positions that follow the last event of the log.
	Events []messages.Event
	// Base makes the log of a session without events start above a position:
	// that of a fork. The first event's Seq is then Base.Seq+1.
	Base *Head
	// PromptID claims a prompt id for this session and content. The same claim
	// again is ErrDuplicatePrompt, another one *messages.PromptConflict; both
	// write nothing of the batch.
	PromptID, PromptHash string
	// Started and Settled put and remove the rows of tool calls (call ids):
	// a call whose row is found after a crash may have had side effects.
	Started, Settled []string
	// Checkpoint, if not nil, is of the batch's last event, or of the log's if the
	// batch has none.
	Checkpoint *Checkpoint
	// Delete removes the session and all it wrote, and goes with nothing else.
	// The session is gone when done is called; its rows are removed behind it,
	// if need be after the next Open.
	Delete bool
}

// item is a batch, or a call to be made by the committer, in the queue.
type item struct {
	b      Batch
	size   int64        // in memory
	rows   int64        // in a transaction
	large  bool         // its blobs are to be written before it is queued
	values *values      // nil: nothing is known to be a blob
	reject error        // decided before it was queued, told in order
	call   func() error // runs alone between transactions
	rests  bool         // call does without an open database
	done   func(error)
	err    error
}

// committer is the one goroutine that writes the database. Blobs are written by
// others, in front of it: a batch with large values, and those behind it of its
// session, are queued when its blobs are on disk.
type committer struct {
	s    *Store
	wake chan struct{} // capacity 1
	quit chan struct{} // closed when the goroutine is gone

	blobs sync.WaitGroup // goroutines that write them

	mu      sync.Mutex // guards what follows
	queue   []*item
	held    map[string][]*item // by session: not queued yet; the first of each is large
	turns   []string           // sessions in held whose blobs nobody writes yet
	writers int                // goroutines that write blobs
	queued  int64              // bytes in queue and held
	closing bool
	st      Stats
	deleted bool // a deletion finished that tidy does not know of
	ended   int  // deletions that finished

	// What follows belongs to the goroutine.
	heads     map[string]*head
	deletions []*deletion
	stuck     []*deletion // failed; they go on at the next Open
	hasSchema bool
}

// head is what the committer knows of a session.
type head struct {
	exists bool
	Head
	updated int64 // of its index row
}

func startCommitter(s *Store) (*committer, error) {
	c := &committer{s: s, wake: make(chan struct{}, 1), quit: make(chan struct{}),
		held: make(map[string][]*item), heads: make(map[string]*head)}
	err := s.db.View(func(txn *badger.Txn) error {
		_, err := txn.Get(schemaKey)
		c.hasSchema = err == nil
		return eachKey(txn, []byte(deletePrefix), func(key []byte) bool {
			c.deletions = append(c.deletions, &deletion{session: string(key[len(deletePrefix):])})
			return true
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, firstLine(err.Error()))
	}
	go c.run()
	return c, nil
}

// Append queues a batch and returns at once. done is called exactly once, from
// the committer's goroutine, when the batch is on disk, or with the error that
// kept it from being written; it must not wait for anything. After an error
// of the disk itself only the log says what is in it: load it again.
//
// Errors: *messages.Refused (busy, no room, shutting down, write failed),
// *messages.SessionNotFound, *messages.PromptConflict, ErrDuplicatePrompt,
// ErrGap.
func (s *Store) Append(b Batch, done func(error)) {
	it := &item{b: b, done: done, size: sizeOf(&b)}
	it.rows = it.size
	it.large = it.size > maxInline || b.Checkpoint != nil && len(b.Checkpoint.Data) > maxInline
	s.commit.push(it)
}

// sizeOf estimates what a batch takes in the queue and in a transaction.
func sizeOf(b *Batch) int64 {
	n := rowOverhead + len(b.Session)
	for i := range b.Events {
		e := &b.Events[i]
		n += rowOverhead + recordHead + len(b.Session) + len(e.ID) + len(e.Type) + len(e.Data)
	}
	if b.Record != nil {
		n += 8*rowOverhead + len(b.Record.AppendSystemPrompt)
	}
	if b.Checkpoint != nil {
		// What becomes a blob is not counted: the first one of a log that had none
		// is as long as the log, of which the writer has as much in memory anyway,
		// and its events must not be refused for it.
		n += rowOverhead + checkpointHead
		if len(b.Checkpoint.Data) <= maxInline {
			n += len(b.Checkpoint.Data)
		}
	}
	for _, id := range b.Started {
		n += rowOverhead + len(id)
	}
	for _, id := range b.Settled {
		n += rowOverhead + len(id)
	}
	return int64(n)
}

func (c *committer) push(it *item) {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		// The goroutine may be gone, and the caller may hold what done needs.
		go it.done(&messages.Refused{Name: messages.RefusedShutdown, Message: "session store is closing"})
		return
	}
	// A batch larger than the whole budget may pass alone.
	if it.call == nil && c.queued > 0 && c.queued+it.size > queueBytes {
		it.reject = &messages.Refused{Name: messages.RefusedBusy,
			Message: fmt.Sprintf("disk is behind: %s wait to be written; try again", mebibytes(c.queued))}
		it.b, it.size, it.large = Batch{Session: it.b.Session}, 0, false
	}
	c.queued += it.size
	switch line, held := c.held[it.b.Session]; {
	case held:
		c.held[it.b.Session] = append(line, it)
	case it.large:
		c.held[it.b.Session] = []*item{it}
		c.turns = append(c.turns, it.b.Session)
		if c.writers < blobWriters {
			c.writers++
			c.blobs.Go(c.writeBlobs)
		}
	default:
		c.queue = append(c.queue, it)
	}
	c.mu.Unlock()
	c.ring()
}

// ring makes the goroutine look at the queue.
func (c *committer) ring() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// writeBlobs writes those of sessions that wait for it, one batch of each in
// turn, until none waits.
func (c *committer) writeBlobs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.turns) > 0 {
		session := c.turns[0]
		c.turns = c.turns[1:]
		it := c.held[session][0]
		c.mu.Unlock()
		it.spill(c.s)
		c.mu.Lock()
		c.letGo(session)
		c.ring()
	}
	c.writers--
}

// letGo queues the first of a session's items, and those behind it up to the
// next large one. It needs mu.
func (c *committer) letGo(session string) {
	line := c.held[session]
	n := 1
	for n < len(line) && !line[n].large {
		n++
	}
	c.queue = append(c.queue, line[:n]...)
	clear(line[:n]) // let go of the data
	if n == len(line) {
		delete(c.held, session)
		return
	}
	c.held[session] = line[n:]
	c.turns = append(c.turns, session)
}

// spill writes the values of a batch that are too long for the database, and
// more of them if the batch would not fit into one transaction otherwise.
func (it *item) spill(s *Store) {
	inline := maxInline
	left := it.size
	for i := range it.b.Events {
		if n := len(it.b.Events[i].Data); n > maxInline {
			left -= int64(n)
		}
	}
	if left > maxBatchBytes-maxBatchBytes/8 { // about: sizeOf does not know all
		inline = smallInline
	}
	if it.values, it.reject = s.valuesOf(&it.b, inline); it.reject != nil {
		return
	}
	for i := range it.b.Events {
		it.rows -= int64(len(it.b.Events[i].Data) - len(it.values.events[i].data))
	}
}

// values are those of a batch that may be too long for their rows.
type values struct {
	record     kept // JSON
	events     []kept
	checkpoint kept
}

// valuesOf is what a batch's rows hold. Blobs are on disk when it returns.
func (s *Store) valuesOf(b *Batch, inline int) (v *values, err error) {
	v = &values{events: make([]kept, len(b.Events))}
	if b.Record != nil {
		if v.record, err = s.keepRecord(b.Record); err != nil {
			return nil, err
		}
	}
	for i := range b.Events {
		if v.events[i], err = s.keep(b.Events[i].Data, inline); err != nil {
			return nil, err
		}
	}
	if b.Checkpoint != nil {
		v.checkpoint, err = s.keep(b.Checkpoint.Data, inline)
	}
	return v, err
}

// stop commits what is under way and ends the goroutines.
func (c *committer) stop() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.ring()
	<-c.quit
	c.blobs.Wait()
}

func (c *committer) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.st
	st.Queued, st.QueuedBytes = len(c.queue), c.queued
	for _, line := range c.held {
		st.Queued += len(line)
	}
	return st
}

// takeDeleted tells whether a deletion finished since the last call.
func (c *committer) takeDeleted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.deleted
	c.deleted = false
	return d
}

// deletionsEnded is how many deletions finished.
func (c *committer) deletionsEnded() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *committer) run() {
	defer close(c.quit)
	for {
		group, closing := c.take()
		if len(group) > 0 && !group[0].rests || len(group) == 0 && len(c.deletions) > 0 && !closing {
			if err := c.wakeStore(); err != nil {
				for _, it := range group {
					it.done(err)
				}
				if len(group) == 0 {
					<-c.wake // deletions go on when somebody else writes
				}
				continue
			}
		}
		switch {
		case len(group) > 0 && group[0].call != nil:
			it := group[0]
			it.done(it.call())
		case len(group) > 0:
			c.commitGroup(group)
		case closing:
			return // deletions that are left go on at the next Open
		case len(c.deletions) > 0:
			// Handled below.
		default:
			<-c.wake
			continue
		}
		if len(c.deletions) > 0 && !closing && (len(group) == 0 || !group[0].rests) {
			c.deleteSome()
		}
	}
}

// wakeStore opens the database, if it is not open, for the goroutine that also
// closes it: what comes before the next call finds it open.
func (c *committer) wakeStore() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.s.wake()
}

// take returns what the next transaction should hold, in order; a call comes
// alone.
func (c *committer) take() (group []*item, closing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var events int
	var bytes int64
	n := 0
	for _, it := range c.queue {
		if it.call != nil {
			if n == 0 {
				n = 1
			}
			break
		}
		rows := len(it.b.Events) + 1
		if n > 0 && (events+rows > groupEvents || bytes+it.rows > groupBytes) {
			break
		}
		events += rows
		bytes += it.rows
		n++
	}
	group = append(group, c.queue[:n]...)
	clear(c.queue[:n]) // let go of the data
	c.queue = c.queue[n:]
	if len(c.queue) == 0 {
		c.queue = nil
	}
	for _, it := range group {
		c.queued -= it.size
	}
	return group, c.closing && len(c.held) == 0
}

// commitGroup writes a group and answers everybody in it, in order.
func (c *committer) commitGroup(group []*item) {
	if len(c.heads) > headCache {
		clear(c.heads)
	}
	var fit []*item
	for _, it := range group {
		if it.err = it.reject; it.err == nil {
			it.err = c.s.space.check(it.rows)
		}
		if it.err == nil {
			fit = append(fit, it)
		}
	}
	for len(fit) > 0 {
		fit = fit[c.writeSome(fit):]
	}
	c.mu.Lock()
	for _, it := range group {
		if it.err != nil {
			c.st.Refused++
			continue
		}
		c.st.Batches++
		c.st.Events += int64(len(it.b.Events))
	}
	c.mu.Unlock()
	for _, it := range group {
		it.done(it.err)
	}
}

// writeSome commits as many items from the front as fit one transaction, at
// least one, and returns how many it dealt with.
func (c *committer) writeSome(group []*item) int {
	txn := c.s.db.NewTransaction(true)
	defer txn.Discard()
	var bytes, rows, n, made int
	if !c.hasSchema {
		version := binary.BigEndian.AppendUint64(nil, schemaVersion)
		born := binary.BigEndian.AppendUint64(nil, uint64(c.s.opened.UnixMilli()))
		if err := errors.Join(txn.Set(schemaKey, version), txn.Set(bornKey, born)); err != nil {
			group[0].err = writeError(c.s.where(), err)
			return 1
		}
		rows += 2
	}
	var written []*item
	for _, it := range group {
		p, err := c.prepare(txn, it)
		if err != nil {
			it.err = err
			n++
			continue
		}
		if len(written) > 0 && (bytes+p.bytes > maxBatchBytes || rows+len(p.rows) > maxBatchRows) {
			break // the next transaction's first
		}
		if err := p.put(txn); err != nil {
			// Sizes are checked, so this is not about this batch alone; but
			// the transaction now holds a part of it.
			it.err = writeError(c.s.where(), err)
			n++
			c.fail(written, it.err)
			return n
		}
		c.heads[it.b.Session] = p.head
		bytes += p.bytes
		rows += len(p.rows)
		made += p.made
		written = append(written, it)
		n++
	}
	if len(written) == 0 {
		return n
	}
	if err := c.s.tally.change(made, txn.Commit); err != nil {
		c.s.log.Warn("commit", "store", c.s.where(), "cause", causeOf(err))
		c.fail(written, writeError(c.s.where(), err))
		return n
	}
	c.hasSchema = true
	c.mu.Lock()
	c.st.Commits++
	c.mu.Unlock()
	for _, it := range written {
		if it.b.Delete {
			c.deletions = append(c.deletions, &deletion{session: it.b.Session})
		}
	}
	return n
}

// fail answers items whose transaction did not commit and forgets what was
// believed of their sessions.
func (c *committer) fail(items []*item, err error) {
	for _, it := range items {
		it.err = err
	}
	clear(c.heads)
}

// row is one change: a value to set, or a key to delete.
type row struct {
	key, value []byte
	remove     bool
}

// prepared is a batch that was checked and encoded.
type prepared struct {
	rows  []row
	bytes int
	head  *head // the session's after the batch
	made  int   // 1: the batch makes its session, -1: removes it
}

func (p *prepared) set(key, value []byte) {
	p.rows = append(p.rows, row{key: key, value: value})
	p.bytes += len(key) + len(value) + rowOverhead
}

func (p *prepared) remove(key []byte) {
	p.rows = append(p.rows, row{key: key, remove: true})
	p.bytes += len(key) + rowOverhead
}

func (p *prepared) put(txn *badger.Txn) error {
	for _, r := range p.rows {
		var err error
		if r.remove {
			err = txn.Delete(r.key)
		} else {
			err = txn.Set(r.key, r.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepare checks a batch against the store, including what txn already holds,
// and encodes it. It changes neither.
func (c *committer) prepare(txn *badger.Txn, it *item) (*prepared, error) {
	b := &it.b
	if err := checkBatch(b); err != nil {
		return nil, err
	}
	if c.deleting(b.Session) {
		return nil, &messages.SessionNotFound{SessionID: b.Session}
	}
	h, err := c.head(b.Session)
	if err != nil {
		return nil, err
	}
	if !h.exists && b.Record == nil {
		return nil, &messages.SessionNotFound{SessionID: b.Session}
	}
	if b.PromptID != "" {
		if err := claimPrompt(txn, b); err != nil {
			return nil, err
		}
	}
	p, err := c.encode(b, h, it.values, maxInline)
	if err == nil && p.bytes > maxBatchBytes { // which is rare: spill saw to it, about
		p, err = c.encode(b, h, nil, smallInline)
	}
	if err != nil {
		return nil, err
	}
	if p.bytes > maxBatchBytes || len(p.rows) > maxBatchRows {
		return nil, &messages.Refused{Name: messages.RefusedStore,
			Message: fmt.Sprintf("%d events are too much to be written together", len(b.Events))}
	}
	return p, nil
}

// checkBatch refuses what no store could take.
func checkBatch(b *Batch) error {
	bad := func(what string) error {
		return &messages.Refused{Name: messages.RefusedStore, Message: what}
	}
	switch {
	case !validSession(b.Session):
		return bad("session id: expected \"ses…\" without a slash, at most 256 bytes")
	case len(b.PromptID) > maxID:
		return bad("prompt id: expected at most 256 bytes")
	case len(b.PromptHash) > maxID:
		return bad("prompt hash: expected at most 256 bytes")
	case b.Record != nil && b.Record.ID != b.Session:
		return bad("session record is another session's")
	case b.Record != nil && b.Record.UpdatedAt < 0:
		return bad("session record: updatedAt is before 1970")
	case b.Delete && (b.Record != nil || b.Checkpoint != nil || len(b.Events)+len(b.Started)+len(b.Settled) > 0 || b.PromptID != ""):
		return bad("a deletion goes with nothing else")
	}
	for _, ids := range [...][]string{b.Started, b.Settled} {
		for _, id := range ids {
			if id == "" || len(id) > maxCallID {
				return bad("call id: expected 1 to 1024 bytes")
			}
		}
	}
	return nil
}

// maxCallID bounds the ids that models give their tool calls, in bytes.
const maxCallID = 1024

// claimPrompt checks that a prompt id is free.
func claimPrompt(txn *badger.Txn, b *Batch) error {
	item, err := txn.Get(promptKey(b.PromptID))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil
	}
	var session, hash string
	if err == nil {
		err = item.Value(func(v []byte) (err error) {
			session, hash, err = decodePrompt(v)
			return err
		})
	}
	if err != nil {
		return readError("prompt id", err)
	}
	if session == b.Session && hash == b.PromptHash {
		return ErrDuplicatePrompt
	}
	return &messages.PromptConflict{SessionID: b.Session, MessageID: b.PromptID}
}

// encode makes the rows of a checked batch. Without values, those over inline
// bytes become blobs.
func (c *committer) encode(b *Batch, h *head, v *values, inline int) (*prepared, error) {
	p := &prepared{head: &head{}}
	*p.head = *h
	if b.Delete {
		p.set(deleteKey(b.Session), nil)
		p.remove(firstKey(b.Session))
		p.remove(recordKey(b.Session))
		p.remove(indexKey(h.updated, b.Session))
		p.head, p.made = &head{}, -1
		return p, nil
	}
	if v == nil {
		var err error
		if v, err = c.s.valuesOf(b, inline); err != nil {
			return nil, err
		}
	}
	if b.Record != nil {
		last := h.Seq
		if n := len(b.Events); n > 0 {
			last = b.Events[n-1].Seq
		}
		value := encodeSession(v.record, last)
		p.set(recordKey(b.Session), value)
		if !h.exists {
			p.set(firstKey(b.Session), value)
			p.made = 1
		}
		if h.exists && h.updated != b.Record.UpdatedAt {
			p.remove(indexKey(h.updated, b.Session))
		}
		p.set(indexKey(b.Record.UpdatedAt, b.Session), indexValue(b.Record))
		p.head.exists, p.head.updated = true, b.Record.UpdatedAt
	}
	if b.Base != nil {
		if h.Seq != 0 || b.Base.Seq < 1 || len(b.Events) == 0 {
			return nil, fmt.Errorf("%w: only the first events of a log may start above it", ErrGap)
		}
		p.head.Head = *b.Base
	}
	if p.head.Seq == 0 {
		p.head.Hash = origin(b.Session)
	}
	for i := range b.Events {
		e := &b.Events[i]
		if e.Seq != p.head.Seq+1 {
			return nil, fmt.Errorf("%w: %s has %d, the event has %d", ErrGap, b.Session, p.head.Seq, e.Seq)
		}
		value, err := encodeEvent(e, p.head.Hash, b.Base != nil && i == 0, v.events[i])
		if err != nil {
			return nil, err
		}
		p.set(eventKey(b.Session, e.Seq), value)
		p.head.Head = Head{Seq: e.Seq, Hash: hashRecord(e.Seq, value)}
	}
	if b.Checkpoint != nil {
		if b.Checkpoint.Seq != p.head.Seq {
			return nil, fmt.Errorf("%w: %s has %d, the checkpoint has %d", ErrGap, b.Session, p.head.Seq, b.Checkpoint.Seq)
		}
		p.set(checkpointKey(b.Session, b.Checkpoint.Seq), encodeCheckpoint(b.Checkpoint.After, p.head.Hash, v.checkpoint))
	}
	if b.PromptID != "" {
		p.set(promptKey(b.PromptID), encodePrompt(b.Session, b.PromptHash))
	}
	for _, id := range b.Started {
		p.set(startedKey(b.Session, id), nil)
	}
	for _, id := range b.Settled {
		p.remove(startedKey(b.Session, id))
	}
	return p, nil
}

// head is what is committed of a session, or about to be in this transaction.
func (c *committer) head(session string) (*head, error) {
	if h := c.heads[session]; h != nil {
		return h, nil
	}
	h := &head{}
	err := c.s.db.View(func(txn *badger.Txn) error {
		rec, _, err := c.s.record(txn, session)
		var missing *messages.SessionNotFound
		if errors.As(err, &missing) {
			return nil
		}
		if err != nil {
			return err
		}
		h.exists, h.updated = true, rec.UpdatedAt
		h.Head, err = lastEvent(txn, session)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.heads[session] = h
	return h, nil
}

// lastEvent finds the end of a log.
func lastEvent(txn *badger.Txn, session string) (Head, error) {
	it, prefix := backwards(txn, eventPrefix, session, 0)
	defer it.Close()
	if !it.ValidForPrefix(prefix) {
		return Head{}, nil
	}
	item := it.Item()
	h := Head{Seq: seqOf(item.Key())}
	err := item.Value(func(v []byte) error {
		if len(v) < checkSize {
			return errCut
		}
		h.Hash = hashRecord(h.Seq, v)
		return nil
	})
	if err != nil {
		return Head{}, readError("session "+session, err)
	}
	return h, nil
}

// deletion is a session whose rows are being removed.
type deletion struct {
	session string
	rows    bool   // its rows are gone, its prompts are next
	prompts []byte // the search for them goes on behind this key
}

// Deletion goes in steps, so that other sessions wait for one step at most.
const (
	deleteRows  = 500
	deleteScans = 5000
)

func (c *committer) deleting(session string) bool {
	for _, list := range [...][]*deletion{c.deletions, c.stuck} {
		for _, d := range list {
			if d.session == session {
				return true
			}
		}
	}
	return false
}

// deleteSome does one step of the first deletion.
func (c *committer) deleteSome() {
	d := c.deletions[0]
	finished, err := c.deleteStep(d)
	if err != nil {
		c.s.log.Warn("delete session", "session", d.session, "cause", causeOf(err))
		c.stuck = append(c.stuck, d)
	}
	if finished || err != nil {
		c.deletions = c.deletions[1:]
	}
	if finished {
		c.mu.Lock()
		c.deleted = true
		c.ended++
		c.mu.Unlock()
	}
}

func (c *committer) deleteStep(d *deletion) (finished bool, err error) {
	if err := c.s.space.check(deleteRows * rowOverhead); err != nil {
		return false, err
	}
	var keys [][]byte
	collect := func(key []byte) bool {
		keys = append(keys, append([]byte(nil), key...))
		return len(keys) < deleteRows
	}
	rows, prompts := d.rows, d.prompts
	err = c.s.db.View(func(txn *badger.Txn) (err error) {
		if rows {
			prompts, err = promptsOf(txn, d, collect)
			finished = prompts == nil
			return err
		}
		for _, prefix := range [...]string{checkpointPrefix, eventPrefix, startedPrefix, removedPrefix} {
			if err := eachKey(txn, []byte(prefix+d.session+"/"), collect); err != nil {
				return err
			}
			if len(keys) >= deleteRows {
				return nil
			}
		}
		rows = true
		return nil
	})
	if err != nil {
		return false, err
	}
	err = c.s.db.Update(func(txn *badger.Txn) error {
		for _, k := range keys {
			if err := txn.Delete(k); err != nil {
				return err
			}
		}
		if finished {
			return errors.Join(txn.Delete(deleteKey(d.session)), txn.Delete(tidyKey))
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	d.rows, d.prompts = rows, prompts
	return finished, nil
}

// promptsOf collects prompt rows of a session and returns where to go on, nil
// at the end. Prompts are found by looking at all of them: a row for each
// session would cost every prompt a write to make deletion cheap.
func promptsOf(txn *badger.Txn, d *deletion, collect func([]byte) bool) ([]byte, error) {
	opt := badger.DefaultIteratorOptions
	opt.PrefetchValues = false
	opt.Prefix = []byte(promptPrefix)
	it := txn.NewIterator(opt)
	defer it.Close()
	scanned := 0
	for it.Seek(append([]byte(promptPrefix), d.prompts...)); it.Valid(); it.Next() {
		key := it.Item().Key()
		if scanned++; scanned > deleteScans {
			return append([]byte(nil), key[len(promptPrefix):]...), nil
		}
		var session string
		err := it.Item().Value(func(v []byte) (err error) {
			session, _, err = decodePrompt(v)
			return err
		})
		if err != nil || session != d.session {
			continue // a damaged row is nobody's
		}
		if !collect(key) {
			return append([]byte(nil), key[len(promptPrefix):]...), nil
		}
	}
	return nil, nil
}
