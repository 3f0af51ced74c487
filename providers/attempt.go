package providers

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"codework/messages"
	"codework/providers/sse"
)

const (
	// defaultTimeout bounds a whole request, defaultIdleTimeout the silence in
	// it, where the settings say nothing.
	defaultTimeout     = time.Hour
	defaultIdleTimeout = 5 * time.Minute
	// maxErrorBody is how much of an error's body is read.
	maxErrorBody = 64 << 10
	// maxRedirects on one host; providers need none, gateways one.
	maxRedirects = 3
	// stopGrace is how long is waited, after the terminal event, for the rest
	// of the stream: the usage that some servers send last, content that must
	// not come any more, and the end.
	stopGrace = time.Second
	// drainGrace is how long the end of a stream is waited for after its outcome
	// was emitted, and maxDrain how much is read for it: without its end the
	// connection cannot be used for the next turn.
	drainGrace = 50 * time.Millisecond
	maxDrain   = 16 << 10
	// maxValues bounds the values in one event or document of more than
	// manyBytes. A decoder makes up to 40 bytes of memory of each byte of a list
	// of empty values, so that 16 MiB of them would take most of a GiB; an answer
	// of the longest that is read has a tenth of it.
	maxValues = 250_000
	manyBytes = 256 << 10
)

// Attempt is one HTTP request and how its answer is read.
type Attempt struct {
	URL    string
	Header http.Header // the dialect's; the model's and the options' are laid over
	Body   []byte
	// Event takes one event of the stream.
	Event func(a *Assembler, e sse.Event)
	// Whole takes an answer that is one JSON document. Where it is nil such
	// an answer is an error.
	Whole func(a *Assembler, body []byte)
	// Refused turns what the provider said went wrong, and the body in which it
	// did, into a failure. Nil is Classify.
	Refused func(f Fault, body []byte) *messages.Failure
}

var (
	errIdle  = errors.New("idle timeout")
	errTotal = errors.New("request timeout")
)

// JoinURL puts a path behind a base URL, keeping its query. With or without a
// slash at the end of the base, and when the base already ends in the path,
// the result is the same.
func JoinURL(base, path string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(base))
	if err != nil {
		return "", errors.New("base URL cannot be read") // the URL may hold a secret
	}
	path = "/" + strings.Trim(path, "/")
	if !strings.HasSuffix(strings.TrimRight(u.Path, "/"), path) {
		u = u.JoinPath(path)
	}
	return u.String(), nil
}

