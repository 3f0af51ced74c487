package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codework/integration/peer"
)

// clientLimit bounds fetching a client's packages, and its run.
const clientLimit = 3 * time.Minute

// npm is the peer that clients from npm need, with the program's path.
func npm(t *testing.T) string {
	t.Helper()
	peer.Wanted(t, "NPM")
	program, err := exec.LookPath("npm")
	if err != nil {
		peer.Missing(t, "NPM", err, "install Node.js with npm")
	}
	return program
}

// clientFolder copies a third-party client to a folder of the test's own and
// installs what it needs.
func clientFolder(t *testing.T, name string) string {
	t.Helper()
	npm := npm(t)
	peer.Wanted(t, "CLIENTS")
	shared := os.Getenv("CODEWORK_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "shared")
	}
	from := filepath.Join(shared, "clients", name)
	if _, err := os.Stat(filepath.Join(from, "package.json")); err != nil {
		peer.Missing(t, "CLIENTS", err, "name the folder that holds clients/ in CODEWORK_SHARED")
	}
	to := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	c := exec.CommandContext(ctx, npm, "ci", "--no-audit", "--no-fund", "--prefer-offline")
	c.Dir = to
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return to
}

// The client that the protocol comes from drives the server unchanged.
func TestServerPassesStockEffectClient(t *testing.T) {
	t.Parallel()
	dir := clientFolder(t, "effect-smoke")
	s := newServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	c := exec.CommandContext(ctx, "node", "smoke.mjs", s.url)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "7 passed, 0 failed\n") {
		t.Fatalf("%v\n%s", err, out)
	}
}
