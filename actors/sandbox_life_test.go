package actors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"codework/messages"
	"codework/sandboxes"
)

func TestTheLifeOfASandbox(t *testing.T) {
	b := newBoxRig(t)
	i := b.make("far")
	if !strings.HasPrefix(i.ID, "sbx_") || i.Driver != "far" || i.Kind != messages.KindRemote || i.Ownership != "managed" || i.Status != messages.SandboxOnline ||
		i.Usage != "idle" || i.RefCount != 0 || i.ProviderResourceID == nil || *i.ProviderResourceID != "res-"+i.ID || i.CreatedAt == "" {
		t.Errorf("it is %+v", i)
	}
	for _, step := range []struct {
		do     string
		err    string
		status messages.SandboxStatus
	}{
		{"mount", "", messages.SandboxOnline},
		{"destroy", "SandboxMustBeStoppedError", messages.SandboxOnline},
		{"stop", "", messages.SandboxOffline},
		{"stop", "", messages.SandboxOffline},
		{"mount", "", messages.SandboxOnline}, // woken
		{"stop", "", messages.SandboxOffline},
		{"destroy", "", messages.SandboxRemovedState},
		{"destroy", "SandboxRemovedError", messages.SandboxRemovedState},
		{"stop", "SandboxRemovedError", messages.SandboxRemovedState},
		{"mount", "SandboxRemovedError", messages.SandboxRemovedState},
	} {
		var err error
		switch step.do {
		case "mount":
			_, err = b.mount(i.ID, "ses_1")
		case "stop":
			err = b.stop(i.ID)
		case "destroy":
			err = b.destroy(i.ID)
		}
		if tag(err) != step.err {
			t.Fatalf("%s: %v", step.do, err)
		}
		b.is(i.ID, step.status)
	}
	if n := b.d.count("stop"); n != 2 {
		t.Errorf("stopped %d times", n)
	}
	if n := b.d.count("wake"); n != 1 {
		t.Errorf("woken %d times", n)
	}
	if l := b.list(); len(l) != 2 || l[0].ID != messages.LocalSandbox || l[0].Usage != "pinned" || l[0].Ownership != "external" {
		t.Errorf("the list is %+v", l)
	}
}

// action is something that is done to a sandbox that is online and idle.
func (b *boxRig) act(action, id string) error {
	switch action {
	case "mount":
		_, err := b.mount(id, "ses_1")
		return err
	case "stop":
		return b.stop(id)
	case "stop and destroy":
		if err := b.stop(id); err != nil {
			return err
		}
		return b.destroy(id)
	}
	panic(action)
}

func TestAStepThatFailsLeavesATypedErrorAndAStatus(t *testing.T) {
	gone := func(context.Context, sandboxes.Spec) error { return fmt.Errorf("look: %w", sandboxes.ErrNotFound) }
	broke := fails("the provider broke")
	panics := func(context.Context, sandboxes.Spec) error { panic("on purpose") }
	for _, tc := range []struct {
		action, step string
		play         func(context.Context, sandboxes.Spec) error
		tag          string
		status       messages.SandboxStatus
	}{
		{"mount", "attach", broke, "SandboxProviderError", messages.SandboxFaulted},
		{"mount", "attach", panics, "SandboxProviderError", messages.SandboxFaulted},
		{"mount", "attach", gone, "SandboxUnavailError", messages.SandboxUnavail},
		{"mount", "mount", broke, "SandboxProviderError", messages.SandboxOnline},
		{"mount", "mount", panics, "SandboxProviderError", messages.SandboxOnline},
		{"stop", "stop", broke, "SandboxProviderError", messages.SandboxFaulted},
		{"stop", "stop", panics, "SandboxProviderError", messages.SandboxFaulted},
		{"stop", "stop", gone, "SandboxUnavailError", messages.SandboxUnavail},
		{"stop and destroy", "destroy", broke, "SandboxProviderError", messages.SandboxOffline},
		{"stop and destroy", "destroy", panics, "SandboxProviderError", messages.SandboxOffline},
		{"stop and destroy", "destroy", gone, "", messages.SandboxRemovedState},
	} {
		t.Run(tc.action+" with "+tc.step+" "+tc.tag, func(t *testing.T) {
			b := newBoxRig(t)
			id := b.make("far").ID
			b.d.at(tc.step, tc.play)
			err := b.act(tc.action, id)
			if tag(err) != tc.tag {
				t.Fatalf("got %v", err)
			}
			b.is(id, tc.status)
			var p *messages.SandboxProvider
			if errors.As(err, &p) && (p.Driver != "far" || p.Operation == "" || p.Sanitized.Name == "" || p.Sanitized.Message == "") {
				t.Errorf("the error is %+v", p)
			}
			// And what failed may be tried again.
			b.d.at(tc.step, nil)
			if tc.status == messages.SandboxFaulted || tc.status == messages.SandboxOnline {
				if _, err := b.mount(id, "ses_1"); err != nil {
					t.Errorf("it cannot be used again: %v", err)
				}
				b.is(id, messages.SandboxOnline)
			}
			if tc.status == messages.SandboxUnavail {
				if _, err := b.mount(id, "ses_2"); tag(err) != "SandboxUnavailError" {
					t.Errorf("a mount of one that is gone: %v", err)
				}
				if err := b.destroy(id); err != nil {
					t.Errorf("it cannot be removed: %v", err)
				}
				b.is(id, messages.SandboxRemovedState)
			}
		})
	}
}

