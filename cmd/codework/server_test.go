package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"codework/messages"
	"codework/protocol/client"
	"codework/protocol/contract"
	"codework/protocol/effectrpc"
)

// listens is a program on a port that does with each connection what do says;
// the answer is its address.
func listens(t *testing.T, do func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			do(c)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String()
}

// webServer is an HTTP server; the answer is its address.
func webServer(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// speaks is an HTTP server that upgrades and answers calls so.
func speaks(t *testing.T, handle func(*effectrpc.Call)) string {
	return webServer(t, func(w http.ResponseWriter, r *http.Request) {
		ws, err := effectrpc.Accept(w, r, effectrpc.AcceptOptions{})
		if err != nil {
			return
		}
		_ = effectrpc.NewServer(ws, effectrpc.ServerOptions{}).Serve(context.Background(), handle)
	})
}

func status(t *testing.T, code int, text string) string {
	return webServer(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) })
}

// Whatever is wrong with a server is said in words of its own.
func TestWhyThereIsNoConnectionToAServer(t *testing.T) {
	readRequest := func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) }
	for _, x := range []struct {
		name, scheme, token string
		address             string
		path                string
		want                string // the block, @ for the address
	}{
		{"nobody", "ws", "", "127.0.0.1:1", "", "error[connection]: nobody listens on @\nserver: ws://@\nhint: start one there with: codework serve\n"},
		{"closes at once", "ws", "", listens(t, func(c net.Conn) { readRequest(c) }), "",
			"error[connection]: what listens on @ closes the connection\nserver: ws://@\nhint: is that the port of a CodeWork server?\n"},
		{"speaks otherwise", "ws", "", listens(t, func(c net.Conn) { readRequest(c); io.WriteString(c, "220 mail\r\n") }), "",
			"error[connection]: what answers on @ is no CodeWork server\nserver: ws://@\nhint: is that the port of a CodeWork server?\n"},
		{"another web server", "http", "", status(t, 200, "<html>"), "",
			"error[connection]: what answers on @ is no CodeWork server (HTTP 200)\nserver: http://@\nhint: is that the port of a CodeWork server?\n"},
		{"not found", "ws", "", status(t, 404, "no"), "",
			"error[connection]: there is no CodeWork server under /rpc/v1 on @\nserver: ws://@\nhint: is that the port of a CodeWork server?\n"},
		{"wrong path", "ws", "", status(t, 404, "no"), "/api",
			"error[connection]: there is no CodeWork server under /api on @\nserver: ws://@/api\nhint: leave the path out, it is /rpc/v1\n"},
		{"no token", "ws", "", status(t, 401, "no"), "",
			"error[connection]: the server asks for a token\nserver: ws://@\nhint: set CODEWORK_SERVER_TOKEN to the token that the server was started with\n"},
		{"wrong token", "ws", "tok", status(t, 401, "no"), "",
			"error[connection]: the server refuses the token\nserver: ws://@\nhint: compare CODEWORK_SERVER_TOKEN with the token that the server was started with\n"},
		{"name", "ws", "", status(t, 403, "host not allowed"), "",
			"error[connection]: the server does not want to be called 127.0.0.1\nserver: ws://@\nhint: start it with --allow-host 127.0.0.1, or use its address\n"},
		{"full", "ws", "", status(t, 503, "too many connections"), "",
			"error[busy]: the server is busy: too many connections\nserver: ws://@\nhint: try again in a moment\n"},
		{"proxy", "ws", "", status(t, 502, ""), "",
			"error[connection]: a proxy answers on @, but the server behind it does not (HTTP 502)\nserver: ws://@\nhint: is the server behind it running?\n"},
		{"no TLS", "wss", "", status(t, 200, ""), "",
			"error[connection]: what listens on @ does not speak TLS\nserver: wss://@\nhint: use ws:// instead of wss://, or a proxy that speaks TLS\n"},
		{"another version", "ws", "", speaks(t, func(c *effectrpc.Call) {
			c.Succeed(json.RawMessage(`{"name":"codework","version":"9.9.9","protocol":99}`))
		}), "", "error[connection]: the server is version 9.9.9, which this version " + version + " cannot talk to\nserver: ws://@\nhint: update the older one of the two\n"},
		{"another service", "ws", "", speaks(t, func(c *effectrpc.Call) { c.DieUnknownMethod() }), "",
			"error[connection]: what answers on @ is no CodeWork server\nserver: ws://@\n"},
		{"going down", "ws", "", speaks(t, func(c *effectrpc.Call) {
			c.Die(&effectrpc.Defect{Name: messages.RefusedShutdown, Message: "the server is going down"})
		}), "", "error[shutdown]: the server is going down\n"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Setenv(tokenVariable, x.token)
			r := command(t, "", "session", "list", "--server", x.scheme+"://"+x.address+x.path)
			same(t, "standard error", r.err, strings.ReplaceAll(x.want, "@", x.address))
			if r.code != exitFailed || r.out != "" {
				t.Errorf("code %d, out %q", r.code, r.out)
			}
		})
	}
}

