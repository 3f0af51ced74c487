package offline

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"codework/messages"
)

const (
	// maxRounds is how often tools are called for one prompt. Rules need three
	// at most; the bound holds also when a conversation makes no sense.
	maxRounds = 6
	// maxQuestion is how much of a prompt is looked at. What a rule can
	// understand is one sentence; the rest is usually material.
	maxQuestion = 1000
)

// call is one call of a tool. The arguments are a struct or map of the tool's.
type call struct {
	tool string
	args map[string]any
}

// arguments is the JSON form; keys are sorted, so it is always the same.
func (c call) arguments() string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // people read commands
	if err := e.Encode(c.args); err != nil {
		panic(fmt.Sprintf("offline: arguments of %s: %v", c.tool, err)) // strings and numbers have a form
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// result is what became of a call.
type result struct {
	text string
	ok   bool
}

// talk is one prompt and what tools have said to it so far.
type talk struct {
	question string
	tools    map[string]bool
	rounds   [][]messages.Part // calls with their results

	at   int    // rounds that the rule has used
	next []call // calls that have no result yet
}

// rule writes the answer to a talk, or returns without one after ask did.
type rule func(t *talk) string

// ask returns one result per call, or nil when they have to be made first.
func (t *talk) ask(calls ...call) []result {
	if t.at >= len(t.rounds) {
		t.next = calls
		return nil
	}
	round := t.rounds[t.at]
	t.at++
	results := make([]result, len(calls))
	for i, c := range calls {
		results[i].text = "no result"
		if i < len(round) && round[i].Name == c.tool && round[i].Result != nil {
			results[i] = result{text: content(*round[i].Result), ok: !round[i].Result.IsError}
		}
	}
	return results
}

// has tells whether a tool may be called.
func (t *talk) has(tool string) bool { return t.tools[tool] }

// reply is the answer to the newest prompt: text, or calls.
func reply(req *messages.Request) (string, []call) {
	t := open(req)
	if stopped := t.stopped(); stopped != "" {
		return signed(stopped), nil
	}
	return t.run(choose(t))
}

func (t *talk) run(r rule) (string, []call) {
	text := r(t)
	switch {
	case t.next == nil:
		return signed(text), nil
	case t.at >= maxRounds:
		return signed("I stop here: tools were called six times for this prompt and there is still no answer."), nil
	}
	for _, c := range t.next {
		if !t.has(c.tool) {
			return signed(fmt.Sprintf("For this I need the tool %s, which is switched off in this session.", c.tool)), nil
		}
	}
	return "", t.next
}

// signed adds who is speaking. Nobody should take rules for a model.
func signed(text string) string {
	return strings.TrimSpace(text) + "\n\n(offline guide: fixed rules, not a language model)"
}

// open finds the newest prompt and the calls made for it. Messages of other
// models in between, as after a switch, are theirs.
func open(req *messages.Request) *talk {
	t := &talk{tools: map[string]bool{}}
	for _, d := range req.Tools {
		t.tools[d.Name] = true
	}
	for _, m := range req.Messages {
		switch {
		case m.Role == messages.RoleUser:
			t.question, t.rounds = question(m), nil
		case m.Protocol == string(messages.ProtocolOffline):
			var calls []messages.Part
			for _, p := range m.Parts {
				if p.Type == messages.PartToolCall {
					calls = append(calls, p)
				}
			}
			if calls != nil {
				t.rounds = append(t.rounds, calls)
			}
		}
	}
	return t
}

func question(m messages.Message) string {
	var texts []string
	for _, p := range m.Parts {
		if p.Type == messages.PartText {
			texts = append(texts, p.Text)
		}
	}
	q := strings.TrimSpace(strings.ToValidUTF8(strings.Join(texts, "\n"), "�"))
	if len(q) > maxQuestion {
		cut := maxQuestion
		for !utf8.RuneStart(q[cut]) {
			cut--
		}
		q = q[:cut]
	}
	return q
}

// stopped says that calls of the last round did not run to their end: what
// they would have said is not known, and guessing helps nobody.
func (t *talk) stopped() string {
	if len(t.rounds) == 0 {
		return ""
	}
	var cut []string
	for _, p := range t.rounds[len(t.rounds)-1] {
		if p.Call == messages.CallAborted || p.Call == messages.CallSkipped {
			cut = append(cut, p.Name)
		}
	}
	if cut == nil {
		return ""
	}
	return fmt.Sprintf("No answer: the work was stopped before %s had finished. Ask again and I start over.", strings.Join(cut, " and "))
}

// content is the text of a result.
func content(r messages.ToolResult) string {
	var texts []string
	for _, p := range r.Content {
		if p.Type == messages.PartText {
			texts = append(texts, p.Text)
		}
	}
	return strings.ToValidUTF8(strings.Join(texts, "\n"), "�")
}