// Run makes the attempt and emits its outcome.
func (t Attempt) Run(ctx context.Context, client *http.Client, req *messages.Request, emit func(messages.StreamEvent)) {
	sum := sha256.Sum256(t.Body)
	a := NewAssembler(req, hex.EncodeToString(sum[:]), emit)
	hr, failure := t.request(req)
	if failure != nil {
		a.Fail(failure)
		return
	}

	total := req.Options.Timeout
	if total <= 0 {
		total = defaultTimeout
	}
	idle := req.Options.IdleTimeout
	if idle <= 0 {
		idle = defaultIdleTimeout
	}
	reqCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	totalTimer := time.AfterFunc(total, func() { cancel(errTotal) })
	defer totalTimer.Stop()
	watch := &watched{limit: idle, timer: time.AfterFunc(idle, func() { cancel(errIdle) })}
	defer watch.timer.Stop()

	fail := func(err error) {
		if a.Stopped() && ctx.Err() == nil {
			a.Finish() // what it was about had arrived before
			return
		}
		a.Fail(broken(ctx, reqCtx, hr.URL, err, total, idle))
	}
	resp, err := confined(client).Do(hr.WithContext(reqCtx))
	watch.timer.Stop()
	if err != nil {
		fail(err)
		return
	}
	defer resp.Body.Close()
	watch.body = resp.Body
	content, failure := unpacked(resp.Header, watch)
	if failure != nil {
		a.Fail(failure)
		return
	}

	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		body, _ := io.ReadAll(io.LimitReader(content, maxErrorBody))
		if ctx.Err() != nil {
			fail(ctx.Err())
			return
		}
		a.Fail(t.refused(req, ReadFault(resp.StatusCode, resp.Header, body), body))
		return
	}

	br := bufio.NewReaderSize(content, 512) // only to look at the first byte
	if !strings.Contains(strings.ToLower(resp.Header.Get("Content-Type")), "text/event-stream") {
		first, err := firstByte(br)
		if err != nil && err != io.EOF {
			fail(err)
			return
		}
		if first == '{' || first == '[' || first == '<' {
			t.whole(a, req, resp.Header, br, first, fail)
			return
		}
	}
	events := sse.NewReader(br)
	var grace *time.Timer
	for !a.Ended() {
		e, err := events.Next()
		switch {
		case ctx.Err() != nil:
			fail(ctx.Err()) // what was already here does not go out any more
		case err == nil && len(bytes.TrimSpace(e.Data)) == 0:
			// Another form of keep-alive.
		case err == nil && crowded(e.Data):
			a.Fail(invalid("the provider sent an event with too many parts"))
		case err == nil:
			t.Event(a, e)
			if a.Stopped() && grace == nil {
				grace = time.AfterFunc(stopGrace, func() { cancel(errIdle) })
				defer grace.Stop()
			}
		case err == io.EOF:
			a.Finish()
		case err == sse.ErrTooLong:
			a.Fail(invalid("the provider sent an event longer than 16 MiB"))
		default:
			fail(err)
		}
	}
	if a.Stopped() && reqCtx.Err() == nil {
		limit := time.AfterFunc(drainGrace, func() { cancel(errIdle) })
		defer limit.Stop()
		io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrain))
	}
}

// unpacked is the content of an answer's body. It was asked for as it is, but
// there are proxies that compress everything.
func unpacked(h http.Header, body io.Reader) (io.Reader, *messages.Failure) {
	switch coding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding"))); coding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		return &gunzip{body: body}, nil
	default:
		f := invalid("the answer is compressed in a way that was not asked for (" + bounded(coding, maxCode) + ")")
		f.Hint = "check the proxy or gateway in front of the provider"
		return nil, f
	}
}

// errNotGzip is for a body that is not what its header says.
var errNotGzip = errors.New("not gzip")

// gunzip reads a compressed body, each piece as soon as it is there.
type gunzip struct {
	body io.Reader
	z    *gzip.Reader
	err  error
}

func (g *gunzip) Read(p []byte) (int, error) {
	if g.z == nil && g.err == nil {
		if g.z, g.err = gzip.NewReader(g.body); g.err == gzip.ErrHeader {
			g.err = errNotGzip
		}
	}
	if g.err != nil {
		return 0, g.err
	}
	return g.z.Read(p)
}

// whole reads an answer that is no stream.
func (t Attempt) whole(a *Assembler, req *messages.Request, h http.Header, r io.Reader, first byte, fail func(error)) {
	if first == '<' {
		f := invalid("the provider answered with a web page")
		f.Hint = "check the base URL of " + providerName(req.Model)
		a.Fail(f)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r, sse.MaxLine+1))
	switch {
	case err != nil:
		fail(err)
		return
	case len(body) > sse.MaxLine:
		a.Fail(invalid("the provider's answer is longer than 16 MiB"))
		return
	case crowded(body):
		a.Fail(invalid("the provider's answer has too many parts"))
		return
	}
	if f, ok := ErrorIn(body); ok {
		f.Header = h
		a.Fail(t.refused(req, f, body))
		return
	}
	if t.Whole == nil {
		f := invalid("the provider answered with a document instead of a stream")
		f.Hint = "check the base URL of " + providerName(req.Model)
		a.Fail(f)
		return
	}
	t.Whole(a, body)
	a.Finish()
}

