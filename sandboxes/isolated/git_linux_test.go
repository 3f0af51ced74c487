//go:build amd64 || arm64

package isolated

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codework/sandboxes"
)

// git runs git on the host.
func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main",
		"-c", "protocol.file.allow=always"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// rename is what mv does before it copies and removes.
const rename = "ren() { python3 -c 'import os,sys; os.rename(*sys.argv[1:])' \"$@\" 2>/dev/null; }; "

// exchange swaps two names.
func exchange(a, b string) string {
	return "python3 -c \"import ctypes,sys; sys.exit(ctypes.CDLL(None).renameat2(-100,b'" + a + "',-100,b'" + b + "',2)!=0)\""
}

const commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m inside"

func TestCommitsWorkAndHooksDoNotChange(t *testing.T) {
	s := newScene(t)
	git(t, s.project, "init", "-q")
	git(t, s.project, "commit", "-q", "--allow-empty", "-m", "outside")
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	if r := run(t, m, "echo x > f && git add f && "+commit+" && git branch other && git gc -q && git checkout -q other && git log --oneline | wc -l"); r.Code != 0 || r.out != "2\n" {
		t.Fatalf("commit: %+v", r)
	}
	hook := "printf '#!/bin/sh\\ntouch " + s.home + "/escaped\\n' > %s && chmod +x %s"
	into := func(path string) string { return strings.ReplaceAll(hook, "%s", path) }
	for _, script := range []string{
		into(".git/hooks/pre-commit"), into(".git/hooks/post-checkout"),
		"ren .git .git2", "ren .git/hooks .git/hooks2", "rm -rf .git/hooks && test ! -e .git/hooks", "ren .git/config .git/config2",
		"git config core.hooksPath /tmp", "git config core.fsmonitor /tmp/x", "git config --worktree core.fsmonitor x",
		"echo '[core] hooksPath=x' >> .git/config", "echo '[core] hooksPath=x' > .git/config.worktree",
		"mkdir -p evil/hooks && cp .git/config evil && echo ../evil > .git/commondir",
		"rm -f .git/commondir && test ! -e .git/commondir", "echo x > new && ren new .git/config", "ren .git/config.worktree .git/x",
		"ln -sfn /tmp .git/hooks/x", "mkdir -p copy && ren copy .git",
		"echo x > .git/new && ren .git/new .git/config", "mkdir .git/h2 && ren .git/h2 .git/hooks",
		exchange("copy", ".git"), exchange(".git/h2", ".git/hooks"),
	} {
		if r := run(t, m, rename+script); r.Code == 0 {
			t.Errorf("%s: worked", script)
		}
	}
	if err := m.Write(bg, ".git/hooks/pre-commit", []byte("#!/bin/sh")); err == nil {
		t.Error("a hook was written by the file system")
	}
	if err := m.Write(bg, ".git/config", nil); err == nil {
		t.Error("config was written by the file system")
	}
	// Out here nothing is run and all is well.
	git(t, s.project, "commit", "-q", "--allow-empty", "-m", "after")
	git(t, s.project, "checkout", "-q", "main")
	git(t, s.project, "fsck", "--strict")
	if _, err := os.Stat(s.home + "/escaped"); err == nil {
		t.Error("a hook ran on the host")
	}
}

