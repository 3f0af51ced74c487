package main

import (
	"regexp"
	"sync"
)

// counts are failures and notes by what they say.
type counts struct {
	mu       sync.Mutex // guards what follows
	failures map[string]int
	notes    map[string]int
}

func newCounts() *counts { return &counts{failures: map[string]int{}, notes: map[string]int{}} }

// differs matches what is another one in each failure of the same kind.
var differs = regexp.MustCompile(`\b(ses|msg)_?[0-9A-Za-z-]{6,}|127\.0\.0\.1:\d+|0x[0-9a-f]+`)

// fail counts a failure.
func (c *counts) fail(what string) {
	what = differs.ReplaceAllString(what, "…")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures[what]++
}

// note counts something worth telling that is no failure.
func (c *counts) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notes[what]++
}

// add puts others to them.
func (c *counts) add(failures, notes map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addCounts(c.failures, failures)
	addCounts(c.notes, notes)
}

func addCounts(to, from map[string]int) {
	for what, n := range from {
		to[what] += n
	}
}
