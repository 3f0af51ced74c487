// Package ssh is the sandbox driver for folders on hosts that are reached by
// ssh. It confines nothing: commands may do what the user of the host may do.
//
// A sandbox is a folder, named ssh://user@host[:port]/absolute/folder. Create
// makes a fresh one below the configured base, and only such a one is ever
// removed. Keys come from a file or an ssh agent of this machine, which the
// inside never sees. The host's key is always checked; an unknown one is
// refused with its fingerprint.
//
// # How commands run
//
// Our own program, where it fits the host's system and machine, is brought there
// once per build, into a private folder, and its checksum is compared at every
// connection. It is started as an agent (package agent) whose input is the
// connection: when that ends in whatever way, everything that it started ends.
// One channel is all that this needs. Start files of the login shell may print
// what they like.
//
// Elsewhere files go over sftp, and each command has a channel with a small
// shell script that ends the command when its input ends: in a PID namespace of
// its own where `unshare` can make one, else by its process group, which
// processes may leave. A warning in the log says that this is so, and why.
//
// # Promises
//
// A host that does not answer for 45 seconds counts as lost. What is in flight
// when the connection is lost fails and is not run again; the next operation
// makes a new connection, with growing pauses and for half a minute at most. The
// locks of the lost connection are free then, so who still holds one gets
// errors until he gives it back. Disconnecting ends what we started there, and
// nothing else.
package ssh
