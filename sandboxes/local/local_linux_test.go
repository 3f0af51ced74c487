package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codework/messages"
	"codework/sandboxes"
)

func TestMountDirectory(t *testing.T) {
	s := newSandbox(t)
	dir := t.TempDir()
	put(t, dir+"/real/sub/f", "", 0o644)
	symlink(t, "real/sub", dir+"/link")
	t.Chdir(dir)
	for asked, want := range map[string]string{
		"": dir, ".": dir, "real": dir + "/real", "real/": dir + "/real", dir + "//real/.": dir + "/real",
		"link": dir + "/link", "link/..": dir + "/real", dir + "/link/../": dir + "/real",
	} {
		if m := mountAt(t, s, sandboxes.MountOptions{Dir: asked, Umask: -1}); m.Dir() != want {
			t.Errorf("%q: %s, want %s", asked, m.Dir(), want)
		}
	}
	for _, asked := range []string{"missing", dir + "/missing/x", "nul\x00", strings.Repeat("x", 300)} {
		var missing *messages.DirectoryNotFound
		if _, err := s.Mount(ctxb, sandboxes.MountOptions{Dir: asked}); !errors.As(err, &missing) || missing.SandboxID != "local" ||
			!strings.HasSuffix(missing.Directory, asked) {
			t.Errorf("%.20q: %v", asked, err)
		}
	}
	for _, asked := range []string{"real/sub/f", "real/sub/f/x"} {
		var not *messages.NotDirectory
		if _, err := s.Mount(ctxb, sandboxes.MountOptions{Dir: asked}); !errors.As(err, &not) || not.SandboxID != "local" {
			t.Errorf("%q: %v", asked, err)
		}
	}
}

// TestScratchThatCommandsRemoveIsMadeAgain clears what is in a sandbox its /tmp.
func TestScratchThatCommandsRemoveIsMadeAgain(t *testing.T) {
	state := t.TempDir()
	s, err := New(Options{StateDir: state + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	m := mountAt(t, s, sandboxes.MountOptions{Dir: state, Umask: -1})
	for range 2 {
		e, err := m.Run(ctxb, sandboxes.Command{Script: "rm -rf " + state + "/*; echo x", Full: "full"})
		if err != nil || e.Code != 0 {
			t.Fatal(e, err)
		}
	}
	if e, err := m.Run(ctxb, sandboxes.Command{Script: "echo x", Full: "full"}); err != nil || e.Code != 0 {
		t.Error(e, err)
	}
	if b, err := os.ReadFile(filepath.Join(m.Scratch(), "full")); err != nil || string(b) != "x\n" {
		t.Errorf("%q %v", b, err)
	}
	if err := os.RemoveAll(state + "/state"); err != nil {
		t.Fatal(err)
	}
	other, err := s.Mount(ctxb, sandboxes.MountOptions{Dir: state, Umask: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Close(), s.Close(ctxb)); err != nil {
		t.Error(err)
	}
}

func TestScratchIsPrivateAndLeftOversOfTheDeadGo(t *testing.T) {
	state := t.TempDir()
	s, err := New(Options{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	m := mountAt(t, s, sandboxes.MountOptions{Dir: state, Umask: -1})
	if _, err := os.Lstat(m.Scratch()); err == nil {
		t.Error("a mount that has put nothing aside has a folder for it")
	}
	if _, err := m.Run(ctxb, sandboxes.Command{Script: "true", Full: "full"}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(m.Scratch()); err != nil || info.Mode() != 0o700|os.ModeDir || !filepath.IsAbs(m.Scratch()) {
		t.Error(info, err)
	}
	dead := filepath.Join(state, scratchPrefix+"dead")
	put(t, dead+"/"+lockName, "", 0o600)
	put(t, dead+"/mount/full", "x", 0o600)
	other, err := New(Options{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); err == nil {
		t.Error("left over of a dead process")
	}
	if _, err := os.Stat(m.Scratch()); err != nil {
		t.Error("a living one's scratch is gone:", err)
	}
	if err := errors.Join(s.Close(ctxb), other.Close(ctxb)); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(state + "/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestAMountKeepsJobsAndFiles also where there never was a scratch folder.
func TestAMountKeepsJobsAndFiles(t *testing.T) {
	s := newSandbox(t)
	keeps := func(m sandboxes.Mount) bool { return m.(sandboxes.Keeper).Keeps() }
	m := newMount(t, s)
	if keeps(m) {
		t.Error("a mount that nobody used keeps something")
	}
	run(t, m, sandboxes.Command{Script: "true"})
	if err := eventually("it is over", func() bool { return !keeps(m) }); err != nil {
		t.Error("after a command:", err)
	}
	r := run(t, m, sandboxes.Command{Script: "sleep 60 >/dev/null 2>&1 & echo $!"})
	if !keeps(m) {
		t.Error("a background job is not kept")
	}
	run(t, m, sandboxes.Command{Script: "kill " + r.out})
	if err := eventually("the job is over", func() bool { return !keeps(m) }); err != nil {
		t.Error(err)
	}
	run(t, m, sandboxes.Command{Script: "echo x", Full: "full"})
	if err := eventually("the command is over", func() bool {
		m := m.(*mount)
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.procs) == 0
	}); err != nil || !keeps(m) {
		t.Error("a file of its own is not kept", err)
	}
}

func TestInfo(t *testing.T) {
	i := newSandbox(t).Info()
	if i.ID != "local" || i.Driver != "local" || i.Kind != messages.KindLocal || i.ProviderResourceID != nil || i.Ownership != "external" ||
		i.Status != messages.SandboxOnline || i.Usage != "pinned" || i.RefCount != 0 || i.CreatedAt == "" || i.UpdatedAt == "" {
		t.Errorf("%+v", i)
	}
}

func TestABrokenExecutableIsAShellError(t *testing.T) {
	for _, exe := range []string{"/no/such/program", "/bin/false"} {
		s, err := New(Options{StateDir: t.TempDir(), Executable: exe})
		if err != nil {
			t.Fatal(err)
		}
		m := newMount(t, s)
		exit, err := m.Run(ctxb, sandboxes.Command{Script: "true"})
		var se *sandboxes.ShellError
		if !errors.As(err, &se) || exit.Code != -1 {
			t.Errorf("%s: %+v %v", exe, exit, err)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// An upgrade replaces or removes the file of a running server.
func TestTheProgramsFileMayBeRemoved(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "server")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, self, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mark")
	cmd := exec.Command(bin, serverArg, t.TempDir(), dir, `echo alive > '`+file+`'`)
	// Removed when the server runs and before it has started anything: it waits
	// for the end of its input.
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(bin); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := eventually("the command runs", func() bool { return size(file) > 0 }); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	reapAdopted(t)
}
