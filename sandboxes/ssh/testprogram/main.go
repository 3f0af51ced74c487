// Command testprogram is what the tests of the ssh driver bring to hosts: the
// hidden modes of the real program and nothing else, so that it is small and
// quickly built without the system's libraries. Modes exit with their own code,
// anything else is wrong use.
package main

import (
	"os"

	"codework/sandboxes/agent"
)

func main() {
	if handled, code := agent.Main(os.Args); handled {
		os.Exit(code)
	}
	os.Exit(2)
}
