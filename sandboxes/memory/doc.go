// Package memory is a sandbox driver whose files lie in this process's memory
// and whose commands are run by a shell interpreter inside it: nothing of the
// host is visible, no program of it can be started, and nothing is left when
// the process ends. It is not a security boundary: the interpreter shares the
// process.
//
// The shell knows the language and the utilities that `help` lists; an unknown
// program is 127. A command is bounded in time by its caller and in memory by
// MaxValues; the files of one sandbox by MaxBytes and MaxFiles, beyond which
// there is "no space left on device".
//
// Commands end with their context within a moment; background jobs belong to
// the mount and end with it. A Driver and its sandboxes are safe for concurrent
// use. After a restart of the process its sandboxes do not exist any more.
package memory
