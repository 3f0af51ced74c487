package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"codework/messages"
)

// blobs keeps large values, named by the hex SHA-256 of their content.
type blobs interface {
	put(name string, data []byte) error
	get(name string) ([]byte, error)
	sweep()
}

// PutBlob keeps data and returns its name. It is on disk when PutBlob
// returns; the same data again is the same name and costs a look.
//
// It stays as long as a session names it: with 64 hexadecimal digits that stand
// between other characters in an event, or in a blob that is a JSON array or object
// and that a session names. From PutBlob to the commit of that event there are ten
// minutes. Who finds the name in another session holds blobs meanwhile.
func (s *Store) PutBlob(data []byte) (name string, err error) {
	sum, err := s.putBlob(data)
	return hex.EncodeToString(sum[:]), err
}

func (s *Store) putBlob(data []byte) (sum [sha256.Size]byte, err error) {
	sum = sha256.Sum256(data)
	s.naming.put(sum)
	return sum, s.blobs.put(hex.EncodeToString(sum[:]), data)
}

// Blob returns the data of that name, or *messages.BlobNotFound. Data that is
// no longer what its name says is an error.
func (s *Store) Blob(name string) ([]byte, error) {
	if raw, err := hex.DecodeString(name); err != nil || len(raw) != sha256.Size || strings.ToLower(name) != name {
		return nil, &messages.BlobNotFound{Blob: name}
	}
	data, err := s.blobs.get(name)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != name {
		return nil, fmt.Errorf("read blob %s: %w", name, errAltered)
	}
	return data, nil
}

// blobTemp marks files that are being written.
const blobTemp = ".new-"

// blobFolder keeps blobs as files.
type blobFolder struct {
	dir   string
	space *space
}

func (b *blobFolder) put(name string, data []byte) error {
	path := filepath.Join(b.dir, name)
	// A blob got its name only after its content was synced, so one of the
	// right size is whole.
	if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Size() == int64(len(data)) {
		return nil
	}
	if err := b.space.check(int64(len(data))); err != nil {
		return err
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return fmt.Errorf("write blob: %w", err)
	}
	f, err := os.CreateTemp(b.dir, blobTemp) // mode 0600
	if err != nil {
		return fmt.Errorf("write blob: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncFolder(b.dir)
	}
	if err != nil {
		os.Remove(f.Name()) // best effort: sweep finds what stays
		return fmt.Errorf("write blob: %w", err)
	}
	return nil
}

func (b *blobFolder) get(name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(b.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, &messages.BlobNotFound{Blob: name}
	}
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	return data, nil
}

// blobTempAge is when a half written file is taken for a leftover: no write
// takes that long.
const blobTempAge = time.Hour

// sweep removes what a crash left half written.
func (b *blobFolder) sweep() {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return // no folder, nothing left behind
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), blobTemp) {
			continue
		}
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > blobTempAge {
			os.Remove(filepath.Join(b.dir, e.Name())) // tried again next time
		}
	}
}

// blobMap keeps blobs in memory.
type blobMap struct {
	mu sync.Mutex // guards m
	m  map[string][]byte
}

func newBlobMap() *blobMap { return &blobMap{m: make(map[string][]byte)} }

func (b *blobMap) put(name string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.m[name]; !ok {
		b.m[name] = append([]byte(nil), data...)
	}
	return nil
}

func (b *blobMap) get(name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.m[name]
	if !ok {
		return nil, &messages.BlobNotFound{Blob: name}
	}
	return append([]byte(nil), data...), nil
}

func (b *blobMap) sweep() {}
