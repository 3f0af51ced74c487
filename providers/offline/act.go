package offline

import (
	"cmp"
	"fmt"
	"strings"
)

// The rules of this file do exactly what the prompt spells out, and nothing
// when it does not.

const (
	// commandSeconds is the time a person's own command gets.
	commandSeconds = 600
	// shownOutput is how many lines of its output are repeated.
	shownOutput = 40
)

var (
	runQuoted = lazy("(?i)^\\s*(?:please )?(?:run|execute|exec)(?: the| this)?(?: command)?:? *`([^`\n]+)`")
	runPrompt = lazy(`^\s*[$!] +(\S[^\n]*)$`)

	anyQuoted   = "(?:`([^`]+)`|\"([^\"]+)\"|'([^']+)')"
	replacement = lazy(`(?i)^\s*(?:please )?(?:replace|change) ` + anyQuoted + ` (?:with|by|to|into) ` + anyQuoted + ` in [` + "`" + `"']?([^\s` + "`" + `"']+)`)
	creation    = lazy(`(?is)^\s*(?:please )?(?:create|write|make)(?: me)?(?: an?| the)?(?: new)?(?: file)?(?: called| named)? [` + "`" + `"']?([\w./~@+-]*\w)[` + "`" + `"']? (?:with|containing|saying|that says)(?: the)?(?: content| contents| text| line)?:? *` + "(?:`([^`]+)`|\"([^\"]+)\")")
)

// ownCommand is the command that a prompt spells out.
func ownCommand(q string) string {
	if m := runQuoted().FindStringSubmatch(q); m != nil {
		return m[1]
	}
	if m := runPrompt().FindStringSubmatch(q); m != nil {
		return m[1]
	}
	return ""
}

// command runs it.
func command(t *talk) string {
	c := ownCommand(t.question)
	r := t.ask(verbatim(c, commandSeconds))
	if r == nil {
		return ""
	}
	how := "ran"
	if !r[0].ok {
		how = "failed"
	}
	lines := lastLines(r[0].text, shownOutput)
	return fmt.Sprintf("`%s` %s:\n\n%s", c, how, fenced(lines))
}

func fenced(lines []string) string {
	text := strings.Join(lines, "\n")
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + "\n" + text + "\n" + fence + "\n"
}

// replace changes one text in one file, by the edit tool's rules.
func replace(t *talk) string {
	m := replacement().FindStringSubmatch(t.question)
	from, to, name := cmp.Or(m[1:4]...), cmp.Or(m[4:7]...), strings.TrimRight(m[7], ".,;:!?")
	r := t.ask(call{"edit", map[string]any{
		"path":  name,
		"edits": []map[string]string{{"oldText": from, "newText": to}},
	}})
	if r == nil {
		return ""
	}
	if !r[0].ok {
		return fmt.Sprintf("I did not change %s: %s", name, short3(strings.TrimSpace(r[0].text)))
	}
	return fmt.Sprintf("%s is changed: %q is now %q. The tool says: %s", name, from, to, firstLine(r[0].text))
}

// create writes a file, unless there is one already.
func create(t *talk) string {
	m := creation().FindStringSubmatch(t.question)
	name, text := m[1], cmp.Or(m[2:4]...)
	r := t.ask(bash("is there such a file already?", orMissing(name, "echo there")))
	if r == nil {
		return ""
	}
	if strings.TrimSpace(r[0].text) != missing {
		return fmt.Sprintf("I leave %s alone: there is such a file already, and rules should not overwrite anything.", name)
	}
	if r = t.ask(call{"write", map[string]any{"path": name, "content": text + "\n"}}); r == nil {
		return ""
	}
	if !r[0].ok {
		return fmt.Sprintf("I could not write %s: %s", name, firstLine(r[0].text))
	}
	return fmt.Sprintf("%s is written. The tool says: %s", name, firstLine(r[0].text))
}
