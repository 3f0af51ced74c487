package plugin

import (
	"io"
	"mime"
	"net/http"
	"net/url"
)

// headers adds the entry's headers to requests for the entry's own server:
// they may hold a key, which must not follow a redirect elsewhere. Answers are
// bounded as lines are.
type headers struct {
	next http.RoundTripper
	own  string // the server's URL
	set  map[string]string
}

func (h *headers) RoundTrip(r *http.Request) (*http.Response, error) {
	next := h.next
	if next == nil {
		next = http.DefaultTransport
	}
	if own, err := url.Parse(h.own); err == nil && own.Host == r.URL.Host && own.Scheme == r.URL.Scheme {
		r = r.Clone(r.Context())
		for name, value := range h.set {
			r.Header.Set(name, value)
		}
	}
	resp, err := next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	// The library bounds each event of a stream, which may go on for ever.
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != "text/event-stream" {
		resp.Body = &boundedBody{resp.Body, maxLine}
	}
	return resp, nil
}

// boundedBody fails where a message would be too long.
type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLineTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
