package ssh

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"codework/sandboxes"
)

// Config is the driver's configuration. Values may be references to variables,
// "${NAME}".
type Config struct {
	// Host is where sandboxes are created; not needed for registered ones.
	Host string `json:"host,omitempty"`
	User string `json:"user,omitempty"` // "" is the name of this process's user
	Port int    `json:"port,omitempty"` // 0 is 22
	// Base is the folder on the host below which sandboxes are made, absolute
	// or below the home folder there; "" is codework-sandboxes in it.
	Base string `json:"base,omitempty"`
	// KeyFile is a private key without a passphrase. Agent is the socket of an
	// ssh agent. One of them is needed.
	KeyFile string `json:"keyFile,omitempty"`
	Agent   string `json:"agent,omitempty"`
	// KnownHosts is the file with the keys of hosts; "" is ~/.ssh/known_hosts.
	KnownHosts string `json:"knownHosts,omitempty"`
	// Network may only be "host": nothing can be kept from a command on a host
	// that is not ours. For the same reason there are no limits.
	Network sandboxes.Network `json:"network,omitzero"`
	Limits  sandboxes.Limits  `json:"limits,omitzero"`
}

// defaultBase is where sandboxes are made, below the home folder on the host.
const defaultBase = "codework-sandboxes"

// readConfig reads and checks the configuration and puts defaults in. The error
// is a *sandboxes.ConfigError.
func readConfig(spec sandboxes.Spec) (Config, error) {
	c, err := sandboxes.ReadConfig[Config](spec.Config)
	if err != nil {
		return c, err
	}
	for _, v := range []struct {
		name  string
		value *string
	}{
		{"host", &c.Host}, {"user", &c.User}, {"base", &c.Base}, {"keyFile", &c.KeyFile}, {"agent", &c.Agent}, {"knownHosts", &c.KnownHosts},
	} {
		ref, ok := strings.CutPrefix(*v.value, "${")
		if name, end := strings.CutSuffix(ref, "}"); ok && end {
			value, found := spec.Lookup(name)
			if !found || value == "" {
				return c, &sandboxes.ConfigError{Reason: v.name + ": the variable " + name + " is not set"}
			}
			*v.value = value
		}
		if strings.ContainsAny(*v.value, "\x00\r\n") {
			return c, &sandboxes.ConfigError{Reason: v.name + ": control character"}
		}
	}
	switch {
	case c.Network.None || c.Network.Addresses != nil:
		return c, &sandboxes.ConfigError{Reason: `network: the ssh driver cannot keep commands on another host from its network; only "host" is possible`}
	case c.Limits != (sandboxes.Limits{}):
		return c, &sandboxes.ConfigError{Reason: "limits: the ssh driver cannot limit commands on another host"}
	case c.Port < 0 || c.Port > 65535:
		return c, &sandboxes.ConfigError{Reason: "port: out of range"}
	case c.KeyFile == "" && c.Agent == "":
		return c, &sandboxes.ConfigError{Reason: "keyFile, agent: one of them is needed, a private key or the socket of an ssh agent"}
	}
	if c.Port == 0 {
		c.Port = defaultPort
	}
	if c.Base == "" {
		c.Base = defaultBase
	}
	if c.User == "" {
		u, err := user.Current()
		if err != nil {
			return c, &sandboxes.ConfigError{Reason: "user: missing, and this process's has no name"}
		}
		c.User = u.Username
	}
	if c.KnownHosts == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return c, &sandboxes.ConfigError{Reason: "knownHosts: missing, and there is no home folder"}
		}
		c.KnownHosts = filepath.Join(home, ".ssh", "known_hosts")
	}
	return c, nil
}
