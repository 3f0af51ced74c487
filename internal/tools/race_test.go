//go:build unix && race

package tools

// raceEnabled makes the tests of much data smaller: the race detector is some
// fifty times slower on them.
const raceEnabled = true