func TestACertificateThatNobodyVouchesForIsRefused(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // our leaving is no news
	s.StartTLS()
	t.Cleanup(s.Close)
	g := &global{server: "wss" + strings.TrimPrefix(s.URL, "https")}
	_, err := g.dialServer(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "the certificate of 127.0.0.1:") {
		t.Errorf("got %v", err)
	}
}

// The words are for people; what the error was stays known, so that a server
// that comes back is waited for.
func TestAnExplainedErrorIsStillWhatItWas(t *testing.T) {
	g := &global{server: "ws://127.0.0.1:1"}
	_, err := g.dialServer(t.Context())
	var network net.Error
	if !errors.As(err, &network) {
		t.Errorf("got %#v", err)
	}
	g.server = "ws://" + status(t, 503, "full")
	_, err = g.dialServer(t.Context())
	var refused *effectrpc.StatusError
	if !errors.As(err, &refused) || refused.Status != 503 {
		t.Errorf("got %#v", err)
	}
}

func TestCtrlCWhileConnectingToAServerEndsIt(t *testing.T) {
	arrived := make(chan struct{})
	held := make(chan struct{})
	g := &global{server: "ws://" + listens(t, func(net.Conn) { close(arrived); <-held })}
	ctx, stop := context.WithCancelCause(t.Context())
	go func() {
		<-arrived
		stop(stopped{exitInterrupt})
	}()
	_, err := g.dialServer(ctx)
	close(held)
	var s stopped
	if !errors.As(err, &s) {
		t.Errorf("got %v", err)
	}
}

func TestTheFlagWinsOverTheVariableWhichGivesWay(t *testing.T) {
	const flag, variable = "ws://flag", "ws://variable"
	for _, x := range []struct {
		args, variable string
		want           string // the server, or the beginning of the error
		code           int
	}{
		{"", "", "", 0},
		{"", variable, variable, 0},
		{"", "  " + variable + "\n", variable, 0},
		{"--server " + flag, variable, flag, 0},
		{"--server=", variable, "", 0},
		{"--home h", variable, "", 0},
		{"--database d", variable, "", 0},
		{"--user-config-dir c", variable, "", 0},
		{"--embedded", variable, "", 0},
		{"--server " + flag + " --home h", "", "--home does not go with --server", exitUsage},
		{"--server " + flag + " --database d", "", "--database does not go with --server", exitUsage},
		{"--server " + flag + " --user-config-dir c", "", "--user-config-dir does not go with --server", exitUsage},
		{"--server " + flag + " --embedded", "", "--embedded does not go with --server", exitUsage},
		{"--server nonsense", "", "--server: ", exitUsage},
		{"", "nonsense", serverVariable + ": ", exitUsage},
	} {
		t.Setenv(serverVariable, x.variable)
		g := &global{}
		root := newRoot(g)
		list, _, err := root.Find([]string{"session", "list"})
		if err != nil {
			t.Fatal(err)
		}
		if err := list.ParseFlags(strings.Fields(x.args)); err != nil {
			t.Fatal(err)
		}
		err = g.chooseServer(list)
		if x.code == 0 && (err != nil || g.server != x.want) {
			t.Errorf("%q with %q: server %q, %v", x.args, x.variable, g.server, err)
		}
		var p *problem
		if x.code != 0 && (!errors.As(err, &p) || p.code != x.code || !strings.HasPrefix(err.Error(), x.want)) {
			t.Errorf("%q with %q: %v", x.args, x.variable, err)
		}
	}
}

// A server that is good is said nothing about.
func TestAServerIsAskedWhoItIs(t *testing.T) {
	t.Setenv(tokenVariable, "")
	var methods []string
	g := &global{server: "http://" + speaks(t, func(c *effectrpc.Call) {
		methods = append(methods, c.Method())
		b, err := contract.Encode(messages.ServerInfo{Name: "codework", Protocol: contract.Version})
		if err != nil {
			t.Error(err)
		}
		c.Succeed(b)
	})}
	c, err := g.dialServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if len(methods) != 1 || methods[0] != contract.ServerInfo {
		t.Errorf("called %v", methods)
	}
	if _, err := c.Info(t.Context()); !errors.Is(err, client.ErrConnectionLost) {
		t.Errorf("after Close: %v", err)
	}
}
