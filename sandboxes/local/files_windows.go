package local

import (
	"io/fs"
	"os"
)

func openPlain(path string) (*os.File, error) { return os.Open(path) }

// writable leaves the judgement to the write.
func writable(string) error { return nil }

// enterable leaves the judgement to the start.
func enterable(string) error { return nil }

// keepOwner does nothing: a new file gets its folder's access list.
func keepOwner(*os.File, fs.FileInfo) {}
