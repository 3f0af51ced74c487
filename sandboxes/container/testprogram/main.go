// Command testprogram is what the containers of tests run: only the hidden
// modes that they need, so that building it is quick.
package main

import (
	"os"

	"codework/sandboxes/agent"
	"codework/sandboxes/container"
)

func main() {
	for _, mode := range []func([]string) (bool, int){container.Main, agent.Main} {
		if handled, code := mode(os.Args); handled {
			os.Exit(code)
		}
	}
	os.Exit(2)
}
