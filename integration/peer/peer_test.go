package peer

import (
	"errors"
	"testing"
)

// record is a test that only takes down how it was ended.
type record struct {
	testing.TB
	skipped, failed bool
}

func (r *record) Helper()               {}
func (r *record) Skipf(string, ...any)  { r.skipped = true; panic(r) }
func (r *record) Fatalf(string, ...any) { r.failed = true; panic(r) }

func TestAMissingPeerIsAFailureOnlyWhereAllAreAskedFor(t *testing.T) {
	try := func(do func(t testing.TB)) (r *record) {
		r = &record{TB: t}
		defer func() { _ = recover() }()
		do(r)
		return r
	}
	missing := func(t testing.TB) { Missing(t, "THING", errors.New("no such program"), "install it") }
	t.Setenv(Full, "")
	if r := try(missing); !r.skipped || r.failed {
		t.Error("by default", r.skipped, r.failed)
	}
	t.Setenv(Full, "1")
	if r := try(missing); r.skipped || !r.failed {
		t.Error("in a full run", r.skipped, r.failed)
	}
	wanted := func(t testing.TB) { Wanted(t, "THING") }
	if r := try(wanted); r.skipped || r.failed {
		t.Error("wanted", r.skipped, r.failed)
	}
	t.Setenv(Skip("THING"), "not on this system")
	if r := try(wanted); !r.skipped || r.failed {
		t.Error("left out", r.skipped, r.failed)
	}
}
