package providers

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"codework/messages"
)

// What is sent where the conversation has nothing a provider would take.
const (
	// continueText stands where a provider wants the user to speak: between
	// two answers, before the first and after the last.
	continueText = "Continue."
	noResultText = "no result"
	// Providers refuse an empty result, and models read silence as failure.
	noOutputText    = "(no output)"
	noErrorText     = "(failed without a message)"
	imageLostText   = "[image not available]"
	imageDeniedText = "[image left out: this model reads text only]"
	imageKindText   = "[image left out: not a PNG, JPEG, GIF or WebP]"
	imageSizeText   = "[image left out: too large for this provider]"
	imageErrorText  = "[image left out of an error]"
)

// Target is what the receiving side can take, as far as the model's entry does
// not say it.
type Target struct {
	// Key names everything that changes how the dialect encodes a message
	// beside provider, protocol and model.
	Key string
	// CallID maps a call's id to one of the allowed form, always to the same;
	// nil is SafeCallID.
	CallID func(id string) string
	// KeepUnsigned keeps the model's own thinking that has no signature.
	KeepUnsigned bool
	// ThinkingAnywhere keeps thinking that nothing follows, where the protocol
	// carries it apart from the content.
	ThinkingAnywhere bool
	// MaxImageBytes of one image; 0 is no limit.
	MaxImageBytes int
}

// Turn is one message of the next request in a dialect's encoded form.
type Turn[F any] struct {
	Role messages.Role
	// Calls tells that an assistant turn has tool calls; their results belong
	// directly behind it and stand for the user's turn.
	Calls bool
	Body  F
}

// cached is a turn as the encode cache keeps it; empty means that nothing of
// the message is sent.
type cached[F any] struct {
	turn  Turn[F]
	empty bool
}

// Names in the encode cache that no message id can have.
const (
	cacheIDs    = "\x00ids"
	cacheFiller = "\x00filler"
	cacheTools  = "\x00tools"
)

// History returns what of the request's conversation is sent, oldest first.
//
// encode gets each message cleaned: no blank text; thinking only where it may
// go back and never last; of a stopped answer its text; images loaded in Data;
// calls with a legal name, an id of the target's form that no other call has,
// a JSON object as arguments and exactly one result that is not empty. A
// message that leaves nothing is left out. Two assistant turns never follow
// each other without calls in the first, and the conversation neither begins
// nor ends with one. Two user turns may follow each other.
//
// What encode returned is kept in req.Cache, so that a message is encoded once.
func History[F any](req *messages.Request, t Target, encode func(m messages.Message) F) []Turn[F] {
	entries := cacheOf(req, t.Key)
	ids, _ := entries[cacheIDs].(callIDs)
	if ids == nil {
		ids = callIDs{}
		entries[cacheIDs] = ids
	}
	filler := func() Turn[F] {
		if f, ok := entries[cacheFiller].(Turn[F]); ok {
			return f
		}
		f := Turn[F]{Role: messages.RoleUser, Body: encode(messages.Message{
			Role:  messages.RoleUser,
			Parts: []messages.Part{{Type: messages.PartText, Text: continueText}},
		})}
		entries[cacheFiller] = f
		return f
	}

	turns := make([]Turn[F], 0, len(req.Messages)+1)
	answered := true // the last turn wants no user turn behind it
	for i := range req.Messages {
		m := &req.Messages[i]
		c, ok := entries[m.ID].(cached[F])
		if !ok || m.ID == "" {
			parts, final := prepare(req, t, m, i, ids)
			c = cached[F]{empty: len(parts) == 0}
			if !c.empty {
				clean := *m
				clean.Parts = parts
				c.turn = Turn[F]{Role: m.Role, Body: encode(clean)}
				c.turn.Calls = slices.ContainsFunc(parts, isCall)
			}
			if final && m.ID != "" {
				entries[m.ID] = c
			}
		}
		if c.empty {
			continue
		}
		if c.turn.Role == messages.RoleAssistant && (len(turns) == 0 || !answered) {
			turns = append(turns, filler())
		}
		answered = c.turn.Role == messages.RoleUser || c.turn.Calls
		turns = append(turns, c.turn)
	}
	if len(turns) == 0 || !answered {
		turns = append(turns, filler())
	}
	return turns
}

