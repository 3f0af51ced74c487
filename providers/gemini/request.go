package gemini

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"codework/messages"
	"codework/providers"
)

const (
	// maxImageBytes is the most of one image. The API limits the whole request,
	// to 20 MB in most regions; one image shall not take more than half of it.
	maxImageBytes = 10 << 20
	// unsigned stands for the signature of a call that another model made, in
	// the words that the API's documentation gives for that.
	unsigned = "skip_thought_signature_validator"
)

// fragment is the encoded form of one turn.
type fragment struct {
	parts []byte // of the turn itself, joined by commas
	// responses are the functionResponse parts that answer the turn's calls.
	responses []byte
	// images of those responses, where the model does not take them inside.
	images []byte
}

// traits are what a model's name says of it.
type traits struct {
	// levels: thinking is asked for by level, calls must be signed, and results
	// may hold images. Since Gemini 3.
	levels bool
	pro    bool
	// budgets by level; nil is a model that decides by itself how long it thinks.
	budgets map[messages.ThinkingLevel]int64
	// least is the smallest budget that is not off.
	least int64
}

var generation = regexp.MustCompile(`(gemini|gemma)-([0-9]+)`)

// Thinking budgets of the models of the second generation.
var (
	proBudgets   = map[messages.ThinkingLevel]int64{"minimal": 128, "low": 2048, "medium": 8192, "high": 32768}
	flashBudgets = map[messages.ThinkingLevel]int64{"minimal": 128, "low": 2048, "medium": 8192, "high": 24576}
	liteBudgets  = map[messages.ThinkingLevel]int64{"minimal": 512, "low": 2048, "medium": 8192, "high": 24576}
)

func traitsOf(m messages.Model) traits {
	id := strings.ToLower(providers.ModelID(m))
	t := traits{pro: strings.Contains(id, "pro"), levels: strings.HasSuffix(id, "-latest")}
	if g := generation.FindStringSubmatch(id); g != nil {
		n, _ := strconv.Atoi(g[2])
		t.levels = g[1] == "gemini" && n >= 3 || g[1] == "gemma" && n >= 4
	}
	for _, value := range m.ThinkingLevelMap {
		t.levels = t.levels || value != nil // the catalog knows its words for them
	}
	switch {
	case t.levels || !strings.Contains(id, "gemini-2.5"):
	case t.pro:
		t.budgets, t.least = proBudgets, 128
	case strings.Contains(id, "lite"):
		t.budgets, t.least = liteBudgets, 512
	default:
		t.budgets, t.least = flashBudgets, 1
	}
	return t
}

func encodeRequest(req *messages.Request) ([]byte, error) {
	t := traitsOf(req.Model)
	target := providers.Target{MaxImageBytes: maxImageBytes, ThinkingAnywhere: true}
	if t.levels {
		target.Key = "levels"
	}
	turns := providers.History(req, target, func(m messages.Message) fragment { return encode(m, t) })
	tools := providers.Tools(req, target, encodeTool)

	size := len(req.System) + len(tools)
	for _, t := range turns {
		size += len(t.Body.parts) + len(t.Body.responses) + len(t.Body.images) + 64
	}
	config, err := generationConfig(req, t)
	if err != nil {
		return nil, err
	}
	// What the settings say of generationConfig is in it already.
	r := *req
	r.Options.Extra = maps.Clone(req.Options.Extra)
	delete(r.Options.Extra, "generationConfig")
	b := providers.NewBody(&r, size)
	if strings.TrimSpace(req.System) != "" {
		b.Write("systemInstruction", func(dst []byte) []byte {
			dst = append(dst, `{"parts":[`...)
			return append(appendText(dst, req.System, ""), ']', '}')
		})
	}
	b.Write("contents", func(dst []byte) []byte { return appendContents(dst, turns) })
	if len(tools) > 0 {
		b.Write("tools", func(dst []byte) []byte {
			dst = append(append(dst, `[{"functionDeclarations":[`...), tools...)
			return append(dst, `]}]`...)
		})
	}
	if len(config) > 0 {
		b.Set("generationConfig", config)
	}
	return b.Bytes()
}

