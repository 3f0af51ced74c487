package actors

import (
	"reflect"
	"sync/atomic"
	"time"
)

// vitals are what can be seen of an actor without asking it: also of one that
// hangs. Only the actor itself writes them, any goroutine may read.
type vitals struct {
	name    atomic.Pointer[string]
	kind    atomic.Value // reflect.Type of its behaviour
	mailbox atomic.Pointer[mailbox]
	starts  atomic.Int64 // incarnations begun
	handled atomic.Int64 // messages, also those on which it failed
	beside  atomic.Int64 // functions that run beside it
	state   atomic.Pointer[doing]
	// since is when it began with the message at hand, in nanoseconds since
	// began; 0 is none. message is its type, or that of the one before.
	since   atomic.Int64
	message atomic.Value // reflect.Type
}

// mailbox is what is asked of an actor's mailbox.
type mailbox = interface{ UserMessageCount() int }

// doing is what an actor says that it does.
type doing struct {
	state  string // a fixed word
	detail string // for people; may name what a user named
	since  time.Time
}

// began is what times of vitals are counted from: one clock reading is an
// addition then.
var began = time.Now()

func (v *vitals) begin(a Actor) {
	v.kind.Store(reflect.TypeOf(a))
	v.starts.Add(1)
}

func (v *vitals) enter(m any) {
	if t := reflect.TypeOf(m); t != nil {
		v.message.Store(t)
	}
	v.since.Store(max(int64(time.Since(began)), 1))
}

func (v *vitals) leave() {
	v.since.Store(0)
	v.handled.Add(1)
}

// vitalSigns is a look at an actor.
type vitalSigns struct {
	ref      *Ref
	name     string
	kind     string
	waiting  int
	restarts int64
	handled  int64
	beside   int64
	doing    doing
	message  string        // type of the message that it handles; "" is none
	handling time.Duration // for how long
}

func (r *Ref) look(now time.Time) vitalSigns {
	v := &r.vitals
	s := vitalSigns{ref: r, restarts: max(v.starts.Load()-1, 0), handled: v.handled.Load(), beside: v.beside.Load()}
	if n := v.name.Load(); n != nil {
		s.name = *n
	}
	if t, ok := v.kind.Load().(reflect.Type); ok {
		s.kind = typeName(t)
	}
	if m := v.mailbox.Load(); m != nil {
		s.waiting = (*m).UserMessageCount()
	}
	if d := v.state.Load(); d != nil {
		s.doing = *d
	}
	if since := v.since.Load(); since > 0 {
		s.handling = max(now.Sub(began)-time.Duration(since), 0)
		if t, ok := v.message.Load().(reflect.Type); ok {
			s.message = typeName(t)
		}
	}
	return s
}

func typeName(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

// Named gives an actor the name under which people see it, and returns it.
func (r *Ref) Named(name string) *Ref {
	r.vitals.name.Store(&name)
	return r
}

// Doing says what the actor does from now on, for whoever looks. state is one
// of few words, detail may be anything.
func (me *Self) Doing(state, detail string) {
	if d := me.ref.vitals.state.Load(); d != nil && d.state == state && d.detail == detail {
		return
	}
	me.ref.vitals.state.Store(&doing{state, detail, time.Now()})
}

func (r *Runtime) add(ref *Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live[ref] = true
}

func (r *Runtime) remove(ref *Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, ref)
}

// look returns a look at every actor there is.
func (r *Runtime) look() []vitalSigns {
	r.mu.Lock()
	refs := make([]*Ref, 0, len(r.live))
	for ref := range r.live {
		refs = append(refs, ref)
	}
	r.mu.Unlock()
	now := time.Now()
	out := make([]vitalSigns, len(refs))
	for i, ref := range refs {
		out[i] = ref.look(now)
	}
	return out
}
