package daytona

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// connectLimit is for a connection with its TLS.
	connectLimit = 10 * time.Second
	// callLimit is for a call whose answer comes as a whole.
	callLimit = time.Minute
	// idleLimit is how long a stream may be without a byte.
	idleLimit = 2 * time.Minute
	// maxAnswer bounds an answer in memory. The largest is a list of files.
	maxAnswer = 32 << 20
	// maxErrorBody is what is read of an answer that is an error, and
	// maxErrorText what is told of it.
	maxErrorBody = 64 << 10
	maxErrorText = 4 << 10
	// maxAttempts is how often a call that may be repeated is made.
	maxAttempts = 4
	// firstPause is before the second attempt; each further one doubles it.
	firstPause = 250 * time.Millisecond
	// longestPause is the most that a service may ask to wait: who waits longer
	// should hear of it.
	longestPause = 30 * time.Second
	// maxRedirects is as in net/http.
	maxRedirects = 10

	masked = "<redacted>"
	// version is that of the clients whose behaviour towards the service this
	// follows: the daemon in a sandbox keeps the streams of a log apart for
	// newer ones.
	version = "0.218.0"
)

// Error is an answer of the service that is not what was asked for. It never
// holds the key.
type Error struct {
	Status int    // of HTTP; 200 when the answer itself is at fault
	Code   string // Daytona's, such as FILE_NOT_FOUND; "" is none
	Text   string // what it says, at most 4 KiB

	after time.Duration // that the service asks to wait; -1 is unknown
}

func (e *Error) Error() string {
	s := "Daytona answers " + strconv.Itoa(e.Status)
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		s += " (the key is wrong, or may not do this)"
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// client calls the service as one account.
type client struct {
	account
	http  *http.Client
	pause func(context.Context, time.Duration) error
}

// newTransport is for all accounts.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: connectLimit}).DialContext,
		TLSHandshakeTimeout:   connectLimit,
		ResponseHeaderTimeout: idleLimit,
		IdleConnTimeout:       30 * time.Second, // as long as connections of idle sandboxes are kept
		MaxIdleConnsPerHost:   16,
		ForceAttemptHTTP2:     true,
	}
}

// sameHost follows redirects as long as they stay where the key belongs.
func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if req.URL.Host != first.Host || req.URL.Scheme != first.Scheme || len(via) >= maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

// repeat says whether a call may be made again when nobody knows whether it
// was done.
type repeat bool

const (
	once   repeat = false
	mayTry repeat = true
)

// call makes a call with a JSON body and reads a JSON answer; either may be
// nil.
func (c *client) call(ctx context.Context, r repeat, method, url string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	return c.again(ctx, r, func() error {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		var reader io.Reader
		contentType := ""
		if body != nil {
			reader, contentType = bytes.NewReader(body), "application/json"
		}
		resp, err := c.send(ctx, method, url, contentType, reader)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return c.decode(resp, out)
	})
}

// again makes a call until it worked, or another attempt makes no sense.
func (c *client) again(ctx context.Context, r repeat, attempt func() error) error {
	pause := firstPause
	for n := 1; ; n++ {
		err := attempt()
		if err == nil || ctx.Err() != nil {
			return err
		}
		wait := pause/2 + rand.N(pause)
		pause *= 2
		var e *Error
		if errors.As(err, &e) {
			busy := e.Status == http.StatusTooManyRequests // which means that it was not done
			if !busy && (r == once || e.Status < 500) {
				return err
			}
			if e.after >= 0 {
				wait = e.after + rand.N(firstPause)
			}
		} else if r == once {
			return err
		}
		if n == maxAttempts || wait > longestPause {
			return err
		}
		if c.pause(ctx, wait) != nil {
			return err
		}
	}
}

// send makes one request. An answer that is no success is an *Error.
func (c *client) send(ctx context.Context, method, url, contentType string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	c.sign(req.Header)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.hide(err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, c.failure(resp)
	}
	return resp, nil
}

