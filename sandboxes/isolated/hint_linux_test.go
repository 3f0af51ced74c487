//go:build amd64 || arm64

package isolated

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"codework/sandboxes"
)

func TestHints(t *testing.T) {
	p := &plan{Level: Full, Write: []string{"/p"}, ReadOnly: []string{"/p/.git/hooks"}, Hide: []string{"/h/.ssh"}}
	for _, c := range []struct{ text, want string }{
		{"touch: cannot touch '/etc/x': Read-only file system\n", "/etc/x is read-only here"},
		{"bash: line 1: /etc/x: Read-only file system\n", "/etc/x is read-only here"},
		{"open /etc/x: read-only file system\n", "/etc/x is read-only here"},
		{"OSError: [Errno 30] Read-only file system: '/etc/x'\n", "/etc/x is read-only here"},
		{"Error: EROFS: read-only file system, open '/etc/x'", "/etc/x is read-only here"},
		{"mkdir: cannot create directory ‘../x’: Read-only file system", "/x is read-only here"},
		{"bash: line 1: .git/hooks/x: Read-only file system\nmake: failed\n", "/p/.git/hooks/x is protected"},
		{"something: Read-only file system", "only the project is writable"},
		{"cat: /h/.ssh/key: Permission denied\n", "/h/.ssh/key is hidden"},
		{"cat: /etc/shadow: Permission denied\n", ""},
		{"curl: (6) Could not resolve host: example.com\n", "no network"},
		{"connect: Network is unreachable", "no network"},
		{"dial tcp: lookup example.com: Temporary failure in name resolution", "no network"},
		{"all tests failed\n", ""},
		{"", ""},
	} {
		if got := p.hint(c.text, "/p"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	p.Internet = true
	if got := p.hint("connect: Network is unreachable", "/p"); got != "" {
		t.Errorf("with a network: %q", got)
	}
}

func TestDenialsSayWhichSetting(t *testing.T) {
	s := newScene(t)
	write(t, s.home+"/.ssh/key", "secret")
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	for _, c := range []struct{ script, want string }{
		{"touch /etc/x", "/etc/x is read-only here; the setting sandbox.isolated.write"},
		{"cat ~/.ssh/key", s.home + "/.ssh/key is hidden"},
		{"getent hosts example.com || echo > /dev/tcp/192.0.2.1/80", "sandbox.network"},
		{"echo x > .codework/x", s.project + "/.codework/x is protected"},
	} {
		r := run(t, m, c.script)
		if n := strings.Count(r.err, hintPrefix); n != 1 || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %q, want %q", c.script, r.err, c.want)
		}
	}
	for _, script := range []string{"exit 1", "touch /etc/x; true", "cat absent"} {
		if r := run(t, m, script); strings.Contains(r.err, hintPrefix) {
			t.Errorf("%s: %q", script, r.err)
		}
	}
	// In one stream the line comes with the others.
	var out string
	exit, err := m.Run(bg, sandboxes.Command{Script: "printf 'Read-only file system' >&2; exit 1", Joined: true, Output: func(st sandboxes.Stream, b []byte) {
		if st != sandboxes.Stdout {
			t.Error("another stream")
		}
		out += string(b)
	}})
	if err != nil || exit.Code != 1 || !strings.HasSuffix(out, "\n") || !strings.Contains(out, "\n"+hintPrefix) {
		t.Errorf("%+v %v %q", exit, err, out)
	}
	err = m.Write(bg, "/etc/x", nil)
	if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "sandbox.isolated.write") {
		t.Error(err)
	}
	if _, err := m.Read(bg, s.home+"/.ssh/key", 0, -1); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
	if _, err := m.List(bg, s.home+"/.ssh"); !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
	if _, err := m.Read(bg, "absent", 0, -1); err == nil || strings.Contains(err.Error(), "sandbox") {
		t.Error(err)
	}
}
