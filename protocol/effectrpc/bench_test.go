package effectrpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// event is about as large as a text delta.
var event = json.RawMessage(`{"id":"evt_01920000-0000-7000-8000-000000000000","type":"session.llm.text.delta","data":{"timestamp":1767225600000,"sessionId":"ses_01920000-0000-7000-8000-000000000000","messageId":"01920000-0000-7000-8000-000000000000","partIndex":0,"delta":"` + strings.Repeat("x", 40) + `"}}`)

// benchClient returns a client of handle, over a pipe or a WebSocket.
func benchClient(b *testing.B, over string, handle func(*Call)) *Client {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var conn Conn
	switch over {
	case "pipe":
		near, far := Pipe()
		running.Go(func() { _ = NewServer(far, ServerOptions{}).Serve(ctx, handle) })
		conn = near
	case "websocket":
		server := httptest.NewServer(endpoint(b, handle, AcceptOptions{}, nil))
		b.Cleanup(server.Close)
		conn = dialTest(b, server, DialOptions{})
	}
	c := NewClient(conn, ClientOptions{})
	b.Cleanup(func() { _ = c.Close(); cancel(); running.Wait() })
	return c
}

// source is a bounded queue like the one an event hub keeps per subscriber.
func source(queue <-chan json.RawMessage) Next {
	return func(ctx context.Context, most Batch) ([]json.RawMessage, error) {
		var values []json.RawMessage
		select {
		case v := <-queue:
			values = append(values, v)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		for len(values) < most.Values {
			select {
			case v := <-queue:
				values = append(values, v)
				continue
			default:
			}
			break
		}
		return values, nil
	}
}

// BenchmarkStreamValues is the way of events from a queue to the reader of a
// stream.
func BenchmarkStreamValues(b *testing.B) {
	for _, over := range []string{"pipe", "websocket"} {
		b.Run(over, func(b *testing.B) {
			queue := make(chan json.RawMessage, 4096)
			c := benchClient(b, over, func(call *Call) { call.Stream(source(queue)) })
			s, err := c.Stream(context.Background(), "events", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(event)))
			b.ResetTimer()
			go func() {
				for range b.N {
					queue <- event
				}
			}()
			for range b.N {
				if _, err := s.Next(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "values/s")
		})
	}
}

// BenchmarkStreamLatency is one event at a time, from the queue to the reader.
func BenchmarkStreamLatency(b *testing.B) {
	for _, over := range []string{"pipe", "websocket"} {
		b.Run(over, func(b *testing.B) {
			queue := make(chan json.RawMessage, 4096)
			c := benchClient(b, over, func(call *Call) { call.Stream(source(queue)) })
			s, err := c.Stream(context.Background(), "events", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				queue <- event
				if _, err := s.Next(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkManySubscribers gives every event to 100 subscribers on their own
// WebSockets.
func BenchmarkManySubscribers(b *testing.B) {
	const subscribers = 100
	var queues []chan json.RawMessage
	var reading sync.WaitGroup
	for range subscribers {
		queue := make(chan json.RawMessage, 4096)
		queues = append(queues, queue)
		c := benchClient(b, "websocket", func(call *Call) { call.Stream(source(queue)) })
		s, err := c.Stream(context.Background(), "events", nil)
		if err != nil {
			b.Fatal(err)
		}
		reading.Go(func() {
			for range b.N {
				if _, err := s.Next(context.Background()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	b.ResetTimer()
	for range b.N {
		for _, q := range queues {
			q <- event
		}
	}
	reading.Wait()
	b.ReportMetric(float64(b.N)*subscribers/b.Elapsed().Seconds(), "values/s")
}

// BenchmarkCall is one small unary call at a time.
func BenchmarkCall(b *testing.B) {
	for _, over := range []string{"pipe", "websocket"} {
		b.Run(over, func(b *testing.B) {
			c := benchClient(b, over, func(call *Call) { call.Succeed(nil) })
			payload := map[string]string{"sessionId": "ses_01920000-0000-7000-8000-000000000000"}
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Call(context.Background(), "session.wait", payload, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkParseFrame is the decoder alone.
func BenchmarkParseFrame(b *testing.B) {
	values := make([]string, 256)
	for i := range values {
		values[i] = string(event)
	}
	for name, line := range map[string]string{
		"ack":     ack("9"),
		"request": request("17", "session.prompt", fmt.Sprintf(`{"sessionId":"ses_1","text":%q}`, strings.Repeat("word ", 100))),
		"chunk":   chunk("9", values...),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(line)))
			for b.Loop() {
				if _, err := parseFrame([]byte(line)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
