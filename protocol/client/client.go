// Package client is a Go client of a CodeWork server: calls that return typed
// values and typed errors, subscriptions, and subscriptions that outlive their
// connection (Follow).
//
// Calls may be made by any goroutine. A call whose context ends returns at
// once; whether the server did the work is then not known, except that a
// prompt sent again under the same id runs only once. Close ends the
// connection and every call and subscription on it; what the server does for
// its sessions goes on.
//
// A Subscribe gives what one connection gives: events in order, until the
// connection ends or the reader is too slow. A Follower remembers the last
// durable event of each session, dials again when the connection is lost and
// goes on behind it, so that every durable event comes once and in order. Live
// events (pieces of text, progress) of the time without a connection are gone,
// which is told; what they add up to comes with the durable events.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"codework/messages"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// ErrConnectionLost means that the connection ended before the answer came.
var ErrConnectionLost = effectrpc.ErrConnectionLost

// Client is one connection to a server.
type Client struct{ rpc *effectrpc.Client }

// Over returns a client on an open connection, which it takes over.
func Over(conn effectrpc.Conn) *Client {
	return &Client{effectrpc.NewClient(conn, effectrpc.ClientOptions{})}
}

// OverSocket speaks to a server behind a connected unix socket.
func OverSocket(ctx context.Context, c net.Conn) (*Client, error) {
	used := false
	t := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if used {
				return nil, errors.New("the socket's connection is used up")
			}
			used = true
			return c, nil
		},
		Proxy: nil,
	}
	conn, err := effectrpc.Dial(ctx, "ws://codework"+contract.Path, effectrpc.DialOptions{HTTPClient: &http.Client{Transport: t}})
	if err != nil {
		c.Close()
		return nil, err
	}
	return Over(conn), nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.rpc.Close() }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.rpc.Done() }

// call makes a call and gives its errors the types of package messages.
func (c *Client) call(ctx context.Context, method string, payload, result any) error {
	return typed(c.rpc.Call(ctx, method, payload, result))
}

// typed turns the errors of the wire into those of package messages.
func typed(err error) error {
	var remote *effectrpc.RemoteError
	if errors.As(err, &remote) {
		if t, ok := contract.DecodeError(remote.Tag, remote.Body); ok {
			return t
		}
		return err
	}
	var defect *effectrpc.Defect
	if errors.As(err, &defect) && defect.Name != "" {
		return &messages.Refused{Name: defect.Name, Message: defect.Message}
	}
	return err
}

// Hello tells a server on this machine who calls; it comes first.
func (c *Client) Hello(ctx context.Context, h messages.Hello) (info messages.ServerInfo, err error) {
	return info, c.call(ctx, contract.ServerHello, h, &info)
}

// Info asks who answers.
func (c *Client) Info(ctx context.Context) (info messages.ServerInfo, err error) {
	return info, c.call(ctx, contract.ServerInfo, nil, &info)
}

// Handover asks the server's process to end when nothing runs any more.
func (c *Client) Handover(ctx context.Context) (h messages.Handover, err error) {
	return h, c.call(ctx, contract.ServerHandover, nil, &h)
}

// Top returns what every session and actor of the server is doing.
func (c *Client) Top(ctx context.Context, m messages.GetTop) (t messages.Top, err error) {
	return t, c.call(ctx, contract.ServerTop, m, &t)
}

// Create makes a session.
func (c *Client) Create(ctx context.Context, m messages.CreateSession) (info messages.SessionInfo, err error) {
	return info, c.call(ctx, contract.SessionCreate, m, &info)
}

// List returns sessions, newest first.
func (c *Client) List(ctx context.Context, m messages.ListSessions) (list []messages.SessionInfo, err error) {
	return list, c.call(ctx, contract.SessionList, m, &list)
}

// Session returns what is known of a session.
func (c *Client) Session(ctx context.Context, id string) (info messages.SessionInfo, err error) {
	return info, c.call(ctx, contract.SessionInfo, messages.GetSession{SessionID: id}, &info)
}

// Configure changes a session's model or thinking level.
func (c *Client) Configure(ctx context.Context, id string, r messages.Runtime) (info messages.SessionInfo, err error) {
	return info, c.call(ctx, contract.SessionConfigure, messages.Configure{SessionID: id, Runtime: r}, &info)
}

// Prompt saves a prompt. When it returns nil the prompt is on disk and its
// work goes on whatever happens to this client, unless bound ties it to the
// connection. Only a server on this machine accepts bound.
func (c *Client) Prompt(ctx context.Context, p messages.Prompt, bound bool) error {
	w := contract.PromptPayload{SessionID: p.SessionID, Text: p.Text, Delivery: p.Delivery, ID: p.ID, Bound: bound}
	for _, q := range p.Parts {
		w.Parts = append(w.Parts, contract.PromptPart{Type: q.Type, Text: q.Text, MediaType: q.MediaType, Data: q.Data})
	}
	return c.call(ctx, contract.SessionPrompt, w, nil)
}

// Interrupt stops a session's work and tells whether there was any.
func (c *Client) Interrupt(ctx context.Context, m messages.Interrupt) (bool, error) {
	var r messages.Interrupted
	err := c.call(ctx, contract.SessionInterrupt, m, &r)
	return r.Interrupted, err
}

// Wait returns when a session is idle and all it did is on disk.
func (c *Client) Wait(ctx context.Context, id string) error {
	return c.call(ctx, contract.SessionWait, messages.Wait{SessionID: id}, nil)
}

// HasMessage tells whether a message is part of a session's conversation.
func (c *Client) HasMessage(ctx context.Context, session, message string) (bool, error) {
	var r messages.Found
	err := c.call(ctx, contract.SessionMessage, messages.HasMessage{SessionID: session, MessageID: message}, &r)
	return r.Found, err
}

// Queue returns the prompts that wait, after removing what m says.
func (c *Client) Queue(ctx context.Context, m messages.GetQueue) (q messages.Queue, err error) {
	return q, c.call(ctx, contract.SessionQueue, m, &q)
}

// Events is a subscription.
type Events struct{ stream *effectrpc.Stream }

// Subscribe asks for events. When it returns, nothing that happens later is
// missed.
func (c *Client) Subscribe(ctx context.Context, q messages.Subscribe) (*Events, error) {
	s, err := c.rpc.Stream(ctx, contract.EventSubscribe, q)
	if err != nil {
		return nil, typed(err)
	}
	e := &Events{s}
	first, err := e.Next(ctx)
	if ctx.Err() == nil && (errors.Is(err, io.EOF) || errors.Is(err, effectrpc.ErrInterrupted)) {
		err = lostError(err) // the server went away before it began
	}
	if err == nil && first.Type != messages.EventConnected {
		err = fmt.Errorf("subscription began with %s", first.Type)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return e, nil
}

// Next waits for the next event. It fails with io.EOF when the server ends the
// stream, with *messages.SubscriptionOverflow when this reader was too slow, with
// *messages.SessionNotFound once the session that it is about is deleted.
func (e *Events) Next(ctx context.Context) (messages.Event, error) {
	b, err := e.stream.Next(ctx)
	if err != nil {
		return messages.Event{}, typed(err)
	}
	return contract.DecodeEvent(b)
}

// Pace sets the least time between two deliveries that follow each other; there is
// none at first. What happens within it comes together, which costs both sides
// less, and an event that comes alone is not kept waiting. Any goroutine may call
// it.
func (e *Events) Pace(d time.Duration) { e.stream.Pace(d) }

// Close ends the subscription.
func (e *Events) Close() { e.stream.Close() }
