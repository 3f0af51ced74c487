package daytona

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"codework/sandboxes"
)

// Config is what settings and calls say of one sandbox.
type Config struct {
	// BaseURL is that of the API; "" is what DAYTONA_API_URL says, or the
	// service itself. Without TLS only on this machine.
	BaseURL string `json:"baseURL,omitempty"`
	// APIKey refers to the variable that holds the key; "" is
	// "${DAYTONA_API_KEY}".
	APIKey       string `json:"apiKey,omitempty"`
	Organization string `json:"organization,omitempty"` // id; needed when the key is a token of a login
	Region       string `json:"region,omitempty"`       // "" leaves it to Daytona
	// Image is that of a registry; "" is Daytona's default.
	Image string `json:"image,omitempty"`
	// Network is open by default. A list has addresses, networks such as
	// 10.0.0.0/8, or names of hosts.
	Network sandboxes.Network `json:"network,omitzero"`
	// Limits of memory and processors are the size of what is rented, in whole
	// GiB and processors, and need an image.
	Limits sandboxes.Limits `json:"limits,omitzero"`
}

const (
	defaultBaseURL = "https://app.daytona.io/api"
	defaultKey     = "DAYTONA_API_KEY"
	baseURLName    = "DAYTONA_API_URL" // as the vendor's own clients read it
)

// account is where and as whom the service is called.
type account struct {
	base         *url.URL
	key          string
	organization string
}

func refused(format string, args ...any) error {
	return &sandboxes.ConfigError{Reason: fmt.Sprintf(format, args...)}
}

// readConfig reads and checks the configuration. The error is a
// *sandboxes.ConfigError.
func readConfig(spec sandboxes.Spec) (Config, account, error) {
	c, err := sandboxes.ReadConfig[Config](spec.Config)
	if err != nil {
		return c, account{}, err
	}
	for name, value := range map[string]string{"organization": c.Organization, "region": c.Region, "image": c.Image} {
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return c, account{}, refused("%s: a space or control character", name)
		}
	}
	if err := checkLimits(c); err != nil {
		return c, account{}, err
	}
	if _, _, err := reachable(c.Network.Addresses); err != nil {
		return c, account{}, err
	}
	a, err := c.account(spec.Lookup)
	return c, a, err
}

func checkLimits(c Config) error {
	l := c.Limits
	switch {
	case l.MemoryMiB < 0 || l.CPUs < 0 || l.Processes < 0 || l.OpenFiles < 0:
		return refused("limits: a negative number")
	case l.Processes > 0:
		return refused("limits.processes: Daytona has no such limit")
	case l.OpenFiles > 0:
		return refused("limits.openFiles: Daytona has no such limit")
	case l.CPUs != math.Trunc(l.CPUs):
		return refused("limits.cpus: Daytona rents out whole processors")
	case l.MemoryMiB%1024 != 0:
		return refused("limits.memoryMiB: Daytona rents out whole GiB, multiples of 1024")
	case (l.MemoryMiB > 0 || l.CPUs > 0) && c.Image == "":
		return refused("limits: the size of Daytona's default image is fixed; name one (sandbox.daytona.image)")
	}
	return nil
}

// reachable sorts addresses into networks and names of hosts.
func reachable(addresses []string) (networks, hosts []string, err error) {
	for _, a := range addresses {
		if ip, err := netip.ParseAddr(a); err == nil {
			networks = append(networks, netip.PrefixFrom(ip, ip.BitLen()).String())
		} else if _, err := netip.ParsePrefix(a); err == nil {
			networks = append(networks, a)
		} else if a != "" && !strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(",/:", r) }) {
			hosts = append(hosts, a)
		} else {
			return nil, nil, refused("network: %.60q is no address, network or name of a host", a)
		}
	}
	return networks, hosts, nil
}

func (c Config) account(lookup func(string) (string, bool)) (account, error) {
	name := defaultKey
	if c.APIKey != "" {
		ref, opened := strings.CutPrefix(c.APIKey, "${")
		ref, closed := strings.CutSuffix(ref, "}")
		if !opened || !closed || ref == "" {
			return account{}, refused(`apiKey: expected the name of a variable that holds it, as "${%s}"`, defaultKey)
		}
		name = ref
	}
	key, ok := lookup(name)
	if !ok || key == "" {
		return account{}, refused("apiKey: the variable %s is not set; put a key of Daytona's into it, or name another variable (sandbox.daytona.apiKey)", name)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return account{}, refused("apiKey: what the variable %s holds is no key", name)
	}
	base, from := c.BaseURL, "baseURL"
	if base == "" {
		base, _ = lookup(baseURLName)
		from = baseURLName
	}
	if base == "" {
		base = defaultBaseURL
	}
	u, err := serviceURL(base)
	if err != nil {
		return account{}, refused("%s: %v", from, err)
	}
	return account{base: u, key: key, organization: c.Organization}, nil
}

// serviceURL is an address that the key may be sent to.
func serviceURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, fmt.Errorf("expected an address such as %s", defaultBaseURL)
	case u.Scheme == "https" || u.Scheme == "http" && onThisMachine(u.Hostname()):
		return u, nil
	case u.Scheme == "http":
		return nil, fmt.Errorf("the key would travel to %s in the open; use https", u.Host)
	}
	return nil, fmt.Errorf("expected https, not %.20q", u.Scheme)
}

func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
