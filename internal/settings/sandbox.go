package settings

import (
	"os"
	"path/filepath"
	"strings"
)

// Sandbox is where the tools of a session run. Zero values leave the choice to
// the driver, unless stated otherwise. Paths on this machine are absolute:
// relative ones started at the directory of the file that named them.
type Sandbox struct {
	Driver     string            // never ""
	Pass       []string          // variables passed on although they look secret; "*" is all
	Set        map[string]string // set in every command; may hold references
	Background Background        // never ""
	Network    Network
	Limits     Limits
	Isolated   Isolated
	Container  Container
	SSH        SSH
	Daytona    Daytona
}

// Background says how long jobs live that commands left behind on the host.
type Background string

// The lifetimes of background jobs.
const (
	BackgroundSession Background = "session"
	BackgroundServer  Background = "server"
)

// Network is what commands may reach. At most one field is set.
type Network struct {
	None      bool
	Host      bool
	Addresses []string // not nil: only these, in the driver's notation
}

const (
	networkNone = "none"
	networkHost = "host"
)

// Limits are ceilings of one sandbox.
type Limits struct {
	MemoryMiB int64
	Processes int64
	CPUs      float64
	OpenFiles int64
}

// Isolated are the settings of the isolated driver.
type Isolated struct {
	Write       []string // paths that are writable beside the project
	Hide        []string // paths that are unreadable beside the usual ones
	GitReadOnly bool     // the whole of .git
	Level       string   // full, landlock, none: the least that will do
}

// Container are the settings of the container driver.
type Container struct {
	Socket  string // a path, or an address with a scheme
	Image   string
	Pull    bool   // fetch an image that is absent
	Runtime string // name of an engine runtime
	Volume  string // name of a volume, instead of a bind of the project
}

// SSH are the settings of the ssh driver.
type SSH struct {
	Host       string
	User       string
	Port       int
	Base       string // folder on the host below which sandboxes are made
	KeyFile    string
	Agent      string // the agent's socket, or a reference to a variable that names it
	KnownHosts string
}

// Daytona are the settings of the daytona driver.
type Daytona struct {
	BaseURL      string
	APIKey       string // "${NAME}"
	Organization string
	Region       string
	Image        string
}

// agentReference is what agents put their socket in.
const agentReference = "${SSH_AUTH_SOCK}"

func sandboxOf(n *node) Sandbox {
	limits, isolated, container := n.get("limits"), n.get("isolated"), n.get("container")
	ssh, daytona := n.get("ssh"), n.get("daytona")
	s := Sandbox{
		Driver:     n.get("driver").text(),
		Pass:       n.at("env", "pass").texts(),
		Set:        n.at("env", "set").textMap(),
		Background: Background(n.get("background").text()),
		Limits: Limits{
			MemoryMiB: limits.get("memoryMiB").whole(),
			Processes: limits.get("processes").whole(),
			CPUs:      limits.get("cpus").number(),
			OpenFiles: limits.get("openFiles").whole(),
		},
		Isolated: Isolated{
			Write:       isolated.get("write").paths(),
			Hide:        isolated.get("hide").paths(),
			GitReadOnly: isolated.get("gitReadOnly").truth(),
			Level:       isolated.get("level").text(),
		},
		Container: Container{
			Socket:  container.get("socket").path(),
			Image:   container.get("image").text(),
			Pull:    container.get("pull").truth(),
			Runtime: container.get("runtime").text(),
			Volume:  container.get("volume").text(),
		},
		SSH: SSH{
			Host:       ssh.get("host").text(),
			User:       ssh.get("user").text(),
			Port:       int(ssh.get("port").whole()),
			Base:       ssh.get("base").text(),
			KeyFile:    ssh.get("keyFile").path(),
			Agent:      ssh.get("agent").path(),
			KnownHosts: ssh.get("knownHosts").path(),
		},
		Daytona: Daytona{
			BaseURL:      daytona.get("baseURL").text(),
			APIKey:       daytona.get("apiKey").text(),
			Organization: daytona.get("organization").text(),
			Region:       daytona.get("region").text(),
			Image:        daytona.get("image").text(),
		},
	}
	if ssh.get("agent").truth() {
		s.SSH.Agent = agentReference
	}
	switch network := n.get("network"); {
	case network == nil:
	case network.kind == '[':
		s.Network.Addresses = network.texts()
	default:
		s.Network.None = network.text() == networkNone
		s.Network.Host = network.text() == networkHost
	}
	return s
}

func (n *node) paths() []string {
	if n == nil {
		return nil
	}
	out := make([]string, len(n.elems))
	for i, e := range n.elems {
		out[i] = e.path()
	}
	return out
}

// path is the text as a path on this machine. References and addresses with a
// scheme are left alone.
func (n *node) path() string {
	p := n.text()
	if p == "" || isReference(p) || strings.Contains(p, "://") || filepath.IsAbs(p) {
		return p
	}
	if rest, ok := strings.CutPrefix(p, "~"); ok && (rest == "" || rest[0] == '/') {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
		return p
	}
	return filepath.Join(filepath.Dir(n.from.path), p)
}
