package actors

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"codework/messages"
	"codework/providers"
)

// connectionTo names a provider connection: everything that makes one differ
// from another.
type connectionTo struct {
	protocol   messages.Protocol
	baseURL    string
	provider   string
	credential string // a digest of the key
	network    [len(networkVariables)]string
}

// networkVariables are what a caller's environment says about the way to a
// provider.
var networkVariables = [...]string{
	"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
}

func digest(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// client makes the HTTP client of a connection. Proxy and certificates are
// the caller's, not those the process was started with.
func (c connectionTo) client() (*http.Client, error) {
	v := map[string]string{}
	for i, name := range networkVariables {
		v[name] = c.network[i]
	}
	either := func(a, b string) string {
		if v[a] != "" {
			return v[a]
		}
		return v[b]
	}
	all := either("ALL_PROXY", "all_proxy")
	proxy := httpproxy.Config{HTTPSProxy: either("HTTPS_PROXY", "https_proxy"), HTTPProxy: either("HTTP_PROXY", "http_proxy"), NoProxy: either("NO_PROXY", "no_proxy")}
	if proxy.HTTPSProxy == "" {
		proxy.HTTPSProxy = all
	}
	if proxy.HTTPProxy == "" {
		proxy.HTTPProxy = all
	}
	choose := proxy.ProxyFunc()
	t := &http.Transport{
		Proxy:                 func(r *http.Request) (*url.URL, error) { return choose(r.URL) },
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   dialTimeout,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   64, // sessions that take turns on one connection
		ExpectContinueTimeout: time.Second,
	}
	if c.encrypted(proxy) {
		roots, err := certificates(v["SSL_CERT_FILE"], v["SSL_CERT_DIR"])
		if err != nil {
			return nil, err
		}
		if roots != nil {
			t.TLSClientConfig = &tls.Config{RootCAs: roots}
		}
	}
	return &http.Client{Transport: t, CheckRedirect: providers.CheckRedirect}, nil
}

// encrypted tells whether anything on the connection's way may want a
// certificate: reading all of them takes longer than a short answer of a model
// on this machine. A connection whose address is not known yet may.
func (c connectionTo) encrypted(p httpproxy.Config) bool {
	for _, address := range []string{c.baseURL, p.HTTPProxy} {
		if address != "" && !strings.HasPrefix(strings.ToLower(address), "http://") {
			return true
		}
	}
	return c.baseURL == ""
}

// How long a provider's host may take to accept, and how often an idle
// connection is probed.
const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// certificates reads the authorities that the variables name; nil means the
// system's.
func certificates(file, dir string) (*x509.CertPool, error) {
	if file == "" && dir == "" {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	files := []string{}
	if file != "" {
		files = append(files, file)
	}
	for _, d := range filepath.SplitList(dir) {
		found, _ := filepath.Glob(filepath.Join(d, "*")) // a bad pattern is a folder without certificates
		files = append(files, found...)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && pool.AppendCertsFromPEM(b) {
			continue
		}
		if f == file {
			if err == nil {
				err = errors.New("no certificate in it")
			}
			return nil, errors.New("SSL_CERT_FILE " + f + ": " + err.Error())
		}
	}
	return pool, nil
}
