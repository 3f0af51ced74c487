package dialecttest

import (
	"fmt"

	"pgregory.net/rapid"

	"codework/messages"
)

// PNG is the beginning of an image, as much as is needed to tell its kind.
var PNG = []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")

// texts are the kinds of text that have broken requests.
var texts = rapid.OneOf(
	rapid.SampledFrom([]string{
		"", " ", "\n\t", "\u00a0", "hello", "a\x00b", "bad \xff\xfe bytes", "\xed\xa0\x80 half a pair", "quote \" back \\ slash",
		"line\r\nend", "\u2028", "😀", "<think>", "</script>", "error: x",
	}),
	rapid.String(),
)

var callIDs = rapid.SampledFrom([]string{
	"", "call_1", "call_1", "call_0", "toolu_01AbC", "a|b", "ü", "with space", "123456789", "x\xff",
	"fc_0123456789012345678901234567890123456789012345678901234567890123456789", "call|fc_1",
})

var toolNames = rapid.SampledFrom([]string{"bash", "read", "", "repo_browser.print_tree", "weird name", "ü",
	"long_long_long_long_long_long_long_long_long_long_long_long_long_long_long"})

var arguments = rapid.SampledFrom([]string{
	"", "{}", `{"path":"a"}`, `{"path":"a"`, "null", `["a"]`, `"{\"path\":\"a\"}"`, "xxxx", `{"a":"\ud800"}`, `{"a":"\ud83d\ude00"}`,
	`{"a":"\\ud800"}`, "{\"a\":\"\xff\"}", ` {"n":12345678901234567890} `, `{"a":"\uD800\uD800\uDC00"}`,
})

// Writers are the models that may have written a message.
var Writers = []messages.Message{
	{Provider: "p", Protocol: "anthropic", Model: "m"},
	{Provider: "p", Protocol: "openai-compatible", Model: "m"},
	{Provider: "p", Protocol: "anthropic", Model: "other"},
	{Provider: "p", Protocol: "google", Model: "m"},
	{Provider: "q", Protocol: "openai", Model: "m"},
	{},
}

func image(t *rapid.T) messages.Part {
	return rapid.SampledFrom([]messages.Part{
		{Type: messages.PartImage, MediaType: "image/png", Data: PNG},
		{Type: messages.PartImage, MediaType: "image/png", Blob: "there"},
		{Type: messages.PartImage, MediaType: "image/png", Blob: "lost"},
		{Type: messages.PartImage, MediaType: "image/tiff", Data: []byte("II*\x00")},
		{Type: messages.PartImage},
	}).Draw(t, "image")
}

func userParts(t *rapid.T) []messages.Part {
	var out []messages.Part
	for range rapid.IntRange(0, 3).Draw(t, "parts") {
		if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
			out = append(out, image(t))
		} else {
			out = append(out, messages.Part{Type: messages.PartText, Text: texts.Draw(t, "text")})
		}
	}
	return out
}

func assistantParts(t *rapid.T) []messages.Part {
	var out []messages.Part
	for range rapid.IntRange(0, 4).Draw(t, "parts") {
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			out = append(out, messages.Part{Type: messages.PartText, Text: texts.Draw(t, "text"),
				Signature: rapid.SampledFrom([]string{"", "msg_1"}).Draw(t, "sig")})
		case 1:
			out = append(out, messages.Part{Type: messages.PartThinking, Text: texts.Draw(t, "thought"),
				Signature: rapid.SampledFrom([]string{"", "sig==", `[{"type":"reasoning.text","text":"x"}]`}).Draw(t, "sig"),
				Redacted:  rapid.IntRange(0, 4).Draw(t, "redacted") == 0})
		default:
			p := messages.Part{
				Type:      messages.PartToolCall,
				CallID:    callIDs.Draw(t, "id"),
				Name:      toolNames.Draw(t, "name"),
				Arguments: arguments.Draw(t, "args"),
				ItemID:    rapid.SampledFrom([]string{"", "fc_1"}).Draw(t, "item"),
				Signature: rapid.SampledFrom([]string{"", "", "sig="}).Draw(t, "call sig"),
				Call: rapid.SampledFrom([]messages.CallState{"", messages.CallPending, messages.CallRunning,
					messages.CallCompleted, messages.CallError, messages.CallSkipped, messages.CallAborted}).Draw(t, "state"),
			}
			if rapid.IntRange(0, 3).Draw(t, "result") > 0 {
				p.Result = &messages.ToolResult{Content: userParts(t), IsError: rapid.Bool().Draw(t, "error")}
			}
			out = append(out, p)
		}
	}
	return out
}

// Conversation draws a stored conversation as it may be after stops, crashes,
// changes of the model and answers of careless servers.
func Conversation(t *rapid.T) []messages.Message {
	var out []messages.Message
	for i := range rapid.IntRange(0, 8).Draw(t, "messages") {
		if rapid.Bool().Draw(t, "user") {
			out = append(out, messages.Message{ID: fmt.Sprint("u", i), Role: messages.RoleUser, Parts: userParts(t)})
			continue
		}
		m := rapid.SampledFrom(Writers).Draw(t, "writer")
		m.ID = fmt.Sprint("a", i)
		m.Role = messages.RoleAssistant
		m.State = rapid.SampledFrom([]messages.EntryState{messages.EntryCommitted, messages.EntryCommitted,
			messages.EntryCommitted, messages.EntryAborted, messages.EntryDraft, ""}).Draw(t, "state")
		m.Parts = assistantParts(t)
		if m.State == messages.EntryAborted && rapid.Bool().Draw(t, "failed") {
			m.Failure = &messages.Failure{Type: messages.FailTransport}
		}
		if rapid.Bool().Draw(t, "counted") {
			m.Usage = &messages.Usage{TotalTokens: 10}
		}
		out = append(out, m)
	}
	return out
}

// Blob loads the images of Conversation.
func Blob(name string) ([]byte, error) {
	if name == "there" {
		return PNG, nil
	}
	return nil, fmt.Errorf("no blob %s", name)
}
