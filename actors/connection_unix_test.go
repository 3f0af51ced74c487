//go:build unix

package actors

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"codework/messages"
	"codework/providers"
	"codework/providers/chat"
)

// Certificates are read once however many sessions begin at the same time: the
// file is a pipe, which gives its content to one reader only.
func TestSessionsThatBeginTogetherMakeOneConnection(t *testing.T) {
	_, file := secureModel(t)
	authority, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRigWith(t, func(c *Config) {
		c.Dialects = map[messages.Protocol]providers.Dialect{messages.ProtocolCompatible: chat.Dialect{}}
	})
	key := through(map[string]string{"SSL_CERT_FILE": pipe})
	key.protocol = messages.ProtocolCompatible
	ctx := soon(t)
	var first any
	const sessions = 20
	wait := make(chan any, sessions)
	for range sessions {
		answer := r.system.guardian.request(key)
		go func() {
			v, err := answer(ctx)
			if err != nil {
				v = err
			}
			wait <- v
		}()
	}
	// What comes later in the guardian's mailbox has been answered: so all have
	// asked before anybody could read.
	if _, err := r.system.guardian.request(getParts{})(ctx); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(authority); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range sessions {
		v := <-wait
		if _, ok := v.(*connectionSlot); !ok {
			t.Fatalf("no connection: %v", v)
		}
		if i == 0 {
			first = v
		}
		if v != first {
			t.Fatal("two sessions have two connections")
		}
	}
}