func TestAMountTriesOnceMore(t *testing.T) {
	b := newBoxRig(t)
	id := b.make("far").ID
	// Somebody stopped it behind our back.
	b.d.put("res-"+id, "server-1", messages.SandboxOffline)
	if _, err := b.mount(id, "ses_1"); err != nil {
		t.Fatal(err)
	}
	b.is(id, messages.SandboxOnline)
	if b.d.count("attach") != 2 || b.d.count("wake") != 1 {
		t.Errorf("it attached %d times and woke it %d times", b.d.count("attach"), b.d.count("wake"))
	}
}

func TestACreationThatFailsKeepsARecordThatSaysWhy(t *testing.T) {
	b := newBoxRig(t)
	b.d.at("create", fails("no room"))
	_, err := b.call(messages.CreateSandbox{Driver: "far"})
	if tag(err) != "SandboxProviderError" || !strings.Contains(err.Error(), "no room") {
		t.Fatal(err)
	}
	l := b.list()
	if len(l) != 2 || l[1].Status != messages.SandboxFaulted || l[1].ProviderResourceID != nil {
		t.Fatalf("the list is %+v", l)
	}
	id := l[1].ID
	if f := b.stored(id).Failure; f == nil || f.Message != "no room" {
		t.Errorf("the record says %+v", f)
	}
	if _, err := b.mount(id, "ses_1"); tag(err) != "SandboxUnavailError" || !strings.Contains(err.Error(), "no room") {
		t.Errorf("a mount says %v", err)
	}
	if err := errors.Join(b.stop(id), b.destroy(id)); err != nil {
		t.Errorf("it cannot be put away: %v", err)
	}
	if b.d.count("stop")+b.d.count("destroy") != 0 {
		t.Error("the driver was asked to end what it never made")
	}
}

func TestACreationThatCannotBeRecordedIsUndone(t *testing.T) {
	for name, fail := range map[string]messages.SandboxStatus{"before": messages.SandboxProvisioning, "after": messages.SandboxOnline} {
		t.Run(name, func(t *testing.T) {
			b := newBoxRig(t)
			b.boxes.failWhen(func(r messages.SandboxRecord) error {
				if r.Status == fail {
					return &messages.Refused{Name: messages.RefusedStore, Message: "no room on the disk"}
				}
				return nil
			})
			if _, err := b.call(messages.CreateSandbox{Driver: "far"}); tag(err) != "StoreError" {
				t.Fatalf("got %v", err)
			}
			b.d.mu.Lock()
			left := len(b.d.resources)
			b.d.mu.Unlock()
			if left != 0 {
				t.Error("the resource is still there")
			}
			l := b.list()
			if name == "before" && len(l) != 1 || name == "after" && (len(l) != 2 || l[1].Status != messages.SandboxFaulted) {
				t.Errorf("the list is %+v", l)
			}
		})
	}
}