// Tools returns the encoded tool definitions joined by commas, encoded once as
// long as the request has the same ones.
func Tools(req *messages.Request, t Target, encode func(dst []byte, d messages.ToolDefinition) []byte) []byte {
	type encoded struct {
		first *messages.ToolDefinition
		n     int
		raw   []byte
	}
	if len(req.Tools) == 0 {
		return nil
	}
	entries := cacheOf(req, t.Key)
	e, _ := entries[cacheTools].(encoded)
	if e.first != &req.Tools[0] || e.n != len(req.Tools) {
		e = encoded{first: &req.Tools[0], n: len(req.Tools)}
		for i, d := range req.Tools {
			if i > 0 {
				e.raw = append(e.raw, ',')
			}
			e.raw = encode(e.raw, d)
		}
		entries[cacheTools] = e
	}
	return e.raw
}

// Schema is a tool's schema in its shortest form, with the type and properties
// that providers insist on. One that is missing or not an object becomes an
// object without properties. The caller must not change it.
func Schema(raw json.RawMessage) []byte {
	if short, ok := schemas.Load(string(raw)); ok {
		return short.([]byte)
	}
	short := shortSchema(raw)
	if len(raw) <= maxKeptSchema && keptSchemas.Add(1) <= maxKeptSchemas {
		schemas.Store(string(raw), slices.Clip(short))
	}
	return short
}

// The short forms of schemas are kept, by what they are made of: hundreds of
// sessions begin with the same tools. The bounds are far above what plugins
// bring, and 8 MiB together.
var (
	schemas     sync.Map // []byte by string
	keptSchemas atomic.Int64
)

const (
	maxKeptSchemas = 1024
	maxKeptSchema  = 4 << 10 // bytes
)

func shortSchema(raw json.RawMessage) []byte {
	var compact bytes.Buffer
	var fields map[string]json.RawMessage
	if json.Compact(&compact, raw) != nil || json.Unmarshal(raw, &fields) != nil || len(fields) == 0 {
		return []byte(`{"type":"object","properties":{}}`)
	}
	out := compact.Bytes()
	for _, missing := range []struct{ name, value string }{{"type", `"object"`}, {"properties", "{}"}} {
		if _, ok := fields[missing.name]; !ok {
			out = append(out[:len(out)-1], `,"`+missing.name+`":`+missing.value+"}"...)
		}
	}
	return out
}

func cacheOf(req *messages.Request, key string) map[string]any {
	cache := req.Cache
	if cache == nil {
		cache = &messages.EncodeCache{} // for this once
	}
	images := "text"
	if req.Model.AcceptsImages() {
		images = "image"
	}
	return cache.For(strings.Join([]string{
		string(req.Model.Protocol), req.Model.Provider.ID, req.Model.ID, images, key}, "\x00"), len(req.Messages))
}

func isCall(p messages.Part) bool { return p.Type == messages.PartToolCall }

