package gemini

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
)

// maxSchemaDepth bounds what is inlined: a schema that refers to itself has no
// end. Below it every value is allowed.
const maxSchemaDepth = 16

// keptKeys are the keywords that the API's subset of JSON Schema shares with
// it and takes as they are. The others are adapted or dropped: the API refuses
// a declaration that holds one it does not know.
var keptKeys = []string{"title", "description", "default", "nullable", "minItems", "maxItems", "minLength", "maxLength",
	"minProperties", "maxProperties", "minimum", "maximum", "pattern", "propertyOrdering"}

// typeNames are the types that a value may have; null is told as nullable.
var typeNames = []string{"string", "number", "integer", "boolean", "array", "object"}

// formats are what the API allows as format, by type.
var formats = map[string][]string{
	"string":  {"date-time", "enum"},
	"number":  {"float", "double"},
	"integer": {"int32", "int64"},
}

// parameters adapts a tool's JSON Schema to what functionDeclarations take:
// references inlined, const as an enum of one, lists of types as nullable or
// anyOf, allOf merged, oneOf as anyOf, and everything else left out. It is nil
// for a tool without parameters, whose schema the API wants absent.
func parameters(schema json.RawMessage) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(schema))
	d.UseNumber()
	var root map[string]any
	if d.Decode(&root) != nil {
		return nil
	}
	out := adapter{root: root}.schema(root, 0)
	if props, _ := out["properties"].(map[string]any); out["type"] != "object" || len(props) == 0 {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(out) != nil {
		return nil
	}
	return bytes.TrimSpace(b.Bytes())
}

type adapter struct{ root map[string]any }

func (a adapter) schema(v any, depth int) map[string]any {
	in, _ := v.(map[string]any) // true and false are schemas too: anything goes
	if depth > maxSchemaDepth {
		in = nil
	}
	in = a.resolved(in, depth)
	out := map[string]any{}
	for _, k := range keptKeys {
		if v, ok := in[k]; ok {
			out[k] = v
		}
	}
	a.types(in, out, depth)
	a.choices(in, out, depth)
	kind, _ := out["type"].(string)
	enum(in, out, kind)
	if f, _ := in["format"].(string); slices.Contains(formats[kind], f) {
		out["format"] = f
	}
	limit(in, out, "exclusiveMinimum", "minimum", kind, 1)
	limit(in, out, "exclusiveMaximum", "maximum", kind, -1)
	switch kind {
	case "object":
		a.properties(in, out, depth)
	case "array":
		out["items"] = a.items(in, depth)
	}
	return out
}

// resolved follows references and lays the members of an allOf over each
// other. What stands beside a reference wins.
func (a adapter) resolved(in map[string]any, depth int) map[string]any {
	for range maxSchemaDepth {
		ref, isRef := in["$ref"].(string)
		all, isAll := in["allOf"].([]any)
		if !isRef && !isAll {
			return in
		}
		out := map[string]any{}
		if isRef {
			merge(out, a.find(ref))
		}
		for _, v := range all {
			member, _ := v.(map[string]any)
			if depth < maxSchemaDepth {
				member = a.resolved(member, depth+1)
			}
			merge(out, member)
		}
		for k, v := range in {
			if k != "$ref" && k != "allOf" {
				merge(out, map[string]any{k: v})
			}
		}
		in = out
	}
	return nil // a circle of references
}

// merge lays one schema over another; properties and required names add up.
func merge(under, over map[string]any) {
	for k, v := range over {
		switch k {
		case "properties":
			both := map[string]any{}
			for _, from := range []any{under[k], v} {
				m, _ := from.(map[string]any)
				for name, p := range m {
					both[name] = p
				}
			}
			under[k] = both
		case "required":
			below, _ := under[k].([]any)
			above, _ := v.([]any)
			under[k] = append(slices.Clone(below), above...)
		default:
			under[k] = v
		}
	}
}

// find is the schema that a reference inside of the document points to.
func (a adapter) find(ref string) map[string]any {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil
	}
	at := a.root
	for _, name := range strings.Split(strings.TrimPrefix(path, "/"), "/") {
		if name == "" {
			continue
		}
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		at, _ = at[name].(map[string]any)
	}
	return at
}

