package memory

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctxb = context.Background()

// open makes a sandbox with one mount.
func open(t testing.TB) (*Sandbox, sandboxes.Mount) {
	t.Helper()
	d := New(Options{})
	spec := sandboxes.Spec{ID: "sbx_test"}
	r, err := d.Create(ctxb, spec)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Attach(ctxb, spec, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(ctxb); err != nil {
			t.Error(err)
		}
	})
	return s.(*Sandbox), mountOf(t, s, sandboxes.MountOptions{Umask: -1})
}

func mountOf(t testing.TB, s sandboxes.Sandbox, o sandboxes.MountOptions) sandboxes.Mount {
	t.Helper()
	m, err := s.Mount(ctxb, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// run runs a script and returns what it printed, both streams apart.
func run(t testing.TB, m sandboxes.Mount, script string) (out, errs string, exit sandboxes.Exit) {
	t.Helper()
	var o, e strings.Builder
	exit, err := m.Run(ctxb, sandboxes.Command{Script: script, Timeout: 20 * time.Second, Output: func(s sandboxes.Stream, b []byte) {
		if s == sandboxes.Stdout {
			o.Write(b)
		} else {
			e.Write(b)
		}
	}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return o.String(), e.String(), exit
}

func TestTheShellAndItsUtilities(t *testing.T) {
	_, m := open(t)
	for _, c := range []struct{ script, want string }{
		{`echo hi; pwd`, "hi\n/workspace\n"},
		{`printf 'b\na\nc\na\n' > f; sort f | uniq -c | sort -rn | head -1`, "      2 a\n"},
		{`sort -r f | tr a-z A-Z | paste 2>/dev/null || echo none`, "none\n"},
		{`cat f | wc -l`, "4\n"},
		{`seq 5 | tail -n 2; seq 3 1 | wc -l; seq 3 -1 1 | head -n1`, "4\n5\n0\n3\n"},
		{`mkdir -p a/b && echo x > a/b/y.go && find . -name '*.go' -type f`, "./a/b/y.go\n"},
		{`mkdir -p v/x; touch v/x/no v/yes; find v \( -name x -o -name y \) -prune -o -type f -print; find v -type f ! -name no -exec echo {} +; rm -r v`, "v/yes\nv/yes\n"},
		{`find a -type d | sort; find a -maxdepth 1 -mindepth 1`, "a\na/b\na/b\n"},
		{`cp -r a c && mv c/b/y.go c/z && ls c; rm -r c; ls c 2>/dev/null; echo $?`, "b\nz\n2\n"},
		{`echo 'one two' | sed 's/o\(n\)e/<\1&>/; s/two/2/'`, "<none> 2\n"},
		{`seq 10 | sed -n '2,4p;$p'`, "2\n3\n4\n10\n"},
		{`seq 5 | sed '/3/d' | sed -E 's/(4)|5/[\1]/g'`, "1\n2\n[4]\n[]\n"},
		{`printf 'a1\nb2\n' > g; sed -i 's/[0-9]//' g; cat g`, "a\nb\n"},
		{`printf 'x\ny\nz\n' | grep -n -A1 y; printf 'x\n' | grep -c q; echo $?`, "2:y\n3-z\n0\n1\n"},
		{`printf 'foo.c\nfooxc\n' | grep -F 'o.c'; printf 'ab\n' | grep -E 'a|z' -o`, "foo.c\na\n"},
		{`echo a:b:c | cut -d: -f2-; echo abc | cut -c1,3`, "b:c\nac\n"},
		{`echo "a b c" | xargs -n 2 echo -; printf 'q r\n' | xargs -I{} echo '<{}>'`, "- a b\n- c\n<q r>\n"},
		{`x=$(echo sub); f() { echo "$1-$x"; }; f arg`, "arg-sub\n"},
		{`for i in 1 2 3; do if [ $i -gt 1 ]; then echo $i; fi; done`, "2\n3\n"},
		{`cat <<E | tee t >/dev/null; cat t
here $((1+2))
E`, "here 3\n"},
		{`ln -s f link; readlink link; cat link | head -1; realpath link; [ -L link ] && echo is`, "f\nb\n/workspace/f\nis\n"},
		{`chmod 400 t; echo no > t; echo $?; chmod u+w t; [ -w t ] && echo yes`, "1\nyes\n"},
		{`basename /a/b.c .c; dirname /a/b.c`, "b\n/a\n"},
		{`echo 'echo "$0 $1 in $PWD"' > s.sh; sh s.sh one; chmod +x s.sh; ./s.sh two`, "s.sh one in /workspace\n./s.sh two in /workspace\n"},
		{`echo v=1 > env.sh; . ./env.sh; echo $v; eval 'echo ev'`, "1\nev\n"},
		{`A=1 env | grep ^A=; env -i B=2 env`, "A=1\nB=2\n"},
		{`cd a/b; pwd; cd ..; pwd; cd /nowhere 2>/dev/null || echo no`, "/workspace/a/b\n/workspace/a\nno\n"},
		{`date +%Y | wc -c`, "5\n"},
		{`echo to-err >&2; echo out > /dev/null; echo end`, "end\n"},
		{`echo one > ap; echo two >> ap; cat ap; > ap; wc -c < ap`, "one\ntwo\n0\n"},
		{`yes | head -n 2`, "y\ny\n"},
		{`true | false; echo $?; set -o pipefail; false | true; echo $?`, "1\n1\n"},
		{`mkdir g1 && touch g1/x1 g1/x2 && echo g1/x*`, "g1/x1 g1/x2\n"},
		{`command -v ls; command -v python3; echo $?; type cd`, "/bin/ls\n1\ncd is a shell builtin\n"},
	} {
		if out, errs, _ := run(t, m, c.script); out != c.want {
			t.Errorf("%s\n got %q\nwant %q\nstderr %q", c.script, out, c.want, errs)
		}
	}
}

func TestExitCodesAreThoseOfAShell(t *testing.T) {
	_, m := open(t)
	for script, want := range map[string]int{
		"exit 7": 7, "no-such-program": 127, "false": 1, "if": codeSyntax, "cat missing": 1, "touch n; ./n": codeNotExecutable,
		"/usr/bin/env true": 127, "/bin/ls >/dev/null": 0, "cat <(echo hi)": codeSyntax, "sh -c 'exit 3'": 3, "ls --what": usage,
	} {
		if _, _, exit := run(t, m, script); exit.Code != want || exit.TimedOut {
			t.Errorf("%s: %+v, not %d", script, exit, want)
		}
	}
	exit, err := m.Run(ctxb, sandboxes.Command{Argv: []string{"no-such"}})
	if err != nil || exit.Code != codeNotFound {
		t.Error(exit, err)
	}
}

func TestArgumentsArriveAsTheyAre(t *testing.T) {
	_, m := open(t)
	argv := []string{"printf", "%s|", "a b", "$(x)", "'q'", "-n", "li\nne", "*", "~root", ""}
	var out strings.Builder
	exit, err := m.Run(ctxb, sandboxes.Command{Argv: argv, Output: func(_ sandboxes.Stream, b []byte) { out.Write(b) }})
	if err != nil || exit.Code != 0 || out.String() != "a b|$(x)|'q'|-n|li\nne|*|~root||" {
		t.Error(exit, err, out.String())
	}
}

// TestNothingOfTheHostIsVisible: a file, a program and a user that the host has
// do not exist here, in whatever way one asks.
func TestNothingOfTheHostIsVisible(t *testing.T) {
	_, m := open(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOST_SECRET", "host")
	for _, script := range []string{
		"cat " + secret, "cat < " + secret, ". " + secret, "source " + secret, secret, "[ -e " + secret + " ] && echo host",
		"[[ -f " + secret + " ]] && echo host", "echo " + filepath.Dir(secret) + "/s*t | grep -v '[*]'", "cat /etc/passwd", "command -v go",
		"type go", "hash go && go version", "echo $HOST_SECRET", "env | grep HOST", "ls /proc /usr /root", "cat /proc/self/environ",
		"echo ~root | grep -v '~'", "cd " + filepath.Dir(secret), "test -O " + secret + " && echo host", "[[ -O /etc/passwd ]] && echo host",
		"exec /bin/busybox echo host", "eval 'cat <(echo host)'", "mapfile < " + secret + "; echo ${MAPFILE[0]}", "read x < " + secret + "; echo $x",
		"echo host > /etc/passwd-of-codework && exit 1; cat /etc/hostname", "pushd " + filepath.Dir(secret), "trap 'cat " + secret + "' EXIT",
	} {
		if out, _, _ := run(t, m, script); strings.Contains(out, "host") || out != "" && strings.Contains(out, "/") {
			t.Errorf("%s printed %q", script, out)
		}
	}
	if _, err := os.Stat("/etc/passwd-of-codework"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file of the host was made")
	}
}

func TestACommandEndsWithItsContextAndItsTime(t *testing.T) {
	_, m := open(t)
	for _, script := range []string{
		"sleep 60", "while :; do :; done", "yes > /dev/null", "yes | cat > /dev/null", "sleep 60 | cat", "cat | sleep 60", "f() { f; }; while true; do x=1; done",
		"sleep 60 & wait", "sh -c 'while true; do true; done'", "seq 1 1000000000 > /dev/null", "trap : INT TERM; sleep 60",
	} {
		begin := time.Now()
		exit, err := m.Run(ctxb, sandboxes.Command{Script: script, Timeout: 50 * time.Millisecond})
		if err != nil || !exit.TimedOut {
			t.Errorf("%s: %+v, %v", script, exit, err)
		}
		ctx, cancel := context.WithCancel(ctxb)
		time.AfterFunc(20*time.Millisecond, cancel)
		if _, err := m.Run(ctx, sandboxes.Command{Script: script}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", script, err)
		}
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("%s took %v", script, d)
		}
	}
}

func TestAFloodIsReadAndMemoryStaysBounded(t *testing.T) {
	_, m := open(t)
	n := 0
	exit, err := m.Run(ctxb, sandboxes.Command{Script: "yes | head -c 16M", Full: "full", Output: func(_ sandboxes.Stream, b []byte) { n += len(b) }})
	if err != nil || exit.Code != 0 || n != 16<<20 || exit.FullBytes != 16<<20 || exit.FullCut {
		t.Fatal(exit, err, n)
	}
	if b, err := m.Read(ctxb, m.Scratch()+"/full", 0, -1); err != nil || len(b) != 16<<20 {
		t.Error(len(b), err)
	}
	if _, errs, exit := run(t, m, `x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done`); exit.Code != 1 || !strings.Contains(errs, "256 MiB") {
		t.Error(exit, errs)
	}
}

func TestTheStoreHasALimit(t *testing.T) {
	s, m := open(t)
	s.tree.free = 1 << 20
	if _, errs, exit := run(t, m, "yes > big"); exit.Code == 0 || !strings.Contains(errs, "no space") {
		t.Error(exit, errs)
	}
	if err := m.Write(ctxb, "other", make([]byte, 1<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	run(t, m, "rm big")
	if err := m.Write(ctxb, "other", make([]byte, 1000)); err != nil {
		t.Error(err)
	}
}

func TestABackgroundJobDoesNotHoldUpTheResultAndEndsWithTheMount(t *testing.T) {
	s, m := open(t)
	begin := time.Now()
	out, _, exit := run(t, m, "echo hi; sleep 60 &")
	if d := time.Since(begin); out != "hi\n" || !exit.Background || d > time.Second {
		t.Error(out, exit, d)
	}
	run(t, m, "while true; do echo x >> beat; sleep 0.01; done &")
	grown := func() int {
		b, err := m.Read(ctxb, "beat", 0, -1)
		if err != nil {
			return 0
		}
		return len(b)
	}
	for deadline := time.Now().Add(5 * time.Second); grown() < 6; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the job does not run")
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := s.tree.read("/workspace/beat")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ { // one step may be under way
		time.Sleep(50 * time.Millisecond)
		again, err := s.tree.read("/workspace/beat")
		if err != nil {
			t.Fatal(err)
		}
		if len(again) == len(b) {
			break
		}
		if b = again; i == 3 {
			t.Fatal("the job goes on")
		}
	}
}

func TestMountsShareFilesAndNothingElse(t *testing.T) {
	s, a := open(t)
	run(t, a, "mkdir sub; echo 1 > sub/f; cd sub")
	b := mountOf(t, s, sandboxes.MountOptions{Dir: "sub", Umask: 0o077, Set: map[string]string{"X": "y"}, Caller: []string{"HOST=1"}})
	if out, _, _ := run(t, b, "pwd; cat f; echo $X$HOST; touch new"); out != "/workspace/sub\n1\ny\n" {
		t.Errorf("%q", out)
	}
	if i, err := a.Stat(ctxb, "sub/new"); err != nil || i.Mode.Perm() != 0o600 {
		t.Error(i, err)
	}
	if out, _, _ := run(t, a, "pwd; echo $X"); out != "/workspace\n\n" {
		t.Errorf("%q", out)
	}
	var missing *messages.DirectoryNotFound
	if _, err := s.Mount(ctxb, sandboxes.MountOptions{Dir: "/none", Umask: -1}); !errors.As(err, &missing) {
		t.Error(err)
	}
	unlock, err := a.Lock(ctxb, "sub/../f")
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(ctxb, 10*time.Millisecond)
	defer cancel()
	if _, err := b.Lock(waiting, "/workspace/f"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	unlock()
}

func TestFilesBehaveAsOnADisk(t *testing.T) {
	_, m := open(t)
	bytes := []byte{0, 1, 0xff, '\n'}
	if err := m.Write(ctxb, "deep/er/f", bytes); err != nil {
		t.Fatal(err)
	}
	if b, err := m.Read(ctxb, "deep/er/../er/f", 1, 2); err != nil || string(b) != "\x01\xff" {
		t.Error(b, err)
	}
	run(t, m, "ln -s deep/er l; ln -s loop2 loop1; ln -s loop1 loop2; ln -s nowhere dangling")
	if b, err := m.Read(ctxb, "l/f", 0, -1); err != nil || string(b) != string(bytes) {
		t.Error(b, err)
	}
	if err := m.Write(ctxb, "dangling", nil); err != nil {
		t.Error(err)
	}
	if i, err := m.Lstat(ctxb, "dangling"); err != nil || i.Mode&fs.ModeSymlink == 0 {
		t.Error("the link was replaced", i, err)
	}
	for what, err := range map[string]error{
		"loop":      second(m.Read(ctxb, "loop1", 0, -1)),
		"folder":    second(m.Read(ctxb, "deep", 0, -1)),
		"file/":     second(m.Read(ctxb, "deep/er/f/", 0, -1)),
		"missing":   second(m.Read(ctxb, "missing", 0, -1)),
		"empty":     second(m.Read(ctxb, "", 0, -1)),
		"NUL":       second(m.Read(ctxb, "a\x00b", 0, -1)),
		"long":      second(m.Read(ctxb, strings.Repeat("x", 256), 0, -1)),
		"list file": second(m.List(ctxb, "deep/er/f")),
		"not empty": m.Remove(ctxb, "deep"),
		"to folder": m.Write(ctxb, "deep", nil),
		"below":     m.Mkdir(ctxb, "deep/er/f/x"),
	} {
		want := map[string]error{"loop": syscall.ELOOP, "folder": sandboxes.ErrIsDirectory, "file/": sandboxes.ErrNotDirectory, "missing": fs.ErrNotExist,
			"long": syscall.ENAMETOOLONG, "list file": sandboxes.ErrNotDirectory, "not empty": syscall.ENOTEMPTY, "to folder": sandboxes.ErrIsDirectory,
			"below": sandboxes.ErrNotDirectory}[what]
		var fe *sandboxes.FileError
		if !errors.As(err, &fe) || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if real, err := m.RealPath(ctxb, "l/new"); err != nil || real != "/workspace/deep/er/new" {
		t.Error(real, err)
	}
	infos, err := m.List(ctxb, ".")
	if err != nil || len(infos) != 6 {
		t.Error(infos, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestADriverKnowsItsSandboxesOnly(t *testing.T) {
	d := New(Options{})
	var bad *sandboxes.ConfigError
	if _, err := d.Create(ctxb, sandboxes.Spec{ID: "x", Config: []byte(`{"size":1}`)}); !errors.As(err, &bad) {
		t.Error(err)
	}
	r, err := d.Create(ctxb, sandboxes.Spec{ID: "x", Config: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Attach(ctxb, sandboxes.Spec{}, r)
	if err != nil {
		t.Fatal(err)
	}
	run(t, mountOf(t, s, sandboxes.MountOptions{Umask: -1}), "echo kept > f")
	for _, err := range []error{s.Close(ctxb), s.Close(ctxb), d.Stop(ctxb, sandboxes.Spec{}, r), d.Wake(ctxb, sandboxes.Spec{}, r)} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Mount(ctxb, sandboxes.MountOptions{}); !errors.Is(err, sandboxes.ErrClosed) {
		t.Error(err)
	}
	if s, err = d.Attach(ctxb, sandboxes.Spec{}, r); err != nil {
		t.Fatal(err)
	}
	if out, _, _ := run(t, mountOf(t, s, sandboxes.MountOptions{Umask: -1}), "cat f; ls /tmp"); !strings.HasPrefix(out, "kept\ncodework-") || strings.Count(out, "\n") != 2 {
		t.Errorf("%q", out)
	}
	if err := errors.Join(s.Close(ctxb), d.Destroy(ctxb, sandboxes.Spec{}, r), d.Destroy(ctxb, sandboxes.Spec{}, r)); err != nil {
		t.Error(err)
	}
	_, err = d.Attach(ctxb, sandboxes.Spec{}, r)
	for _, err := range []error{err, d.Stop(ctxb, sandboxes.Spec{}, r), second(d.Inspect(ctxb, sandboxes.Spec{}, r))} {
		if !errors.Is(err, sandboxes.ErrNotFound) {
			t.Error(err)
		}
	}
}

// FuzzScript: whatever the script, it ends within its time, nothing panics, and
// the exit code is one.
func FuzzScript(f *testing.F) {
	for _, s := range []string{"echo $((1/0))", "[[ -O f ]]", "for ((;;)); do break; done", "x=({1..9}); echo ${x[@]}", "cat <<< a | sed 's/a/b/'", "find . -exec echo {} ;",
		"printf '%s' | xargs -I{} sh -c {}", "a() { a; }; a", "echo ~a/b", "select x in 1; do :; done", "coproc cat", "trap 'echo x' ERR; false", "date +%%%Q"} {
		f.Add(s)
	}
	_, m := open(f)
	f.Fuzz(func(t *testing.T, script string) {
		exit, err := m.Run(ctxb, sandboxes.Command{Script: script, Timeout: 200 * time.Millisecond})
		var se *sandboxes.ShellError
		if err != nil && !errors.As(err, &se) || err == nil && !exit.TimedOut && (exit.Code < 0 || exit.Code > 255) {
			t.Error(exit, err)
		}
		if se != nil && strings.Contains(se.Error(), "interpreter failed") {
			t.Error(err)
		}
	})
}

// FuzzSed: a script of sed is refused or works.
func FuzzSed(f *testing.F) {
	for _, s := range []string{"s/a/b/g;2,3!p", "/x/,$d", "a\\\nfoo", "s,\\,,&,3p", "$!N"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, script string) {
		commands, err := parseSed(script, len(script)%2 == 0)
		if err != nil {
			return
		}
		p := &process{ctx: ctxb}
		var out strings.Builder
		_ = p.edit(commands, strings.NewReader("ax\nb\nx"), &out, false)
	})
}

func TestMemoryPassesTheDriverSuite(t *testing.T) {
	drivertest.Run(t, drivertest.Subject{Name: "memory", HasLinks: true, HasModes: true, HasRawNames: true,
		Open: func(t testing.TB) (sandboxes.Sandbox, string) {
			s, m := open(t)
			return s, m.Dir()
		}})
}
