package mockmodel

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"unicode/utf8"
)

// Rule names what a violation is about.
type Rule string

// The rules. Where one holds for one protocol only, it says so.
const (
	RuleScript          Rule = "script"           // the script has no answer for it
	RulePath            Rule = "path"             // no such path or method
	RuleKey             Rule = "key"              // the key is absent or wrong
	RuleHeader          Rule = "header"           // content type; anthropic-version
	RuleJSON            Rule = "json"             // not a JSON object
	RuleUTF8            Rule = "utf-8"            // invalid UTF-8, or half a surrogate pair
	RuleField           Rule = "field"            // of the wrong type or value, or unknown
	RuleModel           Rule = "model"            // absent
	RuleMaxTokens       Rule = "max-tokens"       // absent (Anthropic) or not a positive number
	RuleRole            Rule = "role"             // unknown
	RuleFirst           Rule = "first-message"    // Anthropic: not of the user
	RuleLast            Rule = "last-message"     // Anthropic: not of the user
	RuleEmpty           Rule = "empty-content"    // a message or result with no content
	RuleBlank           Rule = "blank-text"       // a text of white space or nothing
	RuleMessageID       Rule = "message-id"       // chat: two messages of the same id
	RuleMissingResult   Rule = "missing-result"   // a call without a result directly after it
	RuleStrayResult     Rule = "stray-result"     // a result without a call directly before it
	RuleDuplicateResult Rule = "duplicate-result" // a second result of one call
	RuleResultsFirst    Rule = "results-first"    // Anthropic: something before the results
	RuleDuplicateCall   Rule = "duplicate-call"   // an id used twice
	RuleCallID          Rule = "call-id"          // absent or of other characters
	RuleCallName        Rule = "call-name"        // the name in a call of the history
	RuleArguments       Rule = "arguments"        // not JSON (chat) or not an object
	RuleTools           Rule = "tools"            // the list of tools, a name, a choice
	RuleSchema          Rule = "schema"           // of a tool
	RuleThinking        Rule = "thinking"         // Anthropic: the thinking field
	RuleThinkingBlock   Rule = "thinking-block"   // Anthropic: not as issued, or for another model
	RuleThinkingOrder   Rule = "thinking-order"   // Anthropic: not first in a message with calls
	RuleThinkingLost    Rule = "thinking-lost"    // Anthropic: left out of a turn that goes on
	RuleSampling        Rule = "sampling"         // temperature and the like
	RuleStore           Rule = "store"            // Responses: the answer would be kept
	RuleItemID          Rule = "item-id"          // Responses: absent, of another kind, never issued, or used twice
	RuleCacheControl    Rule = "cache-control"    // Anthropic: too many marks, wrong ones
)

// namePattern is what names of tools may look like, in the list of tools and in
// the history alike. Anthropic takes 128 characters by now, OpenAI 64.
var namePattern = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// checker keeps the first fault of a request: providers report one as well.
type checker struct {
	issued *issued
	view   *View // of the request
	rule   Rule
	reason string
}

func (c *checker) fault(rule Rule, format string, args ...any) {
	if c.rule == "" {
		c.rule, c.reason = rule, fmt.Sprintf(format, args...)
	}
}

// raw checks the bytes, before a decoder has papered over their faults.
func (c *checker) raw(data []byte) {
	if !utf8.Valid(data) {
		i := 0
		for i < len(data) {
			r, n := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			i += n
		}
		c.fault(RuleUTF8, "invalid UTF-8 at byte %d of the body", i)
	}
	if i := loneSurrogate(data); i >= 0 {
		c.fault(RuleUTF8, "half a surrogate pair at byte %d of the body", i)
	}
}

// loneSurrogate finds a \ud800 escape without its other half in JSON text, or
// returns -1. Go's decoder replaces it without a word; providers refuse it.
func loneSurrogate(data []byte) int {
	for i := 0; i < len(data); {
		j := bytes.IndexByte(data[i:], '\\')
		if j < 0 {
			return -1
		}
		i += j
		u, ok := escape(data[i:])
		switch {
		case !ok:
			i += 2 // another escape, such as \\ or \n
		case u < 0xD800 || u > 0xDFFF:
			i += 6
		default:
			low, ok := escape(data[min(i+6, len(data)):])
			if u >= 0xDC00 || !ok || low < 0xDC00 || low > 0xDFFF {
				return i
			}
			i += 12
		}
	}
	return -1
}

