//go:build amd64 || arm64

package isolated

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mountInfo is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mountInfo struct {
	device string // major:minor
	root   string // what of the file system is mounted
	path   string // where
	kind   string // of the file system
}

func readMounts() ([]mountInfo, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(b)), nil
}

// parseMounts reads the list; lines that are no such line are left out.
func parseMounts(text string) []mountInfo {
	var out []mountInfo
	for line := range strings.Lines(text) {
		front, back, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(front), strings.Fields(back)
		if !ok || len(f) < 6 || len(g) < 1 {
			continue
		}
		out = append(out, mountInfo{device: f[2], root: unescape(f[3]), path: unescape(f[4]), kind: g[0]})
	}
	return out
}

// unescape undoes what the list does to blanks and backslashes: three octal
// digits behind a backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && octal(s[i+1], '3') && octal(s[i+2], '7') && octal(s[i+3], '7') {
			b = append(b, (s[i+1]-'0')<<6|(s[i+2]-'0')<<3|(s[i+3]-'0'))
			i += 3
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

func octal(c, most byte) bool { return c >= '0' && c <= most }

// within tells whether path is dir or below it, and what comes behind dir.
func within(path, dir string) (rest string, ok bool) {
	if dir == "/" {
		return path, true
	}
	rest, ok = strings.CutPrefix(path, dir)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// aliases are the other paths by which the same file is reached because its
// file system, or a part of it, is mounted in several places.
func aliases(mounts []mountInfo, path string) []string {
	var home *mountInfo
	for i, m := range mounts { // of several on one another the last one counts
		if _, ok := within(path, m.path); ok && (home == nil || len(m.path) >= len(home.path)) {
			home = &mounts[i]
		}
	}
	if home == nil {
		return nil
	}
	rest, _ := within(path, home.path)
	inside := join(home.root, rest)
	var out []string
	for _, m := range mounts {
		if m.device != home.device || m.path == home.path {
			continue
		}
		if rest, ok := within(inside, m.root); ok {
			if name := join(m.path, rest); name != path {
				out = append(out, name)
			}
		}
	}
	return out
}

// join puts a rest, empty or beginning with a slash, behind a folder.
func join(dir, rest string) string {
	if dir == "/" && rest != "" {
		return rest
	}
	if rest == "/" {
		return dir
	}
	return dir + rest
}

// loopbackUp brings up the only interface of a new network.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
