package actors

import (
	"context"
	"slices"
	"strings"

	"codework/messages"
	"codework/providers"
)

// chooser is a Preparer that knows which models there are.
type chooser interface {
	Choices(ctx context.Context, q ExchangeQuery) (messages.Choices, error)
}

// Choices are the models that a session can be given, by the settings that
// apply to its folder, and what it has now. Where settings or catalog cannot
// be read, Notice says so and the list holds what is known: a session is worth
// opening all the same.
func (w *Workshop) Choices(_ context.Context, q ExchangeQuery) (messages.Choices, error) {
	var c messages.Choices
	if own := q.Session.Runtime.Model; own != nil {
		c.Model = *own
	}
	c.Level = q.Session.Runtime.ThinkingLevel
	set, err := w.settings(q)
	if err != nil {
		c.Notice = err.Error()
		return c, nil
	}
	if q.Session.Runtime.Model == nil {
		c.Model = messages.ModelRef{Provider: set.Model.Provider, ID: set.Model.ID}
	}
	lookup, available := lookupIn(q.World), map[string]bool{}
	list, err := w.Catalog.Usable(set.Models, func(m messages.Model) bool {
		who := m.Provider.ID + " " + m.Provider.Key + " " + strings.Join(m.Provider.Env, " ")
		has, known := available[who]
		if !known {
			has = w.Credentials.Has(m, lookup)
			available[who] = has
		}
		return has
	})
	if err != nil {
		c.Notice = err.Error()
		return c, nil
	}
	if !slices.ContainsFunc(list, func(m messages.Model) bool { return m.Ref() == c.Model }) {
		if m, err := w.Catalog.Lookup(c.Model, set.Models); err == nil {
			list = append([]messages.Model{m}, list...)
		}
	}
	for _, m := range list {
		current := m.Ref() == c.Model
		if !current && !w.Speaks(m.Protocol) {
			continue
		}
		c.Models = append(c.Models, messages.Choice{
			Ref: m.Ref(), Name: m.Provider.Name + ": " + m.Name, Levels: providers.SupportedThinking(m),
			Default:       providers.FitThinking(m, set.Options(m.Provider.ID, m.ID).ThinkingLevel),
			ContextWindow: m.ContextWindow, Images: m.AcceptsImages(),
		})
		if current {
			level := c.Level
			if level == "" {
				level = set.Options(m.Provider.ID, m.ID).ThinkingLevel
			}
			c.Level = providers.FitThinking(m, level)
		}
	}
	return c, nil
}
