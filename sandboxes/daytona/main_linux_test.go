package daytona

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"codework/sandboxes"
	"codework/sandboxes/daytona/daytonatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctxb = context.Background()

// newServer starts a service, which ends with the test.
func newServer(t testing.TB) *daytonatest.Server {
	t.Helper()
	// Short, since paths of tests in it are long.
	root, err := os.MkdirTemp("", "daytona")
	if err != nil {
		t.Fatal(err)
	}
	s := daytonatest.New(root)
	t.Cleanup(func() {
		s.Close()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newDriver(t testing.TB) *Driver {
	t.Helper()
	d := New(Options{})
	t.Cleanup(func() { _ = d.Close() })
	return d
}

var lastID atomic.Int64

// specOn is a spec for a new sandbox on a server.
func specOn(s *daytonatest.Server, config ...string) sandboxes.Spec {
	fields := map[string]any{"baseURL": s.URL()}
	for _, c := range config {
		if err := json.Unmarshal([]byte(c), &fields); err != nil {
			panic(err)
		}
	}
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return sandboxes.Spec{ID: "sbx_" + string(rune('a'+lastID.Add(1))), Server: "server", Config: b, Lookup: lookupKey}
}

func lookupKey(name string) (string, bool) {
	if name == "DAYTONA_API_KEY" {
		return daytonatest.Key, true
	}
	return "", false
}

func create(t testing.TB, d *Driver, spec sandboxes.Spec) sandboxes.Resource {
	t.Helper()
	r, err := d.Create(ctxb, spec)
	if err != nil {
		t.Fatal("create:", err)
	}
	return r
}

func attach(t testing.TB, d *Driver, spec sandboxes.Spec, r sandboxes.Resource) *Sandbox {
	t.Helper()
	sb, err := d.Attach(ctxb, spec, r)
	if err != nil {
		t.Fatal("attach:", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(ctxb); err != nil {
			t.Error("close the sandbox:", err)
		}
	})
	return sb.(*Sandbox)
}

// newMount is a mount in a new sandbox of a new server.
func newMount(t testing.TB) (*daytonatest.Server, *mount) {
	t.Helper()
	s, d := newServer(t), newDriver(t)
	spec := specOn(s)
	return s, mountIn(t, attach(t, d, spec, create(t, d, spec)))
}

func mountIn(t testing.TB, sb sandboxes.Sandbox) *mount {
	t.Helper()
	m, err := sb.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
	if err != nil {
		t.Fatal("mount:", err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error("close the mount:", err)
		}
	})
	return m.(*mount)
}

// run runs a script and gives what it prints.
func run(t testing.TB, m sandboxes.Mount, c sandboxes.Command) (string, sandboxes.Exit, error) {
	t.Helper()
	var out strings.Builder
	c.Output = func(_ sandboxes.Stream, b []byte) { out.Write(b) }
	exit, err := m.Run(ctxb, c)
	return out.String(), exit, err
}

func isShellError(err error) bool {
	var se *sandboxes.ShellError
	return errors.As(err, &se)
}
