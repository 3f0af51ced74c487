//go:build linux

// Package daytonatest is a small Daytona for tests: its API for sandboxes, and
// for each sandbox the daemon's for commands and files.
//
// A sandbox is a temporary folder of this machine and the processes that were
// started in it; its paths are those of this machine. Nothing keeps commands
// from leaving it. It follows the service's published clients and what its
// daemon does: logs have marks before what comes from either stream and consist
// of whole lines, deleting a session ends the processes of its group, and a
// command that fails to be taken apart as JSON is refused with Daytona's own
// error. It differs in keeping NUL bytes, and in making a command wait when its
// log runs far ahead of who follows it.
//
// A Server is safe for concurrent use. Close ends everything.
package daytonatest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coder/websocket"
)

// Key is the only one that is let in.
const Key = "dtn_test-0123456789abcdef"

// Server is a Daytona.
type Server struct {
	http *httptest.Server
	base string // its address
	root string

	// Fault looks at every request first, when it is not nil: it answers itself
	// and returns true, or lets the request pass.
	fault atomic.Pointer[Fault]

	mu        sync.Mutex // guards the following
	sandboxes map[string]*sandbox
	requests  []string
	closed    chan struct{}
}

// Fault answers a request in place of the server, or returns false.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// sandbox is one of them. Its fields are guarded by the server's mutex.
type sandbox struct {
	Record
	dir      string
	sessions map[string]*session
}

// Record is what the API says of a sandbox.
type Record struct {
	ID           string            `json:"id"`
	Organization string            `json:"organizationId"`
	Name         string            `json:"name"`
	User         string            `json:"user"`
	Env          map[string]string `json:"env"`
	Labels       map[string]string `json:"labels"`
	Target       string            `json:"target"`
	CPU          int               `json:"cpu"`
	Memory       int               `json:"memory"`
	State        string            `json:"state"`
	Reason       string            `json:"errorReason,omitempty"`
	AutoStop     int               `json:"autoStopInterval"`
	AutoDelete   int               `json:"autoDeleteInterval"`
	Closed       bool              `json:"networkBlockAll"`
	Networks     string            `json:"networkAllowList,omitempty"`
	Hosts        string            `json:"domainAllowList,omitempty"`
	Build        *Build            `json:"buildInfo,omitempty"`
	Tools        string            `json:"toolboxProxyUrl"`
}

// Build is what a sandbox is built from.
type Build struct {
	Dockerfile string `json:"dockerfileContent"`
}

// New starts a server whose sandboxes lie in folders below root.
func New(root string) *Server {
	s := &Server{root: root, sandboxes: map[string]*sandbox{}, closed: make(chan struct{})}
	mux := http.NewServeMux()
	for pattern, handle := range map[string]http.HandlerFunc{
		"POST /api/sandbox":                                        s.create,
		"GET /api/sandbox":                                         s.list,
		"GET /api/sandbox/{id}":                                    s.withSandbox(s.show),
		"DELETE /api/sandbox/{id}":                                 s.withSandbox(s.remove),
		"POST /api/sandbox/{id}/start":                             s.withSandbox(s.start),
		"POST /api/sandbox/{id}/stop":                              s.withSandbox(s.stop),
		"GET /api/sandbox/{id}/toolbox-proxy-url":                  s.withSandbox(s.toolsURL),
		"GET /tools/{id}/work-dir":                                 s.inSandbox(s.workDir),
		"POST /tools/{id}/process/execute":                         s.inSandbox(s.execute),
		"POST /tools/{id}/process/session":                         s.inSandbox(s.newSession),
		"DELETE /tools/{id}/process/session/{sid}":                 s.inSession(s.deleteSession),
		"POST /tools/{id}/process/session/{sid}/exec":              s.inSession(s.sessionExec),
		"GET /tools/{id}/process/session/{sid}/command/{cid}":      s.inSession(s.command),
		"GET /tools/{id}/process/session/{sid}/command/{cid}/logs": s.inSession(s.logs),
		"GET /tools/{id}/files/download":                           s.inSandbox(s.download),
		"POST /tools/{id}/files/bulk-download":                     s.inSandbox(s.bulkDownload),
		"POST /tools/{id}/files/bulk-upload":                       s.inSandbox(s.bulkUpload),
		"GET /tools/{id}/files/info":                               s.inSandbox(s.fileInfo),
	} {
		mux.HandleFunc(pattern, handle)
	}
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		if f := s.fault.Load(); f != nil && (*f)(w, r) {
			return
		}
		if r.Header.Get("Authorization") != "Bearer "+Key {
			refuse(w, r, http.StatusUnauthorized, "Invalid credentials")
			return
		}
		mux.ServeHTTP(w, r)
	}))
	// Known before the first request, which may be somebody else's at our port.
	s.base = "http://" + s.http.Listener.Addr().String()
	s.http.Start()
	return s
}

