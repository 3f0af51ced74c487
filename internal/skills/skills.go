// Package skills finds the skills that a session may use: folders with a
// SKILL.md, whose front matter says what they are for.
//
// A prompt only lists them, by name, description and path; a model reads the
// files when a task calls for it, with its ordinary tools. They are text and
// give nobody a right: those of a project that is not trusted are listed too.
// The same files always give the same text, in the order of names. What is
// wrong with a skill is a warning and leaves it out.
package skills

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"codework/sandboxes"
)

const (
	// fileName makes a folder a skill.
	fileName = "SKILL.md"
	// maxHead is how much of a file is read for its front matter, in bytes.
	maxHead = 16 << 10
	// maxSkills is how many are listed: each costs every request its line.
	maxSkills = 100
	// maxDescription bounds a line of the list, in bytes.
	maxDescription = 500
	// maxWarnings is how many are told of: they come with each prompt.
	maxWarnings = 20
	// maxDepth bounds the walk upwards; paths of 4096 bytes have fewer levels.
	maxDepth = 2048
	// maxReason bounds, in bytes, what an error may add to a warning.
	maxReason = 200
)

// folders are where a project keeps its skills, the preferred first.
var folders = []string{".codework/skills", ".agents/skills"}

// Skill is one skill.
type Skill struct {
	Name        string
	Description string // one line
	Path        string // of its SKILL.md, for the session's tools
}

// Find looks for skills in the project of the mount's working directory, from
// there up to the project's root, and below home on this machine ("" has
// none). Of two with one name the closer counts, the user's last. An error
// means only that ctx ended.
func Find(ctx context.Context, m sandboxes.Mount, home string) (found []Skill, warnings []string, err error) {
	f := &finder{ctx: ctx, seen: map[string]bool{}}
	for _, dir := range upwards(ctx, m) {
		for _, sub := range folders {
			at := path.Join(dir, sub)
			entries, err := m.List(ctx, at)
			if err != nil {
				f.problem(at, err)
				continue
			}
			for _, e := range entries {
				file := path.Join(at, e.Name, fileName)
				if e.Mode.IsDir() || e.Mode&fs.ModeSymlink != 0 {
					b, err := m.Read(ctx, file, 0, maxHead)
					f.take(file, e.Name, b, err)
				}
			}
		}
	}
	if home != "" {
		at := filepath.Join(home, "skills")
		entries, err := os.ReadDir(at)
		if err != nil {
			f.problem(at, err)
		}
		for _, e := range entries {
			file := filepath.Join(at, e.Name(), fileName)
			if e.IsDir() || e.Type()&fs.ModeSymlink != 0 {
				b, err := readHead(file)
				f.take(file, e.Name(), b, err)
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if more := len(f.warnings) - maxWarnings; more > 0 {
		f.warnings = append(f.warnings[:maxWarnings], fmt.Sprintf("%d more skills are left out", more))
	}
	slices.SortFunc(f.found, func(a, b Skill) int { return cmp.Compare(a.Name, b.Name) })
	if len(f.found) > maxSkills {
		f.warnings = append(f.warnings, fmt.Sprintf("there are %d skills; only the first %d by name are listed", len(f.found), maxSkills))
		f.found = f.found[:maxSkills]
	}
	return f.found, f.warnings, nil
}

// upwards are the working directory and the folders above it up to the root of
// its repository, or else to the nearest with a .codework. Where there is
// neither it is the directory alone: skills of folders that everybody may write
// to are not for this session.
func upwards(ctx context.Context, m sandboxes.Mount) []string {
	dir := path.Clean(m.Dir())
	var dirs []string
	end := 1
	for range maxDepth {
		dirs = append(dirs, dir)
		if _, err := m.Lstat(ctx, path.Join(dir, ".git")); err == nil {
			return dirs
		}
		if end == 1 {
			if _, err := m.Lstat(ctx, path.Join(dir, ".codework")); err == nil {
				end = len(dirs)
			}
		}
		up := path.Dir(dir)
		if up == dir {
			break
		}
		dir = up
	}
	return dirs[:end]
}

func readHead(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait
		return nil, sandboxes.ErrNotRegular
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, min(info.Size(), maxHead))
	n, err := f.ReadAt(b, 0)
	if n == len(b) {
		err = nil
	}
	return b[:n], err
}

type finder struct {
	ctx      context.Context
	found    []Skill
	warnings []string
	seen     map[string]bool
}

// problem notes an error other than that nothing is there.
func (f *finder) problem(at string, err error) {
	if f.ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, sandboxes.ErrNotDirectory) {
		f.warnings = append(f.warnings, fmt.Sprintf("skill %s is left out: %s", shown(at), shown(clip(err.Error(), maxReason))))
	}
}

func (f *finder) take(file, folder string, b []byte, err error) {
	if err != nil {
		f.problem(file, err)
		return
	}
	if folder != shown(folder) { // its path is a line of the prompt
		f.problem(file, errors.New("the name of its folder has characters that cannot be shown"))
		return
	}
	s, err := parse(string(b))
	if err != nil {
		f.problem(file, err)
		return
	}
	if s.Name == "" {
		s.Name = folder
	}
	if !skillName().MatchString(s.Name) {
		f.problem(file, fmt.Errorf("the name %q is not made of a-z, 0-9 and -", clip(s.Name, maxReason)))
		return
	}
	if f.seen[s.Name] {
		return
	}
	f.seen[s.Name] = true
	s.Path = file
	f.found = append(f.found, s)
}

// skillName is compiled when it is first used: most processes never look.
var skillName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`) })

const leadIn = "Instructions for special tasks. When a task fits one of them, read its file before you begin; paths in it are relative to its folder."

// Section is the text of the prompt's skills section; "" without skills.
func Section(all []Skill) string {
	if len(all) == 0 {
		return ""
	}
	lines := []string{leadIn}
	for _, s := range all {
		lines = append(lines, "- "+s.Name+": "+s.Description+" ("+s.Path+")")
	}
	return strings.Join(lines, "\n")
}

// shown is s without what could not be seen, or would be more than one line.
func shown(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || r != ' ' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
