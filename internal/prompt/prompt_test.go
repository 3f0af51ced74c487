package prompt

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"codework/internal/tools"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func TestBuildKeepsOrderAndForms(t *testing.T) {
	got := Build(Parts{
		Foundation: "  You are X.\n",
		Tools:      []Tool{{"read", "read a\nfile"}, {"quiet", ""}, {"bash", "run"}},
		Rules:      []string{"Be  brief.", " ", "Be brief. ", "Second."},
		Addendum:   []string{"one\n", "", "\ntwo"},
		ProjectContext: []string{
			"<project_instructions path=\"/a\">\n  & <b>\n</project_instructions>",
		},
		Skills: []string{"skill"},
		Dir:    "/home/ada",
		Own:    []Section{{"mine", List, []string{"x", " ", "y"}}, {"empty", Text, []string{"\n"}}, {"other", Text, []string{"p", "q"}}},
	})
	want := `You are X.

<tools>
- read: read a file
- bash: run
</tools>

<rules>
- Be brief.
- Second.
</rules>

<addendum>
one

two
</addendum>

<project_context>
<project_instructions path="/a">
  & <b>
</project_instructions>
</project_context>

<skills>
skill
</skills>

<cwd>
/home/ada
</cwd>

<mine>
- x
- y
</mine>

<other>
p

q
</other>`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestBuildOfNothing(t *testing.T) {
	if got, want := Build(Parts{}), Fallback+"\n\n<tools>\n(none)\n</tools>"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestApply(t *testing.T) {
	p := Parts{Rules: []string{"a"}, Skills: []string{"s"}}
	for _, c := range []Change{
		{Name: "rules", Op: Append, Entries: []string{"b"}},
		{Name: "rules", Format: List, Op: Append, Entries: []string{"c"}},
		{Name: "addendum", Op: Set, Entries: []string{"x"}},
		{Name: "skills", Op: Remove},
		{Name: "project_context", Format: Text, Op: Append, Entries: []string{"ctx"}},
		{Name: "second-own", Format: List, Op: Append, Entries: []string{"1"}},
		{Name: "own_2", Op: Set, Entries: []string{"t"}},
		{Name: "second-own", Op: Append, Entries: []string{"2"}},
		{Name: "own_2", Op: Set, Entries: []string{"u"}},
		{Name: "never-there", Op: Remove},
	} {
		if err := p.Apply(c); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	got := Build(p)
	for _, want := range []string{
		"<rules>\n- a\n- b\n- c\n</rules>", "<addendum>\nx\n</addendum>", "<project_context>\nctx\n</project_context>",
		"<second-own>\n- 1\n- 2\n</second-own>\n\n<own_2>\nu\n</own_2>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "skills") || strings.Contains(got, "never-there") {
		t.Errorf("removed sections are still there:\n%s", got)
	}

	before := Build(p)
	for _, c := range []Change{
		{Name: "tools", Op: Append}, {Name: "cwd", Op: Set}, {Name: "foundation", Op: Remove},
		{Name: "Upper", Op: Append}, {Name: "", Op: Append}, {Name: "a b", Op: Append}, {Name: "a>\n<b", Op: Append},
		{Name: "x", Op: "replace"}, {Name: "x", Op: Append, Format: "table"},
		{Name: "rules", Op: Append, Format: Text, Entries: []string{"z"}},
		{Name: "second-own", Op: Append, Format: Text, Entries: []string{"z"}},
	} {
		if err := p.Apply(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if Build(p) != before {
		t.Error("a refused change changed something")
	}
}

func TestApplyLeavesTheCallersSlicesAlone(t *testing.T) {
	rules := make([]string, 1, 8)
	rules[0] = "a"
	p, q := Parts{Rules: rules}, Parts{Rules: rules}
	for _, c := range []struct {
		p    *Parts
		text string
	}{{&p, "for p"}, {&q, "for q"}} {
		if err := c.p.Apply(Change{Name: "rules", Op: Append, Entries: []string{c.text}}); err != nil {
			t.Fatal(err)
		}
	}
	if p.Rules[1] != "for p" || q.Rules[1] != "for q" {
		t.Errorf("%v, %v", p.Rules, q.Rules)
	}
}

func TestBuildIsTheSameEveryTime(t *testing.T) {
	p := Parts{Rules: StandingRules, Dir: "/x", Own: []Section{{"b", Text, []string{"1"}}, {"a", Text, []string{"2"}}}}
	first := Build(p)
	for range 10 {
		if Build(p) != first {
			t.Fatal("another prompt from the same parts")
		}
	}
}

// TestFirstRequestIsSmall holds the budget of the first request: 5 KB with the
// prompt, the default tools and room for the wire's own words.
func TestFirstRequestIsSmall(t *testing.T) {
	const budget = 4 << 10
	parts := Parts{Foundation: Default, Dir: "/home/ada/projects/some/where"}
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	type definition struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var defs []definition
	for _, tool := range tools.Builtin() {
		if tool.On {
			parts.Tools = append(parts.Tools, Tool{tool.Name, tool.Snippet})
			parts.Rules = append(parts.Rules, tool.Guidelines...)
			defs = append(defs, definition{"function", function{tool.Name, tool.Description, tool.Schema}})
		}
	}
	parts.Rules = slices.Concat(parts.Rules, StandingRules)
	b, err := json.Marshal(map[string]any{"system": Build(parts), "tools": defs})
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > budget || len(defs) != 4 {
		t.Errorf("%d bytes for %d tools, budget %d", len(b), len(defs), budget)
	}
}
