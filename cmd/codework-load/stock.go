package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"codework/messages"
	"codework/protocol/client"
)

// A stock is what lies in a server that nobody prompts at the moment: many
// sessions, or a session with many entries. It is filled through the protocol
// with the scripted model, the server is started anew, and then each operation
// is measured one at a time, in an order by chance.

// stock says which ones are measured; each number has a server of its own.
type stock struct {
	stored  []int // sessions
	entries []int // entries of one session
	idle    []int // sessions of a server that does nothing
	samples int   // of each operation
	home    string
}

func (s stock) wanted() bool { return len(s.stored)+len(s.entries)+len(s.idle) > 0 }

const (
	// stockPage is how many sessions or entries a page has.
	stockPage = 50
	// stockFolders is how many folders the sessions are spread over: people who
	// have thousands of sessions have some projects.
	stockFolders = 20
	// stockMark is the scripted model's marker of the answers.
	stockMark = "mock=text:1"
	// commonEvery is how many sessions there are for one that has commonWord in
	// its title.
	commonEvery = 20
	commonWord  = "heron"
	// longest is the operation that answers with everything; it is measured
	// once in longestShare times.
	longest      = "cli.all"
	longestShare = 10
	// fewEntries is the short session that a long one is compared with.
	fewEntries = 10
	// fewSessions are of that length; a turn makes one of them longer.
	fewSessions = 20
	// restarts is how often at most a server is started to open a session from
	// its store.
	restarts = 40
	// idleWindow is for how long an idle server's processor time is counted,
	// idleSettle how long it has before to come to rest.
	idleWindow = 10 * time.Second
	idleSettle = 35 * time.Second
)

// runStock measures every stock that is asked for.
func (j *job) runStock(ctx context.Context) (good bool, err error) {
	good = true
	var reports []*stockReport
	for _, kind := range []struct {
		name    string
		numbers []int
		run     func(*stocked, context.Context) error
	}{
		{"stored", j.stock.stored, (*stocked).sessions},
		{"entries", j.stock.entries, (*stocked).entries},
		{"idle", j.stock.idle, (*stocked).idle},
	} {
		for _, n := range kind.numbers {
			r, err := j.measureStock(ctx, kind.name, n, kind.run)
			if err != nil {
				return false, fmt.Errorf("%d %s: %w", n, kind.name, err)
			}
			if err := j.say(r); err != nil {
				return false, err
			}
			good = good && len(r.Failures) == 0 && len(r.Missed) == 0
			reports = append(reports, r)
		}
	}
	if j.svg != "" {
		err = writeCharts(j.svg, stockCharts(reports))
	}
	return good, err
}

func (j *job) measureStock(ctx context.Context, kind string, n int, run func(*stocked, context.Context) error) (*stockReport, error) {
	s := &stocked{job: j, n: n, rand: rand.New(rand.NewPCG(j.seed, uint64(n))), rep: &stockReport{Stock: kind, Number: n, Seed: j.seed,
		Began: time.Now(), Machine: j.plan.report("").Machine, Failures: map[string]int{}}}
	if j.stock.home != "" && kind != "idle" { // which compares with a server that was empty before
		s.dir = filepath.Join(j.stock.home, kind+"-"+strconv.Itoa(n))
		_, err := os.Stat(filepath.Join(s.dir, filledMark))
		s.filled = err == nil
	} else {
		var err error
		if s.dir, err = os.MkdirTemp("", "codework-load"); err != nil {
			return nil, err
		}
		s.temporary = true
	}
	defer s.close()
	if err := run(s, ctx); err != nil {
		return nil, err
	}
	for i := range s.rep.Operations {
		s.rep.Operations[i].once = nil
	}
	s.rep.Missed = check(j.thresholds, s.rep.metrics())
	return s.rep, nil
}

// filledMark is the file that says that a home has all of its stock.
const filledMark = "filled"

// stocked is a server with a stock.
type stocked struct {
	job    *job
	n      int
	dir    string
	filled bool
	// temporary says that the folder goes when all is measured.
	temporary bool
	rand      *rand.Rand
	rep       *stockReport

	program *program
	link    *link
}