func TestABadConfigurationIsRefusedAndLeavesNothing(t *testing.T) {
	t.Setenv("BOX_KEY", "not-a-secret-at-all")
	for name, config := range map[string]string{
		"imagee": `{"imagee":"x"}`, "image": `{"image":7}`, "limits": `{"limits":{"processes":"many"}}`, "network": `{"network":"all"}`,
		"apiKey": `{"apiKey":"sk-literal-secret"}`,
	} {
		b := newBoxRig(t)
		_, err := b.call(messages.CreateSandbox{Driver: "far", Config: json.RawMessage(config)})
		var refused *messages.SandboxDriverRegistration
		if !errors.As(err, &refused) || refused.Driver != "far" || !strings.Contains(refused.Reason, name) || strings.Contains(refused.Reason, "sk-literal") {
			t.Errorf("%s: %v", config, err)
		}
		if len(b.list()) != 1 {
			t.Errorf("%s leaves a record", config)
		}
		if all, _ := b.store.Sandboxes(b.ctx); len(all) != 0 {
			t.Errorf("%s leaves a record on disk", config)
		}
	}
}

func TestCallsThatAreRefused(t *testing.T) {
	b := newBoxRig(t, bareDriver{newPlayedDriver("bare", messages.KindVirtual)})
	bare := b.make("bare").ID
	b.d.put("theirs", "", messages.SandboxOnline)
	v, err := b.call(messages.RegisterSandbox{Driver: "far", ProviderResourceID: "theirs"})
	if err != nil {
		t.Fatal(err)
	}
	theirs := v.(messages.SandboxInfo).ID
	managed := b.make("far").ID
	long := strings.Repeat("x", 2049)
	before := len(b.list())
	for _, tc := range []struct {
		m    any
		want string
	}{
		{messages.CreateSandbox{Driver: "nope"}, "SandboxDriverNotRegisteredError"},
		{messages.CreateSandbox{Driver: "local"}, "SandboxUnsupportedError"},
		{messages.RegisterSandbox{Driver: "nope", ProviderResourceID: "x"}, "SandboxDriverNotRegisteredError"},
		{messages.RegisterSandbox{Driver: "local", ProviderResourceID: "x"}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "bare", ProviderResourceID: "x"}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "far", ProviderResourceID: "a b"}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "far", ProviderResourceID: "a\nb"}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "far", ProviderResourceID: "a\x01b"}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "far", ProviderResourceID: long}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "far", ProviderResourceID: "not-there"}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "far", ProviderResourceID: "res-" + managed}, "SandboxDriverRegistrationError"},
		{messages.RegisterSandbox{Driver: "far", ProviderResourceID: "theirs", Config: json.RawMessage(`{"image":"x"}`)}, "SandboxDriverRegistrationError"},
		{messages.StopSandbox{SandboxID: "sbx_none"}, "SandboxNotFoundError"},
		{messages.DestroySandbox{SandboxID: "sbx_none"}, "SandboxNotFoundError"},
		{messages.StopSandbox{SandboxID: "local"}, "SandboxUnsupportedError"},
		{messages.DestroySandbox{SandboxID: "local"}, "SandboxUnsupportedError"},
		{messages.StopSandbox{SandboxID: bare}, "SandboxUnsupportedError"},
		{messages.DestroySandbox{SandboxID: bare}, "SandboxUnsupportedError"},
		{messages.StopSandbox{SandboxID: theirs}, "SandboxUnsupportedError"},
		{messages.DestroySandbox{SandboxID: theirs}, "SandboxUnsupportedError"},
	} {
		if _, err := b.call(tc.m); tag(err) != tc.want {
			t.Errorf("%#v: %v", tc.m, err)
		}
	}
	if n := len(b.list()); n != before {
		t.Errorf("%d sandboxes came of it", n-before)
	}
	b.is(theirs, messages.SandboxOnline)
}

func TestUnavailableDriversSayWhy(t *testing.T) {
	b := newBoxRig(t)
	b.d.at("available", fails("the engine's socket cannot be opened: permission denied"))
	_, err := b.call(messages.CreateSandbox{Driver: "far"})
	if tag(err) != "SandboxDriverRegistrationError" || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("got %v", err)
	}
	v, err := b.ask(listDrivers{ctx: b.ctx})
	if err != nil {
		t.Fatal(err)
	}
	l := v.([]messages.DriverInfo)
	if len(l) != 1 || l[0].Available == nil || *l[0].Available || !strings.Contains(l[0].Reason, "permission denied") {
		t.Errorf("the drivers are %+v", l)
	}
	if len(b.list()) != 1 {
		t.Error("it left a record")
	}
}

