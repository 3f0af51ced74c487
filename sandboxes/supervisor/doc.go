// Package supervisor runs commands so that none of their processes outlives
// its cause.
//
// # Shape
//
// On Linux the server starts one supervisor per sandbox: its own binary again,
// in a hidden mode (package modes). The supervisor starts runners, and a runner runs one
// command at a time:
//
//	server ── supervisor ──┬── runner ── command and all it starts
//	                       └── runner ── …
//
// Server, supervisor and runner are child subreapers: whatever a command does
// (setsid, double fork, daemon), its processes stay below the runner; when the
// runner is killed they fall to the supervisor, and when that is killed too, to
// the server. Each of the three sweeps what falls to it. The server talks to
// every runner over a socket pair of its own, so a command costs one message
// there and one back; the descriptors of its output travel with the message and
// the output never passes through our processes.
//
// # Promises
//
//   - Killing a command sends TERM to its whole tree, and KILL to what is left
//     a second later; Gone closes when nothing of it runs, within two seconds.
//   - End of file on a control socket, in whatever way it came about, means:
//     end everything below and exit. So nothing outlives a killed server.
//   - A runner that was killed loses its command, the supervisor that was
//     killed loses all of them: they report ErrLost after a sweep, and the next
//     command gets a new runner or supervisor.
//   - A runner whose tree is empty serves the next command; one with background
//     jobs stays with them until they have ended.
//   - Supervisor and runner hold nothing of the server's: no environment, no
//     descriptor but their end of the control socket, which commands do not get.
//
// # Limits
//
// A command of the same user that kills supervisor and server at one stroke
// escapes. A process that became another user (sudo) cannot be signalled, unless
// we are root: it counts as ended after the sweeps. On other systems than Linux there is no supervisor and everything
// here is best effort: process groups on macOS and the BSDs (a process that
// leaves its group escapes), a job object on Windows, compiled but not tested.
package supervisor
