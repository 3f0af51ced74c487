package mockmodel

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// gemini is Google's Gemini API.
type gemini struct{}

const (
	geminiStream = ":streamGenerateContent"
	geminiWhole  = ":generateContent"
	// geminiUnsigned is what the provider takes in place of the signature of a
	// call that another model made.
	geminiUnsigned = "skip_thought_signature_validator"
	// maxGeminiBudget is the largest thinking budget of any model.
	maxGeminiBudget = 32768
)

// geminiLevels finds the models that are asked by thinking level, whose calls
// must be signed: the third generation and later.
var geminiLevels = regexp.MustCompile(`gemini-([3-9]|[1-9][0-9])`)

func (gemini) name() string { return "gemini" }
func (gemini) serves(path string) bool {
	return strings.HasSuffix(path, geminiStream) || strings.HasSuffix(path, geminiWhole)
}
func (gemini) callID(n int64) string { return fmt.Sprintf("fc-%08d", n) }
func (gemini) errorEvent() string    { return "" }
func geminiID(id int64) string       { return fmt.Sprintf("resp-%08d", id) }

func (d gemini) view(r *http.Request, b object) *View {
	config := obj(b["generationConfig"])
	thinking := obj(config["thinkingConfig"])
	v := &View{Protocol: d.name(), Model: geminiModel(r.URL.Path), Stream: strings.HasSuffix(r.URL.Path, geminiStream),
		MaxTokens: whole(config["maxOutputTokens"]), System: joinTexts(obj(b["systemInstruction"])["parts"]),
		Thinking: str(thinking["thinkingLevel"])}
	if budget, ok := thinking["thinkingBudget"]; ok {
		v.Thinking = text(budget)
	}
	for _, raw := range list(b["contents"]) {
		c := obj(raw)
		msg := Message{Role: str(c["role"])}
		if msg.Role == "model" {
			msg.Role = "assistant"
		}
		for _, raw := range list(c["parts"]) {
			p := obj(raw)
			part := Part{Kind: PartText, Text: str(p["text"]), Signature: str(p["thoughtSignature"])}
			call, response := obj(p["functionCall"]), obj(p["functionResponse"])
			switch {
			case call != nil:
				part.Kind, part.ID, part.Name, part.Args = PartCall, str(call["id"]), str(call["name"]), text(call["args"])
			case response != nil:
				part = Part{Kind: PartResult, ID: str(response["id"]), Text: str(obj(response["response"])["output"])}
				if e, ok := obj(response["response"])["error"]; ok {
					part.Text, part.IsError = str(e), true
				}
			case p["inlineData"] != nil:
				part = Part{Kind: PartImage, Text: str(obj(p["inlineData"])["mimeType"])}
			case truth(p["thought"]), part.Text == "":
				part.Kind = PartReasoning
			}
			msg.Parts = append(msg.Parts, part)
		}
		v.Messages = append(v.Messages, msg)
	}
	for _, raw := range list(b["tools"]) {
		for _, f := range list(obj(raw)["functionDeclarations"]) {
			o := obj(f)
			v.Tools = append(v.Tools, Tool{Name: str(o["name"]), Description: str(o["description"]), Schema: json.RawMessage(text(o["parameters"]))})
		}
	}
	return v
}

// geminiModel is the model that a path names.
func geminiModel(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	name, _, _ = strings.Cut(name, ":")
	return name
}

// geminiCheck goes through one request.
type geminiCheck struct {
	*checker
	model  string
	levels bool
}

// check follows the errors that the Gemini API gives.
func (gemini) check(base *checker, _ http.Header, b object) {
	c := &geminiCheck{checker: base, model: base.view.Model, levels: geminiLevels.MatchString(base.view.Model)}
	if c.model == "" {
		c.fault(RuleModel, "the path names no model")
	}
	c.keys("", b, "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent", "store")
	c.config(b)
	c.system(b)
	c.tools(b)
	c.contents(b)
}

