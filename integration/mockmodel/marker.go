package mockmodel

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// unscripted is the marker for requests that name nothing to a server that has
// no scripts.
const unscripted = "text:1"

// markerTool is the tool that markers call.
const markerTool = "bash"

// marker is what the newest marked user text asks for, and how many tool results
// came after it.
type marker struct {
	script  string
	mock    string
	results int
}

var markerPattern = regexp.MustCompile(`\b(mock|script)=([A-Za-z0-9_.:,+/=-]+(?:#[A-Za-z0-9_.-]+)?)`)

// findMarker takes the last marker of the newest user text that has one.
func findMarker(v *View) marker {
	var mark marker
	for _, m := range v.Messages {
		for _, p := range m.Parts {
			switch {
			case p.Kind == PartResult:
				mark.results++
			case p.Kind == PartText && m.Role == "user":
				found := markerPattern.FindAllStringSubmatch(p.Text, -1)
				if found == nil {
					continue
				}
				// A sentence may end right after the marker.
				f := found[len(found)-1]
				value := strings.TrimRight(f[2], ".,:")
				if f[1] == "script" {
					mark = marker{script: value}
				} else {
					mark = marker{mock: value}
				}
			}
		}
	}
	return mark
}

// fromMarker makes the answer that a marker asks for. The caller holds mu.
func (s *Server) fromMarker(mark marker) (Answer, error) {
	var (
		texts       = 1
		delay       time.Duration
		turns       int
		command     string
		answer      Answer
		cut         bool
		items, _, _ = strings.Cut(mark.mock, "#")
	)
	for _, item := range strings.Split(items, ",") {
		f := strings.SplitN(item, ":", 3)
		n, more, err := markerNumbers(f)
		if err != nil && f[0] != "sh" {
			return nil, fmt.Errorf("marker mock=%s: %s: %w", mark.mock, item, err)
		}
		switch f[0] {
		case "text":
			texts, delay = n, more
		case "tools":
			turns, delay = n, more
		case "sleep":
			if len(f) < 2 {
				n = 60
			}
			turns, command = 1, fmt.Sprintf("sleep %d", n)
		case "sh":
			if len(f) != 2 {
				return nil, fmt.Errorf("marker mock=%s: sh needs a command in base64", mark.mock)
			}
			b, err := base64.StdEncoding.DecodeString(f[1])
			if err != nil {
				return nil, fmt.Errorf("marker mock=%s: %w", mark.mock, err)
			}
			turns, command = 1, string(b)
		case "ttfb":
			answer = append(answer, Stall{For: time.Duration(n) * time.Millisecond})
		case "429", "500":
			status := http.StatusInternalServerError
			h := HTTP{Status: status, Message: "as the marker says"}
			if f[0] == "429" {
				h.Status, h.Header = http.StatusTooManyRequests, map[string]string{"Retry-After": "0"}
			}
			if s.takeFault(mark.mock, f[0], n) {
				return Answer{h}, nil
			}
		case "drop":
			cut = s.takeFault(mark.mock, f[0], n)
		default:
			return nil, fmt.Errorf("marker mock=%s: unknown item %q", mark.mock, item)
		}
	}
	if mark.results < turns {
		if command == "" {
			command = fmt.Sprintf("echo step-%d", mark.results+1)
		}
		args, err := json.Marshal(map[string]string{"command": command})
		if err != nil {
			return nil, err
		}
		answer = append(answer, Call{Name: markerTool, Args: string(args)})
		if cut {
			answer = append(answer, Cut{})
		}
		return answer, nil
	}
	return append(answer, stamped{n: texts, delay: delay, cut: cut}), nil
}

// markerNumbers reads ITEM[:N[:DELAYMS]]; N is 1 when it is not there.
func markerNumbers(f []string) (n int, delay time.Duration, err error) {
	n = 1
	if len(f) > 1 {
		if n, err = strconv.Atoi(f[1]); err != nil || n < 0 {
			return 0, 0, fmt.Errorf("%q is not a number", f[1])
		}
	}
	if len(f) > 2 {
		ms, err := strconv.Atoi(f[2])
		if err != nil || ms < 0 {
			return 0, 0, fmt.Errorf("%q is not a number", f[2])
		}
		delay = time.Duration(ms) * time.Millisecond
	}
	return n, delay, nil
}

// takeFault tells whether a fault of a marker is still due, and counts it. The
// caller holds mu.
func (s *Server) takeFault(mark, kind string, limit int) bool {
	key := kind + " " + mark
	if s.faults[key] >= limit {
		return false
	}
	s.faults[key]++
	return true
}
