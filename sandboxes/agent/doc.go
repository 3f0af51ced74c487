// Package agent serves a sandbox over one byte stream: files, commands and
// locks of the inside, as if they were here.
//
// # Shape
//
// Inside runs our own binary in a hidden mode (Main): the local driver, with
// its supervisor and runners, behind the protocol of this package. Outside,
// Dial makes a sandboxes.Sandbox of the other end of the stream. How the
// process is started and what it may see is the business of the driver that
// starts it; the environment that it is started with is what commands inside
// are based on. A caller's environment never crosses.
//
// # Promises
//
//   - Calls run side by side. Data of each has a window of its own: a slow
//     consumer slows its own command down and nothing else, and memory on both
//     sides is bounded per call by that window.
//   - Output and content arrive in order, and before the end of their call.
//   - A call whose context ends is cancelled inside and returns when it has
//     ended there, or after two seconds.
//   - End of the stream, in whatever way it came about, ends everything inside
//     within two seconds, and then the process. Nothing is run again: calls in
//     flight fail with ErrLost, commands with a *ShellError that wraps it.
//   - Errors keep their identity: what errors.Is and errors.As tell inside for
//     the errors of package sandboxes, package fs and the system, they tell
//     outside.
//   - Both sides must have the same version of the protocol; another one is an
//     error of Dial that says so.
//
// The outside does not trust the inside: frames, messages and what is on its
// way are bounded, and whatever breaks the protocol ends the connection.
//
// # Protocol
//
// Frames of a kind, the number of a call and a body. A call begins with a
// request, in JSON and in parts of bounded size, and ends with an answer of the
// same make; content of files, lists and output go in between, as far as the
// receiver has given credit.
package agent