// start starts the server, once more if it is there already.
func (s *stocked) start(ctx context.Context) error {
	if err := s.stop(); err != nil {
		return err
	}
	p, err := startProgramIn(ctx, s.job.program, map[string]string{modelProvider: s.job.modelURL}, s.dir)
	if err != nil {
		return err
	}
	s.program, s.rep.ReadySeconds = p, p.ready.Seconds()
	s.link, err = address{endpoint: p.url}.dial(ctx)
	return err
}

// stop ends the server and leaves what it stored.
func (s *stocked) stop() error {
	if s.link != nil {
		s.link.Close() // its server ends now
		s.link = nil
	}
	if s.program == nil {
		return nil
	}
	s.program.end()
	for _, word := range s.program.complaints() {
		s.rep.Failures["the log of the server has: "+word]++
	}
	s.program = nil
	return nil
}

func (s *stocked) close() {
	_ = s.stop()
	if s.temporary {
		_ = os.RemoveAll(s.dir)
	}
}

// fill does the work of a stock, unless it is there from an earlier run.
func (s *stocked) fill(ctx context.Context, work func() error) error {
	if s.filled {
		return nil
	}
	began := time.Now()
	if err := work(); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	s.rep.FillSeconds = time.Since(began).Seconds()
	return os.WriteFile(filepath.Join(s.dir, filledMark), nil, 0o600)
}

// folder is where a session works.
func (s *stocked) folder(i int) string {
	return filepath.Join(s.program.work, strconv.Itoa(i%stockFolders))
}

// title is a session's, by its number. Only one has the number in it.
func title(i int) string {
	word := "sparrow"
	if i%commonEvery == 0 {
		word = commonWord
	}
	return fmt.Sprintf("Look after %s %06d of the garden", word, i)
}

// make makes n sessions, several at a time, each with answered prompts.
func (s *stocked) make(ctx context.Context, n, prompts int) error {
	for i := range stockFolders {
		if err := os.MkdirAll(s.folder(i), 0o755); err != nil {
			return err
		}
	}
	var made atomic.Int64
	work := make(chan int)
	failed := make(chan error, createWidth)
	for range createWidth {
		go func() {
			var err error
			for i := range work {
				if err == nil {
					err = s.one(ctx, i, prompts)
				}
				s.job.progress(fmt.Sprintf("%d of %d sessions are made", made.Add(1), n))
			}
			failed <- err
		}()
	}
	for i := range n {
		work <- i
	}
	close(work)
	var err error
	for range createWidth {
		err = errors.Join(err, <-failed)
	}
	return err
}

// one makes a session and prompts it.
func (s *stocked) one(ctx context.Context, i, prompts int) error {
	info, err := s.link.Create(ctx, messages.CreateSession{HostDir: s.folder(i)})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	return s.grow(ctx, info.ID, title(i), prompts)
}

// grow prompts a session, one prompt behind the other.
func (s *stocked) grow(ctx context.Context, id, text string, prompts int) error {
	for range prompts {
		if err := s.link.Prompt(ctx, messages.Prompt{SessionID: id, ID: messages.NewMessageID(), Text: text + "\n" + stockMark}, false); err != nil {
			return fmt.Errorf("prompt: %w", err)
		}
		if err := s.link.Wait(ctx, id); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
	}
	return nil
}