// crowded tells whether JSON has more values than any answer. What is in its
// strings does not count.
func crowded(data []byte) bool {
	if len(data) <= manyBytes {
		return false
	}
	values, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case c == ',' && !inString:
			if values++; values > maxValues {
				return true
			}
		}
	}
	return false
}

func (t Attempt) refused(req *messages.Request, f Fault, body []byte) *messages.Failure {
	if t.Refused == nil {
		return Classify(req, f)
	}
	return t.Refused(f, body)
}

// ErrorIn reads the error that a document with a field "error" reports.
func ErrorIn(body []byte) (Fault, bool) {
	var o struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &o) != nil {
		return Fault{}, false
	}
	switch string(o.Error) {
	case "", "null", `""`, "{}", "false":
		return Fault{}, false
	}
	return ReadFault(0, nil, body), true
}

// request builds the HTTP request.
func (t Attempt) request(req *messages.Request) (*http.Request, *messages.Failure) {
	u, err := url.Parse(t.URL)
	if err != nil || u.Host == "" && u.Scheme == "" {
		return nil, &messages.Failure{
			Type:    messages.FailConfiguration,
			Message: "no base URL for " + providerName(req.Model),
			Hint:    "set baseUrl of the model in the settings",
		}
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, &messages.Failure{
			Type:    messages.FailTransport,
			Message: "unsupported scheme in the base URL of " + providerName(req.Model),
			Hint:    "use http or https",
		}
	}
	hr, err := http.NewRequest(http.MethodPost, u.String(), bytes.NewReader(t.Body))
	if err != nil {
		return nil, &messages.Failure{Type: messages.FailConfiguration, Message: "the base URL of " + providerName(req.Model) + " cannot be used"}
	}
	hr.Header.Set("Content-Type", "application/json")
	hr.Header.Set("Accept", "text/event-stream")
	hr.Header.Set("Accept-Encoding", "identity") // a compressed stream arrives in lumps
	hr.Header.Set("User-Agent", "codework")
	for name, values := range t.Header {
		hr.Header[http.CanonicalHeaderKey(name)] = values
	}
	for _, headers := range []map[string]string{req.Model.Headers, req.Options.Headers} {
		for name, v := range headers {
			hr.Header.Set(name, strings.TrimSpace(v))
		}
	}
	for name, values := range hr.Header {
		for _, v := range values {
			if !headerSafe(name, v) {
				return nil, &messages.Failure{
					Type:    messages.FailConfiguration,
					Message: "a request header of " + providerName(req.Model) + " has a name or value that cannot be sent",
					Hint:    "check the headers and the key for line breaks",
				}
			}
		}
	}
	return hr, nil
}

func headerSafe(name, value string) bool {
	for _, r := range name {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune("()<>@,;:\\\"/[]?={}", r) {
			return false
		}
	}
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return name != ""
}

// confined is the client's transport without a deadline of its own, and with
// CheckRedirect.
func confined(client *http.Client) *http.Client {
	return &http.Client{Transport: client.Transport, CheckRedirect: CheckRedirect}
}

