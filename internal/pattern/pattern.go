// Package pattern holds regular expressions that are compiled when they are first
// used. Nearly every process of the product uses a few of them or none, and
// compiling all took 0.6 ms of each start.
package pattern

import (
	"regexp"
	"sync"
)

// Lazy returns a function that compiles the expression in its first call and
// returns the same each time. It panics there if the expression is wrong: whoever
// declares one has a test that uses it. Safe for concurrent use.
func Lazy(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