// sessions measures the operations of a server with many sessions.
func (s *stocked) sessions(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx, func() error { return s.make(ctx, s.n, 1) }); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	if len(all) != s.n {
		return fmt.Errorf("the server lists %d sessions instead of %d", len(all), s.n)
	}
	// All were listed: the next server has looked at nothing yet.
	if err := s.start(ctx); err != nil {
		return err
	}
	const page = stockPage
	list := func(want int, q func() messages.ListSessions) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			m := q()
			m.Limit = stockPage
			began := time.Now()
			found, err := s.link.List(ctx, m)
			took := time.Since(began)
			if err == nil && len(found) != want {
				err = fmt.Errorf("%d sessions instead of %d", len(found), want)
			}
			return took, err
		}
	}
	some := func() int { return s.rand.IntN(s.n) }
	inFolder := func(i int) int { return (s.n - i%stockFolders + stockFolders - 1) / stockFolders }
	shell := func(args func() []string, want func(i int) int) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			i := some()
			began := time.Now()
			out, err := s.program.command(ctx, s.folder(i), args()...)
			took := time.Since(began)
			if lines := strings.Count(out, "\n"); err == nil && lines != want(i) {
				err = fmt.Errorf("%d sessions instead of %d", lines, want(i))
			}
			return took, err
		}
	}
	s.rep.Operations = []operation{
		{Name: "list", About: "the first page of all sessions", once: list(page, func() messages.ListSessions { return messages.ListSessions{} })},
		{Name: "middle", About: "a page in the middle of them", once: list(page, func() messages.ListSessions {
			return messages.ListSessions{Before: all[s.n/4+s.rand.IntN(s.n/2)].ID}
		})},
		{Name: "folder", About: "the first page of a folder's sessions", once: func(ctx context.Context) (time.Duration, error) {
			i := some()
			return list(min(stockPage, inFolder(i)), func() messages.ListSessions { return messages.ListSessions{HostDir: s.folder(i)} })(ctx)
		}},
		{Name: "search", About: "a text that one title has", once: list(1, func() messages.ListSessions {
			return messages.ListSessions{Search: fmt.Sprintf("%06d", some())}
		})},
		{Name: "common", About: "a text that one title of 20 has, first page", once: list(min(page, (s.n+commonEvery-1)/commonEvery), func() messages.ListSessions {
			return messages.ListSessions{Search: commonWord}
		})},
		{Name: "nothing", About: "a text that no title has", once: list(0, func() messages.ListSessions { return messages.ListSessions{Search: "ostrich"} })},
		{Name: "open", About: "what is known of a session, and its last entries", once: func(ctx context.Context) (time.Duration, error) {
			return s.open(ctx, all[some()].ID, 2)
		}},
		{Name: "cli", About: "codework session list in a folder, the process included", once: shell(func() []string { return []string{"session", "list"} }, inFolder)},
		{Name: "cli.search", About: "codework session list --all --search, a text that one title has", once: shell(func() []string {
			return []string{"session", "list", "--all", "--search", fmt.Sprintf("%06d", some())}
		}, func(int) int { return 1 })},
		{Name: longest, About: "codework session list --all: every session", once: shell(func() []string { return []string{"session", "list", "--all"} }, func(int) int { return s.n })},
	}
	return s.measure(ctx, s.rep.Operations)
}

// all are the sessions of the server, newest first.
func (s *stocked) all(ctx context.Context) (all []messages.SessionInfo, err error) {
	const page = 500
	q := messages.ListSessions{Limit: page}
	for {
		found, err := s.link.List(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
		if len(found) < page {
			return all, nil
		}
		q.Before = found[page-1].ID
	}
}

// open does what a client does to show a session.
func (s *stocked) open(ctx context.Context, id string, entries int) (time.Duration, error) {
	began := time.Now()
	if _, err := s.link.Session(ctx, id); err != nil {
		return 0, err
	}
	h, err := s.link.History(ctx, messages.GetHistory{SessionID: id, Limit: stockPage})
	took := time.Since(began)
	if err == nil && len(h.Entries) != entries {
		err = fmt.Errorf("%d entries instead of %d", len(h.Entries), entries)
	}
	return took, err
}

// measure does each operation as often as is asked for, in an order by chance.
func (s *stocked) measure(ctx context.Context, all []operation) error {
	var order []int
	for i := range all {
		n := s.job.stock.samples
		if all[i].Name == longest {
			n = (n + longestShare - 1) / longestShare
		}
		order = append(order, slices.Repeat([]int{i}, n)...)
	}
	s.rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	times := make([][]time.Duration, len(all))
	for n, i := range order {
		s.job.progress(fmt.Sprintf("%d of %d operations are measured", n, len(order)))
		took, err := all[i].once(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, client.ErrConnectionLost):
			return err
		case err != nil:
			s.rep.Failures[all[i].Name+": "+err.Error()]++
			continue
		}
		times[i] = append(times[i], took)
	}
	for i := range all {
		all[i].Times = measure(times[i])
	}
	return nil
}

