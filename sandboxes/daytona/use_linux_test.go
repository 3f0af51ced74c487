package daytona

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"codework/messages"
	"codework/sandboxes"
	"codework/sandboxes/daytona/daytonatest"
)

func TestASandboxFromCreateToDestroy(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	spec := specOn(s, `{"image":"debian:13","region":"eu","limits":{"memoryMiB":4096,"cpus":2},"network":["10.0.0.0/8","192.0.2.1","example.org"]}`)
	r := create(t, d, spec)
	got := s.Records()[0]
	want := daytonatest.Record{CPU: 2, Memory: 4, AutoStop: 60, AutoDelete: -1, Networks: "10.0.0.0/8,192.0.2.1/32", Hosts: "example.org", Target: "eu"}
	if got.CPU != want.CPU || got.Memory != want.Memory || got.AutoStop != want.AutoStop || got.AutoDelete != want.AutoDelete ||
		got.Networks != want.Networks || got.Hosts != want.Hosts || got.Target != want.Target || got.Closed || got.Build.Dockerfile != "FROM debian:13\n" {
		t.Errorf("%+v", got)
	}
	if got.Labels["codework-managed"] != "true" || got.Labels["codework-instance"] != spec.ID || got.Labels["codework-server"] != "server" {
		t.Error(got.Labels)
	}
	if r.ID != got.ID || r.Status != messages.SandboxOnline || !strings.HasPrefix(r.Dir, "/") {
		t.Errorf("%+v", r)
	}
	sb := attach(t, d, spec, r)
	m := mountIn(t, sb)
	if err := m.Write(ctxb, "f", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // stopping one that is stopped is fine
		if err := d.Stop(ctxb, spec, r); err != nil {
			t.Error(err)
		}
	}
	if st, err := d.Inspect(ctxb, spec, r); err != nil || st != messages.SandboxOffline {
		t.Error(st, err)
	}
	if _, err := d.Attach(ctxb, spec, r); err == nil {
		t.Error("attached to a stopped one")
	}
	// Who still holds it is told.
	if _, err := m.Read(ctxb, "f", 0, -1); !errors.Is(err, errLost) {
		t.Error(err)
	}
	select {
	case <-sb.Lost():
	default:
		t.Error("not lost")
	}
	for range 2 {
		if err := d.Wake(ctxb, spec, r); err != nil {
			t.Error(err)
		}
	}
	if b, err := mountIn(t, attach(t, d, spec, r)).Read(ctxb, "f", 0, -1); err != nil || string(b) != "kept" {
		t.Errorf("%q %v", b, err)
	}
	for range 2 {
		if err := d.Destroy(ctxb, spec, r); err != nil {
			t.Error(err)
		}
	}
	if all := s.Records(); len(all) > 0 {
		t.Error(all)
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	for config, says := range map[string]string{
		`{"imag":"x"}`:                              "imag",
		`{"image":7}`:                               "image",
		`{"image":"a b"}`:                           "image",
		`{"image":"a\nRUN x"}`:                      "image",
		`{"region":"\u0000"}`:                       "region",
		`{"apiKey":"dtn_literal"}`:                  "${DAYTONA_API_KEY}",
		`{"apiKey":"${OTHER}"}`:                     "OTHER is not set",
		`{"baseURL":"http://example.org"}`:          "use https",
		`{"baseURL":"ftp://example.org"}`:           "https",
		`{"baseURL":"nonsense"}`:                    "baseURL",
		`{"baseURL":"https://u:p@x.org"}`:           "baseURL",
		`{"limits":{"memoryMiB":-1}}`:               "negative",
		`{"limits":{"processes":5}}`:                "limits.processes",
		`{"limits":{"openFiles":5}}`:                "limits.openFiles",
		`{"limits":{"cpus":1}}`:                     "image",
		`{"image":"x","limits":{"cpus":1.5}}`:       "whole",
		`{"image":"x","limits":{"memoryMiB":1000}}`: "GiB",
		`{"network":"open"}`:                        "network",
		`{"network":["http://x"]}`:                  "network",
		`{"network":["a,b"]}`:                       "network",
	} {
		spec := specOn(s, config)
		_, err := d.Create(ctxb, spec)
		var ce *sandboxes.ConfigError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "u:p@") {
			t.Errorf("%s: %v", config, err)
		}
		if err := d.Available(ctxb, spec); !errors.As(err, &ce) {
			t.Errorf("%s: available: %v", config, err)
		}
	}
	if n := len(s.Requests()); n > 0 {
		t.Errorf("%d requests", n)
	}
	none := sandboxes.Spec{Lookup: func(string) (string, bool) { return "", false }}
	if _, err := d.Create(ctxb, none); err == nil || !strings.Contains(err.Error(), "DAYTONA_API_KEY") {
		t.Error(err)
	}
}

