package tools

import (
	"context"
	"crypto/sha256"
	"hash"
	"sync"
	"time"

	"codework/sandboxes"
)

// Seen remembers what a session knows of the files it read or wrote, so that
// it does not overwrite what somebody else changed since. It is safe for
// concurrent use and empty after a restart, which allows everything.
type Seen struct {
	mu    sync.Mutex // guards files
	files map[string]sight
}

// sight is what is known of one file. Where the whole content was not looked
// at, because the file is huge, size and time stand for it.
type sight struct {
	whole   bool
	sum     [sha256.Size]byte
	size    int64
	modTime time.Time
}

func (a sight) same(b sight) bool {
	if a.whole && b.whole {
		return a.sum == b.sum
	}
	return a.size == b.size && a.modTime.Equal(b.modTime)
}

func (s *Seen) note(real string, v sight) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files == nil {
		s.files = make(map[string]sight)
	}
	s.files[real] = v
}

func (s *Seen) get(real string) (sight, bool) {
	if s == nil {
		return sight{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.files[real]
	return v, ok
}

// chunkBytes is how much of a file is read at once: few round trips to a
// remote sandbox, little memory.
const chunkBytes = 256 << 10

// scan hands the content of a file to each, chunk by chunk, until the end, an
// error, or until each says stop. The bytes are each's only during the call.
func scan(ctx context.Context, m sandboxes.Mount, p string, size int64, each func(b []byte) (more bool)) error {
	for off := int64(0); ; {
		b, err := m.Read(ctx, p, off, chunkBytes)
		if err != nil {
			return err
		}
		off += int64(len(b))
		if len(b) == 0 || !each(b) {
			return nil
		}
		// A short read at the known end needs no second one to make sure. A
		// size of 0 is not known: files under /proc have it.
		if len(b) < chunkBytes && size > 0 && off >= size {
			return nil
		}
	}
}

// digest collects a file's content as it passes.
type digest struct {
	hash hash.Hash
	size int64
}

func newDigest() *digest { return &digest{hash: sha256.New()} }

func (d *digest) add(b []byte) {
	d.hash.Write(b)
	d.size += int64(len(b))
}

func (d *digest) sight(info sandboxes.Info) sight {
	v := sight{whole: true, size: d.size, modTime: info.ModTime}
	d.hash.Sum(v.sum[:0])
	return v
}

func sightOf(content []byte) sight {
	return sight{whole: true, sum: sha256.Sum256(content), size: int64(len(content))}
}
