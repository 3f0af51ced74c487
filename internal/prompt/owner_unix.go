//go:build unix

package prompt

import (
	"os"
	"syscall"
)

// ownFile refuses a file that another user could have put there: in a folder
// such as /tmp anybody may. A link counts, too: it could lead to a file of
// ours that is none of the model's business.
func ownFile(p string) error {
	for _, stat := range []func(string) (os.FileInfo, error){os.Lstat, os.Stat} {
		info, err := stat(p)
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Getuid() {
			return errForeign
		}
	}
	return nil
}
