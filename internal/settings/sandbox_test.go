package settings

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestSandbox(t *testing.T) {
	f := newFixture(t)
	f.trusted = true
	f.user(`{"sandbox": {
		"driver": "isolated", "background": "server", "network": "none",
		"env": {"pass": ["*"], "set": {"A": "${B}"}},
		"limits": {"memoryMiB": 512, "processes": 100, "cpus": 1.5, "openFiles": 1024},
		"isolated": {"write": ["/abs", "./out", "../up", "plain", "~", "~/x", "~y"], "hide": ["/etc/secret"], "gitReadOnly": true, "level": "landlock"},
		"container": {"socket": "run/c.sock", "image": "i", "pull": true, "runtime": "runsc", "volume": "v"},
		"ssh": {"host": "h", "user": "u", "port": 2222, "base": "/srv", "keyFile": "key", "agent": "${SSH_AUTH_SOCK}", "knownHosts": "./known"},
		"daytona": {"baseURL": "https://d", "apiKey": "${D}", "organization": "o", "region": "eu", "image": "i"},
	}}`)
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(f.home, name) }
	want := Sandbox{
		Driver: "isolated", Background: BackgroundServer, Network: Network{None: true},
		Pass: []string{"*"}, Set: map[string]string{"A": "${B}"},
		Limits: Limits{MemoryMiB: 512, Processes: 100, CPUs: 1.5, OpenFiles: 1024},
		Isolated: Isolated{Write: []string{"/abs", in("out"), filepath.Join(filepath.Dir(f.home), "up"), in("plain"), home, filepath.Join(home, "x"), in("~y")},
			Hide: []string{"/etc/secret"}, GitReadOnly: true, Level: "landlock"},
		Container: Container{Socket: in("run/c.sock"), Image: "i", Pull: true, Runtime: "runsc", Volume: "v"},
		SSH:       SSH{Host: "h", User: "u", Port: 2222, Base: "/srv", KeyFile: in("key"), Agent: "${SSH_AUTH_SOCK}", KnownHosts: in("known")},
		Daytona:   Daytona{BaseURL: "https://d", APIKey: "${D}", Organization: "o", Region: "eu", Image: "i"},
	}
	if got := f.load().Sandbox; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}

	project := f.inProject(`{"sandbox": {"network": ["10.0.0.1:80"], "isolated": {"write": ["./own"]}, "container": {"socket": "tcp://h:1"}, "ssh": {"agent": true}}}`)
	got := f.load().Sandbox
	if want := (Network{Addresses: []string{"10.0.0.1:80"}}); !reflect.DeepEqual(got.Network, want) {
		t.Errorf("network: %+v", got.Network)
	}
	if want := []string{filepath.Join(filepath.Dir(project), "own")}; !reflect.DeepEqual(got.Isolated.Write, want) {
		t.Errorf("a path starts at the file that names it: %v", got.Isolated.Write)
	}
	if got.Container.Socket != "tcp://h:1" || got.SSH.Agent != agentReference || got.Isolated.Level != "landlock" {
		t.Errorf("got %+v", got)
	}

	f.inProject(`{"sandbox": {"network": "host", "ssh": {"agent": false}}}`)
	if got := f.load().Sandbox; !reflect.DeepEqual(got.Network, Network{Host: true}) || got.SSH.Agent != "" {
		t.Errorf("got %+v", got)
	}
}
