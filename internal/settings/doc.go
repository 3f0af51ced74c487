// Package settings reads what a person and a project have written down about
// models, plugins, retries and sandboxes, and remembers which projects are
// trusted.
//
// Load reads from disk on every call: nothing is cached or watched, so that a
// change counts from the next exchange on. It is cheap enough for that, holds
// no file open afterwards, and is safe for concurrent use, as is everything it
// returns: a Settings never changes.
//
// A file that is missing is normal. A file that is there but cannot be read,
// parsed or validated is an *Error, never skipped. No error, warning or
// listing of this package repeats a value of a file, since it may be a secret;
// they name keys and say what is accepted.
//
// The settings of a project that is not trusted cannot start programs,
// redirect requests, name credentials or choose the sandbox: what could is
// taken out before it is looked at, and named in one warning.
package settings