func TestRegisteringAgainFindsTheSameSandbox(t *testing.T) {
	b := newBoxRig(t)
	b.d.put("theirs", "", messages.SandboxOnline)
	register := func() messages.SandboxInfo {
		t.Helper()
		v, err := b.call(messages.RegisterSandbox{Driver: "far", ProviderResourceID: "theirs"})
		if err != nil {
			t.Fatal(err)
		}
		return v.(messages.SandboxInfo)
	}
	first := register()
	if first.Ownership != "external" || first.Status != messages.SandboxOnline || *first.ProviderResourceID != "theirs" {
		t.Errorf("it is %+v", first)
	}
	if again := register(); again.ID != first.ID {
		t.Error("the same resource has two ids")
	}
	// It is gone by a wrong key, say, and there again by the right one.
	b.d.lose("theirs")
	if _, err := b.mount(first.ID, "ses_1"); tag(err) != "SandboxUnavailError" {
		t.Fatal(err)
	}
	b.is(first.ID, messages.SandboxUnavail)
	b.d.put("theirs", "", messages.SandboxOnline)
	if again := register(); again.ID != first.ID || again.Status != messages.SandboxOnline {
		t.Errorf("it came back as %+v", again)
	}
	if _, err := b.mount(first.ID, "ses_1"); err != nil {
		t.Error(err)
	}
}

func TestOfTwoStopsOneWorks(t *testing.T) {
	b := newBoxRig(t)
	id := b.make("far").ID
	begins, goOn := make(chan struct{}, 8), make(chan struct{})
	b.d.at("stop", func(context.Context, sandboxes.Spec) error {
		begins <- struct{}{}
		<-goOn
		return nil
	})
	first := make(chan error, 1)
	go func() { first <- b.stop(id) }()
	begun(t, begins)
	b.is(id, messages.SandboxSuspending)
	err := b.stop(id)
	var conflict *messages.SandboxTransitionConflict
	if !errors.As(err, &conflict) || conflict.Actual != messages.SandboxSuspending || len(conflict.Expected) != 3 {
		t.Errorf("the second stop: %v", err)
	}
	if _, err := b.mount(id, "ses_1"); tag(err) != "SandboxTransitionConflictError" {
		t.Errorf("a mount meanwhile: %v", err)
	}
	if err := b.destroy(id); tag(err) != "SandboxTransitionConflictError" {
		t.Errorf("a destroy meanwhile: %v", err)
	}
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	b.is(id, messages.SandboxOffline)
	if b.d.count("stop") != 1 {
		t.Error("it was stopped twice")
	}
}

func TestManyStopsAtOnce(t *testing.T) {
	b := newBoxRig(t)
	id := b.make("far").ID
	answers := make(chan error, 16)
	for range cap(answers) {
		go func() { answers <- b.stop(id) }()
	}
	for range cap(answers) {
		if err := <-answers; err != nil && tag(err) != "SandboxTransitionConflictError" {
			t.Error(err)
		}
	}
	b.is(id, messages.SandboxOffline)
	if b.d.count("stop") != 1 {
		t.Errorf("it was stopped %d times", b.d.count("stop"))
	}
}

func TestACallThatIsGivenUpStopsItsWork(t *testing.T) {
	for _, tc := range []struct {
		step   string
		status messages.SandboxStatus
	}{{"create", messages.SandboxFaulted}, {"stop", messages.SandboxFaulted}, {"destroy", messages.SandboxOffline}} {
		t.Run(tc.step, func(t *testing.T) {
			b := newBoxRig(t)
			begins := make(chan struct{}, 8)
			var m any = messages.CreateSandbox{Driver: "far"}
			id := ""
			switch tc.step {
			case "stop":
				id = b.make("far").ID
				m = messages.StopSandbox{SandboxID: id}
			case "destroy":
				id = b.make("far").ID
				if err := b.stop(id); err != nil {
					t.Fatal(err)
				}
				m = messages.DestroySandbox{SandboxID: id}
			}
			b.d.at(tc.step, hangs(begins))
			ctx, cancel := context.WithCancel(b.ctx)
			done := make(chan error, 1)
			go func() {
				_, err := Ask[any](b.ctx, b.system.guardian, boxCall{ctx: ctx, m: m})
				done <- err
			}()
			begun(t, begins)
			cancel()
			if err := <-done; tag(err) != "SandboxProviderError" {
				t.Errorf("got %v", err)
			}
			if id == "" {
				id = b.list()[1].ID
			}
			b.is(id, tc.status)
			if f := b.stored(id).Failure; tc.step == "create" && (f == nil || f.Name != failCreation) {
				t.Errorf("the record says %+v", f)
			}
		})
	}
}

