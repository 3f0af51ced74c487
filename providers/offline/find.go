package offline

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	// shownHits is how many found lines an answer lists.
	shownHits = 40
	// leastWord is the shortest word worth looking for alone.
	leastWord = 4
)

var (
	quoted = lazy("`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|'([^']{2,})'")
	// wanted is what stands behind the words that ask for a search.
	wanted = []func() *regexp.Regexp{
		lazy(`(?i)\b(?:uses|usages?|users|references|occurrences|callers|mentions|definitions?) (?:of|to) (.+)`),
		lazy(`(?i)\bwho (?:calls|uses|imports) (.+)`),
		lazy(`(?i)\bwhere(?:'s| is| are| do| does| did| can| was| were)(?: (?:i|we|you|they|it))?(?: find| see)? (.+)`),
		lazy(`(?i)\b(?:search|grep|look|find|locate)\b(?: (?:the |this )?(?:repo|repository|project|code|codebase|files|everything))?(?: for)? (.+)`),
	}
	nounsBefore = lazy(`(?i)^(?:(?:the|a|an|all|any|every|me|out|where|for|of|function|func|method|type|struct|class|interface|variable|const(?:ant)?|word|string|symbol|text|phrase|term|identifier|files?|folders?|named|called)\s+)+`)
	wordsAfter  = lazy(`(?i)(?:\s+(?:(?:is|are|was|were|gets?|being)\s+)?(?:defined|declared|used|called|implemented|set|created|located|handled|referenced|mentioned|live|lives|come from|comes from|go|file|here)|\s+(?:in|within|inside|across|throughout)\s+(?:the|this|my|our)\s+(?:whole\s+)?(?:repo|repository|project|code ?base|code|folder|directory|sources?)|\s+in\s+\S*[/.]\S*|\s+(?:please|and .*))+$`)
)

// sought is the text that a question wants found.
func sought(q string) string {
	if m := quoted().FindStringSubmatch(q); m != nil {
		return cmp.Or(m[1:]...)
	}
	q, _, _ = strings.Cut(q, "\n")
	q = strings.TrimRight(q, " .?!:")
	for _, re := range wanted {
		if m := re().FindStringSubmatch(q); m != nil {
			term := nounsBefore().ReplaceAllString(m[1], "")
			term = wordsAfter().ReplaceAllString(term, "")
			return strings.TrimSuffix(strings.Trim(term, " ,.?!"), "()")
		}
	}
	return ""
}

// find looks for a text in files and in their names.
func find(t *talk) string {
	term := sought(t.question)
	if term == "" {
		return "What shall I look for? Ask for example: find uses of \"NewServer\""
	}
	where := scope(t.question)
	if where == term {
		where = ""
	}
	calls := []call{t.search("search for "+oneLine(term), "F", term, where)}
	named := t.has("bash") && !strings.Contains(term, " ")
	if named {
		calls = append(calls, bash("search the names of files", fmt.Sprintf("{ %s; } | grep -iF -e %s | head -n %d; true", files(where), quote(term), foundLines)))
	}
	r := t.ask(calls...)
	if r == nil {
		return ""
	}
	if !r[0].ok {
		return "I could not search: " + firstLine(r[0].text)
	}
	if strings.TrimSpace(r[0].text) == missing {
		return fmt.Sprintf("There is no %s here.", where)
	}
	var names []string
	if named && r[1].ok {
		names = namesIn(r[1].text)
	}
	found, how := hits(r[0].text), ""
	if len(found) == 0 && len(names) == 0 {
		looser := longestWord(term)
		if r = t.ask(t.search("search for "+oneLine(looser)+" in any case", "iF", looser, where)); r == nil {
			return ""
		}
		if found = hits(r[0].text); len(found) > 0 {
			how = fmt.Sprintf("%q as it stands is nowhere; what follows is for %q in upper or lower case.\n\n", term, looser)
		}
		term = looser
	}
	place := ""
	if where != "" {
		place = " in " + where
	}
	if len(found) == 0 && len(names) == 0 {
		return fmt.Sprintf("Nothing found: %q is neither in a file nor in a file's name%s. Files that git ignores, binary files, vendor and node_modules are not searched.", sought(t.question), place)
	}
	return how + report(term, found, names)
}

func namesIn(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if p := strings.TrimSpace(line); p != "" && p != "(no output)" && !strings.HasPrefix(p, "[") {
			names = append(names, p)
		}
	}
	return names
}

func report(term string, found []hit, names []string) string {
	definition := definitionOf(term)
	inFiles := map[string]int{}
	var defined, used []hit
	for _, h := range found {
		inFiles[h.path]++
		if definition.MatchString(h.text) {
			defined = append(defined, h)
		} else {
			used = append(used, h)
		}
	}
	var b strings.Builder
	if len(found) > 0 {
		atLeast := ""
		if len(found) >= foundLines {
			atLeast = "at least "
		}
		fmt.Fprintf(&b, "%q is on %s%s in %s.\n", term, atLeast, several(len(found), "line"), several(len(inFiles), "file"))
	}
	list := func(title string, hits []hit, most int) {
		if len(hits) == 0 {
			return
		}
		lines := make([]string, 0, len(hits))
		for _, h := range hits {
			lines = append(lines, fmt.Sprintf("%s %s", h.place(), short(h.text)))
		}
		fmt.Fprintf(&b, "\n%s:\n%s", title, bullets(lines, most))
	}
	list("Looks like its definition", defined, shownHits)
	title := "Found in"
	if len(defined) > 0 {
		title = "Used or mentioned in"
	}
	list(title, used, shownHits)
	if len(inFiles) > 1 && len(used) > shownHits {
		files := ranked(inFiles)
		for i, f := range files {
			files[i] = fmt.Sprintf("%s (%d)", f, inFiles[f])
		}
		fmt.Fprintf(&b, "\nMost lines are in:\n%s", bullets(files, 10))
	}
	if len(names) > 0 {
		fmt.Fprintf(&b, "\n%s with that in the name:\n%s", capital(several(len(names), "file")), bullets(names, shownNames))
	}
	return b.String()
}

// definitionOf matches lines that seem to introduce a name.
func definitionOf(name string) *regexp.Regexp {
	n := regexp.QuoteMeta(name)
	return regexp.MustCompile(`\b(func|type|class|def|struct|interface|enum|union|trait|fn|function|module|mod|package|namespace|macro_rules!|const|let|var|val|#define)\s+(\([^)]*\)\s*)?\*?` + n + `\b` +
		`|^` + n + `\s*(:=|=[^=]|\(\)\s*\{)|^(export |pub |static )+.*\b` + n + `\b\s*[(={]`)
}

// longestWord is what of a phrase is most likely a name.
func longestWord(phrase string) string {
	words := strings.Fields(phrase)
	if len(words) < 2 {
		return phrase
	}
	word := slices.MaxFunc(words, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	if len(word) < leastWord {
		return phrase
	}
	return word
}
