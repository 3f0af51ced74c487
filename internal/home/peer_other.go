//go:build !linux

package home

import "net"

// checkPeer relies on the permissions of the socket and its folder, which are
// this user's alone.
func checkPeer(net.Conn) error { return nil }