func TestAvailableMeansThatTheServiceAnswersToTheKey(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	spec := specOn(s)
	if err := d.Available(ctxb, spec); err != nil {
		t.Error(err)
	}
	spec.Lookup = func(string) (string, bool) { return "wrong", true }
	if err := d.Available(ctxb, spec); err == nil || !strings.Contains(err.Error(), "401") {
		t.Error(err)
	}
	// The address may come from the environment as for other clients.
	spec = sandboxes.Spec{Lookup: func(name string) (string, bool) {
		if name == "DAYTONA_API_URL" {
			return s.URL(), true
		}
		return lookupKey(name)
	}}
	if err := d.Available(ctxb, spec); err != nil {
		t.Error(err)
	}
}

func TestSomebodyElsesSandboxIsRegisteredByIDOrName(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	spec := specOn(s)
	_, c, err := d.reach(spec)
	if err != nil {
		t.Fatal(err)
	}
	var other machine
	if err := c.call(ctxb, once, "POST", s.URL()+"/sandbox", map[string]any{"name": "mine"}, &other); err != nil {
		t.Fatal(err)
	}
	ours := create(t, d, spec)
	for _, id := range []string{"mine", other.ID} {
		r, err := d.Resolve(ctxb, spec, id)
		if err != nil || r.ID != other.ID || r.Status != messages.SandboxOnline || !strings.HasSuffix(r.Dir, other.ID) {
			t.Errorf("%+v %v", r, err)
		}
	}
	s.SetState(other.ID, "stopped")
	if r, err := d.Resolve(ctxb, spec, "mine"); err != nil || r.Status != messages.SandboxOffline || r.Dir != "/" {
		t.Errorf("%+v %v", r, err)
	}
	for _, id := range []string{"", "a b", "a/b", "..", "a\n", "a?b", "missing", strings.Repeat("x", 3000), ours.ID} {
		var ce *sandboxes.ConfigError
		if _, err := d.Resolve(ctxb, spec, id); !errors.As(err, &ce) {
			t.Errorf("%.20q: %v", id, err)
		}
	}
}

func TestSweepStopsWhatTheServerLeftAndNothingElse(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	mine, theirs := specOn(s), specOn(s)
	theirs.Server = "another"
	a, b, c := create(t, d, mine), create(t, d, theirs), create(t, d, specOn(s))
	if err := d.Destroy(ctxb, mine, c); err != nil {
		t.Fatal(err)
	}
	// Also when the service takes no notice of the query.
	s.SetFault(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/api/sandbox" {
			r.URL.RawQuery = "limit=1&cursor=" + r.URL.Query().Get("cursor")
		}
		return false
	})
	if err := d.Sweep(ctxb, sandboxes.Spec{Server: "server", Config: mine.Config, Lookup: lookupKey}); err != nil {
		t.Error(err)
	}
	s.SetFault(nil)
	for id, want := range map[string]messages.SandboxStatus{a.ID: messages.SandboxOffline, b.ID: messages.SandboxOnline} {
		if got, err := d.Inspect(ctxb, mine, sandboxes.Resource{ID: id}); err != nil || got != want {
			t.Error(id, got, err)
		}
	}
}

// A victim is a way out of a command's process group, session or parentage that
// keeps its environment.
var victims = map[string]string{
	"background": `( beat ) &`,
	"nohup":      `nohup sh -c "$BEAT" >/dev/null 2>&1 &`,
	"setsid":     `setsid sh -c "$BEAT" &`,
	"daemon":     `( setsid sh -c "( $BEAT ) </dev/null >/dev/null 2>&1 & exit 0" & )`,
	"deaf":       `setsid sh -c "trap '' TERM HUP INT; $BEAT" &`,
}

const beat = `while :; do echo >> "$F"; sleep 0.05; done`

// eachVictim runs all of them, ends each, and wants it dead.
func eachVictim(t *testing.T, m *mount, end func(c sandboxes.Command, alive func()) error) {
	for name, script := range victims {
		t.Run(name, func(t *testing.T) {
			file := fmt.Sprintf("%s/%s", m.dir, name)
			size := func() int64 {
				info, err := os.Stat(file)
				if err != nil {
					return 0
				}
				return info.Size()
			}
			alive := func() {
				for deadline := time.Now().Add(20 * time.Second); size() < 4; time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("the victim never lived")
					}
				}
			}
			c := sandboxes.Command{Script: "beat() { " + beat + "; }\n" + script + "\n", Env: map[string]string{"F": file, "BEAT": beat}}
			if err := end(c, alive); err != nil {
				t.Error(err)
			}
			first := size()
			time.Sleep(300 * time.Millisecond) // this wait is the measurement
			if now := size(); first == 0 || now != first {
				t.Errorf("the victim lives: %d bytes became %d", first, now)
			}
		})
	}
}

