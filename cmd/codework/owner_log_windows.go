package main

import "os"

// replaceStderr does nothing: a crash is told at the end of the older log.
func replaceStderr(_, _ *os.File) {}
