package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codework/integration/mockmodel"
)

// The model's provider wants this key; it also stands in for a secret.
const (
	keyVariable = "MOCK_API_KEY"
	key         = "mock-secret-key-5b1f6f0ac2d94c"
)

// world is all that one test has to itself.
type world struct {
	dir      string // everything of the test lies below
	home     string
	program  string // codework, under a name of this test's own
	protocol string
	model    *mockmodel.Server
	scripts  []string // names of the model's scripts
	settings map[string]any
	procs    map[string]*process
}

func newWorld(dir, protocol string) (*world, error) {
	w := &world{dir: dir, home: filepath.Join(dir, "h"), protocol: protocol, procs: map[string]*process{}}
	var err error
	w.program, err = w.link(built.program)
	return w, err
}

// link gives a program a name below the test's folder, by which all that is
// started from it can be found, whatever it calls itself.
func (w *world) link(program string) (string, error) {
	name := filepath.Join(w.dir, ".bin", filepath.Base(filepath.Dir(program)), filepath.Base(program))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return "", err
	}
	return name, os.Link(program, name)
}

// idleExit is how long home processes stay, by protocol: on some wires each run
// has one of its own, which opens what the one before left, on the others it
// meets one that is there.
var idleExit = map[string]string{"anthropic": "0", "openai-compatible": "400ms", "openrouter": "0", "google": "0", "openai": "400ms", "openai-codex": "0"}

// modelNames are the two models of a protocol. Google's wire depends on their
// names.
func modelNames(protocol string) (one, other string) {
	if protocol == "google" {
		return "gemini-3-mock", "gemini-3-other"
	}
	return "mock-model", "mock-other"
}

// environment is what the programs of the test see, beside a caller's own.
func (w *world) environment() []string {
	one, other := modelNames(w.protocol)
	return []string{
		"PATH=" + filepath.Dir(w.program) + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + w.dir,
		"CODEWORK_HOME_DIR=" + w.home,
		"CODEWORK_IDLE_EXIT=" + idleExit[w.protocol],
		"CODEWORK_MODELS_TTL=off", // the network is asked for nothing by itself
		"CODEWORK_MODELS_URL=http://127.0.0.1:9",
		keyVariable + "=" + key,
		"PROTOCOL=" + w.protocol,
		"MODEL=" + one,
		"OTHER=" + other,
		"GORACE=halt_on_error=0 atexit_sleep_ms=0",
		"LANG=C.UTF-8",
	}
}

// serve starts the model server with the script, or gives a running one a new
// script once the old one is used up.
func (w *world) serve(script []byte) error {
	scripts, err := mockmodel.ParseScripts(script)
	if err != nil {
		return err
	}
	return w.start(scripts)
}

func (w *world) start(scripts map[string]mockmodel.Script) error {
	if w.model != nil {
		if err := w.usedUp(); err != nil {
			return err
		}
	} else {
		w.model = mockmodel.New(mockmodel.Options{RequireKey: key, Models: []string{"mock-model", "mock-other"}})
		if err := w.model.Start(); err != nil {
			return err
		}
		w.settings = defaultSettings(w.protocol, w.model.URL())
		if err := w.writeSettings(); err != nil {
			return err
		}
	}
	if err := w.model.SetScripts(scripts); err != nil {
		return err
	}
	w.scripts = nil
	for name := range scripts {
		w.scripts = append(w.scripts, name)
	}
	return nil
}

func (w *world) usedUp() error {
	for _, name := range w.scripts {
		if strings.HasPrefix(name, "maybe") {
			continue // how far it comes is a matter of chance
		}
		if n := w.model.Remaining(name); n > 0 {
			return fmt.Errorf("the model was not asked for the last %d answers of script %s", n, name)
		}
	}
	return nil
}

