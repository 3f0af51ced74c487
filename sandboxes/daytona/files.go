package daytona

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"codework/sandboxes"
)

const (
	// inlineWrite is what a script takes with it: as base64 twice it is less
	// than an argument may be.
	inlineWrite = 48 << 10
	// inlineRead is what a script brings back: more is downloaded.
	inlineRead = 1 << 20
	// maxSpecial bounds what is read of a file that hides its size, as in /proc.
	maxSpecial = 16 << 20
)

// fileOp runs a file operation on a path and dresses its error.
func (m *mount) fileOp(ctx context.Context, op, p string, do func(ctx context.Context, abs string) error) error {
	abs, err := absolute(m.dir, p)
	switch {
	case m.ctx.Err() != nil:
		err = sandboxes.ErrClosed
	case err != nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	default:
		opctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(m.ctx, cancel)
		err = do(opctx, abs)
		stop()
		cancel()
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		} else if err != nil && m.ctx.Err() != nil {
			err = sandboxes.ErrClosed
		}
	}
	if err != nil {
		return &sandboxes.FileError{Op: op, Path: p, Err: err}
	}
	return nil
}

// readScript takes the file, the offset, the limit or -1, and the most that it
// may bring. It gives "here" and a line feed and what was asked for, or "big"
// and the size.
const readScript = `
test -e "$1" || why "$1"
test -d "$1" && fail isdir
test -f "$1" || fail special
n=$(stat -L -c %s "$1") || why "$1"
exec < "$1" || fail perm
want=$((n-$2))
if test "$n" -eq 0; then want=$5; fi
if test "$want" -lt 0; then want=0; fi
if test "$3" -ge 0 && test "$3" -lt "$want"; then want=$3; fi
if test "$n" -gt 0 && test "$want" -gt "$4"; then printf 'big %s' "$n"; exit; fi
echo here
if test "$2" -gt 0; then tail -c "+$(($2+1))" | head -c "$want"; else head -c "$want"; fi
exit 0
`

