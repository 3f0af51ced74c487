//go:build unix && !race

package tools

const raceEnabled = false