// URL is that of the API.
func (s *Server) URL() string { return s.base + "/api" }

// SetFault sets what looks at requests first; nil takes it away.
func (s *Server) SetFault(f Fault) {
	if f == nil {
		s.fault.Store(nil)
		return
	}
	s.fault.Store(&f)
}

// Requests are the methods and paths of all requests so far, in their order.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Records are the sandboxes that there are.
func (s *Server) Records() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Record
	for _, b := range s.sandboxes {
		all = append(all, b.Record)
	}
	return all
}

// SetState says a sandbox's state, whatever it is. One that is not "started"
// has no running processes.
func (s *Server) SetState(id, state string) {
	s.mu.Lock()
	b := s.sandboxes[id]
	s.mu.Unlock()
	s.halt(b, state)
}

// Sessions is how many sessions there are.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, b := range s.sandboxes {
		n += len(b.sessions)
	}
	return n
}

// CutConnections breaks every connection off.
func (s *Server) CutConnections() { s.http.CloseClientConnections() }

// Close ends all processes and stops the server.
func (s *Server) Close() {
	close(s.closed)
	s.mu.Lock()
	all := make([]*sandbox, 0, len(s.sandboxes))
	for _, b := range s.sandboxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	for _, b := range all {
		s.halt(b, "destroyed")
	}
	s.http.CloseClientConnections()
	s.http.Close()
}

// newID is one that no other has.
func newID() string { return strings.ToLower(rand.Text()) }

// reply answers with JSON.
func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that went away
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, r *http.Request, status int, message string) {
	reply(w, status, failure(r, status, message))
}

func failure(r *http.Request, status int, message string) map[string]any {
	return map[string]any{"statusCode": status, "message": message, "path": r.URL.Path, "method": r.Method}
}

// take reads a request of JSON.
func take(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		refuse(w, r, http.StatusBadRequest, "invalid request body: "+err.Error())
		return false
	}
	return true
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	b := &sandbox{sessions: map[string]*session{}}
	if !take(w, r, &b.Record) {
		return
	}
	b.ID, b.Organization, b.State, b.Tools = newID(), "org", "started", s.base+"/tools"
	if b.Name == "" {
		b.Name = b.ID
	}
	if b.User == "" {
		b.User = "daytona"
	}
	if b.Build != nil { // is on its way for a look or two
		b.State = "pulling_snapshot"
	}
	b.dir = filepath.Join(s.root, b.ID)
	if err := os.MkdirAll(filepath.Join(b.dir, "tmp"), 0o755); err != nil {
		refuse(w, r, http.StatusInternalServerError, err.Error())
		return
	}
	s.mu.Lock()
	s.sandboxes[b.ID] = b
	record := b.Record
	s.mu.Unlock()
	reply(w, http.StatusOK, record)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	var labels map[string]string
	if q := r.URL.Query().Get("labels"); q != "" {
		if err := json.Unmarshal([]byte(q), &labels); err != nil {
			refuse(w, r, http.StatusBadRequest, "labels: "+err.Error())
			return
		}
	}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if limit <= 0 {
		limit = 100
	}
	items := []Record{}
	for _, b := range s.Records() {
		match := true
		for name, value := range labels {
			match = match && b.Labels[name] == value
		}
		if match {
			items = append(items, b)
		}
	}
	slices.SortFunc(items, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
	from := 0
	if c := r.URL.Query().Get("cursor"); c != "" {
		from = slices.IndexFunc(items, func(b Record) bool { return b.ID > c })
		if from < 0 {
			from = len(items)
		}
	}
	items = items[from:]
	var next *string
	if len(items) > limit {
		items = items[:limit]
		next = &items[limit-1].ID
	}
	reply(w, http.StatusOK, map[string]any{"items": items, "nextCursor": next})
}

