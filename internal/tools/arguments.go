package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
)

const (
	// maxFaults is how many faults of one call's arguments are named: a model
	// that got everything wrong needs the schema, not a list.
	maxFaults = 5
	// maxNameShown and maxReasonShown bound, in bytes, what a bad name or a
	// library's message may add to an error.
	maxNameShown   = 60
	maxReasonShown = 200
	// maxRawKept is how much of unusable arguments is kept in the details.
	maxRawKept = 4 << 10
)

// checker validates the arguments of one tool.
type checker struct {
	source json.RawMessage
	schema *jsonschema.Schema
	// resolved is nil for a schema that is JSON Schema but goes beyond what can
	// be checked here, such as a pattern with a look-ahead: then the arguments
	// are left to the tool.
	resolved *jsonschema.Resolved
}

// draft7 is the one older dialect that is read differently.
const draft7 = "http://json-schema.org/draft-07/schema#"

func newChecker(source json.RawMessage) (*checker, error) {
	var s jsonschema.Schema
	if err := json.Unmarshal(source, &s); err != nil {
		return nil, err
	}
	if s.Type != "" && s.Type != "object" {
		return nil, fmt.Errorf("type is %q, want object", s.Type)
	}
	// Unknown dialects are read as the newest: refusing a whole tool for the
	// name of its dialect would help nobody.
	if strings.Contains(s.Schema, "draft-07") {
		s.Schema = draft7
	} else {
		s.Schema = ""
	}
	c := &checker{source: source, schema: &s}
	if r, err := s.Resolve(nil); err == nil {
		c.resolved = r
	}
	return c, nil
}

// errNotObject tells arguments that are JSON, but no object.
var errNotObject = errors.New("not an object")

// parseObject decodes arguments. An empty text counts as an empty object,
// since some providers send it for a call without arguments.
func parseObject(text string) (map[string]any, json.RawMessage, error) {
	if strings.TrimSpace(text) == "" {
		return map[string]any{}, json.RawMessage("{}"), nil
	}
	raw := json.RawMessage(text)
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("%w but %s", errNotObject, kindOf(v))
	}
	return m, raw, nil
}

// dropNulls removes, in place, null for every optional field whose schema does
// not itself allow null, and tells whether there was one.
func dropNulls(s *jsonschema.Schema, v any) bool {
	dropped := false
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			p := s.Properties[name]
			if value == nil && p != nil && !slices.Contains(s.Required, name) && !allowsNull(p) {
				delete(v, name)
				dropped = true
			} else if p != nil {
				dropped = dropNulls(p, value) || dropped
			}
		}
	case []any:
		if s.Items != nil {
			for _, value := range v {
				dropped = dropNulls(s.Items, value) || dropped
			}
		}
	}
	return dropped
}

func allowsNull(s *jsonschema.Schema) bool {
	return s.Type == "null" || slices.Contains(s.Types, "null")
}

// withoutNulls encodes raw again without the nulls dropNulls removes. Numbers
// keep their digits.
func (c *checker) withoutNulls(raw json.RawMessage) (json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	dropNulls(c.schema, v)
	return json.Marshal(v)
}

// faults validates v and says, for each failing field, what is wrong with it.
// No message repeats a value.
func (c *checker) faults(v map[string]any) []string {
	if c.resolved == nil {
		return nil
	}
	err := c.resolved.Validate(v)
	if err == nil {
		return nil
	}
	found := faultsOf(c.schema, v, "")
	if len(found) == 0 {
		// A rule that faultsOf does not know: the library's words, which may
		// hold values, cut short.
		found = []string{clip(oneLine(err.Error()), maxReasonShown)}
	}
	return found
}

func faultsOf(s *jsonschema.Schema, v any, path string) []string {
	at := func(name string) string {
		name = clip(name, maxNameShown)
		if path == "" {
			return name
		}
		return path + "." + name
	}
	if want := wanted(s); len(want) > 0 {
		got := kindOf(v)
		ok := slices.Contains(want, got)
		if got == "number" && slices.Contains(want, "integer") {
			f, _ := v.(float64)
			ok = ok || f == math.Trunc(f)
		}
		if !ok {
			return []string{fmt.Sprintf("%s: must be %s, is %s", orArguments(path), strings.Join(want, " or "), got)}
		}
	}
	var out []string
	switch v := v.(type) {
	case map[string]any:
		for _, name := range s.Required {
			if _, ok := v[name]; !ok {
				out = append(out, at(name)+": is missing")
			}
		}
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			p, known := s.Properties[name]
			switch {
			case known:
				out = append(out, faultsOf(p, v[name], at(name))...)
			case forbidden(s.AdditionalProperties):
				out = append(out, at(name)+": is not a field of this tool")
			}
		}
	case []any:
		if s.MinItems != nil && len(v) < *s.MinItems {
			out = append(out, fmt.Sprintf("%s: needs at least %d", orArguments(path), *s.MinItems))
		}
		if s.Items != nil {
			for i, item := range v {
				out = append(out, faultsOf(s.Items, item, fmt.Sprintf("%s[%d]", path, i))...)
				if len(out) > maxFaults {
					break
				}
			}
		}
	case string:
		if s.MinLength != nil && utf8.RuneCountInString(v) < *s.MinLength {
			out = append(out, orArguments(path)+": is too short")
		}
		if s.MaxLength != nil && utf8.RuneCountInString(v) > *s.MaxLength {
			out = append(out, orArguments(path)+": is too long")
		}
		if s.Enum != nil && !slices.Contains(s.Enum, any(v)) {
			b, _ := json.Marshal(s.Enum) // came from JSON
			out = append(out, fmt.Sprintf("%s: must be one of %s", orArguments(path), clip(string(b), maxReasonShown)))
		}
	case float64:
		if s.Minimum != nil && v < *s.Minimum {
			out = append(out, fmt.Sprintf("%s: must be at least %v", orArguments(path), *s.Minimum))
		}
		if s.Maximum != nil && v > *s.Maximum {
			out = append(out, fmt.Sprintf("%s: must be at most %v", orArguments(path), *s.Maximum))
		}
	}
	return out
}

// forbidden tells whether s is the schema that nothing satisfies, which is how
// additionalProperties: false is read.
func forbidden(s *jsonschema.Schema) bool {
	if s == nil {
		return false
	}
	b, err := json.Marshal(s)
	return err == nil && string(b) == "false"
}

func wanted(s *jsonschema.Schema) []string {
	if s.Type != "" {
		return []string{s.Type}
	}
	return s.Types
}

func orArguments(path string) string {
	if path == "" {
		return "arguments"
	}
	return path
}

// kindOf is JSON's word for what v is.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		return "number"
	case []any:
		return "array"
	default:
		return "object"
	}
}

// whole is a number argument as an int: cut to a whole number, raised to min;
// def when it is absent.
func whole(f *float64, def, min int) int {
	if f == nil {
		return def
	}
	if *f >= math.MaxInt32 { // more lines, matches or seconds than anything has
		return math.MaxInt32
	}
	if *f < float64(min) {
		return min
	}
	return max(min, int(*f))
}

// clip cuts s to at most n bytes, on a rune boundary, and marks the cut.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return cutRunes(s, n) + "…"
}

// cutRunes is the longest prefix of s of at most n bytes that ends between
// runes.
func cutRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// oneLine joins the lines and blanks of s by single spaces.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