// escape reads a \u escape with its four digits at the start of b.
func escape(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, x := range b[2:6] {
		switch {
		case x >= '0' && x <= '9':
			x -= '0'
		case x >= 'a' && x <= 'f':
			x -= 'a' - 10
		case x >= 'A' && x <= 'F':
			x -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(x)
	}
	return r, true
}

func (c *checker) contentType(h http.Header) {
	if t, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || t != "application/json" {
		c.fault(RuleHeader, "content-type: want application/json, got %q", h.Get("Content-Type"))
	}
}

// keys refuses fields other than those named.
func (c *checker) keys(at string, o object, allowed ...string) {
	var extra []string
	for k := range o {
		if !slices.Contains(allowed, k) {
			extra = append(extra, k)
		}
	}
	if len(extra) > 0 {
		slices.Sort(extra)
		c.fault(RuleField, "%s%s: extra inputs are not permitted", at, extra[0])
	}
}

func (c *checker) model(body object) {
	if str(body["model"]) == "" {
		c.fault(RuleModel, "model: field required")
	}
}

// boolean refuses a field that is there and no boolean.
func (c *checker) boolean(at string, o object, key string) {
	if v, ok := o[key]; ok {
		if _, ok := v.(bool); !ok {
			c.fault(RuleField, "%s%s: want a boolean", at, key)
		}
	}
}

// positive refuses a field that is there and no positive whole number.
func (c *checker) positive(rule Rule, o object, key string) {
	if v, ok := o[key]; ok {
		if f, ok := v.(float64); !ok || f != math.Trunc(f) || f < 1 {
			c.fault(rule, "%s: want a whole number of at least 1", key)
		}
	}
}

// between refuses a field that is there and no number of the range.
func (c *checker) between(o object, key string, low, high float64) {
	if v, ok := o[key]; ok {
		if f, ok := v.(float64); !ok || f < low || f > high {
			c.fault(RuleSampling, "%s: want a number from %g to %g", key, low, high)
		}
	}
}

// text refuses what is no text, or a blank one.
func (c *checker) text(at string, v any) {
	s, ok := v.(string)
	switch {
	case !ok:
		c.fault(RuleField, "%s: want a text", at)
	case s == "":
		c.fault(RuleBlank, "%s: text must not be empty", at)
	case blank(s):
		c.fault(RuleBlank, "%s: text must contain non-whitespace text", at)
	}
}

// messageID refuses an id that another message has.
func (c *checker) messageID(at string, m object, seen map[string]bool) {
	v, ok := m["id"]
	if !ok {
		return
	}
	id, ok := v.(string)
	switch {
	case !ok || id == "":
		c.fault(RuleMessageID, "%s.id: want a text", at)
	case seen[id]:
		c.fault(RuleMessageID, "%s.id: another message has the id %q", at, id)
	}
	seen[id] = true
}

func (c *checker) callName(at string, v any) {
	if s, ok := v.(string); !ok || !namePattern.MatchString(s) {
		c.fault(RuleCallName, "%s: %s does not match %s", at, text(v), namePattern)
	}
}

func (c *checker) toolName(at string, v any, seen map[string]bool) {
	s, ok := v.(string)
	switch {
	case !ok || !namePattern.MatchString(s):
		c.fault(RuleTools, "%s: %s does not match %s", at, text(v), namePattern)
	case seen[s]:
		c.fault(RuleTools, "%s: tool names must be unique, %q is not", at, s)
	}
	seen[s] = true
}

// schema refuses a tool schema that is no object schema.
func (c *checker) schema(at string, v any) {
	o, ok := v.(object)
	switch {
	case !ok:
		c.fault(RuleSchema, "%s: want a JSON schema object", at)
	case str(o["type"]) != "object":
		c.fault(RuleSchema, "%s.type: want \"object\", got %s", at, text(o["type"]))
	default:
		if p, ok := o["properties"]; ok {
			if _, ok := p.(object); !ok {
				c.fault(RuleSchema, "%s.properties: want an object", at)
			}
		}
		if r, ok := o["required"]; ok {
			names, ok := r.([]any)
			if !ok {
				c.fault(RuleSchema, "%s.required: want a list", at)
			}
			for _, n := range names {
				if _, ok := obj(o["properties"])[str(n)]; !ok {
					c.fault(RuleSchema, "%s.required: %s is no property", at, text(n))
				}
			}
		}
	}
}

// strictSchema refuses what a provider cannot promise to follow exactly: every
// object must close itself and require all of its properties.
func (c *checker) strictSchema(at string, v any) {
	switch v := v.(type) {
	case object:
		if props, ok := v["properties"].(object); ok || str(v["type"]) == "object" {
			if closed, ok := v["additionalProperties"].(bool); !ok || closed {
				c.fault(RuleSchema, "%s: a strict schema needs additionalProperties: false", at)
			}
			names := slices.Sorted(maps.Keys(props)) // the first fault is always the same
			for _, name := range names {
				if !slices.Contains(list(v["required"]), any(name)) {
					c.fault(RuleSchema, "%s: a strict schema must require %q", at, name)
				}
			}
			for _, name := range names {
				c.strictSchema(at+".properties."+name, props[name])
			}
		}
		for _, k := range []string{"items", "anyOf", "$defs"} {
			if sub, ok := v[k]; ok {
				if defs, ok := sub.(object); ok && k == "$defs" {
					for _, name := range slices.Sorted(maps.Keys(defs)) {
						c.strictSchema(at+".$defs."+name, defs[name])
					}
					continue
				}
				c.strictSchema(at+"."+k, sub)
			}
		}
	case []any:
		for i, x := range v {
			c.strictSchema(fmt.Sprintf("%s.%d", at, i), x)
		}
	}
}

// imageTypes are the images that both providers take.
var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

func (c *checker) image(at, mediaType, data string) {
	if !slices.Contains(imageTypes, mediaType) {
		c.fault(RuleField, "%s: media type %q is not supported", at, mediaType)
	}
	if b, err := base64.StdEncoding.DecodeString(data); err != nil || len(b) == 0 {
		c.fault(RuleField, "%s: the image is not valid base64", at)
	}
}

// issued remembers what the server said that must come back unchanged. Safe for
// concurrent use.
type issued struct {
	mu       sync.Mutex
	thoughts map[string][]thought // by signature
	calls    map[string][]turn    // by call id
}

// thought is a part of thinking as it was sent.
type thought struct {
	model, signature, text string
	redacted               bool
}

// turn is the thinking that came before a call. Scripts may use one call id in
// several sessions, so there can be several turns to an id.
type turn struct {
	model    string
	thoughts []thought
}

func newIssued() *issued {
	return &issued{thoughts: map[string][]thought{}, calls: map[string][]turn{}}
}

func thoughtOf(model string, st Reasoning) thought {
	t := thought{model: model, signature: st.Signature, text: st.Text, redacted: st.Redacted}
	if st.Redacted {
		t.text = ""
	}
	return t
}

func (i *issued) thinking(model string, st Reasoning) {
	t := thoughtOf(model, st)
	i.mu.Lock()
	defer i.mu.Unlock()
	if !slices.Contains(i.thoughts[t.signature], t) {
		i.thoughts[t.signature] = append(i.thoughts[t.signature], t)
	}
}

func (i *issued) call(model, id string, before []Reasoning) {
	n := turn{model: model}
	for _, st := range before {
		n.thoughts = append(n.thoughts, thoughtOf(model, st))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, o := range i.calls[id] {
		if o.model == n.model && slices.Equal(o.thoughts, n.thoughts) {
			return
		}
	}
	i.calls[id] = append(i.calls[id], n)
}

// fault tells what is wrong with a thought that came back, or "".
func (i *issued) fault(t thought) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	known := i.thoughts[t.signature]
	if slices.Contains(known, t) {
		return ""
	}
	for _, k := range known {
		if k.text == t.text && k.redacted == t.redacted {
			return fmt.Sprintf("signature %q was issued to model %s, not to %s", t.signature, k.model, t.model)
		}
	}
	if len(known) > 0 {
		return fmt.Sprintf("thinking blocks cannot be modified: signature %q belongs to another text", t.signature)
	}
	return fmt.Sprintf("invalid signature %q: it was never issued", t.signature)
}

// complete tells whether the thinking before a call is what some turn of that
// model had.
func (i *issued) complete(model, id string, got []thought) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	asked := false
	for _, t := range i.calls[id] {
		if t.model != model {
			continue
		}
		asked = true
		if slices.Equal(t.thoughts, got) {
			return true
		}
	}
	return !asked
}

// validJSON tells whether s is one JSON value.
func validJSON(s string) bool { return json.Valid([]byte(s)) }
