package catalog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultURL is where the list of models is published.
	DefaultURL = "https://models.dev"
	// DefaultMaxAge is the age at which the file is made again.
	DefaultMaxAge = 15 * time.Minute

	// refreshLimit bounds one refresh. There is always an older catalog, so
	// that waiting longer is worth little.
	refreshLimit = 10 * time.Second
	// checkEvery is how often the age of the file is looked at.
	checkEvery = time.Minute
)

// Remote is where a list of models in the form of models.dev comes from.
type Remote struct {
	// URL is the site, or the list itself when it ends in .json; empty means
	// DefaultURL.
	URL string
	// File is a copy of the list, which is read instead.
	File string
	// Client makes what the list is fetched with; nil means a client that
	// uses the proxy of this process's environment.
	Client func() (*http.Client, error)
}

// address is where the list is.
func (r Remote) address() (*url.URL, error) {
	site := r.URL
	if site == "" {
		site = DefaultURL
	}
	u, err := url.Parse(site)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("its address is no http or https URL")
	}
	if !strings.HasSuffix(u.Path, ".json") {
		u = u.JoinPath("api.json")
	}
	return u, nil
}

// Refresh makes the catalog file anew from the list, also a pinned one, and
// tells whether it has changed. The file is replaced as a whole, after what
// will be in it was checked; with an error it is as it was. It takes ten
// seconds at most.
func (c *Catalog) Refresh(ctx context.Context, r Remote) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	changed, err = c.refresh(ctx, r)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no list within %v", refreshLimit)
	}
	if err != nil {
		return false, fmt.Errorf("refresh the model catalog: %w", err)
	}
	return changed, nil
}

func (c *Catalog) refresh(ctx context.Context, r Remote) (bool, error) {
	if c.file == "" {
		return false, errors.New("there is no file for it")
	}
	file := c.file
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target // a link stays one
	}
	// What cannot be read is made anew; where that cannot be, replacing says so.
	before, _ := os.ReadFile(file)
	var data []byte
	var next tag
	var err error
	if r.File != "" {
		data, err = os.ReadFile(r.File)
	} else {
		data, next, err = fetch(ctx, r, readTag(file, before))
	}
	if err != nil {
		return false, err
	}
	if data == nil { // the list is still that of the file
		return false, touch(file, c.now())
	}
	made, err := fromModelsDev(data)
	if err == nil {
		_, _, err = parse(made)
	}
	if err != nil {
		return false, fmt.Errorf("the list cannot be used: %w", err)
	}
	changed := !bytes.Equal(made, before)
	if changed {
		err = replace(file, made)
	}
	if err == nil {
		err = touch(file, c.now())
	}
	if err == nil && next.ETag != "" {
		// Without it the next refresh only fetches more.
		next.Made = digest(made)
		if note, err := json.Marshal(next); err == nil {
			_ = replace(file+tagSuffix, note)
		}
	}
	return changed, err
}

// tag notes beside the catalog file which version of the list it was made of.
type tag struct {
	URL     string `json:"url"`
	ETag    string `json:"etag"`
	Mapping int    `json:"mapping"`
	Made    string `json:"made"` // digest of the catalog file
}

const tagSuffix = ".etag"

