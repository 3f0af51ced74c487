package actors

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// through returns the connection of a caller with these variables.
func through(vars map[string]string) connectionTo {
	var c connectionTo
	for i, name := range networkVariables {
		c.network[i] = vars[name]
	}
	return c
}

func get(t *testing.T, c connectionTo, address string) (string, error) {
	t.Helper()
	client, err := c.client()
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	res, err := client.Get(address)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// secureModel is a server whose certificate nobody knows, and the file with it.
func secureModel(t *testing.T) (server *httptest.Server, file string) {
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of those who do not trust it
	server.StartTLS()
	t.Cleanup(server.Close)
	file = filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, file
}

func TestCertificatesAreThoseOfTheCaller(t *testing.T) {
	server, file := secureModel(t)
	for _, vars := range []map[string]string{{"SSL_CERT_FILE": file}, {"SSL_CERT_DIR": filepath.Dir(file)}} {
		if got, err := get(t, through(vars), server.URL); err != nil || got != "hello" {
			t.Errorf("%v: %q, %v", vars, got, err)
		}
	}
	if _, err := get(t, through(nil), server.URL); err == nil {
		t.Error("another caller trusts the certificate too")
	}
}

// tunnel is a proxy that leads every connection to one server, whatever its
// name, and tells of each.
func tunnel(t *testing.T, to string) (address string, asked chan string) {
	asked = make(chan string, 16)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.Host + " " + r.Header.Get("Proxy-Authorization")
		if r.Method != http.MethodConnect {
			_, _ = io.WriteString(w, "from the proxy")
			return
		}
		out, err := net.Dial("tcp", to)
		if err != nil {
			http.Error(w, "no", http.StatusBadGateway)
			return
		}
		in, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(out, in)
			out.Close()
		}()
		go func() {
			_, _ = io.Copy(in, out)
			in.Close()
		}()
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL, asked
}

func TestTheProxyIsThatOfTheCaller(t *testing.T) {
	server, file := secureModel(t)
	proxy, asked := tunnel(t, server.Listener.Addr().String())
	withUser := strings.Replace(proxy, "http://", "http://user:pass@", 1)
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
		if got, err := get(t, through(map[string]string{name: withUser, "SSL_CERT_FILE": file}), "https://example.com/v1"); err != nil || got != "hello" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if got := <-asked; got != "CONNECT example.com:443 Basic dXNlcjpwYXNz" {
			t.Errorf("%s: the proxy was asked %q", name, got)
		}
	}
	if got, err := get(t, through(map[string]string{"HTTP_PROXY": proxy}), "http://models.example/v1"); err != nil || got != "from the proxy" {
		t.Errorf("plain: %q, %v", got, err)
	}
	<-asked
	// This machine, what NO_PROXY names, and callers without a proxy go straight.
	for _, vars := range []map[string]string{
		{"HTTPS_PROXY": proxy, "SSL_CERT_FILE": file},
		{"HTTPS_PROXY": proxy, "NO_PROXY": "127.0.0.1", "SSL_CERT_FILE": file},
		{"SSL_CERT_FILE": file},
	} {
		if got, err := get(t, through(vars), server.URL); err != nil || got != "hello" {
			t.Errorf("%v: %q, %v", vars, got, err)
		}
	}
	if len(asked) != 0 {
		t.Errorf("the proxy was asked %q", <-asked)
	}
}
