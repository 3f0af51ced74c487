package traces

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// The variables that decide where traces go. Those of the exporter have a form
// for traces alone, OTEL_EXPORTER_OTLP_TRACES_…, which comes first.
const (
	varDisabled = "OTEL_SDK_DISABLED"
	varExporter = "OTEL_TRACES_EXPORTER"
	otlp        = "OTEL_EXPORTER_OTLP_"
	otlpTraces  = "OTEL_EXPORTER_OTLP_TRACES_"
)

// SecretVariables hold what a collector knows its senders by: no command gets
// them unless somebody says so.
var SecretVariables = []string{otlp + "HEADERS", otlpTraces + "HEADERS"}

// What counts where the environment says nothing.
const (
	usualEndpoint = "http://localhost:4318"
	usualTimeout  = 10 * time.Second
	tracesPath    = "v1/traces"
)

// config is where traces go, and how.
type config struct {
	url     *url.URL
	headers http.Header
	timeout time.Duration // of a batch, with all attempts
	json    bool
	gzip    bool
	tls     *tls.Config // nil is the usual
}

// reader reads the environment, in which a variable that is empty is not set.
type reader struct {
	lookup func(string) string
	warn   func(variable, what string)
}

// readConfig returns nil if nobody asked for traces, or if it is not possible to
// send them as was asked.
func readConfig(lookup func(string) string, warn func(variable, what string)) *config {
	r := reader{lookup, warn}
	if !r.wanted() {
		return nil
	}
	c := &config{timeout: usualTimeout}
	ok := r.endpoint(c) && r.protocol(c) && r.trust(c)
	if !ok {
		return nil
	}
	r.headers(c)
	r.limit(c)
	r.compression(c)
	return c
}

func (r reader) get(name string) string { return strings.TrimSpace(r.lookup(name)) }

// option looks up a setting of the exporter.
func (r reader) option(name string) (variable, value string) {
	if v := r.get(otlpTraces + name); v != "" {
		return otlpTraces + name, v
	}
	return otlp + name, r.get(otlp + name)
}

// wanted tells whether somebody asked for traces: nothing is sent by default.
func (r reader) wanted() bool {
	switch v := r.get(varDisabled); {
	case strings.EqualFold(v, "true"):
		return false
	case v != "" && !strings.EqualFold(v, "false"):
		r.warn(varDisabled, "expected true or false; it is taken as false")
	}
	exporters := r.get(varExporter)
	if exporters == "" {
		_, endpoint := r.option("ENDPOINT")
		return endpoint != ""
	}
	found := false
	for name := range strings.SplitSeq(exporters, ",") {
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "otlp":
			found = true
		case "none", "":
		default:
			r.warn(varExporter, "this exporter is not supported; otlp and none are")
		}
	}
	return found
}

// endpoint finds the address. That of all signals is a folder, that of traces
// alone is taken as it is.
func (r reader) endpoint(c *config) bool {
	variable, value := r.option("ENDPOINT")
	if value == "" {
		value = usualEndpoint
	}
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.warn(variable, "expected an address such as http://localhost:4318; no traces are sent")
		return false
	}
	switch {
	case variable == otlp+"ENDPOINT":
		u = u.JoinPath(tracesPath)
	case u.Path == "":
		u.Path = "/"
	}
	c.url = u
	return true
}

func (r reader) protocol(c *config) bool {
	switch variable, value := r.option("PROTOCOL"); value {
	case "", "http/protobuf":
	case "http/json":
		c.json = true
	default:
		r.warn(variable, "this protocol is not supported; http/protobuf and http/json are. No traces are sent")
		return false
	}
	return true
}

// trust reads the certificates of those who may answer, and our own. One that
// cannot be read is not replaced by trust in somebody else.
func (r reader) trust(c *config) bool {
	var conf tls.Config
	if variable, file := r.option("CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		conf.RootCAs = x509.NewCertPool()
		switch {
		case err != nil:
			r.warn(variable, fmt.Sprintf("the file cannot be read (%v); no traces are sent", bare(err)))
			return false
		case !conf.RootCAs.AppendCertsFromPEM(pem):
			r.warn(variable, "there is no certificate in the file; no traces are sent")
			return false
		}
		c.tls = &conf
	}
	variable, cert := r.option("CLIENT_CERTIFICATE")
	_, key := r.option("CLIENT_KEY")
	if cert == "" && key == "" {
		return true
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		r.warn(variable, fmt.Sprintf("certificate and key cannot be used (%v); no traces are sent", bare(err)))
		return false
	}
	conf.Certificates = []tls.Certificate{pair}
	c.tls = &conf
	return true
}

// bare leaves the path out of an error: whoever set the variable knows it.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// headers reads name=value,name=value, each percent-encoded. What cannot be sent
// is left out.
func (r reader) headers(c *config) {
	variable, list := r.option("HEADERS")
	c.headers = http.Header{}
	for pair := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		name, err := url.PathUnescape(strings.TrimSpace(name))
		value, valueErr := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil || valueErr != nil || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			r.warn(variable, "one of the headers is not name=value, or cannot be sent; it is left out")
			continue
		}
		c.headers.Set(name, value)
	}
}

func (r reader) limit(c *config) {
	variable, value := r.option("TIMEOUT")
	if value == "" {
		return
	}
	ms, err := strconv.ParseInt(value, 10, 32)
	if err != nil || ms < 1 {
		r.warn(variable, "expected milliseconds, 1 or more; 10000 is taken")
		return
	}
	c.timeout = time.Duration(ms) * time.Millisecond
}

func (r reader) compression(c *config) {
	switch variable, value := r.option("COMPRESSION"); value {
	case "", "none":
	case "gzip":
		c.gzip = true
	default:
		r.warn(variable, "this compression is not supported; gzip and none are. Traces are sent without")
	}
}
