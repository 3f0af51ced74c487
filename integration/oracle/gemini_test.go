package oracle

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/genai"

	"codework/messages"
	"codework/providers/gemini"
)

const geminiModel = "gemini-3-flash"

func geminiClient(t *testing.T, url string) *genai.Client {
	c, err := genai.NewClient(t.Context(), &genai.ClientConfig{APIKey: key, Backend: genai.BackendGeminiAPI, HTTPClient: client(t),
		HTTPOptions: genai.HTTPOptions{BaseURL: url}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGeminiStreams(t *testing.T) {
	stops := map[genai.FinishReason]string{genai.FinishReasonStop: "stop", genai.FinishReasonMaxTokens: "length"}
	decodes(t, gemini.Dialect{}, model(messages.ProtocolGoogle, geminiModel), func(t *testing.T, url string) answer {
		var a answer
		for chunk, err := range geminiClient(t, url).Models.GenerateContentStream(t.Context(), geminiModel, genai.Text("hello"), nil) {
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range chunk.Candidates {
				if c.FinishReason != "" {
					a.Stop = stops[c.FinishReason]
				}
				if c.Content == nil {
					continue
				}
				for _, p := range c.Content.Parts {
					if len(p.ThoughtSignature) > 0 {
						a.Signatures = append(a.Signatures, base64.StdEncoding.EncodeToString(p.ThoughtSignature))
					}
					switch {
					case p.FunctionCall != nil:
						var args any = p.FunctionCall.Args
						if p.FunctionCall.Args == nil {
							args = map[string]any{}
						}
						a.Calls = append(a.Calls, call{p.FunctionCall.ID, p.FunctionCall.Name, args})
					case p.Thought:
						a.Thinking += p.Text
					default:
						a.Text += p.Text
					}
				}
			}
			if u := chunk.UsageMetadata; u != nil {
				a.CacheRead = int64(u.CachedContentTokenCount)
				a.Input = int64(u.PromptTokenCount) - a.CacheRead
				a.Reasoning = int64(u.ThoughtsTokenCount)
				a.Output = int64(u.CandidatesTokenCount) + a.Reasoning
			}
		}
		if a.Calls != nil && a.Stop == "stop" {
			a.Stop = "toolUse" // the protocol has no word of its own for it
		}
		return a
	})
}

func TestGeminiRequests(t *testing.T) {
	m := model(messages.ProtocolGoogle, geminiModel)
	signature := "c2lnbmVk"
	text := func(s string) *genai.Part { return &genai.Part{Text: s} }
	use := func(id string, args map[string]any) *genai.Part {
		return &genai.Part{FunctionCall: &genai.FunctionCall{ID: id, Name: "read", Args: args}}
	}
	respond := func(id, field, text string) *genai.Part {
		return &genai.Part{FunctionResponse: &genai.FunctionResponse{ID: id, Name: "read", Response: map[string]any{field: text}}}
	}
	first := use("call_a", map[string]any{"path": "a.txt", "lines": 3})
	first.ThoughtSignature = []byte("signed")
	encodes(t, gemini.Dialect{}, conversation(m, signature, messages.PartToolCall), func(t *testing.T, url string) {
		for range geminiClient(t, url).Models.GenerateContentStream(t.Context(), geminiModel, []*genai.Content{
			{Role: "user", Parts: []*genai.Part{text("what is this?"), {InlineData: &genai.Blob{MIMEType: "image/png", Data: png}}}},
			{Role: "model", Parts: []*genai.Part{text("Let me look."), first, use("call_b", map[string]any{"path": `ü "b".txt`})}},
			{Role: "user", Parts: []*genai.Part{respond("call_a", "output", "line one\nline two"), respond("call_b", "error", "no such file")}},
			{Role: "user", Parts: []*genai.Part{text("and now?")}},
		}, &genai.GenerateContentConfig{
			MaxOutputTokens:   32000,
			SystemInstruction: &genai.Content{Parts: []*genai.Part{text("Be brief.")}},
			ThinkingConfig:    &genai.ThinkingConfig{ThinkingLevel: genai.ThinkingLevelLow, IncludeThoughts: true},
			Tools: []*genai.Tool{{FunctionDeclarations: []*genai.FunctionDeclaration{{Name: "read", Description: "Reads a file.",
				Parameters: &genai.Schema{Type: genai.TypeObject, Required: []string{"path"}, Properties: map[string]*genai.Schema{
					"path": {Type: genai.TypeString, Description: "which file"}, "lines": {Type: genai.TypeInteger}}}}}}},
		}) {
		}
	}, func(body map[string]any) {
		lower(body)
		if s, ok := body["systemInstruction"].(map[string]any); ok {
			delete(s, "role") // the client sets one; the API reads only the text
		}
	})
}

// lower writes enumerations in lower case: the API takes types and thinking
// levels in both, and its documentation shows both.
func lower(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if s, ok := x.(string); ok && (k == "type" || k == "thinkingLevel") {
				v[k] = strings.ToLower(s)
			}
			lower(x)
		}
	case []any:
		for _, x := range v {
			lower(x)
		}
	}
}

// What our dialect sends is of the client's own types, without a field that
// they do not know: for conversations that its encoder is not asked for.
func TestGeminiRequestsAreOfTheClientsTypes(t *testing.T) {
	m := model(messages.ProtocolGoogle, geminiModel)
	req := conversation(m, "c2lnbmVk", messages.PartToolCall)
	picture := messages.ToolResult{Content: []messages.Part{{Type: messages.PartText, Text: "see"}, {Type: messages.PartImage, Data: png}}}
	req.Messages[1].Parts[2].Result = &picture
	req.Messages[1].Parts[0].Signature = "c2lnbmVk"
	req.Tools[0].Schema = json.RawMessage(`{"$defs":{"x":{"type":["string","null"],"enum":["a",""]}},"type":"object","additionalProperties":false,
		"properties":{"a":{"$ref":"#/$defs/x"},"b":{"oneOf":[{"type":"integer","exclusiveMinimum":0},{"type":"array","items":{"const":"q"}}]}}}`)
	r := record(t)
	req.Model.BaseURL = r.URL
	gemini.Dialect{}.Stream(t.Context(), client(t), req, func(messages.StreamEvent) {})
	var body struct {
		Contents          []*genai.Content        `json:"contents"`
		SystemInstruction *genai.Content          `json:"systemInstruction"`
		Tools             []*genai.Tool           `json:"tools"`
		GenerationConfig  *genai.GenerationConfig `json:"generationConfig"`
	}
	d := json.NewDecoder(strings.NewReader(string(r.bodies[0])))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		t.Fatalf("%v in %s", err, r.bodies[0])
	}
	if p := body.Contents[2].Parts[0].FunctionResponse.Parts; len(p) != 1 || string(p[0].InlineData.Data) != string(png) {
		t.Errorf("the picture in the response: %+v", p)
	}
	if s := body.Tools[0].FunctionDeclarations[0].Parameters.Properties["b"]; len(s.AnyOf) != 2 {
		t.Errorf("the schema: %+v", s)
	}
}
