package actors

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"codework/messages"
	"codework/sandboxes"
)

// unsettled tells whether a record has to be looked into at the start. What is
// stored in a store has one owner at a time: what is under way in it belongs to
// a process that has ended.
func (r *registry) unsettled(rec messages.SandboxRecord) bool {
	if rec.Status == messages.SandboxRemovedState {
		return false
	}
	switch rec.Status {
	case messages.SandboxProvisioning, messages.SandboxSuspending, messages.SandboxRemoving:
		return true
	case messages.SandboxOnline:
		return rec.Ownership == messages.SandboxManaged
	case messages.SandboxFaulted: // while it was being stopped, say
		return rec.Ownership == messages.SandboxManaged && rec.ResourceID != ""
	case messages.SandboxOffline:
		// What lived in the old process went with it.
		return rec.Ownership == messages.SandboxManaged && (rec.Waking || rec.Kind == messages.KindVirtual)
	}
	return false
}

// settle puts in order what an older process left of a driver's sandboxes:
// those that run are stopped, by their label where the driver can, and every
// record gets a status that was observed.
func (r *registry) settle(ctx context.Context, me *Self, driver string, records []messages.SandboxRecord) {
	d := r.drivers[driver]
	swept := false
	if sweeper, ok := d.(sandboxes.Sweeper); ok {
		swept = true
		for _, config := range configsOf(records) {
			clean := &cleaner{}
			spec := sandboxes.Spec{Server: r.server, Config: config, Lookup: clean.through(lookupIn(nil))}
			_, err := insist(ctx, stopLimit, func(ctx context.Context) (any, error) { return nil, sweeper.Sweep(ctx, spec) }, nil)
			if err != nil {
				swept = false
				me.Log().Warn("what an earlier process left in sandboxes may still run", "driver", driver, "err", clean.text(err.Error()))
			}
		}
	}
	for _, rec := range records {
		status, failure := r.afterCrash(ctx, d, rec, swept)
		if status == rec.Status && !rec.Waking {
			continue
		}
		row := row{rec.ID, r.store, r.shelf}
		err := row.move(ctx, status, func(r *messages.SandboxRecord) { r.Failure = failure }, rec.Status)
		if err != nil {
			me.Log().Warn("status of a sandbox cannot be recorded", "sandbox", rec.ID, "err", err)
		}
	}
}

// configsOf are the configurations of records, each once.
func configsOf(records []messages.SandboxRecord) []json.RawMessage {
	var out []json.RawMessage
	for _, rec := range records {
		if !slices.ContainsFunc(out, func(c json.RawMessage) bool { return sameConfig(c, rec.Config) }) {
			out = append(out, rec.Config)
		}
	}
	return out
}

// afterCrash is what a sandbox is that an older process left.
func (r *registry) afterCrash(ctx context.Context, d sandboxes.Driver, rec messages.SandboxRecord, swept bool) (messages.SandboxStatus, *messages.CleanedError) {
	clean := &cleaner{}
	faulted := func(name, message string) (messages.SandboxStatus, *messages.CleanedError) {
		return messages.SandboxFaulted, &messages.CleanedError{Name: name, Message: message}
	}
	if rec.Status == messages.SandboxProvisioning {
		return faulted(failCreation, "the process ended while it was made")
	}
	underWay := rec.Status == messages.SandboxSuspending || rec.Status == messages.SandboxRemoving
	_, looks := d.(sandboxes.Inspector)
	if d == nil || !looks {
		switch {
		case underWay:
			return faulted("SandboxInterrupted", "the process ended while it was being stopped or removed")
		case swept:
			return messages.SandboxOffline, nil
		case d == nil:
			return rec.Status, rec.Failure
		}
	}
	spec := sandboxes.Spec{ID: rec.ID, Server: r.server, Project: rec.Project, Config: rec.Config, Lookup: clean.through(lookupIn(nil))}
	status := rec.Status
	if looks {
		var err error
		status, err = inspect(ctx, d, spec, resourceOf(rec))
		switch {
		case errors.Is(err, sandboxes.ErrNotFound):
			return messages.SandboxUnavail, nil
		case err != nil && underWay:
			c := cleaned(clean, err)
			return messages.SandboxFaulted, &c
		case err != nil:
			return rec.Status, rec.Failure // the last observation stands
		}
	}
	stopper, ok := d.(sandboxes.Stopper)
	if status != messages.SandboxOnline || rec.Ownership != messages.SandboxManaged || !ok {
		return status, nil
	}
	// It runs, for nobody.
	_, err := insist(ctx, stopLimit, func(ctx context.Context) (any, error) { return nil, stopper.Stop(ctx, spec, resourceOf(rec)) }, nil)
	switch {
	case err == nil:
		return messages.SandboxOffline, nil
	case errors.Is(err, sandboxes.ErrNotFound):
		return messages.SandboxUnavail, nil
	}
	c := cleaned(clean, err)
	return messages.SandboxFaulted, &c
}
