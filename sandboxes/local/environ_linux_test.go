package local

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"codework/sandboxes"
)

func TestSecretNames(t *testing.T) {
	for _, name := range []string{
		"KEY", "OPENAI_API_KEY", "API_KEYS", "APIKEY", "MY_APIKEYS", "GITHUB_TOKEN", "TOKENS", "A_SECRET_B", "PASSWORD",
		"DB_PASSWORDS", "GOOGLE_APPLICATION_CREDENTIALS", "CREDENTIAL", "NPM_AUTH", "X_AUTHS", "SSH_AUTH_SOCK", "github_token",
		"GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS", "CODEWORK_SERVER_TOKEN", "CODEWORK_HOME",
	} {
		if !secret(name) {
			t.Errorf("%s is passed on", name)
		}
	}
	for _, name := range []string{
		"PATH", "HOME", "GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY", "SECRETARY", "AUTHORITY", "XAUTHORITY",
		"ASKPASS", "MY_CODEWORK_X", "PASSWORDLESS", "S",
	} {
		if secret(name) {
			t.Errorf("%s is withheld", name)
		}
	}
}

// names lists what of the candidates a command gets.
func names(t *testing.T, opt sandboxes.MountOptions, own ...string) []string {
	t.Helper()
	e, err := newEnviron(opt, own, ID)
	if err != nil {
		t.Fatal(err)
	}
	if e.vars[idVariable] == ID {
		delete(e.vars, idVariable)
	}
	for name := range driverEntries {
		if e.vars[name] == driverEntries[name] {
			delete(e.vars, name)
		}
	}
	return slices.Sorted(maps.Keys(e.vars))
}

func TestWhichVariablesPass(t *testing.T) {
	caller := []string{"PATH=/bin", "FOO=1", "A_TOKEN=x", "MY_PROVIDER=y", "SSH_AUTH_SOCK=/s", "CODEWORK_HOME=/h", "BAD NAME=1",
		"BASH_FUNC_x%%=() { :; }", "1X=1", "noequals", "NUL=a\x00b", "=odd", "LD_PRELOAD=/lib/x.so"}
	for _, c := range []struct {
		name string
		opt  sandboxes.MountOptions
		own  []string
		want []string
	}{
		{"caller", sandboxes.MountOptions{Caller: caller}, nil, []string{"FOO", "LD_PRELOAD", "MY_PROVIDER", "PATH"}},
		{"caller, provider keys", sandboxes.MountOptions{Caller: caller, Withhold: []string{"MY_PROVIDER"}}, nil, []string{"FOO", "LD_PRELOAD", "PATH"}},
		{"passed by name", sandboxes.MountOptions{Caller: caller, Withhold: []string{"MY_PROVIDER"}, Pass: []string{"MY_PROVIDER", "A_TOKEN"}}, nil,
			[]string{"A_TOKEN", "FOO", "LD_PRELOAD", "MY_PROVIDER", "PATH"}},
		{"passed all", sandboxes.MountOptions{Caller: caller, Withhold: []string{"MY_PROVIDER"}, Pass: []string{"*"}}, nil,
			[]string{"A_TOKEN", "CODEWORK_HOME", "FOO", "LD_PRELOAD", "MY_PROVIDER", "PATH", "SSH_AUTH_SOCK"}},
		{"no caller: the server's plain ones", sandboxes.MountOptions{}, append(caller, "LC_ALL=C", "HOME=/root", "TZ=UTC", "LC_KEY=1"),
			[]string{"HOME", "LC_ALL", "PATH", "TZ"}},
		{"no caller, passed by name", sandboxes.MountOptions{Pass: []string{"FOO", "A_TOKEN"}}, caller, []string{"A_TOKEN", "FOO", "PATH"}},
		{"an empty caller has nothing", sandboxes.MountOptions{Caller: []string{}}, caller, []string{}},
		{"set", sandboxes.MountOptions{Caller: []string{"FOO=1"}, Set: map[string]string{"FOO": "2", "A_KEY": "3"}}, nil, []string{"A_KEY", "FOO"}},
	} {
		if got := names(t, c.opt, c.own...); !slices.Equal(got, c.want) && len(got)+len(c.want) > 0 {
			t.Errorf("%s: got %q want %q", c.name, got, c.want)
		}
	}
}

func TestLaterEntriesWin(t *testing.T) {
	s := newSandbox(t)
	dir := t.TempDir()
	m := mountAt(t, s, sandboxes.MountOptions{
		Dir: dir, Umask: -1,
		Caller: []string{"PATH=/usr/bin:/bin", "PAGER=less", "A=caller", "B=caller", "C=caller", "BASH_ENV=" + dir + "/evil", "ENV=" + dir + "/evil",
			"PWD=/nowhere", "OLDPWD=/nowhere", "CODEWORK_SANDBOX=sbx_x"},
		Pass: []string{"CODEWORK_SANDBOX", "BASH_ENV"},
		Set:  map[string]string{"B": "set", "C": "set"},
	})
	put(t, dir+"/evil", "echo evil", 0o755)
	r := run(t, m, sandboxes.Command{
		Script: `echo $A $B $C $PAGER $GIT_PAGER $GIT_TERMINAL_PROMPT $CODEWORK_SANDBOX $PWD "$OLDPWD$BASH_ENV$ENV"`,
		Env:    map[string]string{"C": "command"},
	})
	if want := "caller set command cat cat 0 local " + dir + " \n"; r.out != want {
		t.Errorf("got %q want %q (%s)", r.out, want, r.err)
	}
	if r := run(t, m, sandboxes.Command{Script: "echo $C"}); r.out != "set\n" {
		t.Errorf("one command's entry reached the next: %q", r.out)
	}
	other := mountAt(t, s, sandboxes.MountOptions{Dir: dir, Umask: -1, Caller: []string{"PATH=/usr/bin:/bin"}})
	if r := run(t, other, sandboxes.Command{Script: `echo "$A$B$C"`}); r.out != "\n" {
		t.Errorf("one mount's entry reached another: %q", r.out)
	}
	if r := run(t, m, sandboxes.Command{Argv: []string{"env"}, Env: map[string]string{"C": "a\nb", "E": ""}}); !strings.Contains(r.out, "\nC=a\nb\n") ||
		!strings.Contains(r.out, "\nE=\n") {
		t.Errorf("got %q", r.out)
	}
}

func TestBadEntriesAreRefused(t *testing.T) {
	s := newSandbox(t)
	m := newMount(t, s)
	for _, bad := range []map[string]string{{"": "x"}, {"1A": "x"}, {"A-B": "x"}, {"A=B": "x"}, {"Ä": "x"}, {"A": "x\x00y"}} {
		_, err := m.Run(ctxb, sandboxes.Command{Script: "true", Env: bad})
		var se *sandboxes.ShellError
		if !errors.As(err, &se) {
			t.Errorf("command with %q: %v", bad, err)
		}
		if _, err := s.Mount(ctxb, sandboxes.MountOptions{Dir: t.TempDir(), Set: bad}); err == nil {
			t.Errorf("mount with %q", bad)
		}
	}
}
