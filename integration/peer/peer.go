// Package peer is for tests against programs that are not part of the project:
// container engines, SSH servers, clients from npm. It decides what a test does
// whose peer is not there.
//
// By default such a test is left out, and says so with the reason. Where
// CODEWORK_TEST_FULL is set, as in CI, it fails instead, unless the environment
// says by CODEWORK_TEST_SKIP_<PEER> why it cannot have that peer.
package peer

import (
	"os"
	"testing"
)

// Full is the variable that makes missing peers a failure.
const Full = "CODEWORK_TEST_FULL"

// Skip is the variable that leaves a peer out on purpose; its value is the
// reason.
func Skip(name string) string { return "CODEWORK_TEST_SKIP_" + name }

// Wanted leaves the test out if the environment has a reason not to have the
// peer.
func Wanted(t testing.TB, name string) {
	t.Helper()
	if reason := os.Getenv(Skip(name)); reason != "" {
		t.Skipf("NOT TESTED: %s is left out by %s: %s", name, Skip(name), reason)
	}
}

// Missing ends the test, since the peer is not there: err says what was tried,
// help what to install.
func Missing(t testing.TB, name string, err error, help string) {
	t.Helper()
	if os.Getenv(Full) != "" {
		t.Fatalf("%s is missing: %v\n%s, or say in %s why this environment cannot have it", name, err, help, Skip(name))
	}
	t.Skipf("NOT TESTED: %s is missing: %v\n%s; with %s=1 this is a failure", name, err, help, Full)
}
