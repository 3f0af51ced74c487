package offline

import (
	"cmp"
	"strings"
)

// choose finds the rule for what is asked. More special wordings come first;
// what nothing recognises gets the page that says what can be asked.
func choose(t *talk) rule {
	q := t.question
	switch {
	case ownCommand(q) != "":
		return command
	case replacement().MatchString(q):
		return replace
	case creation().MatchString(q):
		return create
	case asksForChecks().MatchString(q):
		return checks
	case asksForMarkers().MatchString(q):
		return markers
	case asksForHistory().MatchString(q):
		return history
	case asksForCount().MatchString(q):
		return count
	case asksForLayout().MatchString(q):
		return layout
	case asksForSearch().MatchString(q):
		return find
	case asksForFile().MatchString(q) && target(q) != "":
		return file
	case asksForProject().MatchString(q):
		return layout
	}
	return help
}

var (
	asksForChecks = lazy(`(?i)\b(run|execute|start|do|perform|try)\b.{0,40}\b(tests?|checks?|lint(er|ers|ing)?|build|test suite|type ?check)\b` +
		`|\b(do|does|are|is|will|would)\b.{0,40}\b(tests? (pass|passing|green|ok|work)|build(s|ing)?|compil(e|es|ing)|checks? (pass|green))\b` +
		`|^\W*(test|tests|check|checks|lint|build)( it| this| everything| all| the (project|repo|repository|code))?\W*$`)
	asksForMarkers = lazy(`(?i)\b(to-?dos?|fixmes?|xxx|hacks?)\b`)
	asksForHistory = lazy(`(?i)\bgit (status|log|history)\b|\b(uncommitted|unstaged|staged|untracked|working tree)\b` +
		`|\b(last|latest|recent|newest|previous)( \w+)? (commits?|changes)\b|\b(commit|change) (history|log)\b|\bcommits\b` +
		`|\bwhat('s| has| have| is)?( been)? changed\b|\bwhat branch\b|\bwhich branch\b`)
	asksForCount  = lazy(`(?i)\bhow (many|much) (\w+ )?(lines|files|code)\b|\bcount( up)?( all)?( the)? (lines|files)\b|\b(number of|total) (lines|files)\b|\blines of code\b|\bhow (big|large) is\b`)
	asksForLayout = lazy(`(?i)\b(layout|structure|structured|organi[sz]ed|directory tree|folders|overview|tour)\b|\blist (all )?(the )?files\b|\bwhat files\b|\bwhich (programming )?languages?\b|\bwhat languages?\b`)
	asksForSearch = lazy(`(?i)\bwhere('s| is| are| do| does| did| can| was| were)\b|\bwho (calls|uses|imports)\b` +
		`|\b(uses|usages?|users|references|occurrences|callers|mentions|definitions?) (of|to)\b|^\W*(please )?(search|grep|look|find|locate)\b`)
	asksForFile    = lazy(`(?i)\b(show|read|open|cat|print|display|see|view|explain|describe|summari[sz]e|outline|inside|contents?|what|how|tell|about|list)\b`)
	asksForProject = lazy(`(?i)\b(this|the|my|our) (whole )?(repo|repository|project|code ?base|code|program|app|application|library|package|folder|directory|workspace)\b|\bwhat is this\b|\barchitecture\b|\bwhere am i\b|^\W*ls\W*$`)
)

// A path in a sentence: a token with a slash or a short ending, or one of the
// names that files have without either.
var (
	token      = lazy("[^\\s`\"'“”‘’()<>,;]+")
	withEnding = lazy(`^[\p{L}\p{N}_.@+~-]*[\p{L}\p{N}_]\.[A-Za-z][A-Za-z0-9]{0,9}$`)
	dotFile    = lazy(`^\.[A-Za-z][\w.-]*$`)
	bareNames  = lazy(`(?i)^(readme|makefile|dockerfile|containerfile|licen[sc]e|notice|changelog|contributing|justfile|taskfile|gemfile|rakefile|procfile|codeowners)$`)
	noPath     = lazy(`(?i)^(e\.g|i\.e|etc|and/or|either/or|n/a|w/o|todo/fixme|read/write|tcp/ip|ci/cd|https?:.*|\w+://.*)$`)
)

// paths returns what looks like paths in a sentence, in order.
func paths(q string) []string {
	var found []string
	for _, w := range token().FindAllString(q, -1) {
		w = strings.TrimRight(w, ".:?!")
		w = strings.TrimPrefix(w, "@") // how some clients mark files
		switch {
		case noPath().MatchString(w) || w == "/":
		case strings.Contains(w, "/"), withEnding().MatchString(w), dotFile().MatchString(w), bareNames().MatchString(w):
			found = append(found, w)
		}
	}
	return found
}

// target is the path that a question is about: in quotes, where it may hold
// blanks, or else the first that it names.
func target(q string) string {
	if m := quoted().FindStringSubmatch(q); m != nil {
		if name := cmp.Or(m[1:]...); len(paths(name)) > 0 && len(name) < 256 {
			return name
		}
	}
	if p := paths(q); len(p) > 0 {
		return p[0]
	}
	return bareWord(q)
}

var oneThing = lazy(`(?i)^\W*(?:please )?(?:show|open|read|cat|print|list|explain|describe|outline|summari[sz]e)(?: me)?(?: the)?(?: file| folder| directory)? ([\w-]+)(?: file| folder| directory)?\W*$`)

// bareWord is a single word in the place of a path, which may be a folder's
// name or that of a file without its ending.
func bareWord(q string) string {
	if m := oneThing().FindStringSubmatch(q); m != nil {
		return m[1]
	}
	return ""
}

var inPath = lazy("(?i)\\b(?:in|under|inside|within|below|of)\\s+(?:the\\s+)?(?:file\\s+|folder\\s+|directory\\s+)?[`\"']?([^\\s`\"']+)(\\s+(?:folder|directory|package))?")

// scope is the path to which a question is limited: "in src/", "in the store
// folder". Words that mean the whole project are no scope.
func scope(q string) string {
	for _, m := range inPath().FindAllStringSubmatch(q, -1) {
		w := strings.TrimRight(m[1], ".,:;?!)")
		if p := paths(w); len(p) == 1 {
			return p[0]
		}
		if m[2] != "" && !strings.EqualFold(w, "this") && !strings.EqualFold(w, "the") {
			return w
		}
	}
	return ""
}
