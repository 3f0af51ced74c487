package client_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"codework/messages"
	"codework/protocol/client"
)

// A prompt on a server, its answer as it is written, and its end: also when
// the connection breaks on the way.
func ExampleDial() {
	ctx := context.Background()
	dial := func(ctx context.Context) (*client.Client, error) {
		return client.Dial(ctx, "ws://127.0.0.1:7433", os.Getenv("CODEWORK_SERVER_TOKEN"))
	}
	c, err := dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	session, err := c.Create(ctx, messages.CreateSession{Directory: "/srv/app"})
	if err != nil {
		log.Fatal(err)
	}
	f, err := client.Follow(ctx, c, client.FollowOptions{Session: session.ID, Dial: dial})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	p := messages.Prompt{SessionID: session.ID, Text: "Why does the parser test fail?", ID: messages.NewMessageID()}
	if err := f.Prompt(ctx, p); err != nil {
		log.Fatal(err)
	}
	for {
		step, err := f.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if step.Gap != nil {
			fmt.Println("(connected again; some of the text may be missing here)")
			continue
		}
		d, err := step.Event.Decode()
		if err != nil {
			log.Fatal(err)
		}
		switch {
		case d.Delta != nil && step.Event.Type == messages.EventLLMTextDelta:
			fmt.Print(*d.Delta)
		case messages.Terminal(step.Event.Type):
			return
		}
	}
}
