package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/dgraph-io/ristretto/v2/z"
)

// Badger does not cope with every file that was cut off: it deletes all tables
// that a torn manifest does not name, panics in a goroutine of its own over a
// torn table, leaves out one with a wrong checksum without a word, and refuses
// to open over an empty file. So its folder is looked at before it opens.
// Files that hold nothing of ours are put right here; torn tables are for
// salvage.

// Names and sizes of Badger's files.
const (
	manifestName = "MANIFEST"
	registryName = "KEYREGISTRY"
	discardName  = "DISCARD"
	tableSuffix  = ".sst"
	walSuffix    = ".mem"
	valueSuffix  = ".vlog"

	logHeader   = 20      // of .mem and .vlog files
	discardSize = 1 << 20 // statistics, preallocated
	registryLen = 16 + len(registryText)

	registryText = "Hello Badger" // after a 16 byte IV, in the clear without encryption
)

// inspectFolder puts right what can be put right in Badger's folder and
// returns what is wrong with its tables, "" when all is well. Nobody else may
// have the folder open.
func (s *Store) inspectFolder(dir string) (damage string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var tables, wals []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		fi, err := e.Info()
		if err != nil {
			return "", err
		}
		useless := ""
		switch name := e.Name(); {
		case strings.HasSuffix(name, tableSuffix):
			tables = append(tables, path)
		case strings.HasSuffix(name, walSuffix):
			if fi.Size() <= logHeader {
				useless = "empty write-ahead log"
				break
			}
			if err := s.trimWAL(path, fi.Size()); err != nil {
				return "", err
			}
			wals = append(wals, path)
		case strings.HasSuffix(name, valueSuffix) && fi.Size() < logHeader:
			useless = "empty value log"
		case name == discardName && fi.Size() < discardSize:
			useless = "cut off statistics"
		case name == registryName && !validRegistry(path):
			useless = "cut off key registry" // it holds no keys: nothing is encrypted
		}
		if useless != "" {
			s.log.Warn("session store: removed a useless file", "file", path, "why", useless)
			if err := os.Remove(path); err != nil {
				return "", err
			}
		}
	}
	return s.inspectTables(dir, tables, wals)
}

func validRegistry(path string) bool {
	b, err := os.ReadFile(path)
	return err == nil && len(b) == registryLen && string(b[registryLen-len(registryText):]) == registryText
}

