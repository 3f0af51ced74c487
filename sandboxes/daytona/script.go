package daytona

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"syscall"

	"codework/sandboxes"
)

const (
	// maxArgument is what Linux takes as one argument, with its NUL.
	maxArgument = 128 << 10
	// scriptLimit is what a script may take there, in seconds: less than the
	// call.
	scriptLimit = 50
)

// scriptStart is before every script. What a script prints is its reply, and
// fail gives one word for what went wrong. Tools say the cause at the end of
// what they print: the names that come before it may be anything. The readlink
// of busybox gives wrong names for links to what is missing, so these are
// followed by hand, through as many as the kernel follows.
const scriptStart = `
export LC_ALL=C
fail() { printf '%s' "$1"; exit 9; }
cause() {
	case $1 in
	*": No such file or directory") fail missing ;;
	*": Not a directory") fail notdir ;;
	*": Is a directory") fail isdir ;;
	*": File exists") fail exists ;;
	*": Permission denied" | *": Operation not permitted") fail perm ;;
	*": Too many levels of symbolic links" | *": Symbolic link loop") fail loop ;;
	*": File name too long" | *": Filename too long") fail long ;;
	*": Directory not empty") fail full ;;
	*": Read-only file system") fail readonly ;;
	*": No space left on device") fail space ;;
	esac
	fail "other $1"
}
why() {
	cause "$(stat -L "$1" 2>&1 >/dev/null)"
}
resolve() {
	r=$1 k=0
	while test -L "$r" && ! test -e "$r" && test $k -lt 40; do
		l=$(readlink "$r"; echo .)
		l=${l%.}
		l=${l%?}
		case $l in /*) r=$l ;; *) r=${r%/*}/$l ;; esac
		k=$((k+1))
	done
	t=
	test $k -lt 40 || return 0
	t=$(readlink -f "$r"; echo .)
	t=${t%.}
	t=${t%?}
}
`

// causes are what the words of scripts mean.
var causes = map[string]error{
	"missing": fs.ErrNotExist, "notdir": sandboxes.ErrNotDirectory, "isdir": sandboxes.ErrIsDirectory, "special": sandboxes.ErrNotRegular,
	"exists": fs.ErrExist, "perm": fs.ErrPermission, "loop": syscall.ELOOP, "long": syscall.ENAMETOOLONG, "full": syscall.ENOTEMPTY,
	"readonly": syscall.EROFS, "space": syscall.ENOSPC,
}

// quote makes one word of s for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func quoteAll(words []string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(quote(w))
	}
	return b.String()
}

// scriptCommand is the command that runs a script with arguments. Older daemons
// take a command apart by themselves, so it consists of what nobody
// misunderstands; and both ways are base64, since JSON has no place for bytes.
func scriptCommand(script string, args []string) (string, error) {
	text := "set -- " + quoteAll(args) + "\n{ ( " + scriptStart + script + "\n) </dev/null 2>/dev/null; printf '\\n%s' $?; } | base64\n"
	command := `sh -c "echo ` + base64.StdEncoding.EncodeToString([]byte(text)) + ` | base64 -d | sh"`
	if len(command) >= maxArgument {
		return "", syscall.E2BIG
	}
	return command, nil
}

// script runs a script in the sandbox. What it prints is the reply; the error
// of one that fails is the cause.
func (s *Sandbox) script(ctx context.Context, r repeat, script string, args ...string) ([]byte, error) {
	command, err := scriptCommand(script, args)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Result string `json:"result"`
	}
	in := map[string]any{"command": command, "timeout": scriptLimit}
	if err := s.client.call(ctx, r, http.MethodPost, s.tool("process", "execute"), in, &answer); err != nil {
		return nil, s.lostBy(ctx, err)
	}
	return scriptReply(answer.Result)
}

// scriptReply reads what scriptCommand prints.
func scriptReply(result string) ([]byte, error) {
	reply, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(result), ""))
	i := bytes.LastIndexByte(reply, '\n')
	if err != nil || i < 0 || i == len(reply)-1 {
		return nil, fmt.Errorf("a script in the sandbox prints %.300q; does it have sh and base64?", result)
	}
	reply, status := reply[:i], string(reply[i+1:])
	if status == "0" {
		return reply, nil
	}
	word := string(reply)
	if e, ok := causes[word]; ok {
		return nil, e
	}
	if text, ok := strings.CutPrefix(word, "other "); ok && text != "" {
		return nil, errors.New(strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "�"))
	}
	return nil, fmt.Errorf("a script in the sandbox ends with %.10s: %.300q", status, word)
}