// withSandbox finds the sandbox of a request, by id or name.
func (s *Server) withSandbox(do func(http.ResponseWriter, *http.Request, *sandbox)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		s.mu.Lock()
		b := s.sandboxes[id]
		for _, other := range s.sandboxes {
			if b == nil && other.Name == id {
				b = other
			}
		}
		s.mu.Unlock()
		if b == nil {
			refuse(w, r, http.StatusNotFound, "Sandbox with ID or name "+id+" not found")
			return
		}
		do(w, r, b)
	}
}

// inSandbox is withSandbox for what needs one that has started.
func (s *Server) inSandbox(do func(http.ResponseWriter, *http.Request, *sandbox)) http.HandlerFunc {
	return s.withSandbox(func(w http.ResponseWriter, r *http.Request, b *sandbox) {
		s.mu.Lock()
		state := b.State
		s.mu.Unlock()
		if state != "started" {
			refuse(w, r, http.StatusBadRequest, "bad request: failed to resolve container IP after 3 attempts: no IP address found. Is the Sandbox started?")
			return
		}
		do(w, r, b)
	})
}

func (s *Server) show(w http.ResponseWriter, _ *http.Request, b *sandbox) {
	s.mu.Lock()
	record := b.Record
	switch b.State { // each look sees it one step on
	case "pulling_snapshot":
		b.State = "creating"
	case "creating", "starting":
		b.State = "started"
	case "stopping":
		b.State = "stopped"
	}
	s.mu.Unlock()
	reply(w, http.StatusOK, record)
}

func (s *Server) start(w http.ResponseWriter, r *http.Request, b *sandbox) {
	s.mu.Lock()
	ok := b.State == "stopped" || b.State == "archived" || b.State == "paused"
	if ok {
		b.State = "starting"
	}
	record := b.Record
	s.mu.Unlock()
	if !ok {
		refuse(w, r, http.StatusBadRequest, "Sandbox is not in valid state")
		return
	}
	reply(w, http.StatusOK, record)
}

func (s *Server) stop(w http.ResponseWriter, r *http.Request, b *sandbox) {
	s.mu.Lock()
	ok := b.State == "started"
	s.mu.Unlock()
	if !ok {
		refuse(w, r, http.StatusBadRequest, "Sandbox is not started")
		return
	}
	s.halt(b, "stopping")
	s.mu.Lock()
	record := b.Record
	s.mu.Unlock()
	reply(w, http.StatusOK, record)
}

// halt ends all that runs in a sandbox, unless it is to be "started".
func (s *Server) halt(b *sandbox, state string) {
	s.mu.Lock()
	b.State = state
	sessions := b.sessions
	if state != "started" {
		b.sessions = map[string]*session{}
	}
	s.mu.Unlock()
	if state == "started" {
		return
	}
	for _, x := range sessions {
		x.end()
	}
	killMarked(sandboxVariable + "=" + b.ID)
	for _, x := range sessions {
		x.running.Wait()
	}
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, b *sandbox) {
	s.halt(b, "destroyed")
	s.mu.Lock()
	delete(s.sandboxes, b.ID)
	record := b.Record
	s.mu.Unlock()
	if err := os.RemoveAll(b.dir); err != nil {
		refuse(w, r, http.StatusInternalServerError, err.Error())
		return
	}
	reply(w, http.StatusOK, record)
}

