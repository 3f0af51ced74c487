package client

import (
	"context"
	"encoding/json"
	"fmt"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// Dial connects to a server. The endpoint is ws://, wss://, http:// or
// https://, with or without a path; token may be empty. A server that answers
// without being one is an *effectrpc.StatusError.
func Dial(ctx context.Context, endpoint, token string) (*Client, error) {
	u, err := Endpoint(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := effectrpc.Dial(ctx, u, effectrpc.DialOptions{Token: token})
	if err != nil {
		return nil, err
	}
	return Over(conn), nil
}

// History returns a page of a session's conversation.
func (c *Client) History(ctx context.Context, m messages.GetHistory) (h messages.History, err error) {
	return h, c.call(ctx, contract.SessionHistory, m, &h)
}

// Link anchors a session to a directory on the server's host; "" unlinks it.
func (c *Client) Link(ctx context.Context, id, hostDir string) (info messages.SessionInfo, err error) {
	return info, c.call(ctx, contract.SessionLink, messages.Link{SessionID: id, HostDir: hostDir}, &info)
}

// Relink moves a session to another directory or sandbox.
func (c *Client) Relink(ctx context.Context, m messages.Relink) (info messages.SessionInfo, err error) {
	return info, c.call(ctx, contract.SessionRelink, m, &info)
}

// Rename gives a session its title.
func (c *Client) Rename(ctx context.Context, id, title string) (info messages.SessionInfo, err error) {
	return info, c.call(ctx, contract.SessionRename, messages.Rename{SessionID: id, Title: title}, &info)
}

// Fork makes a session with another one's conversation up to an entry.
func (c *Client) Fork(ctx context.Context, id, at string) (info messages.SessionInfo, err error) {
	return info, c.call(ctx, contract.SessionFork, messages.Fork{SessionID: id, At: at}, &info)
}

// Delete removes a session for good.
func (c *Client) Delete(ctx context.Context, id string, force bool) error {
	return c.call(ctx, contract.SessionDelete, messages.Delete{SessionID: id, Force: force}, nil)
}

// Check looks a session's log over and, if asked, mends it.
func (c *Client) Check(ctx context.Context, id string, repair bool) (f messages.Findings, err error) {
	return f, c.call(ctx, contract.SessionCheck, messages.Check{SessionID: id, Repair: repair}, &f)
}

// Blob returns an image that a session's messages name.
func (c *Client) Blob(ctx context.Context, session, blob string) ([]byte, error) {
	var all []byte
	for {
		var piece messages.BlobPiece
		err := c.call(ctx, contract.SessionBlob, messages.GetBlob{SessionID: session, Blob: blob, Offset: int64(len(all))}, &piece)
		if err != nil {
			return nil, err
		}
		all = append(all, piece.Data...)
		switch {
		case !piece.More:
			return all, nil
		case len(piece.Data) == 0:
			return nil, fmt.Errorf("the server sends blob %s in empty pieces", blob)
		}
	}
}

// Models returns the models that can be chosen; provider "" is all.
func (c *Client) Models(ctx context.Context, provider string) (list []messages.ModelInfo, err error) {
	return list, c.call(ctx, contract.ModelsList, messages.ListModels{Provider: provider}, &list)
}

// Sandboxes returns all sandboxes, the host first.
func (c *Client) Sandboxes(ctx context.Context) (list []messages.SandboxInfo, err error) {
	return list, c.call(ctx, contract.SandboxList, nil, &list)
}

// SandboxDrivers returns what new sandboxes can be made with.
func (c *Client) SandboxDrivers(ctx context.Context) (list []messages.DriverInfo, err error) {
	return list, c.call(ctx, contract.SandboxDrivers, nil, &list)
}

// CreateSandbox makes a sandbox.
func (c *Client) CreateSandbox(ctx context.Context, m messages.CreateSandbox) (info messages.SandboxInfo, err error) {
	return info, c.call(ctx, contract.SandboxCreate, m, &info)
}

// RegisterSandbox makes a sandbox known that somebody else made.
func (c *Client) RegisterSandbox(ctx context.Context, m messages.RegisterSandbox) (info messages.SandboxInfo, err error) {
	return info, c.call(ctx, contract.SandboxRegister, m, &info)
}

// StopSandbox takes a sandbox offline; its files stay where the driver can.
func (c *Client) StopSandbox(ctx context.Context, id string) error {
	return c.call(ctx, contract.SandboxStop, messages.StopSandbox{SandboxID: id}, nil)
}

// DestroySandbox removes a stopped sandbox with its files.
func (c *Client) DestroySandbox(ctx context.Context, id string) error {
	return c.call(ctx, contract.SandboxDestroy, messages.DestroySandbox{SandboxID: id}, nil)
}

// Exec runs a command in a sandbox, hands its output on as it comes and
// returns the last element, which has the exit.
func (c *Client) Exec(ctx context.Context, m messages.ExecSandbox, output func(messages.ExecOutput)) (messages.ExecOutput, error) {
	s, err := c.rpc.Stream(ctx, contract.SandboxExec, m)
	if err != nil {
		return messages.ExecOutput{}, typed(err)
	}
	defer s.Close()
	for {
		b, err := s.Next(ctx)
		if err != nil {
			return messages.ExecOutput{}, typed(err)
		}
		var e messages.ExecOutput
		if err := json.Unmarshal(b, &e); err != nil {
			return e, fmt.Errorf("output of %s: %w", m.Argv[0], err)
		}
		if e.ExitCode != nil {
			return e, nil
		}
		output(e)
	}
}

// AuthSave stores a login in the server.
func (c *Client) AuthSave(ctx context.Context, l messages.OAuthCredentials) (info messages.OAuthInfo, err error) {
	return info, c.call(ctx, contract.AuthSave, messages.AuthSave{Credentials: l}, &info)
}

// AuthStatus returns a stored login, nil when there is none.
func (c *Client) AuthStatus(ctx context.Context, provider string) (info *messages.OAuthInfo, err error) {
	return info, c.call(ctx, contract.AuthStatus, messages.AuthStatus{Provider: provider}, &info)
}

// AuthRefresh renews a stored login when that is due; nil when there is none.
func (c *Client) AuthRefresh(ctx context.Context, provider string) (info *messages.OAuthInfo, err error) {
	return info, c.call(ctx, contract.AuthRefresh, messages.AuthRefresh{Provider: provider}, &info)
}

// AuthLogout removes a stored login.
func (c *Client) AuthLogout(ctx context.Context, provider string) error {
	return c.call(ctx, contract.AuthLogout, messages.AuthLogout{Provider: provider}, nil)
}

// PluginReload restarts the plugins.
func (c *Client) PluginReload(ctx context.Context) (r messages.PluginsReloaded, err error) {
	return r, c.call(ctx, contract.PluginReload, nil, &r)
}
