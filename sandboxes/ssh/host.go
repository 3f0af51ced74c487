package ssh

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// sessionPatience is how long we wait for a channel where the host allows
	// only so many: one that was just closed may still be counted there.
	sessionPatience = 10 * time.Second
	sessionPause    = 50 * time.Millisecond
	// maxReply bounds what a script of ours prints.
	maxReply = 64 << 10
	// maxShown is how much of what a host says an error shows.
	maxShown = 300
)

// host is a connection to one.
type host struct {
	client *ssh.Client
}

// open opens a channel. Where the host allows no more of them the error is an
// *ssh.OpenChannelError.
func (h *host) open(ctx context.Context) (*ssh.Session, error) {
	type opened struct {
		s   *ssh.Session
		err error
	}
	got := make(chan opened, 1)
	go func() {
		s, err := h.client.NewSession()
		got <- opened{s, err}
	}()
	select {
	case o := <-got:
		return o.s, o.err
	case <-ctx.Done():
		go func() {
			if o := <-got; o.err == nil {
				o.s.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// session opens a channel. When the host allows no more of them it waits for
// one to be closed.
func (h *host) session(ctx context.Context) (*ssh.Session, error) {
	deadline := time.Now().Add(sessionPatience)
	for {
		s, err := h.open(ctx)
		var full *ssh.OpenChannelError
		switch {
		case err == nil:
			return s, nil
		case !errors.As(err, &full) || time.Now().After(deadline):
			return nil, fmt.Errorf("open a channel: %w", err)
		}
		if err := pause(ctx, sessionPause); err != nil {
			return nil, err
		}
	}
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// script runs a script of ours with the plain shell, whatever the login shell
// is, to its end or that of the connection, and gives what it prints, without what start files print before it. A
// script that fails is an error with what it says.
func (h *host) script(ctx context.Context, text string, stdin io.Reader, args ...string) (string, error) {
	s, err := h.session(ctx)
	if err != nil {
		return "", err
	}
	defer s.Close()
	marker := "codework-" + rand.Text()
	var out, complaints head
	s.Stdin, s.Stdout, s.Stderr = stdin, &out, &complaints
	begin := `printf '\n%s\n' "$1"; shift` + "\n"
	err = s.Run(shellCommand(begin+text, append([]string{marker}, args...)...))
	if err != nil {
		said := strings.TrimSpace(complaints.String())
		if len(said) > maxShown {
			said = said[:maxShown] + "…"
		}
		if said == "" {
			return "", err
		}
		return "", fmt.Errorf("%w: %q", err, said)
	}
	_, reply, ok := strings.Cut("\n"+out.String(), "\n"+marker+"\n")
	if !ok {
		return "", errors.New("the host's shell did not run our script")
	}
	return reply, nil
}

// head keeps the beginning of what is written.
type head struct {
	mu sync.Mutex // guards b; the library may still write when a run was given up
	b  bytes.Buffer
}

func (h *head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b.Write(b[:min(len(b), maxReply-h.b.Len())])
	return len(b), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}

// shellCommand is the command line that runs a script with arguments. The login
// shell takes it apart, which may be any that knows single quotes.
func shellCommand(script string, args ...string) string {
	var b strings.Builder
	b.WriteString("exec /bin/sh -c ")
	b.WriteString(quote(script))
	b.WriteString(" sh")
	for _, a := range args {
		b.WriteString(" " + quote(a))
	}
	return b.String()
}

// quote makes one word of s for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// facts are what we need to know of a host.
type facts struct {
	os, arch string // as uname has them
	home     string
	cache    string // our folder there, made if it was missing
	runner   string // checksum of the runner that is there, "" for none
	folder   bool   // the folder that was asked for is there
}

// factsScript takes the name of the runner and the folder that is asked for.
// The cache folder is made with its parents, and is nobody else's.
const factsScript = `
cache="${XDG_CACHE_HOME:-$HOME/.cache}/codework"
if (umask 077; mkdir -p "$cache/bin") 2>/dev/null && chmod 700 "$cache" "$cache/bin" 2>/dev/null && test -O "$cache/bin" && ! test -L "$cache/bin"; then :; else cache=; fi
printf 'os=%s\narch=%s\nhome=%s\ncache=%s\n' "$(uname -s)" "$(uname -m)" "$(cd && pwd)" "$cache"
if test -n "$cache" && test -f "$cache/bin/$1"; then
	printf 'runner=%s\n' "$(` + sumCommand + ` < "$cache/bin/$1" | cut -c1-64)"
fi
if test -d "$2"; then echo folder=yes; fi
`

// sumCommand gives a SHA-256 with what there is.
const sumCommand = `if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi`

// look finds out about the host. The name is that of our runner, or "".
func (h *host) look(ctx context.Context, runner, dir string) (facts, error) {
	reply, err := h.script(ctx, factsScript, nil, runner, dir)
	if err != nil {
		return facts{}, fmt.Errorf("look at the host: %w", err)
	}
	return parseFacts(reply)
}

// parseFacts reads what factsScript prints.
func parseFacts(reply string) (facts, error) {
	var f facts
	for line := range strings.Lines(reply) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch name {
		case "os":
			f.os = value
		case "arch":
			f.arch = value
		case "home":
			f.home = value
		case "cache":
			f.cache = value
		case "runner":
			f.runner = value
		case "folder":
			f.folder = value == "yes"
		}
	}
	if !strings.HasPrefix(f.home, "/") || f.os == "" {
		return f, fmt.Errorf("look at the host: it answers %.300q", reply)
	}
	return f, nil
}

// uploadScript takes the cache folder, the name, checksum and size of the
// runner, which comes by its input. Names appear only when the content is
// whole.
const uploadScript = `
set -e
umask 077
new="$1/bin/.new-$2-$$"
trap 'rm -f "$new"' EXIT
cat > "$new"
size=$(wc -c < "$new" | tr -d ' ')
if test "$size" != "$4"; then echo "only $size of $4 bytes arrived" >&2; exit 1; fi
sum=$(` + sumCommand + ` < "$new" | cut -c1-64)
if test "$sum" != "$3"; then echo "the checksum differs" >&2; exit 1; fi
chmod 700 "$new"
mv -f "$new" "$1/bin/$2"
for old in "$1"/bin/runner-*; do
	if test "$old" != "$1/bin/$2" && test -n "$(find "$old" -mtime +30 2>/dev/null)"; then rm -f "$old"; fi
done
`

// upload brings the runner to the host.
func (h *host) upload(ctx context.Context, f facts, r *runner) error {
	file, err := r.open()
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = h.script(ctx, uploadScript, file, f.cache, r.name(), r.sum, strconv.FormatInt(r.size, 10))
	if err != nil {
		return fmt.Errorf("upload the runner: %w", err)
	}
	return nil
}
