package main

import (
	"os"
	"os/exec"
	"runtime"
)

// openBrowser tries to open a page in the person's browser. It does not wait
// and does not tell: the address has been printed anyway.
func openBrowser(address string) {
	argv := browserCommand(runtime.GOOS, os.Getenv, address)
	if argv == nil {
		return
	}
	c := exec.Command(argv[0], argv[1:]...) // without our input and outputs
	apart(c)
	if c.Start() == nil {
		go func() { _ = c.Wait() }() // only so that no zombie stays
	}
}

// browserCommand is the command that opens a page, nil when there is nowhere
// to show one: a browser for terminals would take ours.
func browserCommand(system string, getenv func(string) string, address string) []string {
	switch system {
	case "darwin":
		return []string{"open", address}
	case "windows":
		// start is a part of the shell, which has its own idea of an &.
		return []string{"rundll32", "url.dll,FileProtocolHandler", address}
	}
	if getenv("DISPLAY") == "" && getenv("WAYLAND_DISPLAY") == "" {
		return nil
	}
	return []string{"xdg-open", address}
}
