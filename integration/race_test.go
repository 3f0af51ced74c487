//go:build race

package integration

// raceDetector says that this test, and so the program it builds, watches for
// data races.
const raceDetector = true
