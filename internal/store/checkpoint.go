package store

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// Checkpoint is what events of a log come to, so that a long log need not be
// read from its beginning. It covers the events behind the checkpoint that it
// goes on from, up to its own position. What Data says is the writer's business.
//
// The log stays the truth: checkpoints of which one is missing, damaged, or made
// from another log than the one that is there count for nothing.
type Checkpoint struct {
	Seq   int64  // of the last event that it covers
	After int64  // of the checkpoint that it goes on from; 0: it begins with the log
	Data  []byte // not changed once it was appended
}

// A checkpoint record is
//
//	version  1 byte
//	flags    1 byte
//	after    8 bytes
//	event    32 bytes, the hash of the event at its position
//	data     the rest, or with flagBlob the raw SHA-256 that names the blob
//	check    4 bytes, CRC-32C of all before
//
// The hash ties it to its log: by the chain, no other log has it.
const (
	checkpointVersion = 1
	checkpointHead    = 2 + 8 + sha256.Size
)

func checkpointKey(session string, seq int64) []byte {
	return binary.BigEndian.AppendUint64([]byte(checkpointPrefix+session+"/"), uint64(seq))
}

// encodeCheckpoint makes the record of a checkpoint at an event, behind the
// checkpoint at after.
func encodeCheckpoint(after int64, event [sha256.Size]byte, v kept) []byte {
	flags := byte(0)
	if v.blob {
		flags = flagBlob
	}
	b := make([]byte, 0, checkpointHead+len(v.data)+checkSize)
	b = append(b, checkpointVersion, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(after))
	b = append(append(b, event[:]...), v.data...)
	return seal(b)
}

// decodeCheckpoint reads a record. Whatever the bytes, it returns either an error
// or a checkpoint whose encoding they are, but for its position and with the name
// of its blob, if it has one, as data.
func decodeCheckpoint(b []byte) (c Checkpoint, event [sha256.Size]byte, blob bool, err error) {
	switch {
	case len(b) == 0:
		return c, event, false, errCut
	case b[0] > checkpointVersion:
		return c, event, false, errVersion
	case b[0] != checkpointVersion:
		return c, event, false, errForm
	case len(b) < checkpointHead+checkSize:
		return c, event, false, errCut
	}
	body, check := b[:len(b)-checkSize], b[len(b)-checkSize:]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(check) {
		return c, event, false, errCheck
	}
	blob = b[1] == flagBlob
	after, data := int64(binary.BigEndian.Uint64(b[2:])), bytes.Clone(body[checkpointHead:])
	if b[1]&^flagBlob != 0 || after < 0 || blob && len(data) != sha256.Size {
		return c, event, false, errForm
	}
	copy(event[:], b[10:])
	return Checkpoint{After: after, Data: data}, event, blob, nil
}

// checkpoints returns the newest checkpoint of a log and those that it goes on
// from, oldest first, with the end of what they cover. The error says why they
// count for nothing, or, beside some that count, why newer ones do not: a build
// that knows no checkpoints leaves those of events that it takes out of the log.
func (s *Store) checkpoints(txn *badger.Txn, session string) (list []Checkpoint, end Head, err error) {
	it, prefix := backwards(txn, checkpointPrefix, session, 0)
	defer it.Close()
	want := int64(-1) // the newest
	for ; it.ValidForPrefix(prefix) && want != 0; it.Next() {
		seq := seqOf(it.Item().Key())
		if want >= 0 && seq > want {
			continue // of a series that was begun anew
		}
		if want >= 0 && seq != want {
			break
		}
		c, hash, bad := s.checkpoint(txn, session, seq, it.Item())
		if want < 0 && errors.Is(bad, errOtherLog) {
			err = cmp.Or(err, fmt.Errorf("checkpoint at event %d: %w", seq, bad))
			continue
		}
		if bad != nil {
			return nil, Head{}, fmt.Errorf("checkpoint at event %d: %w", seq, bad)
		}
		if len(list) == 0 {
			end = Head{Seq: seq, Hash: hash}
		}
		list = append(list, c)
		want = c.After
	}
	if want > 0 {
		return nil, Head{}, fmt.Errorf("checkpoint at event %d: it is missing", want)
	}
	slices.Reverse(list)
	return list, end, err
}

// errOtherLog says that a checkpoint is not of the log that is there.
var errOtherLog = errors.New("it was made from another log")

// checkpoint reads one and compares it with the event at its position.
func (s *Store) checkpoint(txn *badger.Txn, session string, seq int64, item *badger.Item) (c Checkpoint, hash [sha256.Size]byte, err error) {
	blob := false
	err = item.Value(func(v []byte) (err error) {
		c, hash, blob, err = decodeCheckpoint(v)
		return err
	})
	if err != nil {
		return c, hash, err
	}
	if c.Seq = seq; c.After >= seq {
		return c, hash, errForm
	}
	event, err := txn.Get(eventKey(session, seq))
	if err == nil {
		err = event.Value(func(v []byte) error {
			if len(v) < checkSize || hashRecord(seq, v) != hash {
				return errOtherLog
			}
			return nil
		})
	}
	if errors.Is(err, badger.ErrKeyNotFound) {
		err = errOtherLog
	}
	if err == nil && blob {
		c.Data, err = s.Blob(hex.EncodeToString(c.Data))
	}
	return c, hash, err
}

// dropCheckpoints removes all that a session has; they will be made anew. It
// runs in the committer's goroutine.
func (c *committer) dropCheckpoints(session string) error {
	for {
		var p prepared
		err := c.s.db.View(func(txn *badger.Txn) error {
			return eachKey(txn, []byte(checkpointPrefix+session+"/"), func(key []byte) bool {
				p.remove(bytes.Clone(key))
				return len(p.rows) < groupEvents
			})
		})
		if err != nil || len(p.rows) == 0 {
			return err
		}
		if err := c.s.db.Update(p.put); err != nil {
			return err
		}
	}
}
