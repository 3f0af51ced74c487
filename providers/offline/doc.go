// Package offline is the embedded model offline/guide, which needs no key and
// no network.
package offline
