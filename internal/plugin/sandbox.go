package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"codework/protocol/plugin"
	"codework/sandboxes"
)

// maxOutput is how much of each stream a command answers with, in bytes: what
// the built-in tools show.
const maxOutput = 50 << 10

// sandbox serves a plugin's use of the sandbox of a session, for as long as
// the call lasts that it names.
func (i *Instance) sandbox(ctx context.Context, method string, params json.RawMessage) (any, error) {
	bad := func(err error) (any, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	var in plugin.InCall
	if err := json.Unmarshal(params, &in); err != nil {
		return bad(err)
	}
	r := i.calls.find(in)
	if r == nil || r.mount == nil {
		return bad(errors.New("no call of this session and id is under way"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	switch method {
	case plugin.MethodSandboxExec:
		return with(params, func(e plugin.Exec) (any, error) { return execute(ctx, r.mount, e) })
	case plugin.MethodSandboxRead:
		return with(params, func(q plugin.Read) (any, error) {
			if q.Limit <= 0 || q.Limit > plugin.MaxRead {
				q.Limit = plugin.MaxRead
			}
			if q.Offset < 0 {
				return nil, errors.New("offset: is negative")
			}
			b, err := r.mount.Read(ctx, q.Path, q.Offset, q.Limit)
			return plugin.ReadResult{Data: b}, err
		})
	case plugin.MethodSandboxWrite:
		return with(params, func(w plugin.Write) (any, error) {
			if len(w.Data) > plugin.MaxWrite {
				return nil, fmt.Errorf("data: more than %d bytes", plugin.MaxWrite)
			}
			unlock, err := r.mount.Lock(ctx, w.Path)
			if err != nil {
				return nil, err
			}
			defer unlock()
			return struct{}{}, r.mount.Write(ctx, w.Path, w.Data)
		})
	case plugin.MethodSandboxStat:
		return with(params, func(p plugin.Path) (any, error) {
			info, err := r.mount.Stat(ctx, p.Path)
			return toInfo(info), err
		})
	case plugin.MethodSandboxList:
		return with(params, func(p plugin.Path) (any, error) {
			all, err := r.mount.List(ctx, p.Path)
			out := plugin.Listing{Entries: []plugin.Info{}}
			for _, info := range all {
				if len(out.Entries) == plugin.MaxEntries {
					out.Truncated = true
					break
				}
				out.Entries = append(out.Entries, toInfo(info))
			}
			return out, err
		})
	}
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no method " + shortLine([]byte(method))}
}

func with[T any](params json.RawMessage, f func(T) (any, error)) (any, error) {
	var v T
	if err := json.Unmarshal(params, &v); err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	return f(v)
}

func execute(ctx context.Context, m sandboxes.Mount, e plugin.Exec) (any, error) {
	if (e.Command == "") == (len(e.Argv) == 0) || e.TimeoutMs < 0 {
		return nil, errors.New("exec takes command or argv, and a timeoutMs of 0 or more")
	}
	var out, errs lastBytes
	exit, err := m.Run(ctx, sandboxes.Command{
		Script: e.Command, Argv: e.Argv, Dir: e.Dir, Env: e.Env, Timeout: time.Duration(e.TimeoutMs) * time.Millisecond,
		Output: func(s sandboxes.Stream, b []byte) {
			if s == sandboxes.Stderr {
				errs.add(b)
			} else {
				out.add(b)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return plugin.ExecResult{Stdout: out.text(), Stderr: errs.text(), ExitCode: exit.Code, TimedOut: exit.TimedOut, Truncated: out.cut || errs.cut}, nil
}

// lastBytes keeps the last maxOutput bytes of a stream.
type lastBytes struct {
	b   []byte
	cut bool
}

func (l *lastBytes) add(b []byte) {
	l.b = append(l.b, b...)
	if len(l.b) > 2*maxOutput {
		l.b = append(l.b[:0], l.b[len(l.b)-maxOutput:]...)
		l.cut = true
	}
}

func (l *lastBytes) text() string {
	if len(l.b) > maxOutput {
		l.b, l.cut = l.b[len(l.b)-maxOutput:], true
	}
	return strings.ToValidUTF8(string(l.b), "\uFFFD")
}

func toInfo(i sandboxes.Info) plugin.Info {
	out := plugin.Info{Name: i.Name, Size: i.Size, Type: "other"}
	switch {
	case i.Mode.IsRegular():
		out.Type = "file"
	case i.Mode.IsDir():
		out.Type = "directory"
	case i.Mode&fs.ModeSymlink != 0:
		out.Type = "symlink"
	}
	if !i.ModTime.IsZero() {
		out.ModifiedMs = i.ModTime.UnixMilli()
	}
	return out
}
