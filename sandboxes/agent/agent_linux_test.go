package agent

import (
	"testing"

	"codework/sandboxes"
)

func TestCommandsOverAPipeAndInAProcess(t *testing.T) {
	c, _ := overPipe(t, newLocal(t))
	for name, sb := range map[string]sandboxes.Sandbox{
		"pipe":    c,
		"process": start(t, "echo hello; echo; printf 'no newline'; ").Client,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMount(t, sb)
			if out, exit := run(t, m, sandboxes.Command{Script: `echo "$CODEWORK_SANDBOX"; echo err >&2; exit 3`, Joined: true}); out != "sbx_test\nerr\n" || exit.Code != 3 {
				t.Errorf("%q %+v", out, exit)
			}
		})
	}
}
