package oracle

import (
	"encoding/json"
	"testing"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	api "github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"codework/messages"
	"codework/providers/responses"
)

func TestResponsesStreams(t *testing.T) {
	decodes(t, responses.Dialect{}, model(messages.ProtocolOpenAI, "gpt-x"), func(t *testing.T, url string) answer {
		c := openaiClient(t, url)
		stream := c.Responses.NewStreaming(t.Context(), api.ResponseNewParams{Model: "gpt-x",
			Include: []api.ResponseIncludable{api.ResponseIncludableReasoningEncryptedContent},
			Input:   api.ResponseNewParamsInputUnion{OfString: sdk.String("hello")}})
		var a answer
		var done *api.Response
		for stream.Next() {
			switch e := stream.Current().AsAny().(type) {
			case api.ResponseTextDeltaEvent:
				a.Text += e.Delta
			case api.ResponseReasoningSummaryTextDeltaEvent:
				a.Thinking += e.Delta
			case api.ResponseCompletedEvent:
				done, a.Stop = &e.Response, "stop"
			case api.ResponseIncompleteEvent:
				done, a.Stop = &e.Response, "length"
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if done == nil {
			t.Fatal("no end")
		}
		if done.OutputText() != a.Text {
			t.Errorf("the deltas are %q, the whole is %q", a.Text, done.OutputText())
		}
		for _, it := range done.Output {
			switch it := it.AsAny().(type) {
			case api.ResponseReasoningItem:
				a.Signatures = append(a.Signatures, it.EncryptedContent)
			case api.ResponseFunctionToolCall:
				a.Calls = append(a.Calls, call{it.CallID, it.Name, decoded(t, it.Arguments)})
				a.Stop = "toolUse"
			}
		}
		u := done.Usage
		a.CacheRead = u.InputTokensDetails.CachedTokens
		a.Input, a.Output, a.Reasoning = u.InputTokens-a.CacheRead, u.OutputTokens, u.OutputTokensDetails.ReasoningTokens
		return a
	})
}

func TestResponsesRequests(t *testing.T) {
	m := model(messages.ProtocolOpenAI, "gpt-x")
	var parameters map[string]any
	if err := json.Unmarshal(toolSchema, &parameters); err != nil {
		t.Fatal(err)
	}
	tool := api.ToolParamOfFunction("read", parameters, false)
	tool.OfFunction.Description = param.NewOpt("Reads a file.")
	reasoning := api.ResponseInputItemParamOfReasoning("rs_1", []api.ResponseReasoningItemSummaryParam{{Text: "I had better look"}})
	reasoning.OfReasoning.EncryptedContent = param.NewOpt("ENC")
	user := func(parts ...api.ResponseInputContentUnionParam) api.ResponseInputItemUnionParam {
		return api.ResponseInputItemParamOfMessage(api.ResponseInputMessageContentListParam(parts), "user")
	}
	text := func(s string) api.ResponseInputContentUnionParam {
		return api.ResponseInputContentUnionParam{OfInputText: &api.ResponseInputTextParam{Text: s}}
	}
	output := func(id, text string) api.ResponseInputItemUnionParam {
		return api.ResponseInputItemUnionParam{OfFunctionCallOutput: &api.ResponseInputItemFunctionCallOutputParam{CallID: sdk.String(id),
			Output: api.ResponseInputItemFunctionCallOutputOutputUnionParam{OfString: param.NewOpt(text)}}}
	}
	encodes(t, responses.Dialect{}, conversation(m, `{"itemId":"rs_1","reasoningEncryptedContent":"ENC"}`, messages.PartThinking), func(t *testing.T, url string) {
		c := openaiClient(t, url)
		stream := c.Responses.NewStreaming(t.Context(), api.ResponseNewParams{
			Model: "gpt-x", Instructions: param.NewOpt("Be brief."), Store: param.NewOpt(false),
			Include:   []api.ResponseIncludable{api.ResponseIncludableReasoningEncryptedContent},
			Reasoning: shared.ReasoningParam{Effort: "low", Summary: "auto"},
			Tools:     []api.ToolUnionParam{tool},
			Input: api.ResponseNewParamsInputUnion{OfInputItemList: api.ResponseInputParam{
				user(text("what is this?"), api.ResponseInputContentUnionParam{OfInputImage: &api.ResponseInputImageParam{Detail: "auto", ImageURL: param.NewOpt("data:image/png;base64," + pngBase64)}}),
				reasoning,
				api.ResponseInputItemParamOfOutputMessage([]api.ResponseOutputMessageContentUnionParam{{OfOutputText: &api.ResponseOutputTextParam{Text: "Let me look."}}}, "", ""),
				api.ResponseInputItemParamOfFunctionCall(`{"path":"a.txt","lines":3}`, "call_a", "read"),
				api.ResponseInputItemParamOfFunctionCall(`{"path":"ü \"b\".txt"}`, "call_b", "read"),
				output("call_a", "line one\nline two"), output("call_b", "error: no such file"), // the protocol has no mark for it
				user(text("and now?")),
			}},
		})
		for stream.Next() {
		}
	}, nil)
}
