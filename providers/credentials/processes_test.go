package credentials

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Variables that make the test binary a process that uses one login.
const (
	childFile = "CREDENTIALS_TEST_FILE"
	childURL  = "CREDENTIALS_TEST_URL"
)

// child says that it is ready, waits for the end of its input, says that it
// goes, and then what token it got.
func child() int {
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("going")
	s := OpenStore(Options{File: os.Getenv(childFile), TokenURL: os.Getenv(childURL), Now: atNoon})
	login, err := s.Fresh(context.Background(), "openai-codex")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(login.Access)
	return 0
}

type process struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Scanner
}

func startChild(t *testing.T, file, tokenURL string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // of a test that hangs
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childFile+"="+file, childURL+"="+tokenURL, "HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // an error is reported where the process is used
	})
	p := &process{cmd, in, bufio.NewScanner(out)}
	if got := p.line(); got != "ready" {
		t.Fatalf("started with %q", got)
	}
	return p
}

func (p *process) line() string {
	p.out.Scan()
	return p.out.Text()
}

func TestTwentyProcessesRenewOneLoginOnce(t *testing.T) {
	const processes = 20
	server := newTokenServer(t)
	file := authFile(t, `{"openai-codex":`+dueLogin()+`}`)
	var all []*process
	for range processes {
		all = append(all, startChild(t, file, server.URL))
	}
	var going, done sync.WaitGroup
	going.Add(processes)
	server.first(func(int) { going.Wait() }) // nobody is late for the same token
	for _, p := range all {
		done.Go(func() {
			_ = p.in.Close()
			if got := p.line(); got != "going" {
				t.Errorf("said %q", got)
			}
			going.Done()
			if got := p.line(); got != accessToken(1, "acc-1") {
				t.Errorf("got %q", got)
			}
		})
	}
	done.Wait()
	if asked, reused := server.counts(); asked != 1 || reused != 0 {
		t.Errorf("asked %d times, %d of them with a spent token", asked, reused)
	}
	login, f := ReadLogin(file, "openai-codex")
	if f != nil || login.Access != accessToken(1, "acc-1") || login.Refresh != "refresh-token-number-1" {
		t.Errorf("stored %+v, %v", login, f)
	}
}

func TestKilledProcessLeavesNoLockAndNoCopy(t *testing.T) {
	server := newTokenServer(t)
	file := authFile(t, `{"openai-codex":`+dueLogin()+`}`)
	arrived, answer := make(chan struct{}), make(chan struct{})
	server.first(func(n int) {
		if n == 1 {
			close(arrived)
			<-answer
			panic(http.ErrAbortHandler) // before the token is spent
		}
	})
	p := startChild(t, file, server.URL)
	_ = p.in.Close()
	<-arrived
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait() // killed
	close(answer)
	if left, _ := filepath.Glob(file + ".new"); len(left) != 1 {
		t.Fatalf("nothing was left behind, so this shows nothing: %v", left)
	}
	login, err := openTest(t, file, server.URL).Fresh(t.Context(), "openai-codex")
	if err != nil || login.Refresh != "refresh-token-number-2" {
		t.Errorf("%+v, %v", login, err)
	}
	if left, _ := filepath.Glob(file + ".new"); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}
