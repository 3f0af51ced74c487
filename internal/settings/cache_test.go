package settings

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestACacheAnswersAsLoadDoes(t *testing.T) {
	home, project := t.TempDir(), t.TempDir()
	trusted := false
	src := Source{Home: home, HostDir: project, Trusted: func(string) bool { return trusted }}
	put := func(dir, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "settings.jsonc"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var c Cache
	last := (*Settings)(nil)
	for _, step := range []struct {
		name   string
		change func()
		same   bool // as before, so that nothing is parsed again
	}{
		{"nothing there", func() {}, false},
		{"still nothing", func() {}, true},
		{"a user file", func() { put(home, `{"retry":{"maxRetries":1}}`) }, false},
		{"untouched", func() {}, true},
		{"written again with the same text", func() { put(home, `{"retry":{"maxRetries":1}}`) }, true},
		{"another text of the same length", func() { put(home, `{"retry":{"maxRetries":2}}`) }, false},
		{"broken", func() { put(home, `{"retry":`) }, false},
		{"broken still", func() {}, false},
		{"mended", func() { put(home, `{"retry":{"maxRetries":2}}`) }, true},
		{"a project", func() {
			put(filepath.Join(project, ".codework"), `{"model":{"id":"m"},"sandbox":{"driver":"isolated"}}`)
		}, false},
		{"trusted", func() { trusted = true }, false},
		{"trusted no more", func() { trusted = false }, false},
		{"gone", func() { _ = os.RemoveAll(filepath.Join(project, ".codework")) }, false},
		{"the user's too", func() { _ = os.Remove(filepath.Join(home, "settings.jsonc")) }, false},
	} {
		step.change()
		want, wantErr := Load(src)
		got, err := c.Load(src)
		if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Fatalf("%s: %v, Load says %v", step.name, err, wantErr)
		}
		if err != nil {
			continue
		}
		if got.Retry != want.Retry || got.Model.ID != want.Model.ID || got.Trusted != want.Trusted || got.Project != want.Project ||
			len(got.Files) != len(want.Files) || len(got.Warnings) != len(want.Warnings) {
			t.Errorf("%s: %+v, Load says %+v", step.name, got, want)
		}
		if again, _ := c.Load(src); again != got {
			t.Errorf("%s: what did not change was read anew", step.name)
		}
		if step.same && last != nil && got != last {
			t.Errorf("%s: parsed again", step.name)
		}
		last = got
	}
}
