package messages

import "slices"

// MCPServer is a tool server that an editor wants started for one session. Env
// holds secrets ("NAME=value"): it is kept in memory only, never stored or
// logged.
type MCPServer struct {
	Name    string
	Command string
	Args    []string
	Env     []string
}

// Choices are the models that a session can be given, and what it has now.
type Choices struct {
	Model  ModelRef
	Level  ThinkingLevel // fitted to the model
	Models []Choice
	// Notice is why the list is not complete; "" if it is.
	Notice string
}

// Choice is a model that can be chosen.
type Choice struct {
	Ref           ModelRef
	Name          string          // "Provider: Model"
	Levels        []ThinkingLevel // in rising order
	Default       ThinkingLevel   // one of Levels
	ContextWindow int64           // tokens; 0 is unknown
	Images        bool
}

// Current is what is known of the session's model; nil if nothing is.
func (c Choices) Current() *Choice { return c.Find(c.Model) }

// Find is what is known of a model; nil if nothing is.
func (c Choices) Find(r ModelRef) *Choice {
	i := slices.IndexFunc(c.Models, func(m Choice) bool { return m.Ref == r })
	if i < 0 {
		return nil
	}
	return &c.Models[i]
}

// Words are the first text of a prompt, after which a session is named.
func (p PromptBody) Words() string {
	if p.Text != "" {
		return p.Text
	}
	for _, q := range p.Parts {
		if q.Type == PartText {
			return q.Text
		}
	}
	return ""
}
