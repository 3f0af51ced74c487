package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"

	"codework/messages"
)

// Keys. Numbers in them are big-endian, so that they sort.
//
//	m/schema                  store version
//	a/<session>               session record as it was at first
//	s/<session>               session record
//	p/<prompt id>             session and content hash of an admitted prompt
//	e/<session>/<seq>         event
//	t/<session>/<call id>     tool call that was started and has no result yet
//	u/<^updated ms>/<session> list index, newest first: folder and folded title
//	d/<session>               deletion that has begun
//	x/<session>/<seq>         event that Repair took out of the log
//	k/<session>/<seq>         checkpoint
var schemaKey = []byte("m/schema")

const (
	firstPrefix      = "a/"
	recordPrefix     = "s/"
	promptPrefix     = "p/"
	indexPrefix      = "u/"
	deletePrefix     = "d/"
	eventPrefix      = "e/"
	startedPrefix    = "t/"
	removedPrefix    = "x/"
	checkpointPrefix = "k/"
)

// maxID bounds ids that become keys, in bytes.
const maxID = 256

// validSession tells whether an id may be part of a key: with a slash in it,
// one session's rows could look like another's.
func validSession(id string) bool {
	return messages.ValidSessionID(id) && len(id) <= maxID && !strings.Contains(id, "/")
}

// firstKey sorts at the other end of a table than everything else of a session:
// what tears off the records leaves these, and with them the list.
func firstKey(session string) []byte  { return []byte(firstPrefix + session) }
func recordKey(session string) []byte { return []byte(recordPrefix + session) }
func promptKey(id string) []byte      { return []byte(promptPrefix + id) }
func deleteKey(session string) []byte { return []byte(deletePrefix + session) }

func startedKey(session, call string) []byte {
	return []byte(startedPrefix + session + "/" + call)
}

func eventKey(session string, seq int64) []byte {
	return binary.BigEndian.AppendUint64([]byte(eventPrefix+session+"/"), uint64(seq))
}

func removedKey(session string, seq int64) []byte {
	return binary.BigEndian.AppendUint64([]byte(removedPrefix+session+"/"), uint64(seq))
}

func indexKey(updated int64, session string) []byte {
	k := binary.BigEndian.AppendUint64([]byte(indexPrefix), ^uint64(updated))
	return append(append(k, '/'), session...)
}

// indexedSession is the session of an index key.
func indexedSession(key []byte) (string, bool) {
	const at = len(indexPrefix) + 8
	if len(key) <= at+1 || key[at] != '/' {
		return "", false
	}
	return string(key[at+1:]), true
}

// seqOf is the position at the end of an event key.
func seqOf(key []byte) int64 {
	return int64(binary.BigEndian.Uint64(key[len(key)-8:]))
}

// Head is the end of a log: the position of its last event and that event's
// hash. An empty log has the zero Head.
type Head struct {
	Seq  int64
	Hash [sha256.Size]byte
}

// origin is what the first event of a session holds in place of the hash of
// the one before, so that no log can pass for another session's.
func origin(session string) [sha256.Size]byte {
	return sha256.Sum256([]byte("codework session log\x00" + session))
}

