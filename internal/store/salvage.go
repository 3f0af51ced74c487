package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"

	"codework/messages"

	"github.com/dgraph-io/badger/v4"
	"github.com/klauspost/compress/s2"
)

// salvage builds a new database from everything that can still be read in a
// damaged one, and keeps the damaged one beside it. Rows carry versions, so the
// order in which they are found does not matter.
func (s *Store) salvage(damage string) error {
	old, fresh := s.badgerDir(), s.freshDir()
	files, size, err := dataFiles(old)
	if err != nil {
		return err
	}
	if err := s.space.check(size); err != nil {
		return err
	}
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	opt := badgerOptions(fresh, s.log)
	db, err := badger.OpenManaged(opt)
	if err != nil {
		return err
	}
	rows := 0
	wb := db.NewManagedWriteBatch()
	for _, path := range files {
		err = errors.Join(err, readRows(path, func(r walRow) error {
			if strings.HasPrefix(string(r.key), "!badger!") {
				return nil // Badger's own
			}
			rows++
			if r.deleted {
				return wb.DeleteAt(r.key, r.version)
			}
			return wb.SetEntryAt(badger.NewEntry(r.key, r.value), r.version)
		}))
	}
	if err == nil {
		err = wb.Flush()
	} else {
		wb.Cancel()
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("copy what is left of it: %s", firstLine(err.Error()))
	}
	if err := s.mendFresh(opt); err != nil {
		return fmt.Errorf("mend what is left of it: %s", firstLine(err.Error()))
	}
	kept := s.damagedDir()
	if err := os.Rename(old, kept); err != nil {
		return err
	}
	if err := os.Rename(fresh, old); err != nil { // a crash in front of this: see finishSalvage
		return err
	}
	s.log.Warn("session store was damaged; what could be read is kept, the damaged files are beside it",
		"damage", damage, "rows", rows, "damaged", kept)
	return syncFolder(s.dir)
}

// mendFresh mends the records of a database that salvage built.
func (s *Store) mendFresh(opt badger.Options) error {
	db, err := openBadger(opt)
	if err != nil {
		return err
	}
	fresh := &Store{db: db, log: s.log, blobs: s.blobs}
	return errors.Join(fresh.mendRecords(), db.Close())
}

// freshDir is where salvage builds.
func (s *Store) freshDir() string { return filepath.Join(s.dir, "badger.new") }

// damagedName begins the names under which damaged databases are kept.
const damagedName = "badger.damaged-"

// damagedDir is a free name to keep a damaged database under.
func (s *Store) damagedDir() string {
	for i := 1; ; i++ {
		path := filepath.Join(s.dir, fmt.Sprint(damagedName, i))
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return path
		}
	}
}

// finishSalvage ends a salvage that a crash stopped between its two renames,
// and clears away one that it stopped earlier.
func (s *Store) finishSalvage() error {
	if _, err := os.Stat(s.freshDir()); err != nil {
		return nil // the usual case
	}
	_, err := os.Stat(s.badgerDir())
	if errors.Is(err, os.ErrNotExist) {
		return os.Rename(s.freshDir(), s.badgerDir())
	}
	return errors.Join(err, os.RemoveAll(s.freshDir()))
}

// dataFiles are the files of a database that hold rows, and their size.
func dataFiles(dir string) (paths []string, size int64, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), tableSuffix) && !strings.HasSuffix(e.Name(), walSuffix) {
			continue
		}
		paths = append(paths, filepath.Join(dir, e.Name()))
		if fi, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), tableSuffix) {
			size += 2 * fi.Size() // tables are compressed
		}
	}
	return paths, size, err
}

