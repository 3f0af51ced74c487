package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestModelsTellTheirErrorsInJSON(t *testing.T) {
	homeDir := t.TempDir()
	t.Setenv(modelsURLVariable, "notaurl")
	check := func(kind string, args ...string) {
		t.Helper()
		r := command(t, "", append(args, "--json", "--home", homeDir)...)
		if r.code != exitFailed || !strings.HasPrefix(r.out, `{"error":{"type":"`+kind+`","message":"`) || !strings.Contains(r.err, "error["+kind+"]: ") {
			t.Errorf("%v: exit code %d, %s%s", args, r.code, r.out, r.err)
		}
	}
	check("catalog-refresh-failed", "models", "refresh", "--force")
	check("model-not-found", "models", "--provider", "nosuch")
	if err := os.WriteFile(filepath.Join(homeDir, "models.gen.json"), []byte(`{"x":`), 0o600); err != nil {
		t.Fatal(err)
	}
	check("model-catalog-invalid", "models")
	check("model-catalog-invalid", "models", "providers")
}
