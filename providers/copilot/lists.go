package copilot

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"codework/messages"
	"codework/providers"
)

const (
	// listWait is how long a request is held up by the list of models: it
	// usually comes within half a second.
	listWait = 3 * time.Second
	// listRest is how long a list counts, and listAgain how long none is asked
	// for after one that could not be had.
	listRest  = 30 * time.Minute
	listAgain = time.Minute
	// maxList is the most that is read of one, which has some 100 KiB.
	maxList = 4 << 20
	// maxAccounts bounds what is remembered; a process rarely has two.
	maxAccounts = 64
)

// lists are what accounts may use, by base URL and token.
type lists struct {
	mu sync.Mutex
	by map[string]*list // guarded by mu
}

// list is the answer to one request for a list; done closes when it is there.
type list struct {
	done  chan struct{}
	paths map[string][]string // by model id; nil when there is no list
	until time.Time
}

// endpoints returns the paths that an account reaches its models by, nil when
// they cannot be had. One caller asks, others wait for the answer.
func (l *lists) endpoints(ctx context.Context, client *http.Client, base string, req *messages.Request) map[string][]string {
	token := strings.TrimSpace(req.APIKey)
	if base == "" || token == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	key := base + "\x00" + string(sum[:])
	l.mu.Lock()
	a := l.by[key]
	if a != nil && a.over() {
		a = nil
	}
	if a != nil {
		l.mu.Unlock()
		select {
		case <-a.done:
			return a.paths
		case <-ctx.Done():
			return nil
		}
	}
	if len(l.by) >= maxAccounts {
		clear(l.by)
	}
	a = &list{done: make(chan struct{})}
	l.by[key] = a
	l.mu.Unlock()

	a.paths = fetch(ctx, client, base, token)
	switch {
	case a.paths != nil:
		a.until = time.Now().Add(listRest)
	case ctx.Err() == nil:
		a.until = time.Now().Add(listAgain)
	} // a caller that left says nothing about the list
	close(a.done)
	return a.paths
}

// over tells that an answer is there and too old.
func (a *list) over() bool {
	select {
	case <-a.done:
		return !time.Now().Before(a.until)
	default:
		return false
	}
}

func fetch(ctx context.Context, c *http.Client, base, token string) map[string][]string {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	address, err := providers.JoinURL(base, "models")
	if err != nil {
		return nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil
	}
	for name, v := range client {
		r.Header.Set(name, v)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "application/json")
	own := http.Client{Transport: c.Transport, CheckRedirect: providers.CheckRedirect}
	res, err := own.Do(r)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxList))
	if err != nil || res.StatusCode != http.StatusOK {
		return nil
	}
	return parseList(body)
}

// parseList reads the paths out of a list of models; nil when it is none. A
// model without paths, or one that is no model, is left out.
func parseList(body []byte) map[string][]string {
	var answer struct {
		Data []json.RawMessage `json:"data"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Data == nil {
		return nil
	}
	paths := map[string][]string{}
	for _, raw := range answer.Data {
		var m struct {
			ID        string   `json:"id"`
			Supported []string `json:"supported_endpoints"`
		}
		if json.Unmarshal(raw, &m) == nil && m.ID != "" && len(m.Supported) > 0 {
			paths[m.ID] = m.Supported
		}
	}
	return paths
}
