package catalog

import (
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// source is where models are read from.
type source interface {
	names() []string
	// provider returns the entries of one provider, nil when it is unknown.
	provider(id string) (map[string]json.RawMessage, error)
}

//go:embed snapshot/*.json.gz
var packed embed.FS

// snapshotTaken is when the data of the snapshot was published. A file from
// before that day knows less than the snapshot does.
var snapshotTaken = time.Date(2026, time.November, 20, 0, 0, 0, 0, time.UTC)

// snapshot is the embedded catalog, one compressed file per provider so that
// a lookup unpacks one of them.
type snapshot struct{}

const packedSuffix = ".json.gz"

func (snapshot) names() []string {
	files, err := packed.ReadDir("snapshot")
	if err != nil {
		panic(fmt.Sprintf("embedded catalog: %v", err)) // the build put it there
	}
	ids := make([]string, 0, len(files))
	for _, f := range files {
		ids = append(ids, strings.TrimSuffix(f.Name(), packedSuffix))
	}
	return ids
}

func (s snapshot) provider(id string) (map[string]json.RawMessage, error) {
	if !slices.Contains(s.names(), id) { // also keeps ids like ../x out
		return nil, nil
	}
	f, err := packed.Open("snapshot/" + id + packedSuffix)
	if err != nil {
		return nil, fmt.Errorf("embedded catalog: %w", err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("embedded catalog: %s: %w", id, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("embedded catalog: %s: %w", id, err)
	}
	return parseProvider(id, data)
}

// content is a catalog file whose outer level was read.
type content map[string]json.RawMessage

func (c content) names() []string { return slices.Collect(maps.Keys(c)) }

func (c content) provider(id string) (map[string]json.RawMessage, error) {
	raw, ok := c[id]
	if !ok {
		return nil, nil
	}
	return parseProvider(id, raw)
}

// withCodex adds the program's own list of openai-codex where the source has
// none.
type withCodex struct{ source }

func (w withCodex) names() []string {
	ids := w.source.names()
	if !slices.Contains(ids, codexID) {
		ids = append(ids, codexID)
	}
	return ids
}

func (w withCodex) provider(id string) (map[string]json.RawMessage, error) {
	entries, err := w.source.provider(id)
	if id == codexID && entries == nil && err == nil {
		return codexEntries()
	}
	return entries, err
}
