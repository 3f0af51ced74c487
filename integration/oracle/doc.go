// Package oracle holds our dialects against the providers' own clients: what a
// server streams must mean the same to both, and the same conversation must
// become the same request. It has only tests, and a module of its own, so that
// nothing of those clients gets near the program.
//
// Nothing leaves the machine: every server listens on loopback.
package oracle