func TestWhatCarriesTheMarkDiesWithACancel(t *testing.T) {
	_, m := newMount(t)
	eachVictim(t, m, func(c sandboxes.Command, alive func()) error {
		ctx, cancel := context.WithCancel(ctxb)
		defer cancel()
		c.Script += "sleep 60"
		done := make(chan error, 1)
		go func() {
			_, err := m.Run(ctx, c)
			done <- err
		}()
		alive()
		start := time.Now()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return err
		}
		if d := time.Since(start); d > endLimit+time.Second {
			return fmt.Errorf("took %v", d)
		}
		return nil
	})
}

func TestWhatCarriesTheMarkDiesWithItsMount(t *testing.T) {
	_, m := newMount(t)
	eachVictim(t, m, func(c sandboxes.Command, alive func()) error {
		other, err := m.Sandbox.Mount(ctxb, sandboxes.MountOptions{Umask: -1})
		if err != nil {
			return err
		}
		exit, err := other.Run(ctxb, c)
		if err != nil || exit.Code != 0 || !exit.Background {
			return fmt.Errorf("leave it behind: %+v %v", exit, err)
		}
		alive()
		return other.Close()
	})
}

// What the sandbox itself has of secrets stays out of commands, unless asked
// for.
func TestVariablesOfTheSandboxAreWithheld(t *testing.T) {
	s, d := newServer(t), newDriver(t)
	spec := specOn(s)
	_, c, err := d.reach(spec)
	if err != nil {
		t.Fatal(err)
	}
	var made machine
	env := map[string]string{"A_TOKEN": "one", "B_TOKEN": "two", "PLAIN": "three"}
	if err := c.call(ctxb, once, "POST", s.URL()+"/sandbox", map[string]any{"env": env}, &made); err != nil {
		t.Fatal(err)
	}
	r, err := d.Resolve(ctxb, spec, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	m, err := attach(t, d, spec, r).Mount(ctxb, sandboxes.MountOptions{Umask: 0o027, Pass: []string{"B_TOKEN"}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	out, _, err := run(t, m, sandboxes.Command{Script: `echo "$A_TOKEN|$B_TOKEN|$PLAIN|$CODEWORK_SANDBOX"; umask; touch made`})
	if err != nil || out != "|two|three|"+spec.ID+"\n0027\n" {
		t.Errorf("%q %v", out, err)
	}
	if err := m.Write(ctxb, "written", nil); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"made", "written"} {
		if info, err := m.Stat(ctxb, name); err != nil || info.Mode.Perm() != 0o640 {
			t.Error(name, info.Mode, err)
		}
	}
}

// Large files fail as a whole or not at all.
func TestBrokenUpAndDownloads(t *testing.T) {
	s, m := newMount(t)
	m.client.pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	big := []byte(strings.Repeat("0123456789", inlineRead/5))
	if err := m.Write(ctxb, "f", big); err != nil {
		t.Fatal(err)
	}
	halfDownload := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(big)))
		_, _ = w.Write(big[:1000])
	}
	s.SetFault(on("GET", "/download", -1, halfDownload))
	if _, err := m.Read(ctxb, "f", 0, -1); err == nil || !strings.Contains(err.Error(), "broke off") {
		t.Error(err)
	}
	s.SetFault(on("GET", "/download", 1, halfDownload))
	if got, err := m.Read(ctxb, "f", 0, -1); err != nil || string(got) != string(big) {
		t.Error("again:", len(got), err)
	}
	for name, fault := range map[string]http.HandlerFunc{
		"refused": status(500),
		"lost":    drop,
		"not all": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) },
	} {
		s.SetFault(on("POST", "/bulk-upload", -1, fault))
		if err := m.Write(ctxb, "f", append([]byte("new"), big...)); err == nil {
			t.Error(name, "did not fail")
		}
	}
	s.SetFault(nil)
	m.aside.Wait()
	if got, err := m.Read(ctxb, "f", 0, -1); err != nil || string(got) != string(big) {
		t.Error("afterwards:", len(got), err)
	}
	list, err := m.List(ctxb, ".")
	names := []string{}
	for _, e := range list {
		names = append(names, e.Name)
	}
	if err != nil || !slices.Equal(names, []string{"f", "tmp"}) {
		t.Error("left behind:", names, err)
	}
}
