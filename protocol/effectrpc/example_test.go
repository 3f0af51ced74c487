package effectrpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"codework/protocol/effectrpc"
)

// A server with one plain method and one that answers with a stream, and a
// client of it in the same process.
func Example() {
	handle := func(c *effectrpc.Call) {
		switch c.Method() {
		case "greet":
			var p struct{ Name string }
			if err := json.Unmarshal(c.Payload(), &p); err != nil {
				c.Die(err.Error())
				return
			}
			if p.Name == "" {
				c.Fail(json.RawMessage(`{"_tag":"NobodyError"}`))
				return
			}
			value, _ := json.Marshal("hello " + p.Name)
			c.Succeed(value)
		case "count":
			left := 3
			c.Stream(func(context.Context, effectrpc.Batch) ([]json.RawMessage, error) {
				if left == 0 {
					return nil, io.EOF
				}
				left--
				return []json.RawMessage{json.RawMessage(fmt.Sprint(left))}, nil
			})
		default:
			c.DieUnknownMethod()
		}
	}

	near, far := effectrpc.Pipe()
	ended := make(chan error)
	ctx := context.Background()
	go func() { ended <- effectrpc.NewServer(far, effectrpc.ServerOptions{}).Serve(ctx, handle) }()

	client := effectrpc.NewClient(near, effectrpc.ClientOptions{})
	var greeting string
	err := client.Call(ctx, "greet", map[string]string{"name": "you"}, &greeting)
	fmt.Println(greeting, err)
	fmt.Println(client.Call(ctx, "greet", nil, nil))
	fmt.Println(client.Call(ctx, "dance", nil, nil))

	stream, err := client.Stream(ctx, "count", nil)
	for err == nil {
		var value json.RawMessage
		if value, err = stream.Next(ctx); err == nil {
			fmt.Println(string(value))
		}
	}
	fmt.Println(err)

	_ = client.Close()
	fmt.Println(<-ended)
	// Output:
	// hello you <nil>
	// NobodyError
	// Unknown request tag: dance
	// 2
	// 1
	// 0
	// EOF
	// <nil>
}
