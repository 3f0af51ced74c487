package client

import (
	"errors"
	"fmt"
	"net/url"

	"codework/protocol/contract"
)

// Endpoint completes what a person writes for a server: ws, wss, http and
// https are understood, and the contract's path is added where there is none.
func Endpoint(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", errors.New("not an address; expected something like ws://127.0.0.1:7433")
	}
	switch u.Scheme {
	case "ws", "wss":
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	default:
		return "", fmt.Errorf("%q is not an address of a server; expected something like ws://127.0.0.1:7433", server)
	}
	if u.Host == "" {
		return "", fmt.Errorf("%q names no host", server)
	}
	if u.User != nil || u.RawQuery != "" {
		return "", errors.New("an address with a user name or a query is refused; a token goes into CODEWORK_SERVER_TOKEN")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = contract.Path
	}
	return u.String(), nil
}
