// Command go is a plugin written with the kit: a tool that counts words, and a
// hook that keeps the model from force-pushing.
package main

import (
	"bytes"
	"context"
	"log"
	"strconv"
	"strings"

	"codework/protocol/plugin"
)

func main() {
	p := plugin.New("example.tool.words", "1.0.0")
	plugin.Tool(p, "count_words", "Counts the words of a text.", func(_ context.Context, _ *plugin.Call, in struct {
		Text string `json:"text"`
	}) (string, error) {
		return strconv.Itoa(len(strings.Fields(in.Text))), nil
	})
	p.Before("bash", func(_ context.Context, _ *plugin.Call, b plugin.Before) (plugin.Verdict, error) {
		return plugin.Verdict{Block: bytes.Contains(b.Arguments, []byte("push --force")), Reason: "force-pushing is not allowed here"}, nil
	})
	if err := p.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
