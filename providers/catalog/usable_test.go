package catalog

import (
	"slices"
	"strings"
	"testing"

	"codework/messages"
)

func TestUsableIsTheListOfProvidersWithAKey(t *testing.T) {
	c := Open(Options{})
	all, err := c.List("", nil)
	if err != nil {
		t.Fatal(err)
	}
	custom := []messages.Model{
		{ID: "mine", Provider: messages.ModelProvider{ID: "own"}},
		{ID: "locked", Provider: messages.ModelProvider{ID: "other", Env: []string{"NOT_SET"}}},
	}
	has := func(m messages.Model) bool { return m.Provider.ID == "anthropic" || m.Provider.ID == "own" }
	for range 2 { // the second time from what is remembered
		got, err := c.Usable(custom, has)
		if err != nil {
			t.Fatal(err)
		}
		var want []messages.ModelRef
		for _, m := range append(slices.Clone(all), custom[0]) {
			if has(m) {
				want = append(want, m.Ref())
			}
		}
		var refs []messages.ModelRef
		for _, m := range got {
			refs = append(refs, m.Ref())
		}
		slices.SortFunc(want, func(a, b messages.ModelRef) int { return strings.Compare(a.String(), b.String()) })
		slices.SortFunc(refs, func(a, b messages.ModelRef) int { return strings.Compare(a.String(), b.String()) })
		if len(want) < 3 || !slices.Equal(want, refs) {
			t.Errorf("got %v, want %v", refs, want)
		}
	}
}
