package offline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// markerWords are what people leave in code for later.
const markerWords = `TODO|FIXME|XXX|HACK`

const (
	// shownMarkers is how many lines an answer lists; more nobody reads.
	shownMarkers = 60
	// shownPerFile is how many of one file, when there are too many for all.
	shownPerFile = 5
	// shownMentions is how many of the lines that only talk of markers.
	shownMentions = 5
	// shownText is how much of one line, in characters.
	shownText = 120
)

var (
	markerWord = lazy(`\b(` + markerWords + `)\b`)
	// markerLead is what stands before a marker in a comment or a list.
	markerLead = lazy(`(^|//+!?|#+|/?\*+|--|;+|%+|<!--|"""|'''|\{-|\{#|\(\*|\bREM|^[-*+]( \[ \])?)$`)
	// markerTail is what follows one: a colon, or a person.
	markerTail = lazy(`^(\([^)]*\))?\s*:|^\([^)]+\)`)
)

// markers summarizes the open TODO, FIXME, XXX and HACK marks.
func markers(t *talk) string {
	where := scope(t.question)
	r := t.ask(t.search("find open markers", "wE", markerWords, where))
	if r == nil {
		return ""
	}
	if !r[0].ok {
		return "I could not search for markers: " + firstLine(r[0].text)
	}
	if strings.TrimSpace(r[0].text) == missing {
		return fmt.Sprintf("There is no %s here.", where)
	}
	all := hits(r[0].text)
	var open, mentions []hit
	for _, h := range all {
		if markAt(h.text) >= 0 {
			open = append(open, h)
		} else {
			mentions = append(mentions, h)
		}
	}
	place := "this project"
	if where != "" {
		place = where
	}
	total := ""
	if len(all) >= foundLines && t.has("bash") {
		c := t.ask(bash("count them all", grep("wE", markerWords, where)+perFile))
		if c == nil {
			return ""
		}
		total = inAll(c[0].text)
	}
	if len(open) == 0 {
		text := fmt.Sprintf("No open markers: no TODO, FIXME, XXX or HACK in %s.", place)
		if len(mentions) > 0 {
			text = fmt.Sprintf("No open markers in %s. ", place) + mentioned(mentions)
		}
		return text
	}

	byFile := map[string][]hit{}
	kinds := map[string]int{}
	for _, h := range open {
		byFile[h.path] = append(byFile[h.path], h)
		kinds[markerWord().FindString(h.text[markAt(h.text):])]++
	}
	names := make([]string, 0, len(byFile))
	for name := range byFile {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(byFile[b]), len(byFile[a])), cmp.Compare(a, b))
	})
	var b strings.Builder
	b.WriteString(total)
	if len(names) > 1 || names[0] != place {
		place = several(len(names), "file") + " of " + place
	}
	fmt.Fprintf(&b, "%s in %s: %s.\n", several(len(open), "open marker"), place, tally(kinds))
	most := len(open)
	if len(open) > shownMarkers && len(names) > 1 {
		most = shownPerFile
	}
	left := shownMarkers
	for i, name := range names {
		marks := byFile[name]
		if left == 0 {
			var rest []string
			for _, n := range names[i:] {
				rest = append(rest, fmt.Sprintf("%s (%d)", n, len(byFile[n])))
			}
			fmt.Fprintf(&b, "\nIn other files:\n%s\nAsk for the TODOs in one file or folder to see them all.\n", bullets(rest, shownNames))
			break
		}
		fmt.Fprintf(&b, "\n%s (%d)\n", name, len(marks))
		shown := min(len(marks), most, left)
		left -= shown
		for _, h := range marks[:shown] {
			fmt.Fprintf(&b, "- %s %s\n", h.place(), markerText(h.text))
		}
		if shown < len(marks) {
			fmt.Fprintf(&b, "- and %d more\n", len(marks)-shown)
		}
	}
	if len(mentions) > 0 {
		b.WriteString("\n" + mentioned(mentions))
	}
	return b.String()
}

// perFile counts the lines that grep found, and shows the files with most.
const perFile = ` | awk -F: '{ n[$1]++ } END { for (f in n) print n[f], f }' | LC_ALL=C sort -k1,1nr -k2 | awk '{ t += $1; if (NR <= 15) print } END { print "@total", t + 0, NR }'`

// inAll says what perFile counted, for projects with more than one search
// shows.
func inAll(text string) string {
	var lines, inFiles int
	var files []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if _, err := fmt.Sscanf(line, "@total %d %d", &lines, &inFiles); err == nil {
			continue
		}
		if n, name, ok := strings.Cut(line, " "); ok && number(n) > 0 {
			files = append(files, fmt.Sprintf("%s (%s)", name, n))
		}
	}
	if lines == 0 {
		return ""
	}
	return fmt.Sprintf("%s in %s hold one of the words. Most are in:\n%s\nWhat follows is from the first %d lines.\n\n",
		several(lines, "line"), several(inFiles, "file"), bullets(files, len(files)), foundLines)
}

// markAt is where the first mark of a line is, -1 when the line only talks of
// marks: a mark begins a comment or a list item, or is followed by a colon or a
// name, and does not stand in quotes.
func markAt(line string) int {
	for _, at := range markerWord().FindAllStringIndex(line, -1) {
		before, after := strings.TrimRight(line[:at[0]], " \t"), line[at[1]:]
		inQuotes := strings.HasSuffix(before, `"`) || strings.HasSuffix(before, "'") || strings.HasSuffix(before, "`")
		single := strings.ReplaceAll(before, `"""`, "") // three of them begin a comment
		if strings.Count(single, `"`)%2 == 1 || strings.Count(single, "`")%2 == 1 {
			continue // in a string literal: data, not a mark
		}
		if markerLead().MatchString(before) || !inQuotes && markerTail().MatchString(after) {
			return at[0]
		}
	}
	return -1
}

// markerText is the line from its mark on, without the end of the comment.
func markerText(line string) string {
	line = line[markAt(line):]
	for _, end := range []string{"*/", "-->", `"""`, "#}", "-}"} {
		line = strings.TrimSuffix(strings.TrimSpace(line), end)
	}
	return short(line)
}

func mentioned(mentions []hit) string {
	var places []string
	for _, h := range mentions[:min(len(mentions), shownMentions)] {
		places = append(places, h.place())
	}
	if len(mentions) > shownMentions {
		places = append(places, "…")
	}
	verb := "mention"
	if len(mentions) == 1 {
		verb = "mentions"
	}
	return fmt.Sprintf("%s only %s such a word, in text or code: %s.\n", capital(several(len(mentions), "other line")), verb, strings.Join(places, ", "))
}