// entries measures a long session next to short ones.
func (s *stocked) entries(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx, func() error {
		if err := s.make(ctx, fewSessions, fewEntries/2); err != nil {
			return err
		}
		info, err := s.link.Create(ctx, messages.CreateSession{HostDir: s.folder(0), Title: longTitle})
		for i := 0; i < s.n/2 && err == nil; i++ {
			s.job.progress(fmt.Sprintf("%d of %d entries are made", 2*i, s.n))
			err = s.grow(ctx, info.ID, fmt.Sprintf("Look at bed %d of the garden and tell what grows there", i), 1)
		}
		return err
	}); err != nil {
		return err
	}
	var long string
	var few []string
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Title == longTitle {
			long = i.ID
		} else {
			few = append(few, i.ID)
		}
	}
	if long == "" || len(few) == 0 {
		return errors.New("the stock is not what it was filled with")
	}
	var turns turns
	first := func(name string, id func() string) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			t, err := s.first(ctx, id())
			if err == nil {
				turns.note(name, t)
			}
			return t.piece, err
		}
	}
	theLong, someFew := func() string { return long }, func() string { return few[s.rand.IntN(len(few))] }
	var opened []time.Duration
	for i := range min(s.job.stock.samples, restarts) {
		s.job.progress(fmt.Sprintf("the session was opened %d times", i))
		for _, do := range []func(context.Context) (time.Duration, error){
			func(ctx context.Context) (time.Duration, error) {
				took, err := s.open(ctx, long, stockPage)
				opened = append(opened, took)
				return took, err
			},
			first("cold", theLong), first("cold.few", someFew),
		} {
			if err := s.start(ctx); err != nil {
				return err
			}
			if _, err := do(ctx); err != nil {
				return err
			}
		}
	}
	var middle []string
	h, err := s.page(ctx, long, "", 500)
	for ; err == nil && h.More; h, err = s.page(ctx, long, h.Entries[0].ID, 500) {
		for _, e := range h.Entries {
			middle = append(middle, e.ID)
		}
	}
	if err != nil {
		return err
	}
	for _, e := range h.Entries {
		middle = append(middle, e.ID)
	}
	middle = middle[len(middle)/4 : len(middle)*3/4]
	once := func(before func() string) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			began := time.Now()
			_, err := s.page(ctx, long, before(), stockPage)
			return time.Since(began), err
		}
	}
	warm := []operation{
		{Name: "end", About: "the last page of its history", once: once(func() string { return "" })},
		{Name: "middle", About: "a page in the middle of it", once: once(func() string { return middle[s.rand.IntN(len(middle))] })},
		{Name: "turn", About: "a prompt until the first piece of its answer", once: first("turn", theLong)},
		{Name: "turn.few", About: "the same in a session of 10 entries", once: first("turn.few", someFew)},
		{Name: "again", About: "the same in the long session when it is not in memory", once: func(ctx context.Context) (time.Duration, error) {
			// What mends a session takes it out of memory.
			if f, err := s.link.Check(ctx, long, true); err != nil || len(f.Findings) > 0 {
				return 0, fmt.Errorf("check: %v, %w", f.Findings, err)
			}
			return first("again", theLong)(ctx)
		}},
	}
	if err := s.measure(ctx, warm); err != nil {
		return err
	}
	s.rep.Operations = append([]operation{
		{Name: "open", About: "the session and its last entries, behind a start of the server", Times: measure(opened)}}, warm[:2]...)
	s.rep.Operations = append(s.rep.Operations, turns.operations(
		operation{Name: "cold", About: "a prompt behind a start"}, operation{Name: "cold.few", About: "the same in a session of 10 entries"},
		operation{Name: "again", About: "a prompt when the session is not in memory"},
		operation{Name: "turn", About: "a prompt when it is"}, operation{Name: "turn.few", About: "the same in a session of 10 entries"})...)
	return nil
}

