package oracle

import (
	"encoding/json"
	"testing"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"codework/messages"
	"codework/providers/chat"
)

func openaiClient(t *testing.T, url string) sdk.Client {
	return sdk.NewClient(option.WithBaseURL(url+"/v1/"), option.WithAPIKey(key), option.WithMaxRetries(0), option.WithHTTPClient(client(t)))
}

func TestChatStreams(t *testing.T) {
	stops := map[string]string{"stop": "stop", "length": "length", "tool_calls": "toolUse"}
	decodes(t, chat.Dialect{}, model(messages.ProtocolCompatible, "gpt-x"), func(t *testing.T, url string) answer {
		c := openaiClient(t, url)
		stream := c.Chat.Completions.NewStreaming(t.Context(), sdk.ChatCompletionNewParams{Model: "gpt-x",
			Messages:      []sdk.ChatCompletionMessageParamUnion{sdk.UserMessage("hello")},
			StreamOptions: sdk.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)}})
		var acc sdk.ChatCompletionAccumulator
		var a answer
		for stream.Next() {
			chunk := stream.Current()
			if !acc.AddChunk(chunk) {
				t.Fatalf("a chunk does not fit: %s", chunk.RawJSON())
			}
			for _, c := range chunk.Choices {
				// No field of the API: compatible servers send thinking so.
				var more struct {
					Reasoning string `json:"reasoning_content"`
				}
				if err := json.Unmarshal([]byte(c.Delta.RawJSON()), &more); err != nil {
					t.Fatal(err)
				}
				a.Thinking += more.Reasoning
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		first := acc.Choices[0]
		a.Text, a.Stop = first.Message.Content, stops[first.FinishReason]
		u := acc.Usage
		a.CacheRead = u.PromptTokensDetails.CachedTokens
		a.Input, a.Output = u.PromptTokens-a.CacheRead, u.CompletionTokens
		a.Reasoning = u.CompletionTokensDetails.ReasoningTokens
		for _, tc := range first.Message.ToolCalls {
			a.Calls = append(a.Calls, call{tc.ID, tc.Function.Name, decoded(t, tc.Function.Arguments)})
		}
		return a
	})
}

func TestChatRequests(t *testing.T) {
	m := model(messages.ProtocolCompatible, "gpt-x")
	m.Compat = map[string]json.RawMessage{"thinkingFormat": json.RawMessage(`"openai"`), "maxTokensField": json.RawMessage(`"max_completion_tokens"`), "asksForMaximum": json.RawMessage("true")}
	var parameters shared.FunctionParameters
	if err := json.Unmarshal(toolSchema, &parameters); err != nil {
		t.Fatal(err)
	}
	use := func(id, args string) sdk.ChatCompletionMessageToolCallUnionParam {
		return sdk.ChatCompletionMessageToolCallUnionParam{OfFunction: &sdk.ChatCompletionMessageFunctionToolCallParam{ID: id,
			Function: sdk.ChatCompletionMessageFunctionToolCallFunctionParam{Name: "read", Arguments: args}}}
	}
	encodes(t, chat.Dialect{}, conversation(m, "", messages.PartThinking), func(t *testing.T, url string) {
		c := openaiClient(t, url)
		stream := c.Chat.Completions.NewStreaming(t.Context(), sdk.ChatCompletionNewParams{
			Model: "gpt-x", MaxCompletionTokens: param.NewOpt[int64](32000), ReasoningEffort: "low",
			StreamOptions: sdk.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)},
			Tools: []sdk.ChatCompletionToolUnionParam{sdk.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
				Name: "read", Description: param.NewOpt("Reads a file."), Parameters: parameters})},
			Messages: []sdk.ChatCompletionMessageParamUnion{
				sdk.SystemMessage("Be brief."),
				sdk.UserMessage([]sdk.ChatCompletionContentPartUnionParam{sdk.TextContentPart("what is this?"),
					sdk.ImageContentPart(sdk.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64," + pngBase64})}),
				{OfAssistant: &sdk.ChatCompletionAssistantMessageParam{
					Content:   sdk.ChatCompletionAssistantMessageParamContentUnion{OfString: param.NewOpt("Let me look.")},
					ToolCalls: []sdk.ChatCompletionMessageToolCallUnionParam{use("call_a", `{"path":"a.txt","lines":3}`), use("call_b", `{"path":"ü \"b\".txt"}`)}}},
				sdk.ToolMessage("line one\nline two", "call_a"),
				sdk.ToolMessage("error: no such file", "call_b"), // the protocol has no mark for it
				sdk.UserMessage("and now?"),
			},
		})
		for stream.Next() {
		}
	}, nil)
}
