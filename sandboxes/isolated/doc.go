// Package isolated is the sandbox driver that walls commands in with what the
// Linux kernel offers to every user: namespaces, Landlock and a filter of
// system calls. It needs no daemon and no root.
//
// # Shape
//
// Our own binary is started in a hidden mode (Main) in new namespaces. It
// builds the sandbox around itself (mounts), gives up everything that could
// undo that (capabilities, then Landlock, then the filter) and last becomes the
// agent (package agent), process 1 of the sandbox. Commands and file operations
// both go through the agent, so they meet the same walls; no decision about
// what is allowed is taken outside the kernel.
//
// # Promises
//
// At the level Full:
//
//   - Everything is read-only but the project, what settings add, caches of
//     build tools and temporary folders of the sandbox's own. Devices are the
//     harmless ones. What the settings and the driver hide cannot be read.
//   - The project's .git takes commits but cannot be moved away; its hooks,
//     config, config.worktree and commondir are read-only, as is .codework.
//     What is absent of these is made, empty, so that it can be. A worktree's
//     .git file is read-only and its repository under the same rules. The same
//     goes for submodules below .git/modules.
//   - There is no network but a loopback of the sandbox's own, unless settings
//     give the host's. Sockets of the host in its file system are covered: /run
//     as a whole, others as they are when the sandbox is attached.
//   - Processes of the host cannot be seen, signalled or read.
//   - Nothing outlives the sandbox: with process 1 the kernel ends all others,
//     and process 1 ends with the connection to this process.
//
// At the level Landlock there are no namespaces: paths are held by Landlock
// alone, sockets of the internet by the filter, the host's processes are seen
// but, by kernels whose Landlock knows signals (6.12), not reached. Landlock
// cannot take a part out of what it has allowed, so in the project's own folder
// nothing can be made, removed or renamed (below its folders it can), and .git
// is read-only. Temporary files go to a folder that TMPDIR names.
//
// At the level None nothing is confined, and commands only end with the sandbox.
//
// The driver fails closed. It uses the best level that works, found out by
// building a sandbox, and is not available when that is less than demanded; a
// sandbox that cannot be built as configured is an error.
//
// # Limits
//
// What is in the project is the command's to change, and what runs it outside
// trusts it: build files, an editor's tasks, a repository that a command makes,
// scripts that core.hooksPath names in the project, a rebase left half done.
//
// A socket that a program of the host makes outside /run and /tmp after the
// sandbox was attached can be reached, unless the kernel's Landlock knows
// sockets in the file system, and so can one that was bound by a relative name in
// a folder in which no process works any more; with the host's network and a
// kernel older than 6.12 abstract ones can.
//
// When a program of the host replaces a file that is protected or hidden (git
// does, for its config and for stored passwords) the mount goes with the old one,
// and what is to be hidden may be made only then. The sandbox ends at that,
// moments later, and the next use begins another.
//
// A limit on memory without a control group is one of each process. The limit
// on processes counts threads, the sandbox's own included, which has its own
// before a command begins; when a command exhausts it, no other one can begin.
package isolated
