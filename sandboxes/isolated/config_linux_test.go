//go:build amd64 || arm64

package isolated

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codework/sandboxes"
)

func isConfigError(err error) bool {
	var ce *sandboxes.ConfigError
	return errors.As(err, &ce)
}

func TestBadConfigurationIsRefused(t *testing.T) {
	s := newScene(t)
	d := newDriver(t)
	file := s.home + "/file"
	write(t, file, "")
	for _, c := range []struct{ name, project, config string }{
		{"unknown field", s.project, `{"imgae":"x"}`},
		{"wrong type", s.project, `{"write":"x"}`},
		{"addresses", s.project, `{"network":["example.com"]}`},
		{"level", s.project, `{"level":"some"}`},
		{"negative limit", s.project, `{"limits":{"openFiles":-1}}`},
		{"tiny limit", s.project, `{"limits":{"openFiles":3}}`},
		{"absurd limit", s.project, `{"limits":{"memoryMiB":9000000000000000000}}`},
		{"no project", "", `{}`},
		{"relative project", "x", `{}`},
		{"absent project", s.home + "/absent", `{}`},
		{"project is a file", file, `{}`},
		{"project is the disk", "/", `{}`},
		{"project is the kernel's", "/proc/self", `{}`},
		{"absent write", s.project, `{"write":["/absent/x"]}`},
		{"relative write", s.project, `{"write":["x"]}`},
		{"everything writable", s.project, `{"write":["/"]}`},
		{"relative hide", s.project, `{"hide":["x"]}`},
		{"everything hidden", s.project, `{"hide":["/"]}`},
		{"hidden project", s.project, `{"hide":["` + s.home + `"]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := d.Create(bg, sandboxes.Spec{ID: "sbx_x", Project: c.project, Config: []byte(c.config)})
			if !isConfigError(err) {
				t.Errorf("got %v", err)
			}
			if _, err := os.Stat(filepath.Join(d.opt.StateDir, "sbx_x")); err == nil {
				t.Error("something is left")
			}
		})
	}
	for _, id := range []string{"", ".", "..", "a/b", "a\nb", strings.Repeat("a", 129)} {
		if _, err := d.Create(bg, sandboxes.Spec{ID: id, Project: s.project}); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
}

func TestWritableRootsBySetting(t *testing.T) {
	s := newScene(t)
	write(t, s.home+"/more/file", "x")
	write(t, s.home+"/one", "x")
	m := newMount(t, newSandbox(t, newDriver(t), s.project, `{"write":["`+s.home+`/more","`+s.home+`/one"]}`))
	if r := run(t, m, "cd ~ && echo y > more/new && echo y > one && ! touch x"); r.Code != 0 || read(t, s.home+"/one") != "y\n" {
		t.Errorf("%+v", r)
	}
}
