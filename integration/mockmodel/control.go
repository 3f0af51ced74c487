package mockmodel

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"
)

// controlPrefix is where other processes drive the server.
const controlPrefix = "/_mock/"

// defaultWait is how long a wait of the control side lasts at most.
const defaultWait = 30 * time.Second

// wireRequest is a request as the control side shows it: the body as the text
// that it is.
type wireRequest struct {
	Request
	BodyText string `json:"body"`
}

func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	// A web page must not drive the server: browsers name their origin.
	if r.Header.Get("Origin") != "" {
		s.refuse(w, http.StatusForbidden, "not for web pages")
		return
	}
	q := r.URL.Query()
	switch r.Method + " " + r.URL.Path[len(controlPrefix):] {
	case "GET requests":
		s.showRequests(w, q.Get("n"))
	case "GET violations":
		v := s.Violations()
		if v == nil {
			v = []Violation{}
		}
		writeJSON(w, http.StatusOK, v)
	case "GET stats":
		writeJSON(w, http.StatusOK, s.Stats())
	case "POST script":
		s.takeScript(w, r, q.Get("name"))
	case "POST reset":
		s.Reset()
		s.done(w, object{})
	case "GET wait":
		s.serveWait(w, r)
	case "POST release":
		s.done(w, object{"released": s.Release(q.Get("name"))})
	default:
		s.refuse(w, http.StatusNotFound, "no such path or method: "+r.Method+" "+r.URL.Path)
	}
}

func (s *Server) done(w http.ResponseWriter, o object) {
	o["ok"] = true
	writeJSON(w, http.StatusOK, o)
}

func (s *Server) refuse(w http.ResponseWriter, status int, reason string) {
	writeJSON(w, status, object{"ok": false, "error": reason})
}

func (s *Server) showRequests(w http.ResponseWriter, n string) {
	out := []wireRequest{}
	for _, r := range s.Requests() {
		out = append(out, wireRequest{Request: r, BodyText: string(r.Body)})
	}
	if n == "" {
		writeJSON(w, http.StatusOK, out)
		return
	}
	i, err := strconv.Atoi(n)
	if err != nil || i < 1 || i > len(out) {
		s.refuse(w, http.StatusNotFound, "no request "+n)
		return
	}
	writeJSON(w, http.StatusOK, out[i-1])
}

func (s *Server) takeScript(w http.ResponseWriter, r *http.Request, name string) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	scripts, err := ParseScripts(data)
	switch {
	case err != nil:
	case name == "":
		err = s.SetScripts(scripts)
	default:
		one, ok := scripts[DefaultScript]
		if !ok || len(scripts) != 1 {
			s.refuse(w, http.StatusBadRequest, "with a name, send one list of answers")
			return
		}
		err = s.SetScript(name, one)
	}
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.done(w, object{})
}

func (s *Server) serveWait(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit := defaultWait
	if t := q.Get("timeout"); t != "" {
		secs, err := strconv.ParseFloat(t, 64)
		if err != nil || secs <= 0 {
			s.refuse(w, http.StatusBadRequest, "timeout: want a number of seconds")
			return
		}
		limit = time.Duration(secs * float64(time.Second))
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	var err error
	switch {
	case q.Get("name") != "":
		err = s.Reached(ctx, q.Get("name"))
	case q.Get("idle") != "":
		err = s.WaitIdle(ctx)
	case q.Get("requests") != "":
		var n int
		if n, err = strconv.Atoi(q.Get("requests")); err != nil {
			s.refuse(w, http.StatusBadRequest, "requests: want a number")
			return
		}
		err = s.WaitRequests(ctx, n)
	default:
		s.refuse(w, http.StatusBadRequest, "wait for what? name, requests or idle")
		return
	}
	if err != nil {
		s.refuse(w, http.StatusGatewayTimeout, err.Error())
		return
	}
	s.done(w, object{})
}
