package acp

import (
	"slices"
	"strings"

	"codework/messages"
)

// Option is a selector that the editor shows for a session.
type Option struct {
	ID           string  `json:"id"`
	Name         string  `json:"name"`
	Category     string  `json:"category"`
	Type         string  `json:"type"`
	CurrentValue string  `json:"currentValue"`
	Options      []Value `json:"options"`
}

// Value is one choice of an Option.
type Value struct {
	Value string `json:"value"`
	Name  string `json:"name"`
}

// The ids of the options.
const (
	OptionModel    = "model"
	OptionThinking = "thought_level"
)

// levelNames are the thinking levels as a person reads them.
var levelNames = map[messages.ThinkingLevel]string{
	"off": "Off", "minimal": "Minimal", "low": "Low", "medium": "Medium", "high": "High", "xhigh": "Extra High", "max": "Max",
}

// Options are the selectors of a session: its model, and how much that thinks
// where it does. A current model that is not in the list is shown all the same.
// Where nothing is known of the model there is none.
func Options(c messages.Choices) []Option {
	if c.Model == (messages.ModelRef{}) {
		return []Option{}
	}
	model := Option{ID: OptionModel, Name: "Model", Category: "model", Type: "select", CurrentValue: c.Model.String(), Options: []Value{}}
	for _, m := range c.Models {
		model.Options = append(model.Options, Value{m.Ref.String(), m.Name})
	}
	if !slices.ContainsFunc(c.Models, func(m messages.Choice) bool { return m.Ref == c.Model }) {
		model.Options = slices.Insert(model.Options, 0, Value{c.Model.String(), c.Model.String()})
	}
	out := []Option{model}
	if m := c.Current(); m != nil && len(m.Levels) > 1 {
		level := Option{ID: OptionThinking, Name: "Thinking Effort", Category: "thought_level", Type: "select", CurrentValue: string(c.Level), Options: []Value{}}
		for _, l := range m.Levels {
			level.Options = append(level.Options, Value{string(l), levelNames[l]})
		}
		out = append(out, level)
	}
	return out
}

// Choose is the change of a session that a new value of an option means.
func Choose(c messages.Choices, id, value string) (messages.Runtime, *Error) {
	var r messages.Runtime
	for _, o := range Options(c) {
		if o.ID != id {
			continue
		}
		if !slices.ContainsFunc(o.Options, func(v Value) bool { return v.Value == value }) {
			return r, invalid("value: " + clip(value, maxShown) + " is not one of " + id)
		}
		if id == OptionThinking {
			r.ThinkingLevel = messages.ThinkingLevel(value)
			return r, nil
		}
		provider, model, _ := strings.Cut(value, "/")
		r.Model = &messages.ModelRef{Provider: provider, ID: model}
		// The level stays where the new model has it; a level that does not
		// exist there gives way to that model's default.
		if m := c.Find(*r.Model); m != nil && *r.Model != c.Model {
			r.ThinkingLevel = m.Default
			if slices.Contains(m.Levels, c.Level) {
				r.ThinkingLevel = c.Level
			}
		}
		return r, nil
	}
	return r, invalid("configId: there is no option " + clip(id, maxShown))
}

// clip cuts s to n characters.
func clip(s string, n int) string {
	last := 0 // where the n-th character begins
	for i := range s {
		switch n {
		case 1:
			last = i
		case 0:
			return s[:last] + "…"
		}
		n--
	}
	return s
}
