package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"codework/messages"
	"codework/providers/offline"
)

// mostSuggestions is how many names a person reads before going to the list.
const mostSuggestions = 3

// notFound says that there is no such model, and which one might be meant.
func notFound(ref messages.ModelRef, src source, custom []messages.Model) *messages.Failure {
	f := &messages.Failure{
		Type:    messages.FailModelNotFound,
		Message: "no model " + ref.String(),
		Hint:    "list the models with: codework models",
	}
	if near := nearest(ref, candidates(src, custom)); len(near) > 0 {
		f.Hint = fmt.Sprintf("did you mean %s? all models: codework models", strings.Join(near, ", "))
	}
	return f
}

// candidates are the names of all models. A provider that cannot be read has
// none: the failure to report is the one of the name that was asked for.
func candidates(src source, custom []messages.Model) []messages.ModelRef {
	refs := []messages.ModelRef{offline.Model().Ref()}
	for _, m := range custom {
		refs = append(refs, m.Ref())
	}
	for _, p := range src.names() {
		entries, err := src.provider(p)
		if err != nil {
			continue
		}
		for id := range entries {
			refs = append(refs, messages.ModelRef{Provider: p, ID: id})
		}
	}
	return refs
}

// nearest returns the names most like ref, best first: the same model at
// another provider, then names of the same provider, then names that differ in
// a few letters altogether.
func nearest(ref messages.ModelRef, all []messages.ModelRef) []string {
	type match struct {
		name string
		far  int
	}
	id, whole := strings.ToLower(ref.ID), strings.ToLower(ref.String())
	// A third of a name may be wrong before it is another name.
	limit := max(2, len(id)/3)
	var near []match
	for _, c := range all {
		var far int
		cid := strings.ToLower(c.ID)
		switch {
		case c.Provider == ref.Provider:
			far = distance(id, cid)
			if len(id) >= 3 && (strings.Contains(cid, id) || strings.Contains(id, cid)) {
				far = min(far, limit)
			}
		case cid == id:
			far = 1
		default:
			far = distance(whole, strings.ToLower(c.String()))
		}
		if far <= limit {
			near = append(near, match{c.String(), far})
		}
	}
	slices.SortFunc(near, func(a, b match) int {
		return cmp.Or(cmp.Compare(a.far, b.far), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, m := range near {
		if len(names) < mostSuggestions && !slices.Contains(names, m.name) {
			names = append(names, m.name)
		}
	}
	return names
}

// distance is the number of single-byte changes between two names. Names that
// differ much in length are far apart without a closer look.
func distance(a, b string) int {
	if d := len(a) - len(b); d > len(a)/2 || -d > len(a)/2 {
		return len(a) + len(b)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