// defaultSettings name two models of the server, with waits between retries
// that do not hold up a test.
func defaultSettings(protocol, url string) map[string]any {
	model := func(id string) map[string]any {
		return map[string]any{
			"id": id, "name": id, "protocol": protocol, "baseUrl": url + "/v1",
			"provider":  map[string]any{"id": "mock", "name": "Mock", "source": "config", "env": []any{keyVariable}},
			"reasoning": true, "input": []any{"text", "image"},
			"cost":          map[string]any{"input": 3, "output": 15, "cacheRead": 0.3, "cacheWrite": 3.75},
			"contextWindow": 200000, "maxTokens": 8192,
		}
	}
	one, other := modelNames(protocol)
	first := map[string]any{"provider": "mock", "id": one}
	if protocol == "openai-codex" {
		// The key is no token of a login, which would name the account.
		first["options"] = map[string]any{"headers": map[string]any{"chatgpt-account-id": "account"}}
	}
	return map[string]any{
		"model":  first,
		"retry":  map[string]any{"baseDelayMs": 10},
		"models": []any{model(one), model(other)},
	}
}

// change merges JSON over the settings: objects key by key, null removes.
func (w *world) change(text []byte) error {
	var over map[string]any
	if err := json.Unmarshal(text, &over); err != nil {
		return fmt.Errorf("settings of the test: %w", err)
	}
	merge(w.settings, over)
	return w.writeSettings()
}

func merge(under, over map[string]any) {
	for k, v := range over {
		below, isObject := under[k].(map[string]any)
		above, wants := v.(map[string]any)
		switch {
		case v == nil:
			delete(under, k)
		case isObject && wants:
			merge(below, above)
		default:
			under[k] = v
		}
	}
}

func (w *world) writeSettings() error {
	b, err := json.MarshalIndent(w.settings, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(w.home, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.home, "settings.jsonc"), b, 0o600)
}

// log is what the home processes of the test printed.
func (w *world) log() string {
	b, _ := os.ReadFile(filepath.Join(w.home, "log", "home.log")) // none: nothing printed
	return string(b)
}

// homeProcesses are those that own, or are about to own, the test's home.
func (w *world) homeProcesses() []running {
	var out []running
	for _, p := range processesOf(w.dir) {
		if strings.Contains(p.command, " home-process ") {
			out = append(out, p)
		}
	}
	return out
}

// locked tells whether somebody still holds the home. A process that is ending
// keeps its locks a little longer than its name.
func (w *world) locked() string {
	f, err := os.Open(filepath.Join(w.home, "data", "home.lock"))
	if err != nil {
		return ""
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "the home is locked"
	}
	return ""
}

// killHome ends the home process as a crash would.
func (w *world) killHome() error {
	all := w.homeProcesses()
	if len(all) == 0 {
		return errors.New("there is no home process to kill")
	}
	for _, p := range all {
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// A person waits this long for things to be over, at most; the machine that
// tests is slow and busy.
const (
	endLimit   = 30 * time.Second
	leftLimit  = 15 * time.Second
	faultLimit = 2000 // characters of a log that are shown
)

// end checks what must hold after every test and clears up whatever the
// outcome. failed tells that the test has a fault already.
func (w *world) end(failed bool) error {
	var faults []error
	for name, p := range w.procs {
		faults = append(faults, fmt.Errorf("%s was started and never waited for; it printed:\n%s%s", name, p.out.String(), p.err.String()))
		_ = p.cmd.Process.Kill()
		_, _ = p.finish(endLimit)
	}
	if failed {
		// What it did not come to is no fault of its own.
		for _, p := range processesOf(w.dir) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	if err := w.nothingRuns(leftLimit); err != nil {
		faults = append(faults, err)
		for _, p := range processesOf(w.dir) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	if w.model != nil {
		faults = append(faults, w.model.Close(), w.usedUp())
		for _, v := range w.model.TakeViolations() {
			faults = append(faults, fmt.Errorf("the model refused: %s", v))
		}
	}
	if found := badLog.FindStringIndex(w.log()); found != nil {
		text := w.log()[found[0]:]
		faults = append(faults, fmt.Errorf("the log of the home process says:\n%s", text[:min(len(text), faultLimit)]))
	}
	return errors.Join(faults...)
}

// badLog is what no home process may ever have to say.
var badLog = regexp.MustCompile(`DATA RACE|panic|fatal error:|goroutine \d+ \[`)

// nothingRuns waits until no process of the test is left.
func (w *world) nothingRuns(limit time.Duration) error {
	return until(limit, func() string {
		var left []string
		for _, p := range processesOf(w.dir) {
			left = append(left, p.String())
		}
		if len(left) == 0 {
			return ""
		}
		return "these processes are still there:\n" + strings.Join(left, "\n")
	})
}
