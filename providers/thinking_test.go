package providers

import (
	"slices"
	"testing"

	"codework/messages"
)

type levels = map[messages.ThinkingLevel]*string

func TestLevelsOfAModel(t *testing.T) {
	for _, c := range []struct {
		name      string
		reasoning bool
		words     levels
		want      []messages.ThinkingLevel
		fits      map[messages.ThinkingLevel]messages.ThinkingLevel
	}{
		{"no reasoning", false, levels{"high": word("x")}, []messages.ThinkingLevel{"off"},
			map[messages.ThinkingLevel]messages.ThinkingLevel{"off": "off", "high": "off", "max": "off"}},
		{"no map", true, nil, []messages.ThinkingLevel{"off", "minimal", "low", "medium", "high"},
			map[messages.ThinkingLevel]messages.ThinkingLevel{"off": "off", "high": "high", "xhigh": "high", "max": "high", "nonsense": "off"}},
		{"the top is named", true, levels{"xhigh": word("xhigh"), "max": word("max")}, []messages.ThinkingLevel{"off", "minimal", "low", "medium", "high", "xhigh", "max"},
			map[messages.ThinkingLevel]messages.ThinkingLevel{"xhigh": "xhigh", "max": "max"}},
		{"max without xhigh", true, levels{"max": word("max")}, []messages.ThinkingLevel{"off", "minimal", "low", "medium", "high", "max"},
			map[messages.ThinkingLevel]messages.ThinkingLevel{"xhigh": "max"}},
		{"cannot be off", true, levels{"off": nil, "minimal": nil}, []messages.ThinkingLevel{"low", "medium", "high"},
			map[messages.ThinkingLevel]messages.ThinkingLevel{"off": "low", "minimal": "low", "max": "high"}},
		{"a gap goes up", true, levels{"medium": nil, "xhigh": nil}, []messages.ThinkingLevel{"off", "minimal", "low", "high"},
			map[messages.ThinkingLevel]messages.ThinkingLevel{"medium": "high", "xhigh": "high"}},
		{"nothing at all", true, levels{"off": nil, "minimal": nil, "low": nil, "medium": nil, "high": nil}, nil,
			map[messages.ThinkingLevel]messages.ThinkingLevel{"high": "off"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := messages.Model{Reasoning: c.reasoning, ThinkingLevelMap: c.words}
			if got := SupportedThinking(m); !slices.Equal(got, c.want) {
				t.Errorf("supported %v, want %v", got, c.want)
			}
			for asked, want := range c.fits {
				if got := FitThinking(m, asked); got != want {
					t.Errorf("%s becomes %s, want %s", asked, got, want)
				}
			}
		})
	}
	m := messages.Model{ThinkingLevelMap: levels{"high": word("deep"), "low": nil}}
	if ThinkingValue(m, "high") != "deep" || ThinkingValue(m, "low") != "low" || ThinkingValue(m, "medium") != "medium" {
		t.Error("the word for a level")
	}
}

func TestBudgets(t *testing.T) {
	named := map[messages.ThinkingLevel]int64{"high": 5, "max": 6, "low": -1}
	for _, c := range []struct {
		level       messages.ThinkingLevel
		usual, with int64
	}{{"off", 0, 0}, {"minimal", 1024, 1024}, {"low", 2048, 0}, {"medium", 8192, 8192}, {"high", 16384, 5}, {"xhigh", 16384, 5}, {"max", 16384, 6}} {
		if got := ThinkingBudget(c.level, nil); got != c.usual {
			t.Errorf("%s: %d, want %d", c.level, got, c.usual)
		}
		if got := ThinkingBudget(c.level, named); got != c.with {
			t.Errorf("%s named: %d, want %d", c.level, got, c.with)
		}
	}
}

func TestRoom(t *testing.T) {
	for _, c := range []struct {
		name                                  string
		maxTokens, window, cap, budget, asked int64
		want                                  Room
	}{
		{"the model's maximum", 32000, 0, 0, 16384, 0, Room{32000, 16384}},
		{"cap and budget on top", 32000, 0, 1000, 2048, 0, Room{3048, 2024}},
		{"at most the maximum", 4000, 0, 3000, 2048, 0, Room{4000, 2048}},
		{"1024 stay for the answer", 3000, 0, 0, 16384, 0, Room{3000, 1976}},
		{"nothing stays for thinking", 1000, 0, 0, 16384, 0, Room{1000, 0}},
		{"what the window leaves", 32000, 20000, 0, 16384, 10000, Room{5904, 4880}},
		{"the window is full", 32000, 20000, 0, 16384, 30000, Room{1, 0}},
		{"nothing is known", 0, 0, 0, 2048, 0, Room{6144, 2048}},
		{"only a cap is known", 0, 0, 100000, 2048, 0, Room{102048, 2048}},
		{"no thinking", 32000, 0, 500, 0, 0, Room{500, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := messages.Model{MaxTokens: c.maxTokens, ContextWindow: c.window}
			if got := FitRoom(m, c.cap, c.budget, c.asked); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestEstimateGoesOnFromWhatTheProviderCounted(t *testing.T) {
	req := testRequest("")
	text := func(n int) []messages.Part {
		return []messages.Part{{Type: messages.PartText, Text: string(make([]byte, n))}}
	}
	req.System = string(make([]byte, 400))
	req.Messages = []messages.Message{{Role: messages.RoleUser, Parts: text(4000)}}
	if got := EstimateTokens(req); got != 1100 {
		t.Errorf("by bytes: %d", got)
	}
	result := messages.ToolResult{Content: append(text(40), messages.Part{Type: messages.PartImage})}
	answer := messages.Message{Role: messages.RoleAssistant, Provider: "p", Protocol: "openai-compatible", Model: "m", Usage: &messages.Usage{TotalTokens: 5000},
		Parts: []messages.Part{{Type: messages.PartText, Text: "counted already"}, {Type: messages.PartToolCall, Result: &result}}}
	req.Messages = append(req.Messages, answer, messages.Message{Role: messages.RoleUser, Parts: text(400)})
	if got := EstimateTokens(req); got != 5000+110+imageTokens {
		t.Errorf("after an answer: %d", got)
	}
	req.Messages[1].Model = "another" // which counts in its own way
	if got := EstimateTokens(req); got < 1200 || got > 1300+imageTokens {
		t.Errorf("after another model's answer: %d", got)
	}
}
