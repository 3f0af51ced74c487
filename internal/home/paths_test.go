//go:build linux

package home

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func environment(vars ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(vars); i += 2 {
			if vars[i] == name {
				return vars[i+1], true
			}
		}
		return "", false
	}
}

func TestPathsHaveTheirDefaultsInTheUsersFolder(t *testing.T) {
	t.Setenv("HOME", "/somebody")
	p, err := Resolve("", "", environment())
	if err != nil {
		t.Fatal(err)
	}
	want := Paths{
		Home: "/somebody/.codework", Database: "/somebody/.codework/data", Socket: "/somebody/.codework/run/home.sock",
		Lock: "/somebody/.codework/data/home.lock", Log: "/somebody/.codework/log/home.log",
	}
	if p != want {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
}

func TestHomeComesFromTheFlagThenFromTheEnvironment(t *testing.T) {
	t.Setenv("HOME", "/somebody")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, env, want string }{
		{"/flag", "/env", "/flag"},
		{"", "/env", "/env"},
		{"", "", "/somebody/.codework"},
		{"~", "", "/somebody"},
		{"~/work", "", "/somebody/work"},
		{"~other", "", filepath.Join(here, "~other")},
		{"folder", "", filepath.Join(here, "folder")},
		{"/a/../b/", "", "/b"},
	} {
		p, err := Resolve(c.flag, "", environment("CODEWORK_HOME_DIR", c.env))
		if err != nil || p.Home != c.want {
			t.Errorf("Resolve(%q) with %q: %q, %v; want %q", c.flag, c.env, p.Home, err, c.want)
		}
	}
}

func TestAHomeThatCannotBeFoundIsAnError(t *testing.T) {
	t.Setenv("HOME", "")
	for _, home := range []string{"", "~", "~/x"} {
		if p, err := Resolve(home, "", environment()); err == nil {
			t.Errorf("Resolve(%q) = %+v", home, p)
		}
	}
}

func TestAnotherDatabaseHasItsOwnSocketAndLock(t *testing.T) {
	own, _ := Resolve("/h", "", environment())
	same, _ := Resolve("/h", "/h/data/", environment())
	other, _ := Resolve("/h", "/elsewhere", environment())
	third, _ := Resolve("/h", "/elsewhere2", environment())
	if same != own {
		t.Errorf("the home's own database, named: %+v, want %+v", same, own)
	}
	if other.Socket == own.Socket || other.Socket == third.Socket || filepath.Dir(other.Socket) != "/h/run" {
		t.Errorf("sockets %s, %s, %s", own.Socket, other.Socket, third.Socket)
	}
	if other.Lock != "/elsewhere/home.lock" || other.Database != "/elsewhere" {
		t.Errorf("lock %s of database %s", other.Lock, other.Database)
	}
}

func TestADatabaseInMemoryNeedsNeitherSocketNorLock(t *testing.T) {
	p, err := Resolve("/h", InMemory, environment())
	if err != nil || p.Socket != "" || p.Lock != "" || p.Database != InMemory {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestALongSocketPathGoesToTheRuntimeFolder(t *testing.T) {
	long := "/" + strings.Repeat("long/", 20)
	p, err := Resolve(long, "", environment("XDG_RUNTIME_DIR", "/run/user/7"))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(p.Socket) != "/run/user/7/codework" {
		t.Errorf("socket %s", p.Socket)
	}
	again, _ := Resolve(long, "", environment("XDG_RUNTIME_DIR", "/run/user/7"))
	other, _ := Resolve(long+"x", "", environment("XDG_RUNTIME_DIR", "/run/user/7"))
	if again.Socket != p.Socket || other.Socket == p.Socket {
		t.Errorf("not a name of the home: %s, %s, %s", p.Socket, again.Socket, other.Socket)
	}
}

func TestEverySocketPathIsShortEnough(t *testing.T) {
	long := "/" + strings.Repeat("long/", 30)
	for _, env := range [][2]string{{"", ""}, {"/run/user/7", ""}, {long, ""}, {"relative", ""}, {long, long}, {"", long}} {
		if env[1] != "" {
			t.Setenv("TMPDIR", env[1])
		}
		p, err := Resolve(long, "", environment("XDG_RUNTIME_DIR", env[0]))
		if err != nil || len(p.Socket) > maxSocketPath || !filepath.IsAbs(p.Socket) {
			t.Errorf("with %.20q: %s (%d bytes), %v", env, p.Socket, len(p.Socket), err)
		}
	}
}

func TestFoldersAreForTheUserAlone(t *testing.T) {
	p := testPaths(filepath.Join(t.TempDir(), "home"))
	if err := p.Prepare(); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{p.Home, p.Database, filepath.Dir(p.Socket), filepath.Dir(p.Log)} {
		fi, err := os.Stat(d)
		if err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, fi.Mode(), err)
		}
	}
}

func TestAnExistingHomeKeepsItsPermissions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := testPaths(dir).Prepare(); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

func TestAHomeThatIsAFileSaysSoOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := testPaths(filepath.Join(file, "home")).Prepare()
	if err == nil || strings.Count(err.Error(), file) != 1 {
		t.Errorf("got %v", err)
	}
}
