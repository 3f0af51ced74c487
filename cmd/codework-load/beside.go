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
	"sync/atomic"
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

// flood starts those that the plan wants beside its sessions, and returns when
// all of them are at work; stop ends them and waits.
func (f *fleet) flood(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	stop = func() { cancel(); all.Wait() }
	var begun []<-chan struct{}
	for _, name := range f.plan.beside {
		for range f.plan.besides {
			at := make(chan struct{})
			begun = append(begun, at)
			all.Go(func() {
				if err := f.flooding(ctx, name, sync.OnceFunc(func() { close(at) })); err != nil && ctx.Err() == nil {
					f.fail(name + ": " + err.Error())
				}
			})
		}
	}
	late := time.NewTimer(f.plan.timeout)
	defer late.Stop()
	for _, at := range begun {
		select {
		case <-at:
		case <-late.C:
			err = errors.New("what runs beside did not begin")
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}

// flooding is one flooder, until the context ends. What it set off has ended
// when it returns.
func (f *fleet) flooding(ctx context.Context, name string, begun func()) error {
	l, err := f.address.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	var bytes, rounds atomic.Int64
	began := time.Now()
	defer func() {
		f.note(fmt.Sprintf("beside: %s, %d rounds and %.1f MB of events a second", name, rounds.Load(), float64(bytes.Load())/(1<<20)/time.Since(began).Seconds()))
	}()
	for ctx.Err() == nil {
		if err := f.floodOnce(ctx, l.Client, flooders[name], begun, &bytes); err != nil {
			return err
		}
		rounds.Add(1)
	}
	return nil
}

func (f *fleet) floodOnce(ctx context.Context, c *client.Client, who flooder, begun func(), bytes *atomic.Int64) (err error) {
	m := messages.CreateSession{HostDir: f.plan.dir}
	if f.plan.model != nil {
		m.Runtime = &messages.Runtime{Model: f.plan.model}
	}
	info, err := c.Create(ctx, m)
	if err != nil {
		return err
	}
	events, err := c.Subscribe(context.WithoutCancel(ctx), messages.Subscribe{SessionID: info.ID})
	if err != nil {
		return err
	}
	defer func() {
		events.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), floodEnds)
		defer cancel()
		_, stopped := c.Interrupt(ctx, messages.Interrupt{SessionID: info.ID})
		err = errors.Join(err, stopped, c.Wait(ctx, info.ID), c.Delete(ctx, info.ID, true))
	}()
	if err := c.Prompt(ctx, messages.Prompt{SessionID: info.ID, ID: messages.NewMessageID(), Text: "load mock=" + who.mark}, false); err != nil {
		return ignoreEnd(ctx, err)
	}
	if who.deaf {
		begun()
		return ignoreEnd(ctx, c.Wait(ctx, info.ID))
	}
	for {
		e, err := events.Next(ctx)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the subscription ended")
			}
			return ignoreEnd(ctx, err)
		}
		bytes.Add(int64(len(e.Data)))
		switch e.Type {
		case messages.EventLLMTextDelta, messages.EventToolStarted:
			begun()
		case messages.EventExecutionSucceeded:
			return nil
		case messages.EventExecutionFailed, messages.EventExecutionInterrupted:
			return errors.New("it ended with " + e.Type)
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