// prepare returns the parts of a message that are sent, and whether they will
// be the same next time.
func prepare(req *messages.Request, t Target, m *messages.Message, at int, ids callIDs) (parts []messages.Part, final bool) {
	final = true
	if m.Role != messages.RoleAssistant {
		parts, final = content(req, t, m.Parts)
		return parts, final
	}
	whole := m.State == messages.EntryCommitted || m.State == ""
	if !whole && m.Failure != nil && providerFailed(m.Failure) {
		return nil, m.State == messages.EntryAborted
	}
	same := wroteBy(m, req.Model)
	for i := range m.Parts {
		p := m.Parts[i]
		if !whole && p.Type != messages.PartText {
			continue
		}
		if !same {
			p.ItemID = ""
		}
		switch p.Type {
		case messages.PartText:
			if blank(p.Text) {
				continue
			}
			if !same || !whole {
				p.Signature = ""
			}
			p.Text = strings.ToValidUTF8(p.Text, "\uFFFD")
		case messages.PartThinking:
			switch {
			case same && p.Signature != "":
			case same && t.KeepUnsigned && !p.Redacted && !blank(p.Text):
			case same, p.Redacted, blank(p.Text):
				continue
			default:
				p = messages.Part{Type: messages.PartText, Text: strings.ToValidUTF8(p.Text, "\uFFFD")}
			}
		case messages.PartToolCall:
			if !same {
				p.Signature = ""
			}
			final = final && p.Call.Terminal() && p.Result != nil
			p.CallID = ids.give(t, p.CallID, m.ID, at, i)
			p.Name = SafeToolName(p.Name)
			p.Arguments = SafeArguments(p.Arguments)
			var lasting bool
			p.Result, lasting = result(req, t, p.Call, p.Result)
			final = final && lasting
		default:
			continue // an assistant shows no images
		}
		parts = append(parts, p)
	}
	// Thinking alone is no answer; thinking that nothing follows is refused by
	// those that sign it.
	if !slices.ContainsFunc(parts, func(p messages.Part) bool { return p.Type != messages.PartThinking }) {
		parts = nil
	}
	for !t.ThinkingAnywhere && len(parts) > 0 && parts[len(parts)-1].Type == messages.PartThinking {
		parts = parts[:len(parts)-1]
	}
	return parts, final && m.State != messages.EntryDraft
}

// providerFailed tells a failed attempt, which counts for nothing, from an
// answer that somebody stopped.
func providerFailed(f *messages.Failure) bool {
	return f.Code != CodeAborted && (strings.HasPrefix(f.Type, "provider-") || f.Type == messages.FailStream)
}

// content cleans text and image parts.
func content(req *messages.Request, t Target, parts []messages.Part) (out []messages.Part, final bool) {
	final = true
	for _, p := range parts {
		switch p.Type {
		case messages.PartText:
			if !blank(p.Text) {
				out = append(out, messages.Part{Type: messages.PartText, Text: strings.ToValidUTF8(p.Text, "\uFFFD")})
			}
		case messages.PartImage:
			image, lasting := picture(req, t, p)
			out, final = append(out, image), final && lasting
		}
	}
	return out, final
}

// picture loads an image, or says in words why it is missing. Its kind is read
// from its bytes: a wrong name for it is refused, with every later request too.
func picture(req *messages.Request, t Target, p messages.Part) (out messages.Part, final bool) {
	note := func(s string) messages.Part { return messages.Part{Type: messages.PartText, Text: s} }
	if !req.Model.AcceptsImages() {
		return note(imageDeniedText), true
	}
	data := p.Data
	if len(data) == 0 && req.Blob != nil {
		loaded, err := req.Blob(p.Blob)
		if err != nil {
			return note(imageLostText), false
		}
		data = loaded
	}
	if len(data) == 0 {
		return note(imageLostText), false
	}
	if t.MaxImageBytes > 0 && len(data) > t.MaxImageBytes {
		return note(imageSizeText), true
	}
	kind := http.DetectContentType(data)
	switch kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return messages.Part{Type: messages.PartImage, MediaType: kind, Data: data}, true
	}
	return note(imageKindText), true
}

// result is what the model is told of a call: never nothing.
func result(req *messages.Request, t Target, state messages.CallState, r *messages.ToolResult) (*messages.ToolResult, bool) {
	if r == nil {
		none := messages.TextResult(noResultText, true)
		return &none, false
	}
	parts := r.Content
	failed := r.IsError || state == messages.CallError || state == messages.CallSkipped || state == messages.CallAborted
	if failed {
		// Anthropic takes only text in an error.
		parts = slices.Clone(parts)
		for i, p := range parts {
			if p.Type == messages.PartImage {
				parts[i] = messages.Part{Type: messages.PartText, Text: imageErrorText}
			}
		}
	}
	clean, final := content(req, t, parts)
	if len(clean) == 0 {
		text := noOutputText
		if failed {
			text = noErrorText
		}
		clean = []messages.Part{{Type: messages.PartText, Text: text}}
	}
	return &messages.ToolResult{Content: clean, IsError: failed}, final
}

