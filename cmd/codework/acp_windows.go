package main

import "os"

// brokenPipe are the signals of an output that nobody reads any more: here it
// is an error of the write.
var brokenPipe = []os.Signal{}

// protocolOutput keeps out for the protocol alone.
func protocolOutput(out, other *os.File) (*os.File, error) {
	if out == os.Stdout {
		os.Stdout = other
	}
	return out, nil
}
