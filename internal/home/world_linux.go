package home

import "os"

// MountNamespace names the view of the file system that this process has; ""
// when it cannot be told.
func MountNamespace() string {
	ns, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return ""
	}
	return ns
}
