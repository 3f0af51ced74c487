package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unmapProgram lets go of the pages of the program's own file that are mapped:
// of the 20 MB that work, and starting, has touched, a server at rest needs less
// than one. They stay in the system's cache, which may now drop them, and come
// back as they are touched: 2 ms of processor time for the next work, at most.
//
// Only mappings that cannot be written and hold no page of their own are let go
// of: those of another sort (a program that is relocated when it starts) would
// come back without what was written to them.
func unmapProgram() {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	_ = eachClean(bufio.NewScanner(f), strings.TrimSuffix(self, " (deleted)"), func(from, to uintptr) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED) // no harm if it fails
	})
}

// eachClean visits the mappings of a file in the text of /proc/self/smaps that are
// not writable and have no anonymous page, in memory or swapped out.
func eachClean(smaps *bufio.Scanner, file string, visit func(from, to uintptr)) error {
	var from, to uint64
	var is, clean, swapless bool
	for smaps.Scan() {
		line := smaps.Bytes()
		name, value, _ := bytes.Cut(line, []byte(" "))
		switch string(name) {
		case "Anonymous:":
			clean = string(bytes.TrimSpace(value)) == "0 kB"
		case "Swap:":
			swapless = string(bytes.TrimSpace(value)) == "0 kB"
		case "VmFlags:": // the last line of each
			if is && clean && swapless {
				visit(uintptr(from), uintptr(to))
			}
		default:
			if bytes.HasSuffix(name, []byte(":")) {
				continue
			}
			// from-to rwxp offset device inode file
			is, clean, swapless = false, false, false
			low, high, ok := strings.Cut(string(name), "-")
			f := strings.Fields(string(value))
			if !ok || len(f) < 5 || strings.Contains(f[0], "w") || !strings.HasSuffix(f[0], "p") {
				continue
			}
			_, path, _ := strings.Cut(string(value), "/")
			var lowErr, highErr error
			from, lowErr = strconv.ParseUint(low, 16, 64)
			to, highErr = strconv.ParseUint(high, 16, 64)
			is = "/"+strings.TrimSuffix(path, " (deleted)") == file && lowErr == nil && highErr == nil && from < to
		}
	}
	return smaps.Err()
}
