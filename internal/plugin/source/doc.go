// Package source gets plugins that are not on this machine and keeps them: from
// npm, from git, and as archives.
//
// Sessions and listings only look into the store (Resolve, Installed): they
// never wait for a network or a lock. Fetch and Latest do, and end with their
// context. Nothing that is fetched is ever run, built or asked here: no install
// scripts, no hooks, no filters.
//
// A store has a folder per module, and in it one per generation, named by the
// time it was made. A generation is made beside the others, checked, marked as
// complete and then renamed; it never changes afterwards, and the newest one
// counts. So whoever uses an older one keeps it: the newest two are never
// removed, the others not before they are a week old. Any number of processes
// may share a store: one at a time fetches a module, the others wait.
package source