func (c *client) sign(h http.Header) {
	h.Set("Authorization", "Bearer "+c.key)
	h.Set("User-Agent", "codework")
	h.Set("X-Daytona-Source", "codework")
	h.Set("X-Daytona-SDK-Version", version)
	if c.organization != "" {
		h.Set("X-Daytona-Organization-ID", c.organization)
	}
}

// decode reads an answer of JSON.
func (c *client) decode(resp *http.Response, out any) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("the answer broke off: %w", c.hide(err))
	case out == nil:
		return nil
	case len(b) > maxAnswer:
		return &Error{Status: resp.StatusCode, Text: "the answer is too long", after: -1}
	}
	if err := json.Unmarshal(b, out); err != nil {
		return &Error{Status: resp.StatusCode, Text: c.clean("not the JSON that was asked for, but " + kindOf(resp) + ": " + string(b[:min(len(b), maxErrorBody)])), after: -1}
	}
	return nil
}

// kindOf is what an answer says that it is.
func kindOf(resp *http.Response) string {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return "something unnamed"
	}
	return kind
}

// failure reads an answer that is an error.
func (c *client) failure(resp *http.Response) *Error {
	e := &Error{Status: resp.StatusCode, after: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	if to := resp.Header.Get("Location"); to != "" && resp.StatusCode/100 == 3 {
		where := "an address that is none"
		if u, err := url.Parse(to); err == nil {
			where = u.Host
		}
		e.Text = c.clean("it redirects to " + where + ", which the key is not sent to")
		return e
	}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // as far as it goes
	if len(b) == maxErrorBody {
		b = b[:max(0, len(b)-len(c.key))] // where half a key may stand
	}
	var said struct {
		Message json.RawMessage `json:"message"`
		Error   json.RawMessage `json:"error"`
		Code    string          `json:"code"`
	}
	if json.Unmarshal(b, &said) == nil {
		e.Code = c.clean(said.Code)
		for _, m := range []json.RawMessage{said.Message, said.Error} {
			if text := textOf(m); text != "" {
				e.Text = c.clean(text)
				return e
			}
		}
	}
	if len(b) > 0 {
		e.Text = c.clean(kindOf(resp) + ": " + string(b))
	}
	return e
}

// textOf reads a message, which is a text or a list of them.
func textOf(m json.RawMessage) string {
	var one string
	if json.Unmarshal(m, &one) == nil {
		return one
	}
	var list []string
	if json.Unmarshal(m, &list) == nil {
		return strings.Join(list, "; ")
	}
	return ""
}

// clean masks the key and cuts.
func (c *client) clean(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, c.key, masked), "�")
	if len(s) > maxErrorText {
		s = strings.ToValidUTF8(s[:maxErrorText], "") + "…"
	}
	return s
}

// hidden is an error whose text held the key.
type hidden struct {
	text string
	err  error
}

func (h *hidden) Error() string { return h.text }
func (h *hidden) Unwrap() error { return h.err }

// hide masks the key in an error.
func (c *client) hide(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // without the address, which says nothing to a person
	}
	if clean := c.clean(err.Error()); clean != err.Error() {
		return &hidden{clean, err}
	}
	return err
}

// retryAfter reads the header of this name: seconds, or a date. -1 is unknown.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 32); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, t.Sub(now))
	}
	return -1
}

// sleep waits unless the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// idleReader ends a stream that has no bytes for too long.
type idleReader struct {
	r     io.Reader
	timer *time.Timer
	limit time.Duration
}

var errIdle = errors.New("no bytes for too long")

// newIdleReader reads r, whose reads end when cancel is called. stop must be
// called in the end.
func newIdleReader(r io.Reader, limit time.Duration, cancel context.CancelCauseFunc) (reader io.Reader, stop func()) {
	i := &idleReader{r: r, limit: limit}
	i.timer = time.AfterFunc(limit, func() { cancel(errIdle) })
	return i, func() { i.timer.Stop() }
}

func (i *idleReader) Read(b []byte) (int, error) {
	n, err := i.r.Read(b)
	if n > 0 {
		i.timer.Reset(i.limit)
	}
	return n, err
}

// isStatus tells whether the service answered so.
func isStatus(err error, status int) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == status
}
