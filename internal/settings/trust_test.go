package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func TestTrust(t *testing.T) {
	f := newFixture(t)
	home := filepath.Join(f.home, "not", "yet")
	trust := OpenTrust(home)
	if trust.Trusted(f.project) {
		t.Error("trusted before anybody said so")
	}
	if _, err := os.Stat(home); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("asking makes nothing: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(f.project, link); err != nil {
		t.Fatal(err)
	}
	if err := trust.Trust(link); err != nil {
		t.Fatal(err)
	}
	// Again is no change, under either name.
	if err := trust.Trust(f.project); err != nil {
		t.Fatal(err)
	}
	// Somebody else sees it at once.
	other := OpenTrust(home)
	t.Chdir(f.project)
	for root, want := range map[string]bool{
		f.project: true, ".": false, link: true, f.project + "/": true, filepath.Join(f.project, "deep", ".."): true,
		filepath.Join(f.project, "deep"): false, filepath.Dir(f.project): false, filepath.Join(f.project, "gone"): false, "": false,
	} {
		if got := other.Trusted(root); got != want {
			t.Errorf("%q: %v", root, got)
		}
	}
	if roots, err := other.Roots(); err != nil || !reflect.DeepEqual(roots, []string{f.project}) {
		t.Errorf("roots: %v %v", roots, err)
	}
	info, err := os.Stat(filepath.Join(home, "trust.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v %v", info.Mode(), err)
	}
	// The link now leads elsewhere: what was trusted is the place, not the name.
	if err := errors.Join(os.Remove(link), os.Symlink(t.TempDir(), link)); err != nil {
		t.Fatal(err)
	}
	if other.Trusted(link) {
		t.Error("trust follows a name")
	}
}

func TestTrustOfWhatIsNoDirectory(t *testing.T) {
	f := newFixture(t)
	trust := OpenTrust(f.home)
	file := write(t, filepath.Join(f.project, "file"), "")
	for _, root := range []string{file, filepath.Join(f.project, "gone")} {
		if err := trust.Trust(root); err == nil || !strings.Contains(err.Error(), root) {
			t.Errorf("%s: %v", root, err)
		}
	}
	if _, err := os.Stat(filepath.Join(f.home, "trust.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

func TestTrustReadsWhatPeopleWrite(t *testing.T) {
	f := newFixture(t)
	write(t, filepath.Join(f.home, "trust.json"), "\xef\xbb\xbf[ // mine\n\t\""+f.project+"\",\n\t\"/gone/since\",\n] // end")
	trust := OpenTrust(f.home)
	if !trust.Trusted(f.project) {
		t.Error("not trusted")
	}
	more := t.TempDir()
	if err := trust.Trust(more); err != nil {
		t.Fatal(err)
	}
	if roots, err := trust.Roots(); err != nil || len(roots) != 3 || roots[1] != "/gone/since" {
		t.Errorf("roots: %v %v", roots, err)
	}
	for _, empty := range []string{"", " \n", "[]"} {
		write(t, filepath.Join(f.home, "trust.json"), empty)
		if err := trust.Trust(f.project); err != nil || !trust.Trusted(f.project) {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

func TestADamagedTrustListIsKeptAndReported(t *testing.T) {
	f := newFixture(t)
	trust := OpenTrust(f.home)
	file := filepath.Join(f.home, "trust.json")
	for _, text := range []string{"{", "{}", "null", `["` + f.project + `", 1]`, `["` + f.project + `", null]`, `["relative"]`, `[""]`, "\xff", strings.Repeat("[", 100000)} {
		write(t, file, text)
		if trust.Trusted(f.project) {
			t.Errorf("%.20q: trusted", text)
		}
		if _, err := trust.Roots(); err == nil {
			t.Errorf("%.20q: no error", text)
		}
		err := trust.Trust(f.project)
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%.20q: %v", text, err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("%.20q: overwritten with %q %v", text, got, err)
		}
	}
	if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := trust.Trust(f.project); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
}

func TestTrustListBehindALinkStaysThere(t *testing.T) {
	f := newFixture(t)
	target := write(t, filepath.Join(t.TempDir(), "kept.json"), "[]")
	file := filepath.Join(f.home, "trust.json")
	if err := os.Symlink(target, file); err != nil {
		t.Fatal(err)
	}
	if err := OpenTrust(f.home).Trust(f.project); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(file); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v %v", info, err)
	}
	if got, err := os.ReadFile(target); err != nil || !strings.Contains(string(got), f.project) {
		t.Errorf("target: %s %v", got, err)
	}
}

func TestManyAddAtOnceAndNoneIsLost(t *testing.T) {
	f := newFixture(t)
	const n = 20
	var roots []string
	for i := range n {
		dir := filepath.Join(f.project, fmt.Sprint("p", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		roots = append(roots, dir)
	}
	var wg sync.WaitGroup
	for _, r := range roots {
		wg.Go(func() {
			// Each as its own process would: with its own handle.
			if err := OpenTrust(f.home).Trust(r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, r := range roots {
		if !OpenTrust(f.home).Trusted(r) {
			t.Errorf("lost: %s", r)
		}
	}
	left, err := os.ReadDir(f.home)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if strings.Contains(e.Name(), ".new-") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}

func TestLoadAsksTheTrustList(t *testing.T) {
	f := newFixture(t)
	f.inProject(`{"sandbox": {"driver": "isolated"}}`)
	trust := OpenTrust(f.home)
	src := f.source()
	src.Trusted = trust.Trusted
	s, err := Load(src)
	if err != nil || s.Sandbox.Driver != "local" || len(s.Warnings) != 1 {
		t.Fatalf("%+v %v", s, err)
	}
	if err := trust.Trust(s.Project); err != nil {
		t.Fatal(err)
	}
	if s, err = Load(src); err != nil || s.Sandbox.Driver != "isolated" || len(s.Warnings) != 0 {
		t.Errorf("%+v %v", s, err)
	}
}