// turn is how long it took from a prompt until it was answered with its
// admission, until the scripted model was asked, and until the first piece of
// the answer came. A model that reads a long conversation takes its time, too.
type turn struct{ admitted, asked, piece time.Duration }

// turns are those that were measured, by the name of what was done.
type turns map[string][]turn

func (t *turns) note(name string, one turn) {
	if *t == nil {
		*t = turns{}
	}
	(*t)[name] = append((*t)[name], one)
}

// operations makes three of each: what is measured of a turn.
func (t turns) operations(of ...operation) (all []operation) {
	for _, o := range of {
		for _, part := range []struct {
			name, about string
			time        func(turn) time.Duration
		}{
			{".admitted", " until it is admitted", func(t turn) time.Duration { return t.admitted }},
			{".asked", " until the model is asked", func(t turn) time.Duration { return t.asked }},
			{"", " until the first piece of its answer", func(t turn) time.Duration { return t.piece }},
		} {
			var times []time.Duration
			for _, one := range t[o.Name] {
				if d := part.time(one); d > 0 {
					times = append(times, d)
				}
			}
			if len(times) > 0 {
				all = append(all, operation{Name: o.Name + part.name, About: o.About + part.about, Times: measure(times)})
			}
		}
	}
	return all
}

// longTitle is the title of the session with many entries.
const longTitle = "All of the garden"

func (s *stocked) page(ctx context.Context, id, before string, limit int) (messages.History, error) {
	return s.link.History(ctx, messages.GetHistory{SessionID: id, Before: before, Limit: limit})
}

// first prompts a session and measures it; it returns when the answer is whole.
func (s *stocked) first(ctx context.Context, id string) (t turn, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.job.timeout)
	defer cancel()
	events, err := s.link.Subscribe(ctx, messages.Subscribe{SessionID: id})
	if err != nil {
		return t, err
	}
	defer events.Close()
	began := time.Now()
	if err := s.link.Prompt(ctx, messages.Prompt{SessionID: id, ID: messages.NewMessageID(), Text: "And now? " + stockMark}, false); err != nil {
		return t, err
	}
	t.admitted = time.Since(began)
	for {
		e, err := events.Next(ctx)
		if err != nil {
			return t, err
		}
		switch {
		case e.Type == messages.EventLLMTextDelta && t.piece == 0:
			t.piece = time.Since(began)
		case messages.Terminal(e.Type):
			if e.Type != messages.EventExecutionSucceeded || t.piece == 0 {
				err = fmt.Errorf("it ended with %s", e.Type)
			}
			if s.job.model != nil {
				asked := s.job.model.Requests()
				t.asked = asked[len(asked)-1].At.Sub(began)
			}
			return t, err
		}
	}
}

// idle measures what sessions cost that nobody asks anything.
func (s *stocked) idle(ctx context.Context) (err error) {
	rep := &idleReport{}
	s.rep.Idle = rep
	if err := s.start(ctx); err != nil {
		return err
	}
	if rep.Empty, err = s.rests(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx, func() error { return s.make(ctx, s.n, 1) }); err != nil {
		return err
	}
	if rep.Made, err = s.rests(ctx); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	if _, err := s.link.List(ctx, messages.ListSessions{Limit: stockPage}); err != nil {
		return err
	}
	rep.Restarted, err = s.rests(ctx)
	return err
}

// rests measures the server while it does nothing.
func (s *stocked) rests(ctx context.Context) (r resting, err error) {
	s.job.progress("the server comes to rest")
	if err := pause(ctx, idleSettle); err != nil {
		return r, err
	}
	before, ok := treeUsage(s.program.pid)
	if !ok {
		return r, errors.New("a server's memory cannot be measured on this system")
	}
	s.job.progress("the server rests")
	if err := pause(ctx, idleWindow); err != nil {
		return r, err
	}
	after, _ := treeUsage(s.program.pid)
	return resting{after.Memory, after.CPU - before.CPU}, nil
}
