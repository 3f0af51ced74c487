//go:build !windows

package store

import "golang.org/x/sys/unix"

// freeSpace is what an ordinary user may still write to the file system of
// dir, in bytes.
func freeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		return int64(st.Bavail) * int64(st.Bsize), nil
	}
}
