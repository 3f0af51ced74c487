package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"codework/messages"
	"codework/protocol/client"
)

// flooder is somebody who uses as much of the server as can be had, beside the
// sessions that are measured.
type flooder struct {
	about string
	mark  string // what its sessions ask the scripted model for, again and again
	deaf  bool   // its client subscribes and does not read
}

// The flooders by name. An answer must stay below the 2 MiB that one may have,
// so each begins a new session, whose history is short.
var flooders = map[string]flooder{
	"firehose": {about: "an answer that comes as fast as the model writes, again and again", mark: "text:40000"},
	"deaf":     {about: "as firehose, for a client that subscribes and does not read", mark: "text:40000", deaf: true},
	"gigabyte": {about: "a command that prints 1 GB, again and again", mark: shell("yes | head -c 1G")},
	"burn":     {about: "a command that keeps all processors busy", mark: shell("for i in $(seq $(nproc)); do yes >/dev/null & done; wait")},
}

func shell(command string) string {
	return "sh:" + base64.StdEncoding.EncodeToString([]byte(command))
}

func flooderNames() []string { return slices.Sorted(maps.Keys(flooders)) }

// parseBeside reads a list of names of flooders.
func parseBeside(text string) ([]string, error) {
	names := strings.Split(text, ",")
	for _, name := range names {
		if _, ok := flooders[name]; !ok {
			return nil, fmt.Errorf("nobody is called %q; there are %s", name, strings.Join(flooderNames(), ", "))
		}
	}
	return names, nil
}

// floodEnds is how long flooders may take to end their work.
const floodEnds = 10 * time.Second

// flooding are the flooders of an order at work.
type flooding struct {
	*counts
	order order
}

// run floods until the context ends, and says when all are at work; when one
// cannot begin, all end. What it set off has ended when it returns.
func (f *flooding) run(ctx context.Context, atWork func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all, begun sync.WaitGroup
	for _, name := range f.order.Names {
		for range f.order.Each {
			begun.Add(1)
			all.Go(func() {
				begins := sync.OnceFunc(begun.Done)
				idle := true
				err := f.flood(ctx, name, func() { idle = false; begins() })
				if err != nil && ctx.Err() == nil {
					f.fail(name + ": " + err.Error())
					if idle {
						cancel()
					}
				}
				begins()
			})
		}
	}
	begun.Wait()
	var err error
	if ctx.Err() == nil {
		if err = atWork(); err != nil {
			cancel()
		}
	}
	all.Wait()
	return err
}

// flood is one flooder, until the context ends.
func (f *flooding) flood(ctx context.Context, name string, begun func()) error {
	l, err := address{f.order.Endpoint, f.order.Token}.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	var bytes, rounds int64
	began := time.Now()
	defer func() {
		f.note(fmt.Sprintf("beside: %s, %d rounds and %.1f MB of events a second", name, rounds, float64(bytes)/(1<<20)/time.Since(began).Seconds()))
	}()
	for ctx.Err() == nil {
		n, err := f.once(ctx, l.Client, flooders[name], begun)
		bytes += n
		if err != nil {
			return err
		}
		rounds++
	}
	return nil
}

// once has the flooder's work done, and tells how many bytes of events came.
func (f *flooding) once(ctx context.Context, c *client.Client, who flooder, begun func()) (bytes int64, err error) {
	m := messages.CreateSession{HostDir: f.order.Dir}
	if f.order.Model != nil {
		m.Runtime = &messages.Runtime{Model: f.order.Model}
	}
	info, err := c.Create(ctx, m)
	if err != nil {
		return 0, err
	}
	events, err := c.Subscribe(context.WithoutCancel(ctx), messages.Subscribe{SessionID: info.ID})
	if err != nil {
		return 0, err
	}
	defer func() {
		events.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), floodEnds)
		defer cancel()
		_, stopped := c.Interrupt(ctx, messages.Interrupt{SessionID: info.ID})
		err = errors.Join(err, stopped, c.Wait(ctx, info.ID), c.Delete(ctx, info.ID, true))
	}()
	if err := c.Prompt(ctx, messages.Prompt{SessionID: info.ID, ID: messages.NewMessageID(), Text: "load mock=" + who.mark}, false); err != nil {
		return bytes, ignoreEnd(ctx, err)
	}
	if who.deaf {
		begun()
		return bytes, ignoreEnd(ctx, c.Wait(ctx, info.ID))
	}
	for {
		e, err := events.Next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the subscription ended")
			}
			return bytes, ignoreEnd(ctx, err)
		}
		bytes += int64(len(e.Data))
		switch e.Type {
		case messages.EventLLMTextDelta, messages.EventToolStarted:
			begun()
		case messages.EventExecutionSucceeded:
			return bytes, nil
		case messages.EventExecutionFailed, messages.EventExecutionInterrupted:
			return bytes, errors.New("it ended with " + e.Type)
		}
	}
}

// ignoreEnd drops an error that came with the end of the context.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
