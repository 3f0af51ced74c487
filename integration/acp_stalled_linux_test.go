package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codework/protocol/acp"
)

// pipeSize is more than half of what a pipe holds; how much that is depends on
// how it was filled.
const pipeSize = 40_000

// An editor that reads no more holds up nothing: neither the end of what it
// asked for nor that of the process.
func TestEditorThatReadsNoMoreEndsInTime(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd, io.Closer){
		"input ends": func(_ *exec.Cmd, in io.Closer) { in.Close() },
		"TERM":       func(c *exec.Cmd, _ io.Closer) { _ = c.Process.Signal(syscall.SIGTERM) },
	} {
		for _, where := range []string{"home", "embedded"} {
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				w := newEditorWorld(t, nil)
				c := w.command(t.Context(), "acp")
				if where == "embedded" {
					c.Args = append(c.Args, "--embedded")
				}
				c.Env = append(c.Env, "TMPDIR="+w.dir)
				in, err := c.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				out, err := c.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				lines := bufio.NewReader(out)
				ask := func(method, params string) []byte {
					t.Helper()
					fmt.Fprintf(in, `{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`+"\n", method, params)
					line, err := lines.ReadBytes('\n')
					if err != nil {
						t.Fatal(err)
					}
					return line
				}
				var answer struct{ Result acp.NewResult }
				if err := json.Unmarshal(ask(acp.MethodNew, fmt.Sprintf(`{"cwd":%q}`, w.project())), &answer); err != nil {
					t.Fatal(err)
				}
				command := w.victim(300)
				prompt, err := json.Marshal(sh("yes | head -c 40000; " + command))
				if err != nil {
					t.Fatal(err)
				}
				// Replays fill the pipe between the two while the command runs.
				params := fmt.Sprintf(`{"sessionId":%q,"cwd":%q,"prompt":[{"type":"text","text":%s}]}`, answer.Result.SessionID, w.project(), prompt)
				ask(acp.MethodPrompt, params)
				w.awaitRuns(t, command)
				for range 300 {
					fmt.Fprintf(in, `{"jsonrpc":"2.0","id":2,"method":"session/load","params":%s}`+"\n", params)
				}
				if err := until(endLimit, func() string {
					if n, err := unix.IoctlGetInt(int(out.(*os.File).Fd()), unix.TIOCINQ); err != nil || n < pipeSize {
						return fmt.Sprintf("%d bytes wait in the pipe (%v)", n, err)
					}
					return ""
				}); err != nil {
					t.Fatal(err)
				}
				// Killed where it does not end by itself.
				late := time.AfterFunc(endLimit, func() { _ = c.Process.Kill() })
				end(c, in)
				err = c.Wait()
				late.Stop()
				if err != nil {
					t.Errorf("it did not end well: %v", err)
				}
				if left := w.runs(command); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			})
		}
	}
}