func (c *geminiCheck) config(b object) {
	raw, ok := b["generationConfig"]
	if !ok {
		return
	}
	config, ok := raw.(object)
	if !ok {
		c.fault(RuleField, "generationConfig: want an object")
		return
	}
	c.keys("generationConfig.", config, "stopSequences", "responseMimeType", "responseSchema", "responseJsonSchema", "responseModalities",
		"candidateCount", "maxOutputTokens", "temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty",
		"responseLogprobs", "logprobs", "speechConfig", "thinkingConfig", "imageConfig", "mediaResolution", "enableEnhancedCivicAnswers")
	c.positive(RuleMaxTokens, config, "maxOutputTokens")
	c.between(config, "temperature", 0, 2)
	c.between(config, "topP", 0, 1)
	thinking, ok := config["thinkingConfig"]
	if !ok {
		return
	}
	at, th := "generationConfig.thinkingConfig.", obj(thinking)
	c.keys(at, th, "includeThoughts", "thinkingBudget", "thinkingLevel")
	c.boolean(at, th, "includeThoughts")
	budget, hasBudget := th["thinkingBudget"]
	level, hasLevel := th["thinkingLevel"]
	if hasBudget && hasLevel {
		c.fault(RuleThinking, "you can only set one of thinking_budget and thinking_level")
	}
	if hasBudget {
		n, ok := budget.(float64)
		switch {
		case !ok || n != math.Trunc(n) || n < -1 || n > maxGeminiBudget:
			c.fault(RuleThinking, "%sthinkingBudget: want a whole number from -1 to %d", at, maxGeminiBudget)
		case n == 0 && truth(th["includeThoughts"]):
			c.fault(RuleThinking, "%sincludeThoughts: only allowed when thinking is on", at)
		case n == 0 && strings.Contains(c.model, "pro"):
			c.fault(RuleThinking, "budget 0 is invalid: this model only works in thinking mode")
		}
	}
	if hasLevel {
		switch {
		case !c.levels:
			c.fault(RuleThinking, "thinking level is not supported for this model")
		case !slices.Contains([]string{"minimal", "low", "medium", "high"}, strings.ToLower(str(level))):
			c.fault(RuleThinking, "%sthinkingLevel: %s is none", at, text(level))
		}
	}
}

func (c *geminiCheck) system(b object) {
	raw, ok := b["systemInstruction"]
	if !ok {
		return
	}
	s := obj(raw)
	c.keys("systemInstruction.", s, "role", "parts")
	parts := list(s["parts"])
	if len(parts) == 0 {
		c.fault(RuleEmpty, "systemInstruction.parts: must not be empty")
	}
	for i, p := range parts {
		at := fmt.Sprintf("systemInstruction.parts[%d].", i)
		c.keys(at, obj(p), "text")
		c.text(at+"text", obj(p)["text"])
	}
}

func (c *geminiCheck) tools(b object) {
	raw, ok := b["tools"]
	if !ok {
		return
	}
	tools, ok := raw.([]any)
	if !ok || len(tools) == 0 {
		c.fault(RuleTools, "tools: want a list of at least one tool")
	}
	names := map[string]bool{}
	for i, raw := range tools {
		t := obj(raw)
		c.keys(fmt.Sprintf("tools[%d].", i), t, "functionDeclarations")
		functions := list(t["functionDeclarations"])
		if len(functions) == 0 {
			c.fault(RuleTools, "tools[%d]: at least one function declaration is wanted", i)
		}
		for j, raw := range functions {
			at := fmt.Sprintf("tools[%d].functionDeclarations[%d].", i, j)
			f := obj(raw)
			c.keys(at, f, "name", "description", "parameters", "response", "behavior")
			c.toolName(at+"name", f["name"], names)
			p, ok := f["parameters"]
			if !ok {
				continue
			}
			if kind := strings.ToLower(str(obj(p)["type"])); kind != "object" {
				c.fault(RuleSchema, "%sparameters: schema type should be OBJECT, not %q", at, kind)
			}
			c.parameters(at+"parameters", p)
		}
	}
}

// geminiTypes are the types that a schema may have.
var geminiTypes = []string{"string", "number", "integer", "boolean", "array", "object", "null"}

