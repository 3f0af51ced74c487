package responses

import (
	"bytes"
	"encoding/json"
	"slices"
)

// maxStrictDepth is how deep objects may lie in each other in a strict schema.
const maxStrictDepth = 5

// strictKeywords may stand in a strict schema as they are; meta are dropped,
// since they say nothing about the arguments.
var (
	strictKeywords = []string{"type", "description", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
		"multipleOf", "minItems", "maxItems"}
	metaKeywords = []string{"$schema", "$id", "$comment", "title", "examples"}
)

// strictSchema is the schema in the form that the provider promises to follow
// exactly: objects are closed and require each property; what was optional may
// be null, which is dropped again before a call is checked. It is nil for a
// schema that has no such form. The properties stay in order: the model writes
// them in it.
func strictSchema(schema json.RawMessage) json.RawMessage {
	out, ok := strictObject(nil, schema, 1)
	if !ok {
		return nil
	}
	return out
}

type member struct {
	name  string
	value json.RawMessage
}

// members are the fields of a JSON object in order.
func members(raw json.RawMessage) ([]member, bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	var out []member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, false
		}
		m := member{name: name.(string)}
		if d.Decode(&m.value) != nil {
			return nil, false
		}
		out = append(out, m)
	}
	return out, true
}

func find(all []member, name string) json.RawMessage {
	for _, m := range all {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// strictObject appends an object schema.
func strictObject(dst []byte, raw json.RawMessage, depth int) ([]byte, bool) {
	all, ok := members(raw)
	if !ok || depth > maxStrictDepth || string(find(all, "type")) != `"object"` {
		return nil, false
	}
	properties, ok := members(find(all, "properties"))
	if !ok {
		return nil, false // what may be in it is open
	}
	var required []string
	dst = append(dst, `{"type":"object"`...)
	for _, m := range all {
		switch {
		case m.name == "type", m.name == "properties", slices.Contains(metaKeywords, m.name):
		case m.name == "additionalProperties":
			if string(m.value) != "false" {
				return nil, false
			}
		case m.name == "required":
			if json.Unmarshal(m.value, &required) != nil {
				return nil, false
			}
		case m.name == "description":
			dst = append(append(dst, `,"description":`...), m.value...)
		default:
			return nil, false
		}
	}
	dst = append(dst, `,"properties":{`...)
	names := []byte{}
	for i, p := range properties {
		name, err := json.Marshal(p.name)
		if err != nil {
			return nil, false
		}
		if i > 0 {
			dst, names = append(dst, ','), append(names, ',')
		}
		names = append(names, name...)
		dst = append(append(dst, name...), ':')
		if dst, ok = strictValue(dst, p.value, !slices.Contains(required, p.name), depth); !ok {
			return nil, false
		}
	}
	dst = append(append(dst, `},"required":[`...), names...)
	return append(dst, `],"additionalProperties":false}`...), true
}

// strictValue appends the schema of a property or of an array's items.
func strictValue(dst []byte, raw json.RawMessage, optional bool, depth int) ([]byte, bool) {
	all, ok := members(raw)
	if !ok {
		return nil, false
	}
	kind := string(find(all, "type"))
	switch kind {
	case `"object"`:
		if optional {
			// The two kinds of a union of null and an object stand side by side.
			dst = append(dst, `{"anyOf":[`...)
			if dst, ok = strictObject(dst, raw, depth+1); !ok {
				return nil, false
			}
			return append(dst, `,{"type":"null"}]}`...), true
		}
		return strictObject(dst, raw, depth+1)
	case `"string"`, `"number"`, `"integer"`, `"boolean"`, `"array"`:
	default:
		return nil, false
	}
	dst = append(dst, '{')
	for _, m := range all {
		if slices.Contains(metaKeywords, m.name) {
			continue
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, false
		}
		dst = append(append(dst, name...), ':')
		switch {
		case m.name == "type" && optional:
			dst = append(append(append(dst, '['), kind...), `,"null"]`...)
		case m.name == "enum" && optional:
			var values []json.RawMessage
			if json.Unmarshal(m.value, &values) != nil || len(values) == 0 {
				return nil, false
			}
			dst = append(dst, bytes.TrimSuffix(m.value, []byte("]"))...)
			dst = append(dst, ",null]"...)
		case m.name == "items" && kind == `"array"`:
			if dst, ok = strictValue(dst, m.value, false, depth); !ok {
				return nil, false
			}
		case slices.Contains(strictKeywords, m.name):
			dst = append(dst, m.value...)
		default:
			return nil, false
		}
	}
	if kind == `"array"` && find(all, "items") == nil {
		return nil, false
	}
	return append(dst, '}'), true
}
