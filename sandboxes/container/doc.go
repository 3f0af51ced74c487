// Package container is a sandbox driver for engines with Docker's API: Docker
// and Podman, over a unix socket or TCP with TLS.
//
// A sandbox is a container of ours: made from a configured image, without
// capabilities, new privileges or a network unless asked for, with the project
// mounted at Workspace and our own program bound read-only. That program is its
// process 1, which reaps and ends what loses its parent; and again the agent
// (package agent), started by an exec whose standard input is its life line:
// when the connection to the engine ends, in whatever way, everything that was
// started through it ends. A container of somebody else's may be registered:
// the agent is copied into it, and nothing there is stopped but what we started.
//
// Files of the workspace belong to the user: commands run as the user's own ids
// in a rootful engine, as root in a rootless one, where that is the user.
//
// What is made carries labels with the sandbox's and the server's id. A Driver
// is safe for concurrent use; it opens a connection to an engine on first use.
package container