// parameters checks a schema, which may hold only some of JSON Schema's words.
func (c *geminiCheck) parameters(at string, v any) {
	s, ok := v.(object)
	if !ok {
		c.fault(RuleSchema, "%s: want a schema object", at)
		return
	}
	allowed := []string{"type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required",
		"minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering", "default",
		"items", "minimum", "maximum"}
	for _, k := range slices.Sorted(maps.Keys(s)) {
		if !slices.Contains(allowed, k) {
			c.fault(RuleSchema, "invalid JSON payload: unknown name %q at %s: cannot find field", k, at)
		}
	}
	kind, isText := s["type"].(string)
	kind = strings.ToLower(kind)
	if s["type"] != nil && (!isText || !slices.Contains(geminiTypes, kind)) {
		c.fault(RuleSchema, "%s.type: %s is no type", at, text(s["type"]))
	}
	if s["type"] == nil && s["anyOf"] == nil {
		c.fault(RuleSchema, "%s.type: field required", at)
	}
	if enum, ok := s["enum"]; ok {
		if kind != "string" {
			c.fault(RuleSchema, "%s.enum: only allowed for the type STRING", at)
		}
		for i, w := range list(enum) {
			if str(w) == "" {
				c.fault(RuleSchema, "%s.enum[%d]: cannot be empty", at, i)
			}
		}
	}
	if f, ok := s["format"]; ok && kind == "string" && str(f) != "enum" && str(f) != "date-time" {
		c.fault(RuleSchema, "%s.format: only enum and date-time are supported for the type STRING", at)
	}
	props := obj(s["properties"])
	if _, ok := s["properties"]; ok && len(props) == 0 {
		c.fault(RuleSchema, "%s.properties: should be non-empty for the type OBJECT", at)
	}
	for _, name := range slices.Sorted(maps.Keys(props)) {
		c.parameters(at+".properties["+name+"]", props[name])
	}
	for i, name := range list(s["required"]) {
		if _, ok := props[str(name)]; !ok {
			c.fault(RuleSchema, "%s.required[%d]: property is not defined", at, i)
		}
	}
	if kind == "array" && s["items"] == nil {
		c.fault(RuleSchema, "%s.items: missing field", at)
	}
	if items, ok := s["items"]; ok {
		c.parameters(at+".items", items)
	}
	for i, m := range list(s["anyOf"]) {
		c.parameters(fmt.Sprintf("%s.anyOf[%d]", at, i), m)
	}
}

// geminiContent is a content whose shape has been checked.
type geminiContent struct {
	role             string
	parts            []object
	calls, responses int
}

func (c *geminiCheck) contents(b object) {
	contents, ok := b["contents"].([]any)
	if !ok || len(contents) == 0 {
		c.fault(RuleEmpty, "contents: must not be empty")
		return
	}
	var all []geminiContent
	for i, raw := range contents {
		at := fmt.Sprintf("contents[%d]", i)
		o := obj(raw)
		c.keys(at+".", o, "role", "parts")
		n := geminiContent{role: str(o["role"])}
		if n.role != "user" && n.role != "model" {
			c.fault(RuleRole, "%s.role: please use a valid role: user, model, not %s", at, text(o["role"]))
		}
		parts := list(o["parts"])
		if len(parts) == 0 {
			c.fault(RuleEmpty, "%s.parts: must not be empty", at)
		}
		for j, raw := range parts {
			p := obj(raw)
			n.parts = append(n.parts, p)
			if p["functionCall"] != nil {
				n.calls++
			}
			if p["functionResponse"] != nil {
				n.responses++
			}
			c.part(n.role, fmt.Sprintf("%s.parts[%d].", at, j), p)
		}
		if n.responses > 0 && n.responses < len(n.parts) {
			c.fault(RuleResultsFirst, "%s: function responses and other parts must not be mixed", at)
		}
		all = append(all, n)
	}
	if all[0].role != "user" {
		c.fault(RuleFirst, "contents[0]: the conversation must begin with a user turn")
	}
	if all[len(all)-1].role != "user" {
		c.fault(RuleLast, "contents: the conversation must end with a user role")
	}
	for i, n := range all {
		var before geminiContent
		if i > 0 {
			before = all[i-1]
		}
		if i > 0 && n.role == "model" && before.role == "model" {
			c.fault(RuleRole, "contents[%d]: a model turn must come after a user turn or a function response turn", i)
		}
		if before.calls > 0 && n.responses == 0 {
			c.fault(RuleMissingResult, "contents[%d]: a function call turn must be followed by its function responses", i)
		}
		if n.responses > 0 {
			c.answers(i, before, n)
		}
	}
	c.signatures(all)
}

