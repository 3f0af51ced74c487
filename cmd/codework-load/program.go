package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// startLimit is what a server gets to say where it listens.
	startLimit = 30 * time.Second
	// stopGrace is what it gets to end.
	stopGrace = 15 * time.Second
	// logTail is how much of its log is shown when it ends unexpectedly.
	logTail = 2000
)

// The models of the settings that the server is started with.
const (
	modelProvider = "load"
	floodProvider = "flood" // flooders' own
	modelID       = "mock-model"
)

// program is a codework serve of its own, in a home that goes with it.
type program struct {
	name  string // of the program
	dir   string // of all that belongs to it
	work  string // where its sessions work
	home  string
	url   string
	pid   int
	ready time.Duration // from the start to the address
	log   string
	stop  context.CancelFunc
	ended chan struct{} // closed when it has
}

// findProgram returns the codework that is named, or the one beside this
// program, or the one in the path.
func findProgram(named string) (string, error) {
	if named != "" {
		found, err := exec.LookPath(named)
		if err != nil {
			return "", err
		}
		return filepath.Abs(found) // it is started in another folder
	}
	if own, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(own), "codework")); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath("codework")
	if err != nil {
		return "", fmt.Errorf("%w; name it with --codework, or a running server with --server", err)
	}
	return found, nil
}

// startProgram starts a server with models at URLs, by provider, and returns when
// it answers.
func startProgram(ctx context.Context, name string, models map[string]string) (*program, error) {
	dir, err := os.MkdirTemp("", "codework-load")
	if err != nil {
		return nil, err
	}
	p, err := startProgramIn(ctx, name, models, dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

// startProgramIn is startProgram with a folder that may hold a home already.
func startProgramIn(ctx context.Context, name string, models map[string]string, dir string) (p *program, err error) {
	p = &program{name: name, dir: dir, work: filepath.Join(dir, "work"), home: filepath.Join(dir, "home"), log: filepath.Join(dir, "log"), ended: make(chan struct{})}
	defer func() {
		if err != nil {
			p.end()
		}
	}()
	if err := errors.Join(os.MkdirAll(p.work, 0o755), os.MkdirAll(p.home, 0o700)); err != nil {
		return p, err
	}
	settings, err := json.MarshalIndent(settingsFor(models), "", "\t")
	if err != nil {
		return p, err
	}
	if err := os.WriteFile(filepath.Join(p.home, "settings.jsonc"), settings, 0o600); err != nil {
		return p, err
	}
	log, err := os.Create(p.log)
	if err != nil {
		return p, err
	}
	defer log.Close() // the process has its own

	life, stop := context.WithCancel(context.Background())
	p.stop = stop
	c := exec.CommandContext(life, name, "serve", "--port", "0", "--json")
	c.Dir = p.work
	c.Env = p.environment()
	c.Stderr = log
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = stopGrace
	out, err := c.StdoutPipe()
	if err != nil {
		return p, err
	}
	began := time.Now()
	if err := c.Start(); err != nil {
		close(p.ended)
		return p, err
	}
	p.pid = c.Process.Pid
	said := make(chan []byte, 1)
	go func() {
		defer close(p.ended)
		r := bufio.NewReader(out)
		line, _ := r.ReadBytes('\n') // none: it has ended
		said <- line
		_, _ = io.Copy(io.Discard, r) // until it ends
		_ = c.Wait()                  // how it ended is in its log
	}()
	late := time.NewTimer(startLimit)
	defer late.Stop()
	select {
	case line := <-said:
		p.ready = time.Since(began)
		var where struct{ URL string }
		if err := json.Unmarshal(line, &where); err != nil {
			return p, fmt.Errorf("%s serve did not say where it listens:\n%s%s", name, line, p.tail())
		}
		p.url = where.URL
		return p, nil
	case <-late.C:
		return p, fmt.Errorf("%s serve did not answer within %s:\n%s", name, startLimit, p.tail())
	case <-ctx.Done():
		return p, ctx.Err()
	}
}

func settingsFor(models map[string]string) map[string]any {
	var list []any
	for _, provider := range slices.Sorted(maps.Keys(models)) {
		list = append(list, map[string]any{
			"id": modelID, "name": "Scripted", "protocol": "openai-compatible", "baseUrl": models[provider],
			"provider":  map[string]any{"id": provider, "name": provider, "source": "config", "env": []any{}},
			"reasoning": false, "input": []any{"text", "image"}, "contextWindow": 200_000, "maxTokens": 8000,
			"cost": map[string]any{"input": 1, "output": 2, "cacheRead": 0.1, "cacheWrite": 1},
		})
	}
	return map[string]any{
		"model": map[string]any{"provider": modelProvider, "id": modelID},
		// Faults that are asked for cost little time.
		"retry":  map[string]any{"baseDelayMs": 10},
		"models": list,
	}
}

// tail is the end of what the server said.
func (p *program) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-logTail):])
}

// complaints are what no log of a server may say.
func (p *program) complaints() []string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, word := range []string{"panic", "DATA RACE", "fatal error"} {
		if bytes.Contains(b, []byte(word)) {
			out = append(out, word)
		}
	}
	return out
}

// environment is what the program and its clients run with: nothing of the
// caller's home, and nothing is asked of the network.
func (p *program) environment() []string {
	return append(os.Environ(), "HOME="+p.dir, "CODEWORK_HOME_DIR="+p.home, "CODEWORK_MODELS_TTL=off", "CODEWORK_SERVER_TOKEN=")
}

// command runs the program as a client on the server's home, in a folder, and
// returns what it prints.
func (p *program) command(ctx context.Context, dir string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, p.name, args...)
	c.Dir, c.Env = dir, p.environment()
	var said, failed bytes.Buffer
	c.Stdout, c.Stderr = &said, &failed
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("codework %s: %w: %s", strings.Join(args, " "), err, failed.String())
	}
	return said.String(), nil
}

// end ends the server.
func (p *program) end() {
	if p.stop != nil {
		p.stop()
		<-p.ended
	}
}

// close ends the server and removes what belonged to it.
func (p *program) close() error {
	p.end()
	return os.RemoveAll(p.dir)
}

// commandsBelow are the command lines of the processes below a server that
// begin with a word.
func commandsBelow(pid int, word string) (out []string) {
	for _, p := range processTree(pid)[1:] {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
		if err == nil && strings.HasPrefix(string(b), word+"\x00") {
			out = append(out, strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " ")))
		}
	}
	return out
}