// callIDs remembers which call has which id in the request: an id that a
// server gave twice is legal in no protocol.
type callIDs map[string]string

func (c callIDs) give(t Target, id, message string, at, part int) string {
	form := t.CallID
	if form == nil {
		form = SafeCallID
	}
	owner := message
	if owner == "" {
		owner = "#" + strconv.Itoa(at)
	}
	owner += "/" + strconv.Itoa(part)
	candidate := form(id)
	for n := 0; ; n++ {
		if has, taken := c[candidate]; !taken || has == owner {
			c[candidate] = owner
			return candidate
		}
		candidate = form("call_" + digest(id + "\x00" + owner + "\x00" + strconv.Itoa(n))[:32])
	}
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// maxCallID and maxToolName are the shortest limits among the providers.
const (
	maxCallID   = 64
	maxToolName = 64
)

// SafeCallID returns id if it has only letters, digits, "_" and "-" and at most
// 64 of them, else an id made from its hash.
func SafeCallID(id string) string {
	if id != "" && len(id) <= maxCallID && strings.IndexFunc(id, unsafeRune) < 0 {
		return id
	}
	return "call_" + digest(id)[:32]
}

// ShortCallID returns id if it is nine letters and digits (Mistral), else nine
// of its hash.
func ShortCallID(id string) string {
	const length = 9
	if len(id) == length && strings.IndexFunc(id, func(r rune) bool { return unsafeRune(r) || r == '_' || r == '-' }) < 0 {
		return id
	}
	return digest(id)[:length]
}

func unsafeRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}

// SafeToolName makes a name legal that a model may have invented.
func SafeToolName(name string) string {
	if name == "" {
		return "unknown"
	}
	name = strings.Map(func(r rune) rune {
		if unsafeRune(r) {
			return '_'
		}
		return r
	}, name)
	return name[:min(len(name), maxToolName)]
}

// SafeArguments returns the arguments as one JSON object in valid UTF-8 and
// without half surrogate pairs, byte for byte where they are that already.
// Anything else becomes the empty object: the call's result says what was
// wrong with it, and some servers refuse a conversation that holds it.
func SafeArguments(raw string) string {
	if !utf8.ValidString(raw) {
		raw = string([]rune(raw)) // a replacement for each bad byte, as encoding/json has it
	}
	raw = strings.TrimSpace(raw)
	if !strings.HasPrefix(raw, "{") || !json.Valid([]byte(raw)) {
		return "{}"
	}
	return wholeSurrogates(raw)
}

// wholeSurrogates replaces \u escapes of half a surrogate pair in JSON text.
func wholeSurrogates(raw string) string {
	if !strings.Contains(raw, `\ud`) && !strings.Contains(raw, `\uD`) {
		return raw
	}
	var out strings.Builder
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out.WriteByte(raw[i])
			i++
			continue
		}
		if raw[i+1] != 'u' {
			out.WriteString(raw[i : i+2])
			i += 2
			continue
		}
		const escape = len(`\u0000`)
		switch unit := hexUnit(raw, i); {
		case unit >= 0xD800 && unit < 0xDC00 && isLow(hexUnit(raw, i+escape)):
			out.WriteString(raw[i : i+2*escape])
			i += escape
		case unit >= 0xD800 && unit < 0xE000:
			out.WriteString(`\ufffd`)
		default:
			out.WriteString(raw[i : i+escape])
		}
		i += escape
	}
	return out.String()
}

func isLow(unit int) bool { return unit >= 0xDC00 && unit < 0xE000 }

// hexUnit reads the \u escape at i, or gives -1 when there is none.
func hexUnit(raw string, i int) int {
	if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(raw[i+2:i+6], 16, 16)
	if err != nil {
		return -1
	}
	return int(n)
}
