package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"codework/sandboxes/daytona/daytonatest"
)

// What the driver for Daytona is tested against is a Daytona to the vendor's own
// client, too.
func TestDaytonaOfOurTestsServesTheVendorsClient(t *testing.T) {
	t.Parallel()
	npm := npm(t)
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "check.mjs"} {
		b, err := os.ReadFile(filepath.Join("testdata", "daytona", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), npmLimit)
	defer cancel()
	install := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	s := daytonatest.New(t.TempDir())
	defer s.Close()
	c := exec.CommandContext(ctx, "node", "check.mjs")
	c.Dir = dir
	c.Env = append(os.Environ(), "DAYTONA_API_URL="+s.URL(), "DAYTONA_API_KEY="+daytonatest.Key)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, stderr.String())
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	want := []string{
		`{"step":"create","state":"started","labels":{"made":"by the check","code-toolbox-language":"python"},"autoStop":60}`,
		`{"step":"list","listed":1}`,
		`{"step":"execute","code":7,"result":"it's \"quoted\" yes\nerr\n<dir>\n"}`,
		`{"step":"session","code":3,"stdout":"out\n","stderr":"err\n"}`,
		`{"step":"follow","code":4,"stdout":"a\nunfinished\n","stderr":"b\n"}`,
		`{"step":"session deleted","status":404,"name":"DaytonaNotFoundError"}`,
		`{"step":"files","same":true,"size":256,"isDir":false}`,
		`{"step":"no such file","status":404,"name":"DaytonaNotFoundError"}`,
		`{"step":"no such file to look at","status":404,"name":"DaytonaNotFoundError"}`,
		`{"step":"stop","state":"stopped"}`,
		`{"step":"stopped","status":400,"name":"DaytonaValidationError"}`,
		`{"step":"start","state":"started","same":true}`,
		`{"step":"wrong key","status":401,"name":"DaytonaAuthenticationError"}`,
		`{"step":"deleted","status":404,"name":"DaytonaNotFoundError"}`,
	}
	for i := range max(len(got), len(want)) {
		var g, w map[string]any
		if i < len(got) {
			if err := json.Unmarshal([]byte(got[i]), &g); err != nil {
				t.Fatalf("%s: %v", got[i], err)
			}
		}
		if i < len(want) {
			if err := json.Unmarshal([]byte(want[i]), &w); err != nil {
				t.Fatal(err)
			}
		}
		a, _ := json.Marshal(g) // in one order of fields
		b, _ := json.Marshal(w)
		if !bytes.Equal(a, b) {
			t.Errorf("step %d:\n got %s\nwant %s", i, a, b)
		}
	}
}

func cmdDaytona(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, 0, "daytona")
	root, err := os.MkdirTemp("", "daytona")
	ts.Check(err)
	s := daytonatest.New(root)
	ts.Defer(func() {
		s.Close()
		ts.Check(os.RemoveAll(root))
	})
	ts.Setenv("DAYTONA_API_URL", s.URL())
	ts.Setenv("DAYTONA_API_KEY", daytonatest.Key)
}
