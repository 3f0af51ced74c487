//go:build unix

package credentials

import (
	"path/filepath"
	"syscall"
	"testing"
)

// Opening a pipe would wait for somebody who writes into it.
func TestPipeIsNoCredentialFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "auth.json")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, file, "")
	_, status := s.Status(t.Context(), "openai-codex")
	_, save := s.Save(t.Context(), savedCodex)
	for _, err := range []error{status, save, s.Logout(t.Context(), "openai-codex")} {
		mustContain(t, err, file, "not a regular file")
	}
}