// CheckRedirect lets an http.Client follow a redirect only where the key goes
// to the same host, TLS stays TLS and the request stays the same; any other
// becomes the answer.
func CheckRedirect(next *http.Request, via []*http.Request) error {
	first := via[0]
	same := next.URL.Host == first.URL.Host && next.URL.Scheme == first.URL.Scheme && next.Method == first.Method
	if !same || len(via) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

// watched reads a body and lets the timer fire when a read takes longer than
// the limit. Any byte counts, keep-alives too.
type watched struct {
	body  io.Reader
	timer *time.Timer
	limit time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	n, err := w.body.Read(p)
	w.timer.Stop()
	return n, err
}

func firstByte(br *bufio.Reader) (byte, error) {
	for {
		c, err := br.ReadByte()
		if err != nil {
			return 0, err
		}
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return c, br.UnreadByte()
	}
}

// broken classifies an error of the connection.
func broken(caller, own context.Context, u *url.URL, err error, total, idle time.Duration) *messages.Failure {
	if caller.Err() != nil {
		return &messages.Failure{Type: messages.FailProviderUnknown, Code: CodeAborted, Message: "the request was stopped"}
	}
	switch context.Cause(own) {
	case errTotal:
		return &messages.Failure{Type: messages.FailTimeout, Retryable: true,
			Message: "the answer was not complete after " + total.String()}
	case errIdle:
		return &messages.Failure{Type: messages.FailTimeout, Retryable: true,
			Message: "the provider sent nothing for " + idle.String()}
	}
	if errors.Is(err, errNotGzip) {
		return invalid("the answer says that it is compressed, and is not")
	}
	return ClassifyNetwork(u.Host, err)
}

// ClassifyNetwork turns an error of the connection to a host into a failure.
// The error's own text is not kept: it may hold the URL and what is in it.
func ClassifyNetwork(host string, err error) *messages.Failure {
	f := &messages.Failure{Type: messages.FailTransport, Retryable: true}
	var (
		dns         *net.DNSError
		op          *net.OpError
		unknown     x509.UnknownAuthorityError
		hostname    x509.HostnameError
		certificate x509.CertificateInvalidError
		verify      *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		timeout     net.Error
	)
	switch {
	case errors.As(err, &op) && op.Op == "proxyconnect":
		f.Message = "no connection to the proxy for " + host
		f.Hint = "check HTTPS_PROXY and HTTP_PROXY, or except " + host + " with NO_PROXY"
	case proxyRefused(err) != 0:
		f.Message = "the proxy refuses the connection to " + host + ": " + strings.ToLower(http.StatusText(proxyRefused(err)))
		f.Retryable = proxyRefused(err) >= 500
		f.Hint = "check HTTPS_PROXY; a user and a password go in front of its host, as in http://user:password@host:port"
	case errors.As(err, &verify), errors.As(err, &unknown), errors.As(err, &hostname), errors.As(err, &certificate):
		f.Message, f.Retryable = "the TLS certificate of "+host+" was rejected", false
		f.Hint = "if a proxy or a private authority signs it, add its certificate to the system's (SSL_CERT_FILE)"
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		f.Message, f.Retryable = host+" does not speak TLS", false
		f.Hint = "check whether the base URL should begin with http:"
	case strings.Contains(err.Error(), "unsupported protocol scheme"):
		f.Message, f.Retryable = "unsupported scheme in the base URL", false
	case errors.As(err, &dns):
		f.Message = "the name " + host + " could not be resolved"
		f.Hint = "check the base URL and the network; where only a proxy leads out, set HTTPS_PROXY"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Message = "connection to " + host + " was refused"
		f.Hint = "check that the server runs and the base URL is right"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		f.Message = "connection to " + host + " was reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return cutShort()
	case errors.As(err, &timeout) && timeout.Timeout():
		f.Message = "connection to " + host + " timed out"
		f.Hint = proxyHint
	case errors.As(err, &op) && op.Op == "dial":
		f.Message = "no connection to " + host
		f.Hint = proxyHint
	default:
		f.Message = "connection to " + host + " failed"
	}
	return f
}

// proxyHint is for connections that most often need a proxy.
const proxyHint = "check the network; where only a proxy leads out, set HTTPS_PROXY"

// proxyRefused is the status with which a proxy refused to make a connection; 0
// when that is not what happened. The error has nothing but its words.
func proxyRefused(err error) int {
	var u *url.Error
	if !errors.As(err, &u) {
		return 0
	}
	for _, status := range []int{
		http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusProxyAuthRequired, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	} {
		if u.Err.Error() == http.StatusText(status) {
			return status
		}
	}
	return 0
}
