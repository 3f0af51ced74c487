package driver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"time"

	"github.com/coder/websocket"
)

// This file stands for the load program around codework.go: what that file uses
// of it and must be to it, so that it is compiled and tested here.

// event is what a server told of a session.
type event struct {
	sess string
	kind string // delta, tool or done
	text string
}

// driver is what the load program asks of a server's driver.
type driver interface {
	argv(port int) []string
	env() []string
	stdio() bool
	ready(port int) error
	connect(port int, cmd *exec.Cmd, in io.WriteCloser, out io.Reader, conns int, on func(event)) error
	create(i int) (string, error)
	prompt(sess, text string) error
	abort(sess string) error
	retries() int64
}

// askLimit is how long a server may take to answer or to accept a connection.
const askLimit = 5 * time.Second

func httpOK(url string) error {
	c := http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode >= http.StatusBadRequest {
		return errors.New(r.Status)
	}
	return nil
}

type wsConn struct{ c *websocket.Conn }

func wsDial(addr, path string, header map[string]string) (*wsConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	h := http.Header{}
	for k, v := range header {
		h.Set(k, v)
	}
	c, _, err := websocket.Dial(ctx, "ws://"+addr+path, &websocket.DialOptions{HTTPHeader: h})
	if err != nil {
		return nil, err
	}
	c.SetReadLimit(-1)
	return &wsConn{c}, nil
}

func (w *wsConn) Write(p []byte) error {
	return w.c.Write(context.Background(), websocket.MessageText, p)
}

func (w *wsConn) Read() ([]byte, error) {
	_, b, err := w.c.Read(context.Background())
	return b, err
}

func (w *wsConn) Close() { w.c.CloseNow() }
