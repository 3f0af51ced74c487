package ssh

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode"

	"codework/sandboxes"
)

const (
	defaultPort = 22
	// maxResource bounds a resource id, in bytes.
	maxResource = 2048
)

// address is where a sandbox lies: its resource id is
// ssh://user@host[:port]/absolute/folder.
type address struct {
	user, host string
	port       int
	dir        string // absolute and clean
}

// parseAddress reads a resource id. The error is a *sandboxes.ConfigError,
// which shows nothing of it: it may hold a password.
func parseAddress(id string) (address, error) {
	refuse := func(format string, args ...any) (address, error) {
		return address{}, &sandboxes.ConfigError{Reason: "resource id: " + fmt.Sprintf(format, args...) +
			"; expected ssh://user@host[:port]/absolute/folder"}
	}
	if len(id) > maxResource {
		return refuse("longer than %d bytes", maxResource)
	}
	if strings.ContainsFunc(id, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar }) {
		return refuse("space or control character")
	}
	u, err := url.Parse(id)
	if err != nil {
		return refuse("no address")
	}
	port := defaultPort
	if p := u.Port(); p != "" {
		if port, err = strconv.Atoi(p); err != nil || port < 1 || port > 65535 {
			return refuse("port out of range")
		}
	}
	_, password := u.User.Password()
	switch {
	case u.Scheme != "ssh" || u.Opaque != "":
		return refuse("no ssh address")
	case password:
		return refuse("a password has no place there, use a key")
	case u.User.Username() == "":
		return refuse("user missing")
	case u.Hostname() == "":
		return refuse("host missing")
	case strings.Contains(u.Hostname(), ":") && !isIPv6(u):
		return refuse("an address with colons is written in brackets, as in ssh://user@[::1]/folder")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return refuse("something behind the folder")
	case !strings.HasPrefix(u.Path, "/"):
		return refuse("folder missing")
	case strings.ContainsFunc(u.Path+u.User.Username()+u.Hostname(), unicode.IsControl):
		return refuse("control character")
	}
	for part := range strings.SplitSeq(u.Path, "/") {
		if part == ".." {
			return refuse(`".." in the folder`)
		}
	}
	return address{u.User.Username(), u.Hostname(), port, path.Clean(u.Path)}, nil
}

// isIPv6 tells whether a host is an address in brackets.
func isIPv6(u *url.URL) bool {
	_, err := netip.ParseAddr(u.Hostname())
	return err == nil && strings.HasPrefix(u.Host, "[")
}

// String is the resource id.
func (a address) String() string {
	u := url.URL{Scheme: "ssh", User: url.User(a.user), Host: a.host, Path: a.dir}
	switch {
	case a.port != defaultPort:
		u.Host = a.hostPort()
	case strings.Contains(a.host, ":"):
		u.Host = "[" + a.host + "]"
	}
	return u.String()
}

func (a address) hostPort() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }
