package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/mod/semver"
)

// version is set by the linker for releases.
var version = devVersion

const devVersion = "dev"

// commit is the revision this program was built from, if the build knew.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	rev, modified := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			rev = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				modified = "+"
			}
		}
	}
	return rev + modified
}

// build tells this very program from another one: two builds of one version
// differ in it.
func build() string {
	fi, err := os.Stat(selfExecutable())
	if err != nil {
		return commit()
	}
	return fmt.Sprintf("%x-%x", fi.Size(), fi.ModTime().UnixNano())
}

// selfExecutable is a path under which this program can be started again, also
// when its file has been replaced or removed.
func selfExecutable() string {
	const proc = "/proc/self/exe"
	if _, err := os.Stat(proc); err == nil {
		return proc
	}
	exe, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return exe
}

// replaces tells whether a client of this build takes the place of a running
// one: when it is newer, or when nobody can tell.
func replaces(running string) bool {
	if version == devVersion || running == devVersion {
		return true
	}
	return semver.Compare(canonical(version), canonical(running)) > 0
}

func canonical(v string) string { return "v" + strings.TrimPrefix(v, "v") }