// An event record is
//
//	version  1 byte
//	flags    1 byte
//	previous 32 bytes, the hash of the record before
//	id, type, metadata, data: each a uvarint length and the bytes
//	check    4 bytes, CRC-32C of all before
//
// Metadata is a JSON object, or empty. With flagBlob, data is the raw SHA-256
// that names the blob. The hash of a record is SHA-256 over its position (8
// bytes) and the record without the check.
const (
	recordVersion = 1

	flagBase   byte = 1 // first of a log that starts above 1
	flagBlob   byte = 2 // data is in a blob
	knownFlags      = flagBase | flagBlob

	recordHead = 2 + sha256.Size
	checkSize  = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a decoded event record. Its slices point into the encoded one.
type record struct {
	flags      byte
	prev       [sha256.Size]byte
	id, typ    []byte
	meta, data []byte
}

func (r *record) encode() []byte {
	n := recordHead + checkSize + 4*binary.MaxVarintLen32 + len(r.id) + len(r.typ) + len(r.meta) + len(r.data)
	b := make([]byte, 0, n)
	b = append(b, recordVersion, r.flags)
	b = append(b, r.prev[:]...)
	for _, f := range [...][]byte{r.id, r.typ, r.meta, r.data} {
		b = binary.AppendUvarint(b, uint64(len(f)))
		b = append(b, f...)
	}
	return seal(b)
}

// seal puts the checksum behind a record.
func seal(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Reasons why a record cannot be read. They become part of Damage.
var (
	errCut     = errors.New("record is cut short")
	errCheck   = errors.New("record was changed: its checksum is wrong")
	errForm    = errors.New("record has no known form")
	errVersion = errors.New("record was written by a newer version")
)

// decodeRecord reads an event record. Whatever the bytes, it returns either an
// error or a record whose encoding they are.
func decodeRecord(b []byte) (record, error) {
	var r record
	if len(b) == 0 {
		return r, errCut
	}
	if b[0] > recordVersion {
		return r, errVersion
	}
	if b[0] != recordVersion {
		return r, errForm
	}
	if len(b) < recordHead+checkSize {
		return r, errCut
	}
	body, check := b[:len(b)-checkSize], b[len(b)-checkSize:]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(check) {
		return r, errCheck
	}
	r.flags = b[1]
	if r.flags&^knownFlags != 0 {
		return r, errForm
	}
	copy(r.prev[:], b[2:])
	rest := body[recordHead:]
	for _, f := range [...]*[]byte{&r.id, &r.typ, &r.meta, &r.data} {
		n, w := binary.Uvarint(rest)
		// A length has one spelling: a second one would be a record that
		// hashes differently and says the same.
		if w <= 0 || w > 1 && rest[w-1] == 0 || n > uint64(len(rest)-w) {
			return r, errForm
		}
		*f, rest = rest[w:w+int(n)], rest[w+int(n):]
	}
	if len(rest) != 0 || r.flags&flagBlob != 0 && len(r.data) != sha256.Size {
		return r, errForm
	}
	return r, nil
}

// hashRecord is the hash that the next record holds.
func hashRecord(seq int64, encoded []byte) [sha256.Size]byte {
	h := sha256.New()
	var pos [8]byte
	binary.BigEndian.PutUint64(pos[:], uint64(seq))
	h.Write(pos[:])
	h.Write(encoded[:len(encoded)-checkSize])
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}

// kept is what may be too long for its row: itself, or the raw SHA-256 that
// names the blob that it is in.
type kept struct {
	data []byte
	blob bool
}

// keep is data as it is kept: over inline bytes, in a blob.
func (s *Store) keep(data []byte, inline int) (kept, error) {
	if len(data) <= inline {
		return kept{data: data}, nil
	}
	sum, err := s.putBlob(data)
	return kept{data: sum[:], blob: true}, err
}

// encodeEvent makes the record of an event behind prev.
func encodeEvent(e *messages.Event, prev [sha256.Size]byte, base bool, v kept) ([]byte, error) {
	r := record{prev: prev, id: []byte(e.ID), typ: []byte(e.Type), data: v.data}
	if base {
		r.flags |= flagBase
	}
	if len(e.Metadata) > 0 {
		var err error
		if r.meta, err = json.Marshal(e.Metadata); err != nil {
			return nil, err
		}
	}
	if v.blob {
		r.flags |= flagBlob
	}
	if len(r.id)+len(r.typ)+len(r.meta) > maxEventHead {
		return nil, fmt.Errorf("event %d: id, type and metadata are over %d bytes", e.Seq, maxEventHead)
	}
	return r.encode(), nil
}

// maxEventHead bounds id, type and metadata of an event together: they are
// never moved to a blob.
const maxEventHead = 16 << 10

// event is the record as the event it was made from. Nothing in it points
// into the record.
func (r *record) event(session string, seq int64, get func(string) ([]byte, error)) (messages.Event, error) {
	e, err := r.borrowed(session, seq, get)
	if r.flags&flagBlob == 0 {
		e.Data = bytes.Clone(e.Data)
	}
	return e, err
}

// borrowed is event with data that may point into the record.
func (r *record) borrowed(session string, seq int64, get func(string) ([]byte, error)) (messages.Event, error) {
	e := messages.Event{ID: string(r.id), Type: string(r.typ), Session: session, Seq: seq}
	if len(r.meta) > 0 {
		if err := json.Unmarshal(r.meta, &e.Metadata); err != nil {
			return e, errForm
		}
	}
	if r.flags&flagBlob != 0 {
		data, err := get(hex.EncodeToString(r.data))
		if err != nil {
			return e, err
		}
		e.Data = data
		return e, nil
	}
	if len(r.data) > 0 {
		e.Data = r.data
	}
	return e, nil
}

// A session record is one byte that says how it is kept, the position of the
// session's last event when it was written (8 bytes), and its JSON or the raw
// name of the blob that holds the JSON. The position shows a log that lost its
// end.
const (
	sessionInline byte = 1
	sessionBlob   byte = 2

	sessionHead = 1 + 8
)

// keepRecord is a session's record as it is kept.
func (s *Store) keepRecord(r *messages.SessionRecord) (kept, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return kept{}, err
	}
	return s.keep(text, maxInline)
}

func encodeSession(v kept, last int64) []byte {
	kind := sessionInline
	if v.blob {
		kind = sessionBlob
	}
	b := binary.BigEndian.AppendUint64([]byte{kind}, uint64(last))
	return append(b, v.data...)
}

func decodeSession(b []byte, get func(string) ([]byte, error)) (r messages.SessionRecord, last int64, err error) {
	if len(b) < sessionHead {
		return r, 0, errCut
	}
	last = int64(binary.BigEndian.Uint64(b[1:]))
	text := b[sessionHead:]
	switch b[0] {
	case sessionInline:
	case sessionBlob:
		if text, err = get(hex.EncodeToString(text)); err != nil {
			return r, 0, err
		}
	default:
		return r, 0, errVersion
	}
	if json.Unmarshal(text, &r) != nil {
		return r, 0, errForm
	}
	return r, last, nil
}

// A prompt row is the session's id with a uvarint length before it, then the
// hash of the content.
func encodePrompt(session, hash string) []byte {
	b := binary.AppendUvarint(nil, uint64(len(session)))
	return append(append(b, session...), hash...)
}

func decodePrompt(b []byte) (session, hash string, err error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > math.MaxInt32 || int(n) > len(b)-w {
		return "", "", errForm
	}
	return string(b[w : w+int(n)]), string(b[w+int(n):]), nil
}