// answers checks responses against the calls directly before them: as many, in
// the same order.
func (c *geminiCheck) answers(i int, before, n geminiContent) {
	if before.calls == 0 {
		c.fault(RuleStrayResult, "contents[%d]: function response turn must come immediately after a function call turn", i)
		return
	}
	if before.calls != n.responses {
		c.fault(RuleMissingResult, "contents[%d]: the number of function response parts (%d) must be equal to the number of function call parts of the function call turn (%d)",
			i, n.responses, before.calls)
		return
	}
	var calls, responses []object
	for _, p := range before.parts {
		if p["functionCall"] != nil {
			calls = append(calls, obj(p["functionCall"]))
		}
	}
	for _, p := range n.parts {
		if p["functionResponse"] != nil {
			responses = append(responses, obj(p["functionResponse"]))
		}
	}
	for j, r := range responses {
		if str(r["name"]) != str(calls[j]["name"]) || str(r["id"]) != str(calls[j]["id"]) {
			c.fault(RuleMissingResult, "contents[%d]: response %d is to %q %q, the call was %q %q", i, j,
				str(r["name"]), str(r["id"]), str(calls[j]["name"]), str(calls[j]["id"]))
		}
	}
}

// part checks one part by itself.
func (c *geminiCheck) part(role, at string, p object) {
	kinds := 0
	for _, k := range []string{"text", "inlineData", "functionCall", "functionResponse"} {
		if _, ok := p[k]; ok {
			kinds++
		}
	}
	if kinds != 1 {
		c.fault(RuleField, "%sdata: required oneof field 'data' must have one initialized field", at)
	}
	signature, signed := p["thoughtSignature"]
	if signed {
		if _, err := base64.StdEncoding.DecodeString(str(signature)); str(signature) != geminiUnsigned && (err != nil || str(signature) == "") {
			c.fault(RuleThinkingBlock, "%sthoughtSignature: base64 decoding failed", at)
		}
	}
	what := "" // that was signed
	switch {
	case p["functionCall"] != nil:
		f := obj(p["functionCall"])
		c.keys(at, p, "functionCall", "thoughtSignature")
		c.keys(at+"functionCall.", f, "id", "name", "args")
		if role != "model" {
			c.fault(RuleRole, "%sfunctionCall: only allowed in a turn of the model", at)
		}
		c.callName(at+"functionCall.name", f["name"])
		if _, ok := f["args"].(object); f["args"] != nil && !ok {
			c.fault(RuleArguments, "%sfunctionCall.args: want an object", at)
		}
		what = geminiCall(f)
	case p["functionResponse"] != nil:
		c.keys(at, p, "functionResponse")
		if role != "user" {
			c.fault(RuleRole, "%sfunctionResponse: only allowed in a turn of the user", at)
		}
		c.response(at+"functionResponse.", obj(p["functionResponse"]))
	case p["inlineData"] != nil:
		c.keys(at, p, "inlineData")
		c.inline(at, p)
	default:
		c.keys(at, p, "text", "thought", "thoughtSignature")
		c.boolean(at, p, "thought")
		s, ok := p["text"].(string)
		if !ok {
			c.fault(RuleField, "%stext: want a text", at)
		}
		if !signed {
			c.text(at+"text", s)
			if truth(p["thought"]) {
				return // what was thought may come back without a signature
			}
		}
		what = geminiText(truth(p["thought"]), s)
	}
	if !signed || str(signature) == geminiUnsigned {
		return
	}
	if why := c.issued.about(c.model, str(signature), what); why != "" {
		c.fault(RuleThinkingBlock, "%sthoughtSignature: thought signature is not valid: %s", at, why)
	}
}

