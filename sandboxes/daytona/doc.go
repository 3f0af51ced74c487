// Package daytona is the sandbox driver for Daytona, a service that rents out
// small machines, reached over HTTPS with a key.
//
// A sandbox is one of Daytona's, with labels that name ours and the server, and
// named by Daytona's id. It stops by itself when it was idle for an hour, and is
// never removed by the service while it is ours. One that somebody else made may
// be registered by its id or name: nothing there is stopped but what we started.
//
// # How commands run
//
// Each command has a session of Daytona's with a small script, whose log is
// followed over a websocket. The script says in the log how the command ended,
// so that a background job does not hold up the result. A stream that breaks
// before that is an error, never an exit code.
//
// Daytona can end a session, but not what left it. So every process of a command
// inherits CODEWORK_CALL, and all that carry it are killed until none is left. A
// process that drops it from its environment (`env -i`), runs as another user, or
// forks and exits faster than it is looked at, escapes until the sandbox is
// stopped: the driver does not promise that nothing outlives a cancel.
//
// Daytona's log is one of lines: a part of a line arrives when the line is
// finished, NUL bytes are left out, and three bytes 1 or three bytes 2 in a row,
// which tell the streams apart in it, are taken for that.
//
// # Files
//
// Small files, and all that is not content, are a shell script each, for the
// tools of GNU or busybox; what is larger is up- and downloaded.
//
// # Promises
//
// A call that changes nothing, or the same when it comes twice, is repeated
// after a 429, a 5xx or a lost connection. Creating is not: when its answer is
// lost, the sandbox is looked for by its labels. Only an answer 404 means that a
// sandbox is gone. Answers are bounded in size and time. The key is sent to the
// configured address and the one for tools that Daytona names for a sandbox, not
// where they redirect to, and is in no error.
package daytona
