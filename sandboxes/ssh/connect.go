package ssh

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
)

const (
	// connectTimeout bounds reaching a host and proving who we are.
	connectTimeout = 10 * time.Second
	// keepaliveEvery is how often a host is asked whether it is there, and
	// keepaliveMisses how many answers may be missing.
	keepaliveEvery  = 15 * time.Second
	keepaliveMisses = 3
)

// permanentError is one that trying again does not help against.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// connect reaches a host and proves who both are. The connection closes by
// itself when the host stops answering.
func (d *Driver) connect(ctx context.Context, c Config, at address) (*ssh.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	check, algorithms, err := hostKeys(c.KnownHosts, at.hostPort())
	if err != nil {
		return nil, permanentError{fmt.Errorf("connect to %s: %w", at.hostPort(), err)}
	}
	auth, done, err := authMethod(ctx, c)
	if err != nil {
		return nil, permanentError{fmt.Errorf("connect to %s: %w", at.hostPort(), err)}
	}
	defer done()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", at.hostPort())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	var refused error // of the host's key; the library hides the type
	sc, channels, requests, err := ssh.NewClientConn(conn, at.hostPort(), &ssh.ClientConfig{
		User: at.user,
		Auth: []ssh.AuthMethod{auth},
		HostKeyCallback: func(name string, remote net.Addr, key ssh.PublicKey) error {
			refused = check(name, remote, key)
			return refused
		},
		HostKeyAlgorithms: algorithms,
	})
	if !stop() && err == nil {
		err = ctx.Err()
		sc.Close()
	}
	switch {
	case err == nil:
	case refused != nil:
		conn.Close()
		return nil, permanentError{fmt.Errorf("connect to %s: %w", at.hostPort(), refused)}
	case ctx.Err() != nil:
		return nil, fmt.Errorf("connect to %s: %w", at.hostPort(), ctx.Err())
	case strings.Contains(err.Error(), "unable to authenticate"): // the library has no type for it
		conn.Close()
		return nil, permanentError{fmt.Errorf("connect to %s: the host does not accept the key for the user %s", at.hostPort(), at.user)}
	default:
		conn.Close()
		return nil, fmt.Errorf("connect to %s: %w", at.hostPort(), err)
	}
	client := ssh.NewClient(sc, channels, requests)
	go keepAlive(client, d.keepalive, d.opt.Log)
	return client, nil
}

// keepAlive asks the host at every interval whether it is there, and closes the
// connection after three answers that did not come. It ends with it.
func keepAlive(c *ssh.Client, every time.Duration, log *slog.Logger) {
	ended := make(chan struct{})
	go func() {
		_ = c.Wait()
		close(ended)
	}()
	answers := make(chan struct{}, 1)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for misses := 0; ; {
		select {
		case <-ended:
			return
		case <-answers:
			misses = 0
			continue
		case <-ticker.C:
		}
		if misses == keepaliveMisses {
			log.Warn("ssh host does not answer any more", "host", c.RemoteAddr().String())
			c.Close()
			<-ended
			return
		}
		misses++
		if misses > 1 {
			continue // the one before still waits, and its answer will do
		}
		go func() {
			// Hosts that do not know the request say so, which is an answer.
			if _, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err == nil {
				answers <- struct{}{}
			}
		}()
	}
}

// authMethod is how we prove who we are. done frees what it holds.
func authMethod(ctx context.Context, c Config) (auth ssh.AuthMethod, done func(), err error) {
	var signers []ssh.Signer
	if c.KeyFile != "" {
		b, err := os.ReadFile(c.KeyFile)
		if err != nil {
			return nil, nil, fmt.Errorf("key file: %w", err)
		}
		signer, err := ssh.ParsePrivateKey(b)
		var locked *ssh.PassphraseMissingError
		switch {
		case errors.As(err, &locked):
			return nil, nil, fmt.Errorf("key file %s: it needs a passphrase; use an ssh agent for it", c.KeyFile)
		case err != nil:
			return nil, nil, fmt.Errorf("key file %s: it is no private key", c.KeyFile)
		}
		signers = append(signers, signer)
	}
	if c.Agent == "" {
		return ssh.PublicKeys(signers...), func() {}, nil
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.Agent)
	if err != nil {
		return nil, nil, fmt.Errorf("ssh agent: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	keys := agent.NewClient(conn)
	return ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
		more, err := keys.Signers()
		if err != nil {
			return nil, fmt.Errorf("ssh agent: %w", err)
		}
		return append(signers, more...), nil
	}), func() { conn.Close() }, nil
}

// hostKeys checks the keys of hosts by a file of known ones. The algorithms are
// those of the keys that are known of this host, since it would otherwise show
// a key of another make; nil when none is known.
func hostKeys(file, host string) (check ssh.HostKeyCallback, algorithms []string, err error) {
	known := func(string, net.Addr, ssh.PublicKey) error { return &knownhosts.KeyError{} }
	switch read, err := knownhosts.New(file); {
	case err == nil:
		known = read
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("known hosts: %w", err)
	}
	// A key that nobody has makes it say which ones it wants.
	nobody, err := ssh.NewPublicKey(ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)))
	if err != nil {
		return nil, nil, err
	}
	nowhere := &net.TCPAddr{IP: net.IPv4zero}
	var wants *knownhosts.KeyError
	if errors.As(known(host, nowhere, nobody), &wants) {
		for _, k := range wants.Want {
			kinds := []string{k.Key.Type()}
			if k.Key.Type() == ssh.KeyAlgoRSA {
				kinds = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
			}
			for _, kind := range kinds {
				if !slices.Contains(algorithms, kind) {
					algorithms = append(algorithms, kind)
				}
			}
		}
	}
	return func(name string, remote net.Addr, key ssh.PublicKey) error {
		err := known(name, remote, key)
		var ke *knownhosts.KeyError
		var revoked *knownhosts.RevokedError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &revoked):
			return fmt.Errorf("the host's key %s is marked as revoked in %s", ssh.FingerprintSHA256(key), file)
		case errors.As(err, &ke) && len(ke.Want) == 0:
			return fmt.Errorf("the host's key is not known: %s %s; when that is right, add it to %s", key.Type(), ssh.FingerprintSHA256(key), file)
		case errors.As(err, &ke):
			return fmt.Errorf("the host's key has changed: it shows %s %s, %s has another one; somebody may be listening in",
				key.Type(), ssh.FingerprintSHA256(key), file)
		}
		return fmt.Errorf("the host's key: %w", err)
	}, algorithms, nil
}