// readTag returns the tag of a catalog file, the zero one when it says nothing
// about this content.
func readTag(file string, content []byte) tag {
	var t tag
	note, err := os.ReadFile(file + tagSuffix)
	if err != nil || json.Unmarshal(note, &t) != nil || t.Mapping != mapping || t.Made != digest(content) {
		return tag{}
	}
	return t
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// fetch gets the list; nil without an error when it is that of old.
func fetch(ctx context.Context, r Remote, old tag) ([]byte, tag, error) {
	u, err := r.address()
	if err != nil {
		return nil, tag{}, err
	}
	address, shown := u.String(), u.Redacted()
	client := &http.Client{}
	if r.Client != nil {
		if client, err = r.Client(); err != nil {
			return nil, tag{}, err
		}
		client.CheckRedirect = nil // it is a public page, and no key goes along
	} else {
		t := http.DefaultTransport.(*http.Transport).Clone()
		client.Transport = t
	}
	defer client.CloseIdleConnections() // the next request is minutes away
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, tag{}, errors.New("its address cannot be used")
	}
	req.Header.Set("User-Agent", "codework")
	req.Header.Set("Accept", "application/json")
	if old.ETag != "" && old.URL == address {
		req.Header.Set("If-None-Match", old.ETag)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, tag{}, err
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusNotModified && old.ETag != "":
		return nil, old, nil
	case res.StatusCode != http.StatusOK:
		return nil, tag{}, fmt.Errorf("%s answered with HTTP %d", shown, res.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxFile+1))
	switch {
	case err != nil:
		return nil, tag{}, fmt.Errorf("%s: %w", shown, err)
	case len(data) > maxFile:
		return nil, tag{}, fmt.Errorf("%s: larger than %d MiB", shown, maxFile>>20)
	}
	return data, tag{URL: address, ETag: res.Header.Get("ETag"), Mapping: mapping}, nil
}

// replace writes a file beside the other and puts it in its place.
func replace(file string, content []byte) error {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", file)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// touch makes a file count as made now.
func touch(file string, now time.Time) error { return os.Chtimes(file, now, now) }

// Keeping is how a file is kept from getting old.
type Keeping struct {
	Remote
	// MaxAge of the file; 0 or less keeps nothing.
	MaxAge time.Duration
	// Begin is received from before the first look at the file.
	Begin <-chan struct{}
	Log   *slog.Logger
}

// Keep refreshes the file whenever it has got old, until the context ends. It
// does nothing for a pinned file. A refresh that fails is a warning, once for
// each reason: the file stays, and a minute later there is another try.
func (c *Catalog) Keep(ctx context.Context, k Keeping) {
	if c.pinned || c.file == "" || k.MaxAge <= 0 {
		return
	}
	select {
	case <-k.Begin:
	case <-ctx.Done():
		return
	}
	again := time.NewTicker(checkEvery)
	defer again.Stop()
	warned := map[string]bool{}
	for {
		if c.Stale(k.MaxAge) {
			changed, err := c.Refresh(ctx, k.Remote)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && !warned[err.Error()]:
				warned[err.Error()] = true
				k.Log.Warn("the model catalog could not be refreshed; the older one is used", "err", err)
			case err != nil:
				k.Log.Debug("the model catalog could not be refreshed", "err", err)
			case changed:
				k.Log.Info("the model catalog was refreshed", "file", c.file)
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// Forever is the age of a file that is never refreshed by itself.
const Forever time.Duration = 0

// ageUnits are the words of ages like "15 minutes".
var ageUnits = map[string]time.Duration{
	"milli": time.Millisecond, "second": time.Second, "minute": time.Minute,
	"hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// maxAge keeps an age from overflowing.
const maxAge = 10 * 365 * 24 * time.Hour

// ParseMaxAge reads an age limit: "15 minutes", "15m", or "off" for Forever. No
// time at all makes every file too old.
func ParseMaxAge(s string) (time.Duration, error) {
	s = strings.ToLower(strings.TrimSpace(s))
	wrong := fmt.Errorf(`expected an age such as "15 minutes" or 90m, or off, not %q`, s)
	switch s {
	case "":
		return DefaultMaxAge, nil
	case "off", "never", "infinity":
		return Forever, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		number, unit, _ := strings.Cut(s, " ")
		n, err := strconv.ParseFloat(number, 64)
		u, ok := ageUnits[strings.TrimSuffix(strings.TrimSpace(unit), "s")]
		if err != nil || !ok || !(n >= 0) || n > float64(maxAge/u) {
			return 0, wrong
		}
		d = time.Duration(n * float64(u))
	}
	if d < 0 || d > maxAge {
		return 0, wrong
	}
	return max(d, 1), nil // 0 is Forever
}
