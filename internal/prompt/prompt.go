// Package prompt builds the system prompt of a session and reads the
// instruction files of a project.
//
// The same parts always give the same bytes: nothing that changes by itself,
// such as a date or an id, is in a prompt, so that a provider's cache of it
// stays valid. Nothing is escaped: bodies are text for a model, not markup.
package prompt

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Fallback is the foundation of a session whose plugins set none.
const Fallback = "You are CodeWork, a coding agent."

// Default is the foundation that sessions have unless a plugin replaces it.
const Default = "You are CodeWork, a coding agent. Work in the user's project with the tools below until the task is done: " +
	"look before you change, keep to the project's own style, and check the result by running it. " +
	"Then say briefly what you did and what is left."

// StandingRules come after the rules that the tools bring.
var StandingRules = []string{
	"Be brief.",
	"Quote paths and output exactly as they are.",
	"Read an error before trying again.",
}

// Tool is a line of the tools section.
type Tool struct {
	Name    string
	Snippet string // "" leaves the tool out
}

// Format says how a section's entries become its body.
type Format string

// A list has a line for each entry; a text's entries are parted by a blank
// line.
const (
	List Format = "list"
	Text Format = "text"
)

// Section is a part of the prompt that has a name.
type Section struct {
	Name    string
	Format  Format
	Entries []string
}

// Parts are what a system prompt is made of. Empty ones are left out.
type Parts struct {
	Foundation     string // "" is Fallback
	Tools          []Tool
	Rules          []string // the tools' own first, then StandingRules
	Addendum       []string // what the caller appends
	ProjectContext []string // the instruction files
	Skills         []string
	Dir            string    // the session's working directory in its sandbox
	Own            []Section // the plugins' own sections, in order of first use
}

// Build joins the parts in their fixed order.
func Build(p Parts) string {
	foundation := strings.TrimSpace(p.Foundation)
	if foundation == "" {
		foundation = Fallback
	}
	parts := []string{foundation}
	add := func(name, body string) {
		if body != "" {
			parts = append(parts, "<"+name+">\n"+body+"\n</"+name+">")
		}
	}
	add("tools", toolLines(p.Tools))
	add("rules", listBody(distinct(p.Rules)))
	add("addendum", textBody(p.Addendum))
	add("project_context", textBody(p.ProjectContext))
	add("skills", textBody(p.Skills))
	add("cwd", p.Dir)
	for _, s := range p.Own {
		if s.Format == List {
			add(s.Name, listBody(s.Entries))
		} else {
			add(s.Name, textBody(s.Entries))
		}
	}
	return strings.Join(parts, "\n\n")
}

func toolLines(tools []Tool) string {
	var lines []string
	for _, t := range tools {
		if s := collapse(t.Snippet); s != "" {
			lines = append(lines, "- "+t.Name+": "+s)
		}
	}
	if len(lines) == 0 {
		return "(none)"
	}
	return strings.Join(lines, "\n")
}

// distinct leaves out blank rules and those that differ from an earlier one
// only in blanks.
func distinct(rules []string) []string {
	var out []string
	for _, r := range rules {
		if r = collapse(r); r != "" && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

func collapse(s string) string { return strings.Join(strings.Fields(s), " ") }

func listBody(entries []string) string {
	var lines []string
	for _, e := range entries {
		if e = strings.TrimSpace(e); e != "" {
			lines = append(lines, "- "+e)
		}
	}
	return strings.Join(lines, "\n")
}

func textBody(entries []string) string {
	var kept []string
	for _, e := range entries {
		if strings.TrimSpace(e) != "" {
			kept = append(kept, strings.Trim(e, "\n"))
		}
	}
	return strings.Join(kept, "\n\n")
}

// Op is what a Change does to a section.
type Op string

// Append adds entries, Set replaces all of them, Remove leaves none.
const (
	Append Op = "append"
	Set    Op = "set"
	Remove Op = "remove"
)

// Change is what a plugin does to one section.
type Change struct {
	Name    string
	Format  Format // of an own section at its first use; "" is Text
	Op      Op
	Entries []string
}

var (
	sectionName = regexp.MustCompile(`^[a-z0-9_-]+$`)
	reserved    = []string{"tools", "cwd", "foundation"}

	// Sections are the names that every prompt knows: the others are the
	// plugins' own.
	Sections = append([]string{"rules", "addendum", "project_context", "skills"}, reserved...)
)

// Apply makes a plugin's change. An error names the section; nothing is
// changed then.
func (p *Parts) Apply(c Change) error {
	if !sectionName.MatchString(c.Name) {
		return fmt.Errorf("prompt section %.60q: a name has only a-z, 0-9, _ and -", c.Name)
	}
	if slices.Contains(reserved, c.Name) {
		return fmt.Errorf("prompt section %s is reserved", c.Name)
	}
	switch c.Op {
	case Append, Set, Remove:
	default:
		return fmt.Errorf("prompt section %s: no operation %.60q", c.Name, c.Op)
	}
	format, own := Text, false
	var entries *[]string
	switch c.Name {
	case "rules":
		entries, format = &p.Rules, List
	case "addendum":
		entries = &p.Addendum
	case "project_context":
		entries = &p.ProjectContext
	case "skills":
		entries = &p.Skills
	default:
		own = true
	}
	i := slices.IndexFunc(p.Own, func(s Section) bool { return s.Name == c.Name })
	if own && i >= 0 {
		entries, format = &p.Own[i].Entries, p.Own[i].Format
	}
	switch c.Format {
	case format, "":
	case List, Text:
		if entries != nil {
			return fmt.Errorf("prompt section %s is a %s", c.Name, format)
		}
		format = c.Format
	default:
		return fmt.Errorf("prompt section %s: no format %.60q", c.Name, c.Format)
	}
	if entries == nil {
		if c.Op == Remove {
			return nil
		}
		p.Own = append(p.Own, Section{Name: c.Name, Format: format})
		entries = &p.Own[len(p.Own)-1].Entries
	}
	switch c.Op {
	case Append:
		*entries = append(slices.Clip(*entries), c.Entries...)
	case Set:
		*entries = slices.Clone(c.Entries)
	case Remove:
		*entries = nil
	}
	return nil
}
