package catalog

import (
	"cmp"
	"maps"
	"slices"

	"codework/messages"
	"codework/providers/offline"
)

// Usable returns the models of the providers that has is true for, sorted by
// provider and id, custom entries included. has is asked with one model of a
// provider: its entries agree on where a key comes from. Of the other providers
// nothing is decoded but, once for each content of the file, that one model.
func (c *Catalog) Usable(custom []messages.Model, has func(messages.Model) bool) ([]messages.Model, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	src, err := c.fresh()
	if err != nil {
		return nil, err
	}
	if c.samples == nil || c.sampled != c.read {
		c.samples, c.sampled = map[string]*messages.Model{}, c.read
	}
	all := map[messages.ModelRef]messages.Model{}
	for _, p := range src.names() {
		sample, known := c.samples[p]
		if known && (sample == nil || !has(*sample)) {
			continue
		}
		entries, err := src.provider(p)
		if err != nil {
			return nil, c.fault(ReasonInvalid, err)
		}
		if !known {
			sample = nil
			for _, id := range slices.Sorted(maps.Keys(entries)) {
				m, err := decode(p, id, entries[id])
				if err != nil {
					return nil, c.fault(ReasonInvalid, err)
				}
				sample = &m
				break
			}
			c.samples[p] = sample
			if sample == nil || !has(*sample) {
				continue
			}
		}
		for id, raw := range entries {
			m, err := decode(p, id, raw)
			if err != nil {
				return nil, c.fault(ReasonInvalid, err)
			}
			all[m.Ref()] = m
		}
	}
	for _, m := range append([]messages.Model{offline.Model()}, custom...) {
		if has(m) {
			all[m.Ref()] = m
		} else {
			delete(all, m.Ref())
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b messages.Model) int {
		return cmp.Or(cmp.Compare(a.Provider.ID, b.Provider.ID), cmp.Compare(a.ID, b.ID))
	}), nil
}
