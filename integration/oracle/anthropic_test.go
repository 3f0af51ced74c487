package oracle

import (
	"encoding/json"
	"testing"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"codework/messages"
	"codework/providers/anthropic"
)

func anthropicClient(t *testing.T, url string) sdk.Client {
	return sdk.NewClient(option.WithBaseURL(url), option.WithAPIKey(key), option.WithMaxRetries(0), option.WithHTTPClient(client(t)))
}

func TestAnthropicStreams(t *testing.T) {
	stops := map[sdk.StopReason]string{"end_turn": "stop", "max_tokens": "length", "tool_use": "toolUse"}
	decodes(t, anthropic.Dialect{}, model(messages.ProtocolAnthropic, "claude-x"), func(t *testing.T, url string) answer {
		c := anthropicClient(t, url)
		stream := c.Messages.NewStreaming(t.Context(), sdk.MessageNewParams{Model: "claude-x", MaxTokens: 100,
			Messages: []sdk.MessageParam{sdk.NewUserMessage(sdk.NewTextBlock("hello"))}})
		var m sdk.Message
		for stream.Next() {
			if err := m.Accumulate(stream.Current()); err != nil {
				t.Fatal(err)
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		a := answer{Stop: stops[m.StopReason], Input: m.Usage.InputTokens, Output: m.Usage.OutputTokens,
			CacheRead: m.Usage.CacheReadInputTokens, CacheWrite: m.Usage.CacheCreationInputTokens}
		for _, b := range m.Content {
			switch b := b.AsAny().(type) {
			case sdk.TextBlock:
				a.Text += b.Text
			case sdk.ThinkingBlock:
				a.Thinking += b.Thinking
				a.Signatures = append(a.Signatures, b.Signature)
			case sdk.ToolUseBlock:
				raw, err := json.Marshal(b.Input)
				if err != nil {
					t.Fatal(err)
				}
				a.Calls = append(a.Calls, call{b.ID, b.Name, decoded(t, string(raw))})
			}
		}
		return a
	})
}

func TestAnthropicRequests(t *testing.T) {
	m := model(messages.ProtocolAnthropic, "claude-x")
	result := func(id, text string, failed bool) sdk.ContentBlockParamUnion {
		r := sdk.ToolResultBlockParam{ToolUseID: id, Content: []sdk.ToolResultBlockParamContentUnion{{OfText: &sdk.TextBlockParam{Text: text}}}}
		if failed {
			r.IsError = param.NewOpt(true)
		}
		return sdk.ContentBlockParamUnion{OfToolResult: &r}
	}
	var schema struct {
		Properties any
		Required   []string
	}
	if err := json.Unmarshal(toolSchema, &schema); err != nil {
		t.Fatal(err)
	}
	encodes(t, anthropic.Dialect{}, conversation(m, "c2ln", messages.PartThinking), func(t *testing.T, url string) {
		c := anthropicClient(t, url)
		stream := c.Messages.NewStreaming(t.Context(), sdk.MessageNewParams{
			Model:     "claude-x",
			MaxTokens: 32000,
			System:    []sdk.TextBlockParam{{Text: "Be brief."}},
			Thinking:  sdk.ThinkingConfigParamOfEnabled(2048),
			Tools: []sdk.ToolUnionParam{{OfTool: &sdk.ToolParam{Name: "read", Description: param.NewOpt("Reads a file."),
				InputSchema: sdk.ToolInputSchemaParam{Properties: schema.Properties, Required: schema.Required}}}},
			Messages: []sdk.MessageParam{
				sdk.NewUserMessage(sdk.NewTextBlock("what is this?"), sdk.NewImageBlockBase64("image/png", pngBase64)),
				sdk.NewAssistantMessage(sdk.NewThinkingBlock("c2ln", "I had better look"), sdk.NewTextBlock("Let me look."),
					sdk.NewToolUseBlock("call_a", json.RawMessage(`{"path":"a.txt","lines":3}`), "read"),
					sdk.NewToolUseBlock("call_b", json.RawMessage(`{"path":"ü \"b\".txt"}`), "read")),
				sdk.NewUserMessage(result("call_a", "line one\nline two", false), result("call_b", "no such file", true), sdk.NewTextBlock("and now?")),
			},
		})
		for stream.Next() {
		}
	}, nil)
}