// readRows calls fn for what can be read of a table or a write-ahead log.
func readRows(path string, fn func(walRow) error) error {
	if strings.HasSuffix(path, walSuffix) {
		_, err := readWAL(path, fn)
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return scanTable(data, fn)
}

// scanTable reads a table without its index: one compressed block behind the
// other, until something else comes. A block with a wrong checksum is left
// out.
func scanTable(data []byte, fn func(walRow) error) error {
	for len(data) > 0 {
		n := snappyLen(data)
		if n == 0 {
			return nil
		}
		block, err := s2.Decode(nil, data[:n])
		data = data[n:]
		if err != nil {
			continue
		}
		for _, r := range blockRows(block) {
			if err := fn(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxBlock bounds what a block may claim to be, uncompressed: a value and its
// key beside the 4 KiB that blocks are meant to have.
const maxBlock = 1 << 20

// snappyLen is how long the Snappy block at the start of data is, 0 when there
// is no whole one. The format is a uvarint with the length of what comes out,
// then literals and copies; the two low bits of each tag tell which.
func snappyLen(data []byte) int {
	want, at := binary.Uvarint(data)
	if at <= 0 || want == 0 || want > maxBlock {
		return 0
	}
	var out uint64
	for out < want {
		if at >= len(data) {
			return 0
		}
		tag := data[at]
		at++
		n := uint64(tag >> 2)
		switch tag & 3 {
		case 0: // literal; lengths from 61 on follow in 1 to 4 bytes
			if n >= 60 {
				extra := int(n) - 59
				if at+extra > len(data) {
					return 0
				}
				n = 0
				for i := range extra {
					n |= uint64(data[at+i]) << (8 * i)
				}
				at += extra
			}
			n++
			if n > uint64(len(data)-at) {
				return 0
			}
			at += int(n)
		case 1: // copy, 4 to 11 bytes
			n = n&7 + 4
			at++
		case 2:
			n++
			at += 2
		case 3:
			n++
			at += 4
		}
		out += n
	}
	if out != want || at > len(data) {
		return 0
	}
	return at
}

// blockRows reads a block of a table: entries, the offset of each (4 bytes),
// their number (4 bytes), a checksum message and its length (4 bytes). An
// entry is how many bytes of its key it shares with the block's first one and
// how many are its own (2 bytes each), those, then meta, user meta, expiry as
// a uvarint, and the value. It returns nothing for a block that is not whole.
func blockRows(block []byte) (rows []walRow) {
	cut := func(n uint64) []byte { // takes bytes from the end
		if n > uint64(len(block)) {
			n = uint64(len(block))
		}
		b := block[uint64(len(block))-n:]
		block = block[:uint64(len(block))-n]
		return b
	}
	number := func() uint64 {
		if b := cut(4); len(b) == 4 {
			return uint64(binary.BigEndian.Uint32(b))
		}
		return 0
	}
	check := cut(number())
	// The message is protobuf: field 2, a varint. Field 1, the algorithm, is
	// absent for CRC-32C.
	if len(check) < 2 || check[0] != 2<<3 {
		return nil
	}
	sum, w := binary.Uvarint(check[1:])
	if w <= 0 || sum != uint64(crc32.Checksum(block, castagnoli)) {
		return nil
	}
	offsets := cut(4 * number())
	var base []byte
	for i := 0; i+4 <= len(offsets); i += 4 {
		from, to := uint64(binary.NativeEndian.Uint32(offsets[i:])), uint64(len(block))
		if i+8 <= len(offsets) {
			to = uint64(binary.NativeEndian.Uint32(offsets[i+4:]))
		}
		if from > to || to > uint64(len(block)) || to-from < 4 {
			return nil
		}
		entry := block[from:to]
		shared, own := int(binary.NativeEndian.Uint16(entry)), int(binary.NativeEndian.Uint16(entry[2:]))
		entry = entry[4:]
		if shared > len(base) || own+3 > len(entry) {
			return nil
		}
		key := append(append([]byte(nil), base[:shared]...), entry[:own]...)
		if i == 0 {
			base = key
		}
		meta, entry := entry[own], entry[own+2:]
		_, w := binary.Uvarint(entry)
		if w <= 0 {
			return nil
		}
		if r, ok := rowOf(key, meta, entry[w:]); ok {
			rows = append(rows, r)
		}
	}
	return rows
}

// mendRecords gives every session that lost its record or its place in the
// list a new one: from its first record, and from its events.
func (s *Store) mendRecords() error {
	known := make(map[string]bool)
	var lost []string
	var index [][]byte
	err := s.db.View(func(txn *badger.Txn) error {
		for _, prefix := range [...]string{recordPrefix, deletePrefix} {
			err := eachKey(txn, []byte(prefix), func(key []byte) bool {
				known[string(key[len(prefix):])] = true
				return true
			})
			if err != nil {
				return err
			}
		}
		for _, prefix := range [...]string{firstPrefix, eventPrefix} {
			err := eachKey(txn, []byte(prefix), func(key []byte) bool {
				id, _, _ := strings.Cut(string(key[len(prefix):]), "/")
				if !known[id] && validSession(id) {
					known[id] = true
					lost = append(lost, id)
				}
				return true
			})
			if err != nil {
				return err
			}
		}
		return eachKey(txn, []byte(indexPrefix), func(key []byte) bool {
			index = append(index, append([]byte(nil), key...))
			return true
		})
	})
	if err != nil {
		return err
	}
	wb := s.db.NewWriteBatch()
	defer wb.Cancel()
	for _, id := range lost {
		value, err := s.recordFromLog(id)
		if err == nil {
			err = wb.Set(recordKey(id), value)
		}
		if err != nil {
			return err
		}
	}
	if err := wb.Flush(); err != nil {
		return err
	}

	// The list is made anew: there is no telling which rows are good.
	wb = s.db.NewWriteBatch()
	defer wb.Cancel()
	for _, key := range index {
		if err := wb.Delete(key); err != nil {
			return err
		}
	}
	err = s.db.View(func(txn *badger.Txn) error {
		var own error
		err := eachKey(txn, []byte(recordPrefix), func(key []byte) bool {
			r, _, err := s.record(txn, string(key[len(recordPrefix):]))
			if err == nil {
				own = wb.Set(indexKey(r.UpdatedAt, r.ID), indexValue(&r))
			}
			return own == nil
		})
		return errors.Join(err, own)
	})
	if err != nil {
		return err
	}
	return wb.Flush()
}

// recordFromLog makes a record for a session that lost its own.
func (s *Store) recordFromLog(id string) ([]byte, error) {
	r := messages.SessionRecord{ID: id, Title: messages.DefaultTitle}
	var last int64
	err := s.db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(firstKey(id))
		if err == nil {
			err = item.Value(func(v []byte) error {
				if first, _, err := decodeSession(v, s.Blob); err == nil {
					r = first
				}
				return nil
			})
		}
		if err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
		opt := badger.DefaultIteratorOptions
		opt.PrefetchValues = false
		opt.Prefix = []byte(eventPrefix + id + "/")
		it := txn.NewIterator(opt)
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			last = seqOf(it.Item().Key())
			err := it.Item().Value(func(v []byte) error {
				rec, err := decodeRecord(v)
				if err != nil || rec.flags&flagBlob != 0 {
					return nil // Load will say so
				}
				var d messages.EventData
				if json.Unmarshal(rec.data, &d) != nil {
					return nil
				}
				if r.CreatedAt == 0 {
					r.CreatedAt = d.Timestamp
				}
				r.UpdatedAt = max(r.UpdatedAt, d.Timestamp)
				if d.Title != "" && !r.TitleSet {
					r.Title, r.TitleSet = d.Title, true
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	kept, err := s.keepRecord(&r)
	return encodeSession(kept, last), err
}
