package settings

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a home and a project below a temporary directory.
type fixture struct {
	t             *testing.T
	home, project string
	trusted       bool
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, home: filepath.Join(dir, "home", ".codework"), project: filepath.Join(dir, "work")}
	for _, d := range []string{f.home, filepath.Join(f.project, "deep", "er")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func write(t testing.TB, file, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// user and inProject write the settings file of a layer.
func (f *fixture) user(text string) string {
	return write(f.t, filepath.Join(f.home, "settings.jsonc"), text)
}

func (f *fixture) inProject(text string) string {
	return write(f.t, filepath.Join(f.project, ".codework", "settings.jsonc"), text)
}

func (f *fixture) source() Source {
	return Source{Home: f.home, HostDir: filepath.Join(f.project, "deep", "er"),
		Trusted: func(root string) bool { return f.trusted && root == f.project }}
}

func (f *fixture) load() *Settings {
	f.t.Helper()
	s, err := Load(f.source())
	if err != nil {
		f.t.Fatalf("load: %v", err)
	}
	return s
}

// loadError loads and wants a failure.
func (f *fixture) loadError() *Error {
	f.t.Helper()
	_, err := Load(f.source())
	e, ok := err.(*Error)
	if !ok {
		f.t.Fatalf("load: got %v, want an *Error", err)
	}
	return e
}
