package providers

import (
	"slices"

	"codework/messages"
)

// Off is the level at which a model is asked not to reason.
const Off messages.ThinkingLevel = "off"

const (
	// answerReserve is what stays for the answer when thinking has a budget.
	answerReserve = 1024
	// windowReserve is kept free between the estimated prompt, the answer and
	// the model's window, because the estimate is rough.
	windowReserve = 4096
	// unknownMaxTokens is the answer cap of a model whose maximum nobody knows,
	// where the protocol demands one.
	unknownMaxTokens = 4096
	// bytesPerToken turns text into a rough count of tokens; code and English
	// are near it.
	bytesPerToken = 4
	// imageTokens is about what a provider counts for a large image.
	imageTokens = 1600
)

// SupportedThinking are the levels of a model in rising order: only off for a
// model that does not reason; else all but those its map sets to null, and of
// xhigh and max only what the map names.
func SupportedThinking(m messages.Model) []messages.ThinkingLevel {
	if !m.Reasoning {
		return []messages.ThinkingLevel{Off}
	}
	var out []messages.ThinkingLevel
	for _, l := range messages.ThinkingLevels {
		value, named := m.ThinkingLevelMap[l]
		if named && value == nil {
			continue
		}
		if !named && (l == "xhigh" || l == "max") {
			continue
		}
		out = append(out, l)
	}
	return out
}

// FitThinking returns the level itself where the model has it, else the next
// higher one it has, else the highest below. A level that does not exist counts
// as off.
func FitThinking(m messages.Model, level messages.ThinkingLevel) messages.ThinkingLevel {
	supported := SupportedThinking(m)
	if len(supported) == 0 {
		return Off
	}
	want := slices.Index(messages.ThinkingLevels, level)
	for _, l := range supported {
		if slices.Index(messages.ThinkingLevels, l) >= want {
			return l
		}
	}
	return supported[len(supported)-1]
}

// ThinkingValue is the provider's word for a level.
func ThinkingValue(m messages.Model, level messages.ThinkingLevel) string {
	if v := m.ThinkingLevelMap[level]; v != nil {
		return *v
	}
	return string(level)
}

// ThinkingBudget is how many tokens a level may think where the protocol wants
// a number: what the settings name, else the usual budgets. The highest levels
// have those of high unless they are named.
func ThinkingBudget(level messages.ThinkingLevel, named map[messages.ThinkingLevel]int64) int64 {
	if n, ok := named[level]; ok {
		return max(n, 0)
	}
	switch level {
	case "minimal":
		return 1024
	case "low":
		return 2048
	case "medium":
		return 8192
	case "high":
		return 16384
	case "xhigh", "max":
		return ThinkingBudget("high", named)
	}
	return 0
}

// Room is how many tokens an answer may have.
type Room struct {
	MaxTokens int64 // for thinking and answer together
	Budget    int64 // of those, for thinking
}

// FitRoom finds the room for an answer: the user's cap and the budget on top,
// at most the model's maximum, at most what the window leaves beside the
// prompt. At least 1024 tokens stay for the answer, for which the budget gives
// way. Without a cap the model's maximum is asked for.
func FitRoom(m messages.Model, userCap, budget, promptTokens int64) Room {
	total := m.MaxTokens
	switch {
	case userCap > 0:
		total = userCap + budget
		if m.MaxTokens > 0 {
			total = min(total, m.MaxTokens)
		}
	case total <= 0:
		total = unknownMaxTokens + budget
	}
	if m.ContextWindow > 0 {
		total = min(total, m.ContextWindow-promptTokens-windowReserve)
	}
	total = max(total, 1)
	return Room{MaxTokens: total, Budget: max(min(budget, total-answerReserve), 0)}
}

// EstimateTokens is a rough count of the request's prompt: what the provider
// counted for the last answer of this model, and a share of the bytes since.
func EstimateTokens(req *messages.Request) int64 {
	var bytes, images, known int64
	count := func(parts []messages.Part) {
		for _, p := range parts {
			if p.Type == messages.PartImage {
				images++
			}
			bytes += int64(len(p.Text) + len(p.Arguments) + len(p.Name))
			if p.Result == nil {
				continue
			}
			for _, c := range p.Result.Content {
				if c.Type == messages.PartImage {
					images++
				}
				bytes += int64(len(c.Text))
			}
		}
	}
	for i := len(req.Messages) - 1; i >= 0; i-- {
		m := &req.Messages[i]
		if m.Role == messages.RoleAssistant && m.Usage != nil && m.Usage.TotalTokens > 0 && wroteBy(m, req.Model) {
			known = m.Usage.TotalTokens
			for _, p := range m.Parts {
				if p.Result != nil {
					count(p.Result.Content)
				}
			}
			break
		}
		count(m.Parts)
	}
	if known == 0 {
		bytes += int64(len(req.System))
		for _, t := range req.Tools {
			bytes += int64(len(t.Name) + len(t.Description) + len(t.Schema))
		}
	}
	return known + bytes/bytesPerToken + images*imageTokens
}

// wroteBy tells whether the model wrote the message, so that what it signed
// may go back to it.
func wroteBy(m *messages.Message, model messages.Model) bool {
	return m.Provider == model.Provider.ID && m.Protocol == string(model.Protocol) && m.Model == model.ID
}
