package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clientLimit bounds fetching a client's packages, and its run.
const clientLimit = 3 * time.Minute

// clientFolder copies a third-party client to a folder of the test's own and
// installs what it needs. Without the folder or without npm the test fails:
// a client that was never tried must not look like one that works.
func clientFolder(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv("CODEWORK_SKIP_CLIENTS") == "1" {
		t.Skipf("NOT TESTED: the client %s, because CODEWORK_SKIP_CLIENTS=1", name)
	}
	shared := os.Getenv("CODEWORK_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "shared")
	}
	from := filepath.Join(shared, "clients", name)
	if _, err := os.Stat(filepath.Join(from, "package.json")); err != nil {
		t.Fatalf("the client %s is not there (CODEWORK_SHARED names the folder that holds clients/, CODEWORK_SKIP_CLIENTS=1 leaves it out): %v", name, err)
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Fatalf("npm is needed for the client %s (CODEWORK_SKIP_CLIENTS=1 leaves it out): %v", name, err)
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
