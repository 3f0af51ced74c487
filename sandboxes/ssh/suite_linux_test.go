package ssh

import (
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"codework/sandboxes"
	"codework/sandboxes/drivertest"
)

// suite runs the shared suite against a server.
func suite(t *testing.T, d *Driver, s *server, subject drivertest.Subject) {
	type made struct {
		spec sandboxes.Spec
		r    sandboxes.Resource
	}
	all := map[string]made{}
	subject.Open = func(t testing.TB) (sandboxes.Sandbox, string) {
		spec := s.spec(t)
		sb, r := create(t, d, spec)
		all[r.Dir] = made{spec, r}
		return sb, r.Dir
	}
	subject.Again = func(t testing.TB, dir string) sandboxes.Sandbox {
		for known, m := range all {
			if len(dir) > len(known) && dir[:len(known)] == known {
				return attach(t, d, m.spec, m.r)
			}
		}
		t.Fatalf("no sandbox has %s", dir)
		return nil
	}
	drivertest.Run(t, subject)
}

// A start file that prints before anything else, as many do, is in the way of
// everything; it is there in all runs of the suite.
func noisy(t testing.TB, s *server) *server {
	t.Helper()
	if err := os.WriteFile(s.dir+"/.bashrc", []byte("echo Welcome; echo; echo 'Last login: never' >&2; printf 'and goodbye'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDriverSuiteWithOurRunner(t *testing.T) {
	t.Parallel()
	suite(t, newDriver(t), noisy(t, newServer(t, somebody(t), "MaxSessions 2")), drivertest.Subject{
		Name: "ssh with our runner", HasPrograms: true, HasCancels: true, HasLinks: true, HasModes: true, HasRawNames: true,
	})
}

func TestDriverSuiteInNamespaces(t *testing.T) {
	t.Parallel()
	suite(t, plainDriver(t), noisy(t, newServer(t, somebody(t), "MaxSessions 2")), drivertest.Subject{
		Name: "ssh with unshare", HidesSignals: true, HasPrograms: true, HasCancels: true, HasLinks: true, HasModes: true, HasRawNames: true,
	})
}

func TestDriverSuiteWithGroups(t *testing.T) {
	t.Parallel()
	suite(t, plainDriver(t), noisy(t, withoutUnshare(t, somebody(t))), drivertest.Subject{
		Name: "ssh with process groups", HidesSignals: true, HasPrograms: true, HasLinks: true, HasModes: true, HasRawNames: true,
	})
}

// withoutUnshare is a server on whose host no namespaces can be made.
func withoutUnshare(t testing.TB, u *user.User, config ...string) *server {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(bin+"/unshare", []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := bin; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return newServer(t, u, append(config, "SetEnv PATH="+bin+":/usr/bin:/bin")...)
}