func TestGitReadOnlyBySetting(t *testing.T) {
	s := newScene(t)
	git(t, s.project, "init", "-q")
	m := newMount(t, newSandbox(t, newDriver(t), s.project, `{"gitReadOnly":true}`))
	if r := run(t, m, commit); r.Code == 0 {
		t.Error("a commit worked")
	}
	if r := run(t, m, rename+"git status && touch x && ! ren .git y"); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

func TestWorktree(t *testing.T) {
	s := newScene(t)
	main := filepath.Join(s.home, "main")
	if err := os.MkdirAll(main, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, main, "init", "-q")
	git(t, main, "commit", "-q", "--allow-empty", "-m", "first")
	git(t, main, "worktree", "add", "-q", s.project)
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	if r := run(t, m, "echo x > f && git add f && "+commit+" && git status --short"); r.Code != 0 || r.out != "" {
		t.Fatalf("commit: %+v", r)
	}
	own := main + "/.git/worktrees/project"
	for _, script := range []string{
		"echo 'gitdir: /tmp' > .git", "ren .git x", "rm .git",
		"touch " + main + "/f", "touch " + main + "/.git/hooks/x", "git config a.b c",
		"echo /tmp > " + own + "/commondir", "echo x > " + own + "/config.worktree", "ren " + own + " " + own + "2",
		"ren " + main + "/.git/worktrees " + main + "/.git/w", "ren " + main + "/.git " + main + "/g", "echo x > " + own + "/gitdir",
	} {
		if r := run(t, m, rename+script); r.Code == 0 {
			t.Errorf("%s: worked", script)
		}
	}
	git(t, s.project, "commit", "-q", "--allow-empty", "-m", "after")
}

// TestForgedWorktree has a .git file that names somebody else's folder: no
// command may have another folder made writable for the next sandbox.
func TestForgedWorktree(t *testing.T) {
	for _, shape := range []string{"repository", "worktree of another"} {
		t.Run(shape, func(t *testing.T) {
			s := newScene(t)
			other := filepath.Join(s.home, "other")
			if err := os.MkdirAll(other, 0o755); err != nil {
				t.Fatal(err)
			}
			git(t, other, "init", "-q")
			git(t, other, "commit", "-q", "--allow-empty", "-m", "first")
			git(t, other, "worktree", "add", "-q", filepath.Join(s.home, "real"))
			to := other + "/.git"
			if shape != "repository" {
				to += "/worktrees/real"
			}
			write(t, s.project+"/.git", "gitdir: "+to+"\n")
			m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
			if r := run(t, m, "touch "+other+"/.git/x"); r.Code == 0 {
				t.Error("another's repository is writable")
			}
		})
	}
}

func TestSubmodulesArePinned(t *testing.T) {
	s := newScene(t)
	lib := filepath.Join(s.home, "lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, lib, "init", "-q")
	git(t, lib, "commit", "-q", "--allow-empty", "-m", "first")
	git(t, s.project, "init", "-q")
	git(t, s.project, "submodule", "--quiet", "add", lib, "deep/lib")
	m := newMount(t, newSandbox(t, newDriver(t), s.project, ""))
	if r := run(t, m, "cd deep/lib && "+commit); r.Code != 0 {
		t.Fatalf("commit: %+v", r)
	}
	for _, script := range []string{
		"touch .git/modules/deep/lib/hooks/x", "cd deep/lib && git config a.b c", "ren .git/modules/deep .git/modules/x", "ren .git/modules .git/x", "ren .git/modules/deep/lib .git/x",
		"echo /tmp > .git/modules/deep/lib/commondir",
	} {
		if r := run(t, m, rename+script); r.Code == 0 {
			t.Errorf("%s: worked", script)
		}
	}
	git(t, s.project+"/deep/lib", "commit", "-q", "--allow-empty", "-m", "after")
}

// TestWhatCannotBePinnedIsRefused has links where the protected entries are.
func TestWhatCannotBePinnedIsRefused(t *testing.T) {
	for _, name := range []string{".git", ".git/hooks", ".git/config", ".codework"} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			git(t, s.project, "init", "-q")
			path := filepath.Join(s.project, name)
			if err := os.Rename(path, s.home+"/there"); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if err := os.Symlink(s.home+"/there", path); err != nil {
				t.Fatal(err)
			}
			_, err := newDriver(t).Create(bg, sandboxes.Spec{ID: "sbx_x", Project: s.project})
			if !isConfigError(err) || !strings.Contains(err.Error(), "symbolic link") {
				t.Error(err)
			}
		})
	}
}

// TestProtectionIsMissedWhenTheHostTakesItAway has git on the host replace a
// protected file, which takes the mount on it away.
func TestProtectionIsMissedWhenTheHostTakesItAway(t *testing.T) {
	s := newScene(t)
	git(t, s.project, "init", "-q")
	sb := newSandbox(t, newDriver(t), s.project, "")
	m := newMount(t, sb)
	if r := run(t, m, "git config a.b c"); r.Code == 0 {
		t.Fatal("config is not protected")
	}
	git(t, s.project, "config", "x.y", "z")
	select { // without any command
	case <-sb.(sandboxes.Lost).Lost():
	case <-time.After(limit):
		t.Error("the sandbox goes on")
	}
	for range 2 {
		_, err := m.Run(bg, sandboxes.Command{Script: "git config a.b c"})
		var se *sandboxes.ShellError
		if !errors.As(err, &se) {
			t.Errorf("a command ran: %v", err)
		}
	}
	if err := m.Write(bg, ".git/config", []byte("[a] b=c")); err == nil {
		t.Error("config was written")
	}
	if got := git(t, s.project, "config", "--list", "--local"); strings.Contains(got, "a.b") {
		t.Errorf("config was changed:\n%s", got)
	}
	// The next one protects the new file.
	if r := run(t, newMount(t, newSandbox(t, newDriver(t), s.project, "")), "git config a.b c"); r.Code == 0 {
		t.Error("config is not protected again")
	}
}

// TestChecksBeforeEachCommand has a sandbox whose folders nobody watches.
func TestChecksBeforeEachCommand(t *testing.T) {
	s := newScene(t)
	git(t, s.project, "init", "-q")
	d := newDriver(t)
	p, _, err := d.plan(sandboxes.Spec{ID: "sbx_x", Project: s.project}, Config{}, Full, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := d.start(bg, p, nil) // nobody watches
	if err != nil {
		t.Fatal(err)
	}
	defer sb.kill()
	defer sb.Client.Close(bg)
	m := newMount(t, sb)
	run(t, m, "true")
	git(t, s.project, "config", "x.y", "z")
	if _, err := m.Run(bg, sandboxes.Command{Script: "true"}); !errors.Is(err, errUnpinned) {
		t.Error(err)
	}
	<-sb.Lost()
}

// TestProjectInAWritableFolderStaysInPlace has a setting make the folders above
// the project writable.
func TestProjectInAWritableFolderStaysInPlace(t *testing.T) {
	s := newScene(t)
	git(t, s.project, "init", "-q")
	m := newMount(t, newSandbox(t, newDriver(t), s.project, `{"write":["`+s.home+`"]}`))
	for _, script := range []string{
		"ren ../project ../p2", "ren ../../src ../../s2", "ren .git .g", "touch .git/hooks/x", "echo x > .codework/x",
		"touch " + s.project + "/.git/hooks/x",
	} {
		if r := run(t, m, rename+script); r.Code == 0 {
			t.Errorf("%s: worked", script)
		}
	}
	if r := run(t, m, "touch ../new ../../new file && "+commit); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}