// types sets one type; null among several means nullable, and what is left of
// several becomes anyOf.
func (a adapter) types(in, out map[string]any, depth int) {
	var kinds []string
	switch t := in["type"].(type) {
	case string:
		kinds = []string{t}
	case []any:
		for _, v := range t {
			if s, ok := v.(string); ok {
				kinds = append(kinds, s)
			}
		}
	}
	kinds = slices.DeleteFunc(kinds, func(k string) bool {
		if k == "null" {
			out["nullable"] = true
		}
		return !slices.Contains(typeNames, k)
	})
	switch {
	case len(kinds) == 1:
		out["type"] = kinds[0]
	case len(kinds) > 1:
		var members []any
		for _, k := range kinds {
			one := map[string]any{}
			merge(one, in)
			one["type"] = k
			delete(one, "description")
			members = append(members, a.schema(one, depth+1))
		}
		out["anyOf"] = members
		for _, k := range keptKeys {
			if k != "title" && k != "description" && k != "nullable" {
				delete(out, k) // they are in the members
			}
		}
	case in["properties"] != nil || in["additionalProperties"] != nil:
		out["type"] = "object"
	case in["items"] != nil || in["prefixItems"] != nil:
		out["type"] = "array"
	default:
		if t := typeOfValues(values(in)); t != "" {
			out["type"] = t
		}
	}
}

// choices makes anyOf of anyOf and oneOf. A member that is only null means
// nullable; a single one that is left takes the place of the choice.
func (a adapter) choices(in, out map[string]any, depth int) {
	var members []any
	for _, k := range []string{"anyOf", "oneOf"} {
		list, _ := in[k].([]any)
		for _, v := range list {
			m, _ := v.(map[string]any)
			m = a.resolved(m, depth)
			if m["type"] == "null" {
				out["nullable"] = true
				continue
			}
			members = append(members, a.schema(m, depth+1))
		}
	}
	switch len(members) {
	case 0:
	case 1:
		for k, v := range members[0].(map[string]any) {
			if _, ok := out[k]; !ok {
				out[k] = v
			}
		}
	default:
		out["anyOf"] = members
	}
	if out["type"] == nil && out["anyOf"] == nil {
		out["type"] = "string" // the API wants to know one
	}
}

// values are those that enum or const allow.
func values(in map[string]any) []any {
	if v, ok := in["const"]; ok {
		return []any{v}
	}
	list, _ := in["enum"].([]any)
	return list
}

func typeOfValues(list []any) string {
	if len(list) == 0 {
		return ""
	}
	switch v := list[0].(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "number"
		}
		return "integer"
	}
	return ""
}

// enum keeps the allowed values where the API can: of strings. Elsewhere they
// are told in the description.
func enum(in, out map[string]any, kind string) {
	list := values(in)
	if len(list) == 0 {
		return
	}
	if kind == "string" {
		var words []any
		for _, v := range list {
			switch s, ok := v.(string); {
			case ok && s != "": // an empty one is refused
				words = append(words, s)
			case v == nil:
				out["nullable"] = true
			}
		}
		if len(words) > 0 {
			out["enum"] = words
		}
		return
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return
	}
	told := "one of " + strings.Trim(string(raw), "[]")
	if d, _ := out["description"].(string); d != "" {
		told = d + " (" + told + ")"
	}
	out["description"] = told
}

// limit turns an exclusive bound into one that the API has. For whole numbers
// it is the next one, for others the bound itself, which allows one too many.
func limit(in, out map[string]any, exclusive, inclusive, kind string, step float64) {
	n, ok := in[exclusive].(json.Number)
	if !ok || out[inclusive] != nil {
		return
	}
	f, err := n.Float64()
	if err != nil {
		return
	}
	if kind == "integer" && f == math.Trunc(f) {
		f += step
	}
	out[inclusive] = f
}

func (a adapter) properties(in, out map[string]any, depth int) {
	props, _ := in["properties"].(map[string]any)
	if len(props) == 0 {
		delete(out, "propertyOrdering")
		return // an object of anything; an empty map is refused
	}
	adapted := make(map[string]any, len(props))
	for name, p := range props {
		adapted[name] = a.schema(p, depth+1)
	}
	out["properties"] = adapted
	var required []any
	list, _ := in["required"].([]any)
	for _, v := range list {
		name, _ := v.(string)
		if _, ok := props[name]; ok && !slices.Contains(required, any(name)) {
			required = append(required, name)
		}
	}
	if len(required) > 0 {
		out["required"] = required
	}
}

// items is the schema of a list's elements, which the API does not do without.
func (a adapter) items(in map[string]any, depth int) map[string]any {
	if one, ok := in["items"].(map[string]any); ok {
		return a.schema(one, depth+1)
	}
	list, _ := in["prefixItems"].([]any)
	if len(list) == 0 {
		list, _ = in["items"].([]any)
	}
	if len(list) == 0 {
		return map[string]any{"type": "string"}
	}
	return a.schema(map[string]any{"anyOf": list}, depth+1)
}
