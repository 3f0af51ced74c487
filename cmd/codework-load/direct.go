package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"codework/messages"
)

// direct sends the same prompts straight to the model: what client, model and
// machine need without a server in between, and so the floor that a run is
// compared with. Tool calls are answered at once, with nothing run.
type direct struct {
	plan   plan
	url    string // of the model, up to and with /v1
	client *http.Client
	fleet  *fleet // counts, and says when rounds begin
}

type (
	chatMessage struct {
		Role       string     `json:"role"`
		Content    any        `json:"content"`
		ToolCalls  []chatCall `json:"tool_calls,omitempty"`
		ToolCallID string     `json:"tool_call_id,omitempty"`
	}
	chatCall struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
	chatChunk struct {
		Choices []struct {
			Delta struct {
				Content   string     `json:"content"`
				ToolCalls []chatCall `json:"tool_calls"`
			} `json:"delta"`
		} `json:"choices"`
	}
	chatRequest struct {
		Model    string           `json:"model"`
		Stream   bool             `json:"stream"`
		Messages []chatMessage    `json:"messages"`
		Tools    []map[string]any `json:"tools"`
	}
)

// bash is the tool that the scripted model calls.
var bash = map[string]any{"type": "function", "function": map[string]any{"name": "bash",
	"parameters": map[string]any{"type": "object", "properties": map[string]any{"command": map[string]any{"type": "string"}}}}}

// run is the floor of a plan.
func runDirect(ctx context.Context, p plan, url string, progress func(string)) (*report, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &http.Transport{MaxIdleConnsPerHost: p.sessions}
	defer t.CloseIdleConnections()
	f := &fleet{plan: p, counts: newCounts()}
	d := &direct{plan: p, url: url, client: &http.Client{Transport: t}, fleet: f}
	sc := p.scenario.shuffled(rand.New(rand.NewPCG(p.seed, 0)))
	for i := range p.sessions {
		f.sessions = append(f.sessions, &session{fleet: f, index: i, kind: sc.of(i), rand: rand.New(rand.NewPCG(p.seed, uint64(i)+1)), news: make(chan struct{})})
	}
	rep := p.report("direct")
	began := time.Now()
	before := ownCPU()
	f.schedule(ctx, began)
	watched := f.watch(ctx, began, func(s string) { progress("floor, " + s) })
	var all sync.WaitGroup
	for _, s := range f.sessions {
		all.Go(func() { d.live(ctx, s) })
	}
	all.Wait()
	rep.WallSeconds = time.Since(began).Seconds()
	watched()
	rep.LoadCPU = ownCPU() - before
	f.fill(rep)
	return rep, context.Cause(ctx)
}

func (d *direct) live(ctx context.Context, s *session) {
	for n := 0; ; n++ {
		start, ok := d.fleet.next(ctx, n)
		if !ok {
			return
		}
		d.fleet.running.Add(1)
		err := d.play(ctx, s, n, start)
		d.fleet.running.Add(-1)
		d.fleet.played.Add(1)
		if err != nil && ctx.Err() == nil {
			d.fleet.fail(err.Error())
		}
	}
}

func (d *direct) play(ctx context.Context, s *session, n int, start time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, d.plan.timeout)
	defer cancel()
	text := s.kind.prompt(s.rand, s.index, n)
	prompt := chatMessage{Role: "user", Content: text}
	if s.kind.image {
		data, err := picture(s.rand)
		if err != nil {
			return err
		}
		prompt.Content = []map[string]any{{"type": "text", "text": text},
			{"type": "image_url", "image_url": map[string]any{"url": dataURL(data)}}}
	}
	history := []chatMessage{prompt}
	first := true
	for {
		began := time.Now()
		calls, err := d.ask(ctx, s, history, func(at time.Time) {
			if first {
				first = false
				s.lat.first = append(s.lat.first, took(start, at))
			}
		})
		if err != nil {
			return err
		}
		s.lat.turn = append(s.lat.turn, took(began, time.Now()))
		d.fleet.turns.Add(1)
		if len(calls) == 0 {
			break
		}
		history = append(history, chatMessage{Role: "assistant", ToolCalls: calls})
		for _, c := range calls {
			history = append(history, chatMessage{Role: "tool", ToolCallID: c.ID, Content: "done"})
		}
	}
	s.lat.total = append(s.lat.total, took(start, time.Now()))
	return nil
}

// ask sends one request and reads its answer; began is told of each delta.
func (d *direct) ask(ctx context.Context, s *session, history []chatMessage, began func(time.Time)) (calls []chatCall, err error) {
	request, err := json.Marshal(chatRequest{Model: modelID, Stream: true, Messages: history, Tools: []map[string]any{bash}})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/chat/completions", bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("model: %s", resp.Status)
	}
	id := messages.NewMessageID()
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		if !ok || data[0] != '{' {
			continue
		}
		at := time.Now()
		d.fleet.events.Add(1)
		var c chatChunk
		if err := json.Unmarshal(data, &c); err != nil {
			return nil, fmt.Errorf("model: %w", err)
		}
		if len(c.Choices) == 0 {
			continue
		}
		delta := c.Choices[0].Delta
		if delta.Content != "" {
			began(at)
			for _, sent := range s.check.event(messages.Event{Type: messages.EventLLMTextDelta}, body{MessageID: id, Delta: &delta.Content}) {
				s.lat.delta = append(s.lat.delta, took(sent, at))
			}
		}
		for _, call := range delta.ToolCalls {
			began(at)
			if call.ID != "" {
				calls = append(calls, call)
			} else if n := len(calls); n > 0 {
				calls[n-1].Function.Arguments += call.Function.Arguments
			}
		}
	}
	s.check.over(id)
	return calls, nil
}

// modelAddress is the base URL of a scripted model.
func modelAddress(url string) string { return strings.TrimSuffix(url, "/") + "/v1" }