// about tells why a signature does not belong to what it came back with, or "".
// More text may follow the signed one in its part.
func (i *issued) about(model, signature, what string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	known := i.thoughts["gemini\x00"+signature]
	if len(known) == 0 {
		return fmt.Sprintf("%q was never issued", signature)
	}
	for _, k := range known {
		call := strings.HasPrefix(k.text, "call ")
		if k.model == model && (what == k.text || !call && strings.HasPrefix(what, k.text) && !strings.HasPrefix(what, "call ")) {
			return ""
		}
	}
	return fmt.Sprintf("%q was issued to model %s for %q, not to %s for %q", signature, known[0].model, known[0].text, model, what)
}

// remember notes what a signature was issued for.
func (i *issued) remember(t thought) {
	i.mu.Lock()
	defer i.mu.Unlock()
	key := "gemini\x00" + t.signature
	if !slices.Contains(i.thoughts[key], t) {
		i.thoughts[key] = append(i.thoughts[key], t)
	}
}

// expect notes the signature, or none, that a call was sent with.
func (i *issued) expect(model, id, signature string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	key := geminiSigned(id)
	i.calls[key] = append(i.calls[key], turn{model: model, thoughts: []thought{{signature: signature}}})
}

// geminiCall and geminiText say what a signature is about.
func geminiCall(f object) string { return "call " + str(f["name"]) + " " + text(f["args"]) }
func geminiText(thought bool, s string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf("text %t %s", thought, s)
}

func (c *geminiCheck) response(at string, r object) {
	c.keys(at, r, "id", "name", "response", "parts", "scheduling", "willContinue")
	c.callName(at+"name", r["name"])
	if response, ok := r["response"].(object); !ok || len(response) == 0 {
		c.fault(RuleEmpty, "%sresponse: want an object that is not empty", at)
	}
	parts, ok := r["parts"]
	if !ok {
		return
	}
	if !c.levels {
		c.fault(RuleField, "%sparts: multimodal function responses are not supported for this model", at)
	}
	for i, p := range list(parts) {
		at := fmt.Sprintf("%sparts[%d].", at, i)
		c.keys(at, obj(p), "inlineData")
		c.inline(at, obj(p))
	}
}

func (c *geminiCheck) inline(at string, p object) {
	data := obj(p["inlineData"])
	c.keys(at+"inlineData.", data, "mimeType", "data", "displayName")
	if kind := str(data["mimeType"]); kind == "image/gif" {
		c.fault(RuleField, "%sinlineData.mimeType: unsupported MIME type: %s", at, kind)
	}
	c.image(at+"inlineData", str(data["mimeType"]), str(data["data"]))
}

// signatures checks the turn that goes on, which is all since the user last
// said something: what this server signed must come back signed, and models of
// the third generation want a signature on the first call of each step.
func (c *geminiCheck) signatures(all []geminiContent) {
	for i := len(all) - 1; i >= 0; i-- {
		n := all[i]
		if n.role == "user" && n.responses == 0 {
			return
		}
		first := true
		for j, p := range n.parts {
			f := obj(p["functionCall"])
			if f == nil {
				continue
			}
			signature := str(p["thoughtSignature"])
			if c.levels && first && signature == "" {
				c.fault(RuleThinkingLost, "function call %q in contents[%d].parts[%d] is missing a thought_signature", str(f["name"]), i, j)
			}
			first = false
			if !c.issued.complete(c.model, geminiSigned(str(f["id"])), []thought{{signature: signature}}) {
				c.fault(RuleThinkingLost, "contents[%d].parts[%d]: the thought signature issued with the function call %q must be sent back with it", i, j, str(f["id"]))
			}
		}
	}
}

// geminiSigned is the key under which the signature of a call is remembered.
func geminiSigned(id string) string { return "gemini\x00" + id }

// geminiStates are the words for HTTP statuses.
var geminiStates = map[int]string{
	http.StatusBadRequest: "INVALID_ARGUMENT", http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusForbidden: "PERMISSION_DENIED",
	http.StatusNotFound: "NOT_FOUND", http.StatusTooManyRequests: "RESOURCE_EXHAUSTED", http.StatusInternalServerError: "INTERNAL",
	http.StatusServiceUnavailable: "UNAVAILABLE", http.StatusGatewayTimeout: "DEADLINE_EXCEEDED",
}

