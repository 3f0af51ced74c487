package tools

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"codework/sandboxes"
)

// maxPathShown bounds, in bytes, how much of a path an error repeats.
const maxPathShown = 300

// cleanPath is a path argument as it is meant: Unicode's spaces are plain
// ones, and one leading "@", which people use to mention files, is not part of
// the name. An empty path stays empty. Dots are left to the sandbox, which
// knows the links.
func cleanPath(arg string) string {
	arg = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Zs, r) {
			return ' '
		}
		return r
	}, arg)
	return strings.TrimPrefix(arg, "@")
}

// folderArgument is an optional path argument; absent and empty mean the
// working directory.
func folderArgument(arg string) string {
	if p := cleanPath(arg); p != "" {
		return p
	}
	return "."
}

// absolute is p for display and for details: absolute and cleaned by text.
func absolute(m sandboxes.Mount, p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(m.Dir(), p)
}

var beforeAMPM = regexp.MustCompile(`(?i) ([ap]m)\b`)

// spellings are the names a file may have that a model cannot type: macOS puts
// a narrow no-break space before AM and PM in the names of screenshots, stores
// names decomposed, and uses curly apostrophes. The name as asked comes first.
func spellings(p string) []string {
	out := []string{p}
	add := func(s string) {
		for _, have := range out {
			if have == s {
				return
			}
		}
		out = append(out, s)
	}
	curly := strings.NewReplacer("'", "\u2019")
	add(beforeAMPM.ReplaceAllString(p, "\u202f$1"))
	add(norm.NFD.String(p))
	add(curly.Replace(p))
	add(curly.Replace(norm.NFD.String(p)))
	return out
}

// statSpelled finds the file that is meant by p.
func statSpelled(ctx context.Context, m sandboxes.Mount, p string) (string, sandboxes.Info, error) {
	info, err := m.Stat(ctx, p)
	if !errors.Is(err, fs.ErrNotExist) {
		return p, info, err
	}
	for _, other := range spellings(p)[1:] {
		if info, err := m.Stat(ctx, other); err == nil {
			return other, info, nil
		}
	}
	return p, info, err
}

// fileReason says why a file operation failed, with the code the backend
// would give, and without the path, which the caller names as it was asked.
func fileReason(err error) string {
	for _, k := range []struct {
		cause error
		text  string
	}{
		{fs.ErrNotExist, "no such file or directory (ENOENT)"},
		{fs.ErrPermission, "permission denied (EACCES)"},
		{sandboxes.ErrIsDirectory, "is a directory (EISDIR)"},
		{sandboxes.ErrNotDirectory, "not a directory (ENOTDIR)"},
		{sandboxes.ErrNotRegular, "not a regular file"},
	} {
		if errors.Is(err, k.cause) {
			return k.text
		}
	}
	var fe *sandboxes.FileError
	if errors.As(err, &fe) && fe.Err != nil {
		err = fe.Err
	}
	return reason(err)
}

func shown(p string) string { return clip(oneLine(p), maxPathShown) }