// generationConfig is ours, with what the settings say laid over it field by
// field.
func generationConfig(req *messages.Request, t traits) (map[string]any, error) {
	config := map[string]any{}
	thinking, budget := think(req, t)
	if thinking != nil {
		config["thinkingConfig"] = thinking
	}
	if req.Options.MaxTokens > 0 || req.Model.MaxTokens > 0 {
		room := providers.FitRoom(req.Model, req.Options.MaxTokens, budget, providers.EstimateTokens(req))
		config["maxOutputTokens"] = room.MaxTokens // thinking included
		if n, ok := thinking["thinkingBudget"].(int64); ok && n > room.Budget {
			if n = fitted(room.Budget, t); n == 0 {
				delete(thinking, "includeThoughts") // there will be none
			}
			thinking["thinkingBudget"] = n
		}
	}
	if v := req.Options.Temperature; v != nil {
		config["temperature"] = *v
	}
	if over, ok := req.Options.Extra["generationConfig"]; ok {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(over, &fields); err != nil {
			return nil, err
		}
		for name, v := range fields {
			config[name] = v
		}
	}
	return config, nil
}

// fitted is a budget that had to give way, or none where too little is left.
// Gemini 2.5 Pro cannot go without.
func fitted(budget int64, t traits) int64 {
	switch {
	case budget >= t.least:
		return budget
	case t.pro:
		return t.least
	}
	return 0
}

// think is the thinkingConfig, nil for a model that does not think, and how
// many tokens of room it needs.
func think(req *messages.Request, t traits) (map[string]any, int64) {
	if !req.Model.Reasoning {
		return nil, 0
	}
	level, named := req.Thinking, req.Options.ThinkingBudgets
	active := level != "" && level != providers.Off
	switch {
	case t.levels && active:
		return map[string]any{"thinkingLevel": thinkingLevel(req.Model, level), "includeThoughts": true},
			providers.ThinkingBudget(level, named)
	case t.levels:
		// These models always think; this is the least, and nothing of it is shown.
		least := messages.ThinkingLevel("minimal")
		if t.pro {
			least = "low"
		}
		return map[string]any{"thinkingLevel": string(least)}, providers.ThinkingBudget(least, named)
	case !active:
		return map[string]any{"thinkingBudget": fitted(0, t)}, 0
	}
	if n, ok := named[level]; ok {
		n = fitted(max(n, 0), t)
		config := map[string]any{"thinkingBudget": n}
		if n > 0 {
			config["includeThoughts"] = true
		}
		return config, n
	}
	n, ok := t.budgets[level]
	if !ok && t.budgets != nil {
		n, ok = t.budgets["high"], true // the levels above
	}
	if !ok {
		// The model decides by itself.
		return map[string]any{"thinkingBudget": int64(-1), "includeThoughts": true}, providers.ThinkingBudget(level, named)
	}
	return map[string]any{"thinkingBudget": n, "includeThoughts": true}, n
}

// thinkingLevel is the model's word for a level. Above high there is only what
// the catalog names.
func thinkingLevel(m messages.Model, level messages.ThinkingLevel) string {
	if (level == "xhigh" || level == "max") && m.ThinkingLevelMap[level] == nil {
		level = "high"
	}
	return providers.ThinkingValue(m, level)
}