// geminiErrors are the statuses of errors in other protocols' words.
var geminiErrors = map[string]int{
	"rate_limit_error": http.StatusTooManyRequests, "overloaded_error": http.StatusServiceUnavailable,
	"invalid_request_error": http.StatusBadRequest, "authentication_error": http.StatusUnauthorized,
	"permission_error": http.StatusForbidden, "not_found_error": http.StatusNotFound,
}

func (gemini) errorBody(status int, e Error) any {
	if status == http.StatusOK {
		status = http.StatusInternalServerError
		if n, ok := geminiErrors[e.Type]; ok {
			status = n
		}
		for n, state := range geminiStates {
			if state == e.Type {
				status = n
			}
		}
	}
	state, ok := geminiStates[status]
	if !ok {
		state = "UNKNOWN"
	}
	inner := object{"code": status, "message": e.Message, "status": state}
	if e.Code != "" || status == http.StatusUnauthorized {
		reason := e.Code
		if reason == "" {
			reason = "API_KEY_INVALID"
		}
		inner["details"] = []object{{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}}
	}
	return object{"error": inner}
}

func geminiUsage(u Usage) object {
	prompt := u.Input + u.CacheRead + u.CacheWrite
	o := object{"promptTokenCount": prompt, "candidatesTokenCount": u.Output - u.Reasoning, "totalTokenCount": prompt + u.Output,
		"promptTokensDetails": []object{{"modality": "TEXT", "tokenCount": prompt}}}
	if u.Reasoning > 0 {
		o["thoughtsTokenCount"] = u.Reasoning
	}
	if u.CacheRead > 0 {
		o["cachedContentTokenCount"] = u.CacheRead
	}
	return o
}

// geminiReasons says in this protocol's words what others say in theirs.
var geminiReasons = map[string]string{"": "STOP", "stop": "STOP", "end_turn": "STOP", "tool_calls": "STOP", "tool_use": "STOP",
	"length": "MAX_TOKENS", "max_tokens": "MAX_TOKENS", "content_filter": "SAFETY", "refusal": "SAFETY"}

func geminiReason(st End) string {
	if r, ok := geminiReasons[st.Reason]; ok {
		return r
	}
	return st.Reason
}

// geminiWriter writes a message as chunks. Calls go out whole, once it is known
// that no more of their arguments comes.
type geminiWriter struct {
	out    *stream
	view   *View
	id     string
	usage  Usage
	issued *issued

	said    strings.Builder // of the text or thought that is under way
	thought bool            // it is a thought
	// signature is of the thinking before, for the next part that is signed.
	signature string
	calls     int
	open      *Call // not sent yet
}

func (gemini) stream(out *stream, v *View, id int64, u Usage) encoder {
	return &geminiWriter{out: out, view: v, id: geminiID(id), usage: u, issued: out.run.s.issued}
}

func (e *geminiWriter) chunk(parts []object, more object) error {
	c := object{"index": 0}
	if parts != nil {
		c["content"] = object{"role": "model", "parts": parts}
	}
	o := object{"candidates": []object{c}, "modelVersion": e.view.Model, "responseId": e.id}
	if e.usage.Place == PlaceEvery {
		o["usageMetadata"] = geminiUsage(e.usage)
	}
	for k, v := range more {
		if k == "usageMetadata" {
			o[k] = v
		} else {
			c[k] = v
		}
	}
	return e.out.event("", o)
}

// sign remembers what a signature was issued for.
func (e *geminiWriter) sign(what string) string {
	s := geminiBase64(e.signature)
	e.signature = ""
	e.issued.remember(thought{model: e.view.Model, signature: s, text: what})
	return s
}

// geminiBase64 makes a signature what the API says that it is: bytes.
func geminiBase64(s string) string {
	if _, err := base64.StdEncoding.DecodeString(s); err == nil {
		return s
	}
	return base64.StdEncoding.EncodeToString([]byte(s))
}