func (s *Server) toolsURL(w http.ResponseWriter, _ *http.Request, b *sandbox) {
	reply(w, http.StatusOK, map[string]any{"url": b.Tools})
}

func (s *Server) workDir(w http.ResponseWriter, _ *http.Request, b *sandbox) {
	reply(w, http.StatusOK, map[string]any{"dir": b.dir})
}

// within makes a request's path absolute, as the daemon does.
func (b *sandbox) within(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(b.dir, p)
}

func refuseFile(w http.ResponseWriter, r *http.Request, err error) {
	refuse(w, r, fileStatus(err), err.Error())
}

func fileStatus(err error) int {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		return http.StatusForbidden
	}
	return http.StatusBadRequest
}

func (s *Server) download(w http.ResponseWriter, r *http.Request, b *sandbox) {
	f, err := os.Open(b.within(r.URL.Query().Get("path")))
	if err != nil {
		refuseFile(w, r, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = errors.New("path must be a file")
	}
	if err != nil {
		refuseFile(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	_, _ = io.CopyN(w, f, info.Size()) // a client that went away
}

func (s *Server) bulkDownload(w http.ResponseWriter, r *http.Request, b *sandbox) {
	var in struct{ Paths []string }
	if !take(w, r, &in) {
		return
	}
	form := multipart.NewWriter(w)
	w.Header().Set("Content-Type", form.FormDataContentType())
	for _, p := range in.Paths {
		name, kind := "file", "application/octet-stream"
		data, err := os.ReadFile(b.within(p))
		if err != nil {
			name, kind = "error", "application/json"
			if data, err = json.Marshal(failure(r, fileStatus(err), err.Error())); err != nil {
				return
			}
		}
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", mime.FormatMediaType("form-data", map[string]string{"name": name, "filename": p}))
		h.Set("Content-Type", kind)
		part, err := form.CreatePart(h)
		if err == nil {
			_, err = part.Write(data)
		}
		if err != nil {
			return
		}
	}
	_ = form.Close() // a client that went away
}

func (s *Server) bulkUpload(w http.ResponseWriter, r *http.Request, b *sandbox) {
	form, err := r.MultipartReader()
	if err != nil {
		refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	paths := map[string]string{}
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			refuse(w, r, http.StatusBadRequest, err.Error())
			return
		}
		index, what, _ := strings.Cut(part.FormName(), ".")
		if what == "path" {
			name, err := io.ReadAll(part)
			if err != nil {
				refuse(w, r, http.StatusBadRequest, err.Error())
				return
			}
			paths[index] = b.within(string(name))
			continue
		}
		p, ok := paths[index]
		if !ok {
			refuse(w, r, http.StatusBadRequest, fmt.Sprintf("no path for %s", index))
			return
		}
		err = os.MkdirAll(filepath.Dir(p), 0o755)
		var f *os.File
		if err == nil {
			f, err = os.Create(p)
		}
		if err == nil {
			_, err = io.Copy(f, part)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			refuseFile(w, r, err)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) fileInfo(w http.ResponseWriter, r *http.Request, b *sandbox) {
	info, err := os.Stat(b.within(r.URL.Query().Get("path")))
	if err != nil {
		refuseFile(w, r, err)
		return
	}
	reply(w, http.StatusOK, map[string]any{"name": info.Name(), "size": info.Size(), "isDir": info.IsDir(), "mode": info.Mode().String(),
		"permissions": fmt.Sprintf("%04o", info.Mode().Perm()), "modTime": info.ModTime().String(), "modifiedAt": info.ModTime(), "owner": "daytona", "group": "daytona"})
}

// upgrade makes a websocket of a request.
func upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	return websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
}