// inspectTables compares the manifest with the tables there are.
func (s *Store) inspectTables(dir string, tables, wals []string) (damage string, err error) {
	path := filepath.Join(dir, manifestName)
	listed, whole, err := readManifest(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && len(tables) == 0:
		return "", nil
	case err != nil && strings.Contains(err.Error(), "unsupported version"): // there is no sentinel
		return "", fmt.Errorf("%w: %s: %s", ErrNewer, dir, firstLine(err.Error()))
	case err != nil && len(tables) == 0:
		// It has nothing to list; Badger makes a new one.
		s.log.Warn("session store: removed a useless file", "file", path, "why", firstLine(err.Error()))
		return "", os.Remove(path)
	case err != nil:
		return "manifest: " + firstLine(err.Error()), nil
	}
	var known uint64 // the newest version in what the manifest names
	var unlisted uint64
	seen := 0
	for _, t := range tables {
		id, ok := table.ParseFileID(filepath.Base(t))
		_, isListed := listed[id]
		newest, err := newestVersion(t)
		switch {
		case !ok:
		case isListed && err != nil:
			return fmt.Sprintf("table %s: %s", filepath.Base(t), firstLine(err.Error())), nil
		case isListed:
			seen++
			known = max(known, newest)
		case err == nil:
			unlisted = max(unlisted, newest)
		}
	}
	if seen < len(listed) {
		return fmt.Sprintf("%d tables are missing", len(listed)-seen), nil
	}
	if unlisted <= known {
		// Also behind a manifest with a torn end: that is how a crash between
		// a compaction and its entry looks. Badger removes such tables.
		return "", nil
	}
	// A table that was flushed but not listed is still in its log, unless the
	// manifest lost the entry later.
	for _, w := range wals {
		_, err := readWAL(w, func(r walRow) error {
			known = max(known, r.version)
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	if unlisted > known {
		if !whole {
			return "manifest is cut off", nil
		}
		return "manifest does not name the newest table", nil
	}
	return "", nil
}

// readManifest returns the tables that Badger believes in and whether the file
// ends with a whole entry.
func readManifest(path string) (map[uint64]badger.TableManifest, bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	m, end, err := badger.ReplayManifestFile(f, 0, badger.DefaultOptions(""))
	if err != nil {
		return nil, false, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	return m.Tables, end == fi.Size(), nil
}

// newestVersion opens a table as Badger will and returns its newest version.
func newestVersion(path string) (version uint64, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if fi.Size() == 0 {
		return 0, errCut
	}
	mf, err := z.OpenMmapFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer mf.Close(-1) // for reading only: nothing to lose
	defer func() {
		if p := recover(); p != nil {
			err = errCut
		}
	}()
	t, err := table.OpenTable(mf, table.Options{
		ReadOnly:    true,
		BlockSize:   badger.DefaultOptions("").BlockSize,
		Compression: options.Snappy,
		ChkMode:     options.NoVerification,
	})
	if err != nil {
		return 0, err
	}
	return t.MaxVersion(), nil
}

// trimWAL cuts a write-ahead log behind its last whole transaction, when there
// is something behind it. Badger does the same, but takes lengths in a torn
// entry for true.
func (s *Store) trimWAL(path string, size int64) error {
	end, err := readWAL(path, func(walRow) error { return nil })
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() // synced below when it matters
	next := make([]byte, min(maxWALHead, size-end))
	if _, err := f.ReadAt(next, end); err != nil {
		return err
	}
	if strings.Trim(string(next), "\x00") == "" {
		return nil // the rest was never written
	}
	s.log.Warn("session store: the last write was cut off and is dropped", "file", path, "at", end)
	if err := f.Truncate(end); err != nil {
		return err
	}
	return f.Sync()
}

// An entry of a write-ahead log is
//
//	meta, user meta     1 byte each
//	lengths of key and value, expiry: uvarints
//	key                 with the version, inverted, in its last 8 bytes
//	value
//	check               4 bytes, CRC-32C of all before
//
// The entries of a transaction are followed by one that ends it.
const (
	metaDeleted = 1 << 0
	metaPointer = 1 << 1 // the value is in a value log: we have none there
	metaTxn     = 1 << 6
	metaTxnEnd  = 1 << 7

	maxWALHead  = 22
	maxWALKey   = 1 << 16
	maxWALValue = memTableSize
)

// walRow is a row as Badger keeps it.
type walRow struct {
	key, value []byte
	version    uint64
	deleted    bool
}

func rowOf(key []byte, meta byte, value []byte) (walRow, bool) {
	if len(key) <= 8 || meta&metaPointer != 0 {
		return walRow{}, false
	}
	return walRow{key: y.ParseKey(key), value: value, version: y.ParseTs(key), deleted: meta&metaDeleted != 0}, true
}

// readWAL calls fn for the rows of whole transactions and returns where the
// last of those ends.
func readWAL(path string, fn func(walRow) error) (end int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.Seek(logHeader, io.SeekStart); err != nil {
		return 0, err
	}
	return scanWAL(bufio.NewReaderSize(f, 64<<10), fn)
}

func scanWAL(r *bufio.Reader, fn func(walRow) error) (end int64, err error) {
	end = logHeader
	at := end
	var pending []walRow
	for {
		key, meta, value, n, err := walEntry(r)
		if err != nil {
			if errors.Is(err, errForm) || errors.Is(err, io.EOF) {
				return end, nil
			}
			return end, err
		}
		at += n
		if meta&metaTxnEnd == 0 {
			if row, ok := rowOf(key, meta, value); ok {
				pending = append(pending, row)
			}
			if meta&metaTxn != 0 {
				continue
			}
		}
		for _, row := range pending {
			if err := fn(row); err != nil {
				return end, err
			}
		}
		pending, end = pending[:0], at
	}
}

// walEntry reads one entry. errForm and io.EOF mean that there is none.
func walEntry(r *bufio.Reader) (key []byte, meta byte, value []byte, n int64, err error) {
	head, err := r.Peek(maxWALHead)
	if len(head) < 2 {
		return nil, 0, nil, 0, cutOr(err)
	}
	meta = head[0]
	rest := head[2:]
	var nums [3]uint64
	for i := range nums {
		v, w := binary.Uvarint(rest)
		if w <= 0 {
			return nil, 0, nil, 0, errForm
		}
		nums[i], rest = v, rest[w:]
	}
	headLen := len(head) - len(rest)
	if nums[0] == 0 || nums[0] > maxWALKey || nums[1] > maxWALValue {
		return nil, 0, nil, 0, errForm
	}
	body := make([]byte, headLen+int(nums[0])+int(nums[1])+checkSize)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, 0, nil, 0, cutOr(err)
	}
	check := body[len(body)-checkSize:]
	if crc32.Checksum(body[:len(body)-checkSize], castagnoli) != binary.BigEndian.Uint32(check) {
		return nil, 0, nil, 0, errForm
	}
	key = body[headLen : headLen+int(nums[0])]
	return key, meta, body[headLen+len(key) : len(body)-checkSize], int64(len(body)), nil
}

// cutOr turns the end of a file inside of something into errForm.
func cutOr(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errForm
	}
	return err
}