func (e *geminiWriter) part(thought bool, delta string) error {
	if err := e.flush(); err != nil {
		return err
	}
	if thought != e.thought {
		e.said.Reset()
	}
	e.thought = thought
	e.said.WriteString(delta)
	p := object{"text": delta}
	if thought {
		p["thought"] = true
	}
	return e.chunk([]object{p}, nil)
}

func (e *geminiWriter) text(delta string) error { return e.part(false, delta) }

func (e *geminiWriter) reasoning(_ Reasoning, delta string) error { return e.part(true, delta) }

// reasoned keeps the signature for what the thinking leads to.
func (e *geminiWriter) reasoned(st Reasoning) error {
	if err := e.flush(); err != nil {
		return err
	}
	if e.signature != "" {
		if err := e.alone(nil); err != nil {
			return err
		}
	}
	e.signature = st.Signature
	if st.Redacted {
		return e.alone(nil)
	}
	return nil
}

// alone sends the signature on a part without text: it is of the text before.
func (e *geminiWriter) alone(more object) error {
	if said := e.said.String(); said != "" {
		e.issued.remember(thought{model: e.view.Model, signature: geminiBase64(e.signature), text: geminiText(e.thought, said)})
	}
	e.said.Reset()
	return e.chunk([]object{{"text": "", "thoughtSignature": e.sign("")}}, more)
}

func (e *geminiWriter) call(st Call, first string) error {
	if err := e.flush(); err != nil {
		return err
	}
	st.Args = first
	e.open = &st
	return nil
}

func (e *geminiWriter) args(_ Call, fragment string) error {
	e.open.Args += fragment
	return nil
}

// flush sends the call that is under way.
func (e *geminiWriter) flush() error {
	if e.open == nil {
		return nil
	}
	st := *e.open
	e.open = nil
	e.said.Reset()
	if e.calls == 0 && e.signature == "" && geminiLevels.MatchString(e.view.Model) {
		e.signature = "signature of " + st.ID // each first call has one
	}
	e.calls++
	f := geminiFunction(st)
	p := object{"functionCall": f}
	signed := ""
	if e.signature != "" {
		signed = e.sign(geminiCall(geminiSent(f)))
		p["thoughtSignature"] = signed
	}
	e.issued.expect(e.view.Model, st.ID, signed)
	return e.chunk([]object{p}, nil)
}

// geminiFunction is a call as it is sent. The provider has parsed the
// arguments; what is no JSON can only be told as the string that it is.
func geminiFunction(st Call) object {
	f := object{"name": st.Name}
	if !st.NoID {
		f["id"] = st.ID
	}
	switch {
	case validJSON(st.Args):
		f["args"] = json.RawMessage(st.Args)
	case st.Args != "":
		f["args"] = st.Args
	default:
		f["args"] = object{}
	}
	return f
}

// geminiSent is a call as a client decodes it.
func geminiSent(f object) object {
	out := object{"name": f["name"]}
	var args any
	if json.Unmarshal([]byte(text(f["args"])), &args) == nil {
		out["args"] = args
	}
	return out
}

func (e *geminiWriter) end(st End) error {
	if err := e.flush(); err != nil {
		return err
	}
	more := object{}
	if !st.NoReason {
		more["finishReason"] = geminiReason(st)
	}
	if !st.NoUsage {
		more["usageMetadata"] = geminiUsage(e.usage)
	}
	if e.signature != "" {
		return e.alone(more)
	}
	return e.chunk([]object{{"text": ""}}, more)
}

func (gemini) whole(m *message, v *View, id int64, u Usage) any {
	parts := []object{}
	for _, st := range m.thoughts {
		if !st.Redacted {
			parts = append(parts, object{"text": st.Text, "thought": true})
		}
	}
	if s := m.text.String(); s != "" {
		parts = append(parts, object{"text": s})
	}
	for _, c := range m.calls {
		parts = append(parts, object{"functionCall": geminiFunction(c)})
	}
	candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
	if !m.ended.NoReason {
		candidate["finishReason"] = geminiReason(m.ended)
	}
	out := object{"candidates": []object{candidate}, "modelVersion": v.Model, "responseId": geminiID(id)}
	if !m.ended.NoUsage {
		out["usageMetadata"] = geminiUsage(u)
	}
	return out
}
