package settings

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/tailscale/hujson"
)

var update = flag.Bool("update", false, "bring the structure of the published schema up to date; descriptions are kept")

const schemaFile = "../../docs/settings.schema.json"

// schemaNames are the shapes that the schema defines once and refers to.
var schemaNames = map[*shape]string{
	optionBlock:    "optionBlock",
	budgets:        "thinkingBudgets",
	headers:        "headers",
	modelEntry:     "model",
	rates[0].shape: "amount",
}

// schemaWriter turns shapes into JSON Schema.
type schemaWriter struct{ defs map[string]any }

func (w *schemaWriter) of(s *shape) map[string]any {
	name := schemaNames[s]
	if name == "" {
		return w.body(s)
	}
	if w.defs[name] == nil {
		w.defs[name] = true // in case it refers to itself
		w.defs[name] = w.body(s)
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

func (w *schemaWriter) body(s *shape) map[string]any {
	out := map[string]any{}
	if s.either != nil {
		var any []any
		for _, e := range s.either {
			any = append(any, w.of(e))
		}
		out["anyOf"] = any
		return out
	}
	switch s.kind {
	case '{':
		out["type"] = "object"
		w.object(out, s)
	case '[':
		out["type"] = "array"
		out["items"] = w.of(s.elem)
		if s.mustHave != "" {
			out["contains"] = map[string]any{"const": s.mustHave}
		}
	case '"':
		out["type"] = "string"
		switch {
		case s.words != nil:
			out["enum"] = anys(s.words)
		case s.pattern != "":
			out["pattern"] = s.pattern
		case s.valid != nil && !s.valid(""):
			out["minLength"] = 1.0
		}
	case 'i', '0':
		out["type"] = map[byte]string{'i': "integer", '0': "number"}[s.kind]
		if s.min > -maxNumber {
			out["minimum"] = s.min
		}
		// What is only there to keep numbers exact is nobody's business.
		if s.max < maxWhole {
			out["maximum"] = s.max
		}
	case 'b':
		out["type"] = "boolean"
	}
	return out
}

func (w *schemaWriter) object(out map[string]any, s *shape) {
	if len(s.fields) > 0 {
		properties := map[string]any{}
		var required []string
		for _, f := range s.fields {
			properties[f.key] = w.of(f.shape)
			if f.required {
				required = append(required, f.key)
			}
		}
		out["properties"] = properties
		if required != nil {
			out["required"] = anys(required)
		}
	}
	if s.others != nil && s.others.kind != '*' {
		out["additionalProperties"] = w.of(s.others)
	}
	if s.strict {
		out["additionalProperties"] = false
	}
	switch {
	case s.keyRule != "":
		out["propertyNames"] = map[string]any{"pattern": s.keyRule}
	case s.reserved != nil:
		out["propertyNames"] = map[string]any{"not": map[string]any{"enum": anys(s.reserved)}}
	}
}

func anys(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

func generatedSchema() map[string]any {
	w := schemaWriter{defs: map[string]any{}}
	out := w.of(fileShape)
	out["$defs"] = w.defs
	out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	return out
}

// annotations are what people write into the schema; the rest is generated.
var annotations = []string{"title", "description", "default", "examples"}

// keepAnnotations copies what people wrote from old to new.
func keepAnnotations(old, new any) {
	switch n := new.(type) {
	case map[string]any:
		o, ok := old.(map[string]any)
		if !ok {
			return
		}
		for _, a := range annotations {
			// A property may have such a name itself.
			if _, isProperty := n[a]; !isProperty && o[a] != nil {
				if _, isSchema := o[a].(map[string]any); !isSchema {
					n[a] = o[a]
				}
			}
		}
		for k := range n {
			keepAnnotations(o[k], n[k])
		}
	case []any:
		if o, ok := old.([]any); ok && len(o) == len(n) {
			for i := range n {
				keepAnnotations(o[i], n[i])
			}
		}
	}
}

func publishedSchema(t *testing.T) (text []byte, tree map[string]any) {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatalf("%s: %v", schemaFile, err)
	}
	return text, tree
}

// TestPublishedSchemaIsWhatTheDecoderKnows compares every key and rule.
func TestPublishedSchemaIsWhatTheDecoderKnows(t *testing.T) {
	generated := generatedSchema()
	if *update {
		var old any
		if text, err := os.ReadFile(schemaFile); err == nil {
			if err := json.Unmarshal(text, &old); err != nil {
				t.Fatal(err)
			}
		}
		keepAnnotations(old, generated)
		text, err := json.MarshalIndent(generated, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(schemaFile, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, published := publishedSchema(t)
	// Through JSON, so that both are made of the same types.
	text, err := json.Marshal(generated)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	keepAnnotations(published, want)
	if !reflect.DeepEqual(published, want) {
		got, _ := json.Marshal(published)
		wanted, _ := json.Marshal(want)
		t.Errorf("the schema differs; go test ./internal/settings -run Schema -update\n got %s\nwant %s", got, wanted)
	}
}

func TestEveryKeyOfTheSchemaIsDescribed(t *testing.T) {
	_, published := publishedSchema(t)
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if properties, ok := v["properties"].(map[string]any); ok {
				for key, p := range properties {
					// A level needs no more than its name.
					if strings.HasSuffix(path, "/thinkingBudgets") || strings.HasSuffix(path, "/thinkingLevelMap") {
						continue
					}
					if d, _ := p.(map[string]any)["description"].(string); d == "" {
						t.Errorf("%s: no description of %s", path, key)
					}
				}
			}
			for k, x := range v {
				walk(path+"/"+k, x)
			}
		}
	}
	walk("", published)
}

// TestDefaultsOfTheSchema holds the defaults that the schema states against
// those that are used.
func TestDefaultsOfTheSchema(t *testing.T) {
	_, published := publishedSchema(t)
	stated := map[string]any{}
	var walk func(path string, v map[string]any)
	walk = func(path string, v map[string]any) {
		if d, ok := v["default"]; ok {
			stated[path] = d
		}
		properties, _ := v["properties"].(map[string]any)
		for key, p := range properties {
			walk(join(path, key), p.(map[string]any))
		}
	}
	walk("", published)
	walk("block", published["$defs"].(map[string]any)["optionBlock"].(map[string]any))

	b := newFixture(t).load().Options("p", "m")
	used := map[string]any{
		"block.timeoutMs":     float64(b.Timeout.Milliseconds()),
		"block.idleTimeoutMs": float64(b.IdleTimeout.Milliseconds()),
		"block.maxRetries":    float64(b.MaxRetries),
	}
	defaults.walkLeaves("", func(path string, n *node) {
		var v any
		if err := json.Unmarshal(n.raw(), &v); err != nil {
			t.Fatal(err)
		}
		used[path] = v
	})
	if !reflect.DeepEqual(stated, used) {
		t.Errorf("stated %v\nused   %v", stated, used)
	}
}

// TestSchemaAndDecoderAgree runs a schema validator over all the cases of the
// decoder.
func TestSchemaAndDecoderAgree(t *testing.T) {
	text, _ := publishedSchema(t)
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	validate := func(text string) error {
		plain, err := hujson.Standardize([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var v any
		if err := json.Unmarshal(plain, &v); err != nil {
			return err
		}
		return resolved.Validate(v)
	}
	for _, text := range accepted {
		// The schema does not speak of null, which means absent.
		if err := validate(strings.Replace(text, `"off": null`, `"off": "x"`, 1)); err != nil {
			t.Errorf("%s: the schema refuses what is accepted: %v", text, err)
		}
	}
	for _, c := range rejected {
		if err := validate(c.text); err == nil && !c.lax {
			t.Errorf("%s: the schema lets pass what is refused", c.text)
		}
	}
	for _, name := range optionBlock.reserved {
		if validate(inOptions(`"`+name+`": 1`)) == nil {
			t.Errorf("%s: the schema lets a reserved name pass", name)
		}
	}
}
