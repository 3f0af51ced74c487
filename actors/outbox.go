package actors

import (
	"codework/messages"
)

// outbox keeps the order in which a session's events go out: a durable event
// follows its commit, and live events wait behind the durable ones before
// them. So no reader ever holds a position that a crash takes back.
//
// A piece that has to wait, for the disk or for the hub, grows by the pieces
// behind it: however fast a model writes, one of them waits.
type outbox struct {
	publish func([]*published)
	opened  func(seq int64) // tells the hub where publishing begins
	waiting []parcel
	head    uint64     // number of the parcel at waiting[0]
	last    *published // what was published last, if it is a live event
	running bool       // readers were told of an execution and not of its end
	told    *position
}

// position is the last durable event that readers were given. It outlives the
// restarts of a session: what was recorded and not told before one is told
// after it.
type position struct {
	unknown bool // nothing was told by this process
	seq     int64
}

// behind returns the events that readers were not given.
func (p position) behind(events []messages.Event) []messages.Event {
	if p.unknown {
		return nil
	}
	i := len(events)
	for i > 0 && events[i-1].Seq > p.seq {
		i--
	}
	return events[i:]
}

// parcel is one batch under way to the disk, and the live events behind it.
type parcel struct {
	events []*published  // durable first, then live
	done   []func(error) // run by the actor once the batch is on disk
}

// live publishes an event, behind whatever is not on disk yet.
func (o *outbox) live(e messages.Event) {
	if n := len(o.waiting); n > 0 {
		p := &o.waiting[n-1]
		if n := len(p.events); n > 0 && p.events[n-1].join(&e) {
			return
		}
		p.events = append(p.events, &published{Event: e})
		return
	}
	if o.last != nil && o.last.join(&e) {
		return
	}
	o.last = &published{Event: e}
	o.publish([]*published{o.last})
}

// add queues a batch; committed must be called for it.
func (o *outbox) add(events []messages.Event, done func(error)) {
	p := parcel{events: announce(events...)}
	if done != nil {
		p.done = append(p.done, done)
	}
	o.waiting = append(o.waiting, p)
}

// mark numbers the newest batch under way; 0 when there is none.
func (o *outbox) mark() uint64 {
	if len(o.waiting) == 0 {
		return 0
	}
	return o.head + uint64(len(o.waiting))
}

// whenDurable runs f once the batch with that mark is on disk: now, if it is.
func (o *outbox) whenDurable(mark uint64, f func(error)) {
	if mark <= o.head || len(o.waiting) == 0 {
		f(nil)
		return
	}
	p := &o.waiting[mark-o.head-1]
	p.done = append(p.done, f)
}

// committed says that the oldest batch is on disk.
func (o *outbox) committed() {
	p := o.waiting[0]
	o.waiting = o.waiting[1:]
	o.head++
	o.tell(p.events)
	for _, f := range p.done {
		f(nil)
	}
}

// tell publishes what is on disk, and live events behind it.
func (o *outbox) tell(events []*published) {
	if len(events) == 0 {
		return
	}
	o.last = nil
	for _, e := range events {
		switch {
		case e.Type == messages.EventExecutionStarted:
			o.running = true
		case messages.Terminal(e.Type):
			o.running = false
		}
		if e.Durable() {
			*o.told = position{seq: e.Seq}
		}
	}
	o.publish(events)
}

// catchUp begins with a log that ends at seq, of which readers were not given
// untold.
func (o *outbox) catchUp(seq int64, untold []messages.Event) {
	o.opened(seq - int64(len(untold)))
	o.tell(announce(untold...))
	*o.told = position{seq: seq}
}

// fail gives up on everything that is not on disk.
func (o *outbox) fail(err error) {
	lost := o.waiting
	o.head += uint64(len(lost))
	o.waiting = nil
	for _, p := range lost {
		for _, f := range p.done {
			f(err)
		}
	}
}