func TestADriverThatNeverAnswersIsLeftAlone(t *testing.T) {
	b := newBoxRig(t)
	id := b.make("far").ID
	begins, end := make(chan struct{}, 8), make(chan struct{})
	defer close(end)
	b.d.at("stop", func(context.Context, sandboxes.Spec) error {
		begins <- struct{}{}
		<-end // whatever its context says
		return nil
	})
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := Ask[any](b.ctx, b.system.guardian, boxCall{ctx: ctx, m: messages.StopSandbox{SandboxID: id}})
		done <- err
	}()
	begun(t, begins)
	cancel()
	if err := <-done; tag(err) != "SandboxProviderError" {
		t.Errorf("got %v", err)
	}
	b.is(id, messages.SandboxFaulted)
}

func TestASandboxInUseIsNotStopped(t *testing.T) {
	b := newBoxRig(t)
	id := b.make("far").ID
	_, leave, err := b.system.places.visit(b.ctx, id, "somebody", sandboxes.MountOptions{Umask: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if i := b.info(id); i.Usage != "busy" || i.RefCount != 1 {
		t.Errorf("it shows as %+v", i)
	}
	var busy *messages.SandboxBusy
	if err := b.stop(id); !errors.As(err, &busy) || busy.RefCount != 1 || busy.ID != id {
		t.Errorf("got %v", err)
	}
	b.is(id, messages.SandboxOnline)
	leave()
	if err := b.stop(id); err != nil {
		t.Error(err)
	}
}

func TestSecretsShowNowhere(t *testing.T) {
	const key = "sk-very-secret-0123456789"
	t.Setenv("BOX_KEY", key)
	echo := fmt.Sprintf("HTTP 401: bad key %s; sent Authorization: Bearer other-secret-token to https://u:pw-of-someone@host/x?token=query-secret&a=1 %s", key, strings.Repeat("x", 10<<20))
	for _, step := range []string{"create", "attach", "mount", "stop"} {
		t.Run(step, func(t *testing.T) {
			b := newBoxRig(t)
			config := json.RawMessage(`{"apiKey":"${BOX_KEY}"}`)
			if step == "create" {
				b.d.at(step, fails(echo))
			}
			v, err := b.call(messages.CreateSandbox{Driver: "far", Config: config})
			if step != "create" {
				if err != nil {
					t.Fatal(err)
				}
				b.d.at(step, fails(echo))
				id := v.(messages.SandboxInfo).ID
				if step == "stop" {
					err = b.stop(id)
				} else {
					_, err = b.mount(id, "ses_1")
				}
			}
			if tag(err) != "SandboxProviderError" {
				t.Fatalf("got %.200v", err)
			}
			all, readErr := b.store.Sandboxes(b.ctx)
			if readErr != nil {
				t.Fatal(readErr)
			}
			rows, _ := json.Marshal(all)
			for _, text := range []string{err.Error(), string(rows)} {
				for _, secret := range []string{key, "other-secret-token", "pw-of-someone", "query-secret"} {
					if strings.Contains(text, secret) {
						t.Errorf("%s is told: %.300s", secret, text)
					}
				}
			}
			if !strings.Contains(err.Error(), "bad key <redacted>") {
				t.Errorf("it says %.200s", err)
			}
			if len(err.Error()) > maxErrorText+200 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			if !strings.Contains(string(rows), "${BOX_KEY}") {
				t.Error("the configuration lost its reference")
			}
		})
	}
}

func TestSecretsDoNotReachTheModel(t *testing.T) {
	const key = "sk-very-secret-0123456789"
	t.Setenv("BOX_KEY", key)
	b := newBoxRig(t)
	v, err := b.call(messages.CreateSandbox{Driver: "far", Config: json.RawMessage(`{"apiKey":"${BOX_KEY}"}`)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.mount(v.(messages.SandboxInfo).ID, "ses_1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.mount.Run(b.ctx, sandboxes.Command{Argv: []string{"leak", key}})
	var shell *sandboxes.ShellError
	if !errors.As(err, &shell) || strings.Contains(err.Error(), key) || strings.Contains(shell.Err.Error(), key) || !strings.Contains(err.Error(), redacted) {
		t.Errorf("a command's error says %v", err)
	}
}