// Read returns up to limit bytes from offset.
func (m *mount) Read(ctx context.Context, p string, offset, limit int64) (data []byte, err error) {
	err = m.fileOp(ctx, "read", p, func(ctx context.Context, abs string) error {
		if offset < 0 {
			return syscall.EINVAL
		}
		offset := min(offset, 1<<60) // no file is longer, and the shell can add one
		reply, err := m.script(ctx, mayTry, readScript, abs, strconv.FormatInt(offset, 10), strconv.FormatInt(max(limit, -1), 10),
			strconv.Itoa(inlineRead), strconv.Itoa(maxSpecial))
		if err != nil {
			return err
		}
		head, rest, _ := bytes.Cut(reply, []byte("\n"))
		if string(head) == "here" {
			data = rest
			return nil
		}
		size, err := strconv.ParseInt(strings.TrimPrefix(string(head), "big "), 10, 64)
		if err != nil || size < 0 {
			return fmt.Errorf("a script in the sandbox answers %.60q", reply)
		}
		want := size - offset
		if limit >= 0 {
			want = min(want, limit)
		}
		return m.client.again(ctx, mayTry, func() error {
			data, err = m.download(ctx, abs, offset, limit, want)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// download reads a part of a file, of which about want bytes are expected.
func (m *mount) download(ctx context.Context, abs string, offset, limit, want int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := m.client.send(ctx, http.MethodGet, m.tool("files", "download")+"?"+url.Values{"path": {abs}}.Encode(), "", nil)
	if err != nil {
		return nil, m.lostBy(ctx, err)
	}
	defer resp.Body.Close()
	body, stop := newIdleReader(resp.Body, m.idle, cancel)
	defer stop()
	if _, err := io.CopyN(io.Discard, body, offset); err != nil && err != io.EOF {
		return nil, brokeOff(ctx, m.client.hide(err))
	}
	if limit >= 0 {
		body = io.LimitReader(body, limit)
	}
	out := bytes.NewBuffer(make([]byte, 0, want+bytes.MinRead))
	if _, err := out.ReadFrom(body); err != nil {
		return nil, brokeOff(ctx, m.client.hide(err))
	}
	return out.Bytes(), nil
}

func brokeOff(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errIdle) {
		err = errIdle
	}
	return fmt.Errorf("the download broke off: %w", err)
}

// prepareScript takes the file, the name for a temporary file and the umask or
// "". It finds the file that is meant, makes its folder and an empty temporary
// file beside it, and leaves the names and the old mode and owner in variables.
// The temporary file of an existing one is for its owner alone, until it has the
// old one's mode.
const prepareScript = `
test -z "$3" || umask "$3"
if ! test -L "$1" && ! test -e "$1"; then
	up=${1%/*}/
	test -d "$up" || {
		e=$(mkdir -p "$up" 2>&1) || {
			case $e in *": File exists") fail notdir ;; esac
			cause "$e"
		}
	}
fi
resolve "$1"
test -n "$t" || why "$1"
m= o=
if test -e "$t"; then
	test -d "$t" && fail isdir
	test -f "$t" || fail special
	test -w "$t" || fail perm
	o=$(stat -c '%a %u:%g' "$t")
	m=${o% *} o=${o#* }
	umask 077
fi
tmp=${t%/*}/$2
set -C
true > "$tmp" || { test -w "${t%/*}/" || fail perm; fail "other no file can be made there"; }
set +C
`

// commitScript continues with the variables of prepareScript. Who owns a file
// is kept where that is allowed.
const commitScript = `
if test -n "$m"; then
	test -O "$t" && test -G "$t" || chown "$o" "$tmp" 2>/dev/null
	chmod "$m" "$tmp" 2>/dev/null
fi
sync "$tmp" 2>/dev/null
test -d "$t" && { rm -f "$tmp"; fail isdir; }
e=$(mv -f "$tmp" "$t" 2>&1) || { rm -f "$tmp"; cause "$e"; }
`

// Write replaces the file.
func (m *mount) Write(ctx context.Context, p string, data []byte) error {
	return m.fileOp(ctx, "write", p, func(ctx context.Context, abs string) error {
		return m.store(ctx, abs, bytes.NewReader(data), int64(len(data)))
	})
}

// store replaces a file by what is read.
func (m *mount) store(ctx context.Context, abs string, from io.Reader, size int64) error {
	if last := path.Base(abs); strings.HasSuffix(abs, "/") || last == "." || last == ".." {
		return sandboxes.ErrIsDirectory
	}
	temp := ".codework-" + rand.Text()
	if size <= inlineWrite {
		data, err := io.ReadAll(from)
		if err != nil {
			return err
		}
		_, err = m.script(ctx, once, prepareScript+`
printf %s "$4" | base64 -d > "$tmp" || { rm -f "$tmp"; fail space; }
`+commitScript, abs, temp, m.umask, base64.StdEncoding.EncodeToString(data))
		return err
	}
	reply, err := m.script(ctx, once, prepareScript+`printf '%s\0%s\0%s\0%s' "$t" "$tmp" "$m" "$o"`, abs, temp, m.umask)
	if err != nil {
		return err
	}
	parts := strings.Split(string(reply), "\x00")
	if len(parts) != 4 {
		return fmt.Errorf("a script in the sandbox answers %.60q", reply)
	}
	if err = m.upload(ctx, parts[1], from); err == nil {
		_, err = m.script(ctx, once, `t=$1 tmp=$2 m=$3 o=$4
test "$(stat -c %s "$tmp")" = "$5" || { rm -f "$tmp"; fail "other the upload did not arrive as a whole"; }
`+commitScript, append(parts, strconv.FormatInt(size, 10))...)
	}
	if err != nil {
		m.sweepUp(parts[1])
	}
	return err
}

// sweepUp removes a temporary file, whatever became of the call.
func (m *mount) sweepUp(temp string) {
	m.beside(func(ctx context.Context) {
		if _, err := m.script(ctx, mayTry, `rm -f "$1"`, temp); err != nil {
			m.log.Debug("a temporary file stays in a sandbox", "sandbox", m.id, "err", err)
		}
	})
}

// upload fills a file that is there.
func (m *mount) upload(ctx context.Context, name string, from io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	err := form.WriteField("files[0].path", name)
	if err == nil {
		_, err = form.CreateFormFile("files[0].file", "file")
	}
	if err != nil {
		return err
	}
	begin := bytes.Clone(head.Bytes())
	head.Reset()
	if err := form.Close(); err != nil {
		return err
	}
	body, stop := newIdleReader(io.MultiReader(bytes.NewReader(begin), from, &head), m.idle, cancel)
	defer stop()
	resp, err := m.client.send(ctx, http.MethodPost, m.tool("files", "bulk-upload"), form.FormDataContentType(), body)
	if err != nil {
		return fmt.Errorf("upload: %w", m.lostBy(ctx, err))
	}
	defer resp.Body.Close()
	if err := m.client.decode(resp, nil); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	return nil
}

// infoFormat is what stat is asked for: type and mode in hexadecimal, size,
// seconds.
const infoFormat = `%f %s %Y`

// parseInfo reads a line of infoFormat.
func parseInfo(line string) (sandboxes.Info, error) {
	var info sandboxes.Info
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return info, fmt.Errorf("stat in the sandbox prints %.60q", line)
	}
	mode, err1 := strconv.ParseUint(fields[0], 16, 32)
	size, err2 := strconv.ParseInt(fields[1], 10, 64)
	seconds, err3 := strconv.ParseInt(fields[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil || size < 0 {
		return info, fmt.Errorf("stat in the sandbox prints %.60q", line)
	}
	info.Size, info.ModTime, info.Mode = size, time.Unix(seconds, 0), modeOf(uint32(mode))
	return info, nil
}

// types are those of files in a mode of Linux; fs.ModeIrregular is any other.
var types = map[uint32]fs.FileMode{
	0o100000: 0, 0o040000: fs.ModeDir, 0o120000: fs.ModeSymlink, 0o010000: fs.ModeNamedPipe, 0o140000: fs.ModeSocket,
	0o020000: fs.ModeDevice | fs.ModeCharDevice, 0o060000: fs.ModeDevice,
}

// modeOf reads a mode of Linux.
func modeOf(m uint32) fs.FileMode {
	kind, ok := types[m&0o170000]
	if !ok {
		kind = fs.ModeIrregular
	}
	mode := kind | fs.FileMode(m&0o777)
	for bit, is := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&bit != 0 {
			mode |= is
		}
	}
	return mode
}

func (m *mount) stat(ctx context.Context, op, p, script string) (info sandboxes.Info, err error) {
	err = m.fileOp(ctx, op, p, func(ctx context.Context, abs string) error {
		reply, err := m.script(ctx, mayTry, script, abs)
		if err != nil {
			return err
		}
		info, err = parseInfo(string(reply))
		info.Name = path.Base(abs)
		return err
	})
	if err != nil {
		return sandboxes.Info{}, err
	}
	return info, nil
}

// Stat looks at a file.
func (m *mount) Stat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.stat(ctx, "stat", p, `stat -L -c '`+infoFormat+`' "$1" || why "$1"`)
}

// Lstat looks at a file or a link itself.
func (m *mount) Lstat(ctx context.Context, p string) (sandboxes.Info, error) {
	return m.stat(ctx, "lstat", p, `stat -c '`+infoFormat+`' "$1" || why "$1"`)
}

// listScript gives an entry's facts and "/./" and its name, and a line feed.
const listScript = `
test -e "$1" || why "$1"
test -d "$1" || fail notdir
cd "$1" && test -r . || fail perm
find . ! -name . -prune -exec stat -c '` + infoFormat + ` /%n' {} +
exit 0
`

// entryStart begins an entry. Names may hold line feeds, but no slash: what a
// name goes on with in the next line never looks like this.
var entryStart = regexp.MustCompile(`(?m)^([0-9a-f]+ [0-9]+ -?[0-9]+) /\./`)

// parseList reads what listScript prints. Entries that go while they are looked
// at are left out there.
func parseList(reply string) ([]sandboxes.Info, error) {
	at := entryStart.FindAllStringSubmatchIndex(reply, -1)
	if len(at) == 0 && reply != "" || len(at) > 0 && at[0][0] != 0 {
		return nil, fmt.Errorf("stat in the sandbox prints %.60q", reply)
	}
	list := make([]sandboxes.Info, 0, len(at))
	for i, a := range at {
		end := len(reply)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		info, err := parseInfo(reply[a[2]:a[3]])
		if err != nil {
			return nil, err
		}
		info.Name = strings.TrimSuffix(reply[a[1]:end], "\n")
		if info.Name == "" || strings.ContainsAny(info.Name, "/\x00") {
			return nil, fmt.Errorf("stat in the sandbox prints %.60q", reply[a[0]:end])
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b sandboxes.Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// List returns the entries of a folder.
func (m *mount) List(ctx context.Context, p string) (list []sandboxes.Info, err error) {
	err = m.fileOp(ctx, "list", p, func(ctx context.Context, abs string) error {
		reply, err := m.script(ctx, mayTry, listScript, abs)
		if err == nil {
			list, err = parseList(string(reply))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Mkdir makes a folder with its parents.
func (m *mount) Mkdir(ctx context.Context, p string) error {
	return m.fileOp(ctx, "mkdir", p, func(ctx context.Context, abs string) error {
		_, err := m.script(ctx, mayTry, `
test -z "$2" || umask "$2"
e=$(mkdir -p "$1" 2>&1) || cause "$e"
`, abs, m.umask)
		if errors.Is(err, fs.ErrExist) {
			return sandboxes.ErrNotDirectory
		}
		return err
	})
}

// Remove removes a file, a link itself or an empty folder.
func (m *mount) Remove(ctx context.Context, p string) error {
	return m.fileOp(ctx, "remove", p, func(ctx context.Context, abs string) error {
		_, err := m.script(ctx, once, `
test -L "$1" || test -e "$1" || why "$1"
if test -d "$1" && ! test -L "$1"; then e=$(rmdir "$1" 2>&1); else e=$(rm -f "$1" 2>&1); fi || cause "$e"
`, abs)
		return err
	})
}

// RealPath resolves every symlink.
func (m *mount) RealPath(ctx context.Context, p string) (real string, err error) {
	err = m.fileOp(ctx, "realpath", p, func(ctx context.Context, abs string) error {
		reply, err := m.script(ctx, mayTry, `resolve "$1"; test -n "$t" || why "$1"; printf %s "$t"`, abs)
		real = string(reply)
		return err
	})
	if err != nil {
		return "", err
	}
	return real, nil
}

// lockScript gives a name that all names of a file have in common: it resolves
// as much of it as there is.
const lockScript = `
c=$1 rest=
while :; do
	resolve "$c"
	test -z "$t" || break
	rest=/${c##*/}$rest
	c=${c%/*}
	test -n "$c" || c=/
done
printf %s "${t%/}$rest"
`

// Lock holds the file's lock. The locks are those of this Sandbox.
func (m *mount) Lock(ctx context.Context, p string) (unlock func(), err error) {
	err = m.fileOp(ctx, "lock", p, func(ctx context.Context, abs string) error {
		reply, err := m.script(ctx, mayTry, lockScript, abs)
		if err == nil {
			unlock, err = m.locks.Take(ctx, string(reply))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return unlock, nil
}
