package settings

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const docsFile = "../../docs/settings.md"

func TestExamplesOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```jsonc\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(examples) < 5 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, e := range examples {
		if _, warnings, err := decode("example", []byte(e[1]), ""); err != nil || len(warnings) > 0 {
			t.Errorf("%v %v in\n%s", err, warnings, e[1])
		}
	}
}

func TestDocumentationNamesEveryKey(t *testing.T) {
	page, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, quoted := range regexp.MustCompile("`[^`\n]+`").FindAllString(string(page), -1) {
		words[strings.Trim(quoted, "`")] = true
	}
	seen := map[*shape]bool{budgets: true} // levels are listed as words
	var walk func(path string, s *shape)
	walk = func(path string, s *shape) {
		if s == nil || seen[s] {
			return
		}
		seen[s] = true
		for _, name := range s.reserved {
			if !words[name] {
				t.Errorf("%s: reserved name %s is not documented", path, name)
			}
		}
		for _, f := range s.fields {
			at := join(path, f.key)
			// In a section the key stands alone, or with the one above it.
			short := strings.Join(strings.Split(at, ".")[max(0, strings.Count(at, ".")-1):], ".")
			if f.key != "$schema" && !words[f.key] && !words[short] {
				t.Errorf("%s is not documented", at)
			}
			walk(at, f.shape)
		}
		walk(path, s.others)
		walk(path, s.elem)
		for _, e := range s.either {
			walk(path, e)
		}
	}
	walk("", fileShape)
	for _, w := range [][]string{level.words, execution.words, retention.words, method.words} {
		for _, word := range w {
			if !words[word] {
				t.Errorf("word %s is not documented", word)
			}
		}
	}
}
