//go:build unix

package main

import "os"

// replaceStderr lets stderr lead to another file. That it cannot be is not worth
// an end: it leads to the older log then.
func replaceStderr(stderr, to *os.File) { _ = redirect(int(to.Fd()), int(stderr.Fd())) }