// appendContents writes the turns. The responses to calls are a content of
// their own directly behind them, which the API counts; what users say in a
// row is one content.
func appendContents(dst []byte, turns []providers.Turn[fragment]) []byte {
	dst = append(dst, '[')
	inUser := false
	end := func() {
		if inUser {
			dst = append(dst, ']', '}')
			inUser = false
		}
	}
	begin := func(role string) {
		if dst[len(dst)-1] != '[' {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"role":"`+role+`","parts":[`...)
	}
	user := func(parts []byte) {
		switch {
		case len(parts) == 0:
			return
		case inUser:
			dst = append(dst, ',')
		default:
			begin("user")
		}
		inUser = true
		dst = append(dst, parts...)
	}
	for _, t := range turns {
		if t.Role != messages.RoleAssistant {
			user(t.Body.parts)
			continue
		}
		end()
		begin("model")
		dst = append(append(dst, t.Body.parts...), ']', '}')
		user(t.Body.responses)
		end()
		user(t.Body.images)
	}
	end()
	return append(dst, ']')
}

func encode(m messages.Message, t traits) fragment {
	var f fragment
	if m.Role != messages.RoleAssistant {
		f.parts = appendParts(nil, m.Parts)
		return f
	}
	called := false
	for _, p := range m.Parts {
		if len(f.parts) > 0 {
			f.parts = append(f.parts, ',')
		}
		switch p.Type {
		case messages.PartText:
			f.parts = appendText(f.parts, p.Text, p.Signature)
		case messages.PartThinking:
			if p.Text == "" { // a signature that came by itself
				f.parts = appendText(f.parts, "", p.Signature)
				break
			}
			f.parts = appendText(f.parts, p.Text, p.Signature)
			f.parts = append(f.parts[:len(f.parts)-1], `,"thought":true}`...)
		case messages.PartToolCall:
			signature := p.Signature
			if signature == "" && !called && t.levels {
				signature = unsigned // only the first of parallel calls has one
			}
			called = true
			f.parts = append(f.parts, `{"functionCall":{"id":`...)
			f.parts = providers.AppendString(f.parts, p.CallID)
			f.parts = append(f.parts, `,"name":`...)
			f.parts = providers.AppendString(f.parts, p.Name)
			f.parts = append(f.parts, `,"args":`...)
			f.parts = append(append(f.parts, p.Arguments...), '}')
			f.parts = append(appendSignature(f.parts, signature), '}')
			f.respond(p, t)
		}
	}
	return f
}

// respond adds the response to a call.
func (f *fragment) respond(call messages.Part, t traits) {
	texts := make([]string, 0, 1)
	var images []messages.Part
	for _, p := range call.Result.Content {
		if p.Type == messages.PartImage && readable(p.MediaType) {
			images = append(images, p)
			continue
		}
		texts = append(texts, textOf(p))
	}
	if len(images) > 0 && !t.levels {
		texts = append(texts, "[the image follows]")
	}
	if len(f.responses) > 0 {
		f.responses = append(f.responses, ',')
	}
	dst := append(f.responses, `{"functionResponse":{"id":`...)
	dst = providers.AppendString(dst, call.CallID)
	dst = append(dst, `,"name":`...)
	dst = providers.AppendString(dst, call.Name)
	// The names of the two fields are the API's own.
	field := `,"response":{"output":`
	if call.Result.IsError {
		field = `,"response":{"error":`
	}
	dst = append(providers.AppendString(append(dst, field...), strings.Join(texts, "\n")), '}')
	switch {
	case len(images) == 0:
	case t.levels:
		dst = append(append(dst, `,"parts":[`...), appendParts(nil, images)...)
		dst = append(dst, ']')
	default:
		if len(f.images) > 0 {
			f.images = append(f.images, ',')
		}
		f.images = append(f.images, appendParts(nil, images)...)
	}
	f.responses = append(dst, '}', '}')
}

func appendParts(dst []byte, parts []messages.Part) []byte {
	for i, p := range parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		if p.Type != messages.PartImage || !readable(p.MediaType) {
			dst = appendText(dst, textOf(p), "")
			continue
		}
		dst = append(dst, `{"inlineData":{"mimeType":"`+p.MediaType+`","data":"`...)
		dst = append(base64.StdEncoding.AppendEncode(dst, p.Data), `"}}`...)
	}
	return dst
}

// readable tells whether the API takes images of a kind; GIF it does not.
func readable(mediaType string) bool {
	return slices.Contains([]string{"image/png", "image/jpeg", "image/webp"}, mediaType)
}

// textOf is a text part's text, or says in words what cannot be shown.
func textOf(p messages.Part) string {
	if p.Type == messages.PartImage {
		return "[image left out: this provider reads no " + strings.ToUpper(strings.TrimPrefix(p.MediaType, "image/")) + "]"
	}
	return p.Text
}

func appendText(dst []byte, text, signature string) []byte {
	dst = providers.AppendString(append(dst, `{"text":`...), text)
	return append(appendSignature(dst, signature), '}')
}

func appendSignature(dst []byte, signature string) []byte {
	if signature == "" {
		return dst
	}
	return providers.AppendString(append(dst, `,"thoughtSignature":`...), signature)
}

func encodeTool(dst []byte, d messages.ToolDefinition) []byte {
	dst = append(dst, `{"name":`...)
	dst = providers.AppendString(dst, d.Name)
	if d.Description != "" {
		dst = append(dst, `,"description":`...)
		dst = providers.AppendString(dst, d.Description)
	}
	if p := parameters(d.Schema); p != nil {
		dst = append(append(dst, `,"parameters":`...), p...)
	}
	return append(dst, '}')
}
