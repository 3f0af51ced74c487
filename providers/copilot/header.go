package copilot

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"codework/messages"
)

// client is what every request says of who sends it, as GitHub knows Copilot
// in editors.
var client = map[string]string{
	"User-Agent":             "GitHubCopilotChat/0.35.0",
	"Editor-Version":         "vscode/1.107.0",
	"Editor-Plugin-Version":  "copilot-chat/0.35.0",
	"Copilot-Integration-Id": "vscode-chat",
	"X-GitHub-Api-Version":   "2026-08-01",
}

// headers are Copilot's, under those of the model's entry.
func headers(req *messages.Request, format messages.Protocol) map[string]string {
	h := maps.Clone(client)
	h["Openai-Intent"] = "conversation-edits"
	h["X-Interaction-Type"] = "conversation-agent"
	h["X-Interaction-Id"] = req.SessionID
	h["X-Initiator"] = initiator(req.Messages)
	if req.Model.AcceptsImages() && slices.ContainsFunc(req.Messages, showsImage) {
		h["Copilot-Vision-Request"] = "true"
	}
	maps.Copy(h, withoutBetas(req.Model.Headers, req.Model))
	return h
}

// initiator says whether a person has asked for the request: Copilot counts
// those apart from what an agent does by itself, as with the results of tools.
func initiator(conversation []messages.Message) string {
	if n := len(conversation); n > 0 && conversation[n-1].Role == messages.RoleUser {
		return "user"
	}
	return "agent"
}

func showsImage(m messages.Message) bool {
	is := func(p messages.Part) bool { return p.Type == messages.PartImage }
	return slices.ContainsFunc(m.Parts, func(p messages.Part) bool {
		return is(p) || p.Result != nil && slices.ContainsFunc(p.Result.Content, is)
	})
}

// adaptiveBetas are refused for models that decide about their thinking
// themselves.
var adaptiveBetas = []string{"interleaved-thinking-2025-05-14", "fine-grained-tool-streaming-2025-05-14"}

const betaHeader = "Anthropic-Beta"

// withoutBetas takes those out of headers that somebody has set.
func withoutBetas(set map[string]string, m messages.Model) map[string]string {
	var adaptive bool
	_ = json.Unmarshal(m.Compat["forceAdaptiveThinking"], &adaptive) // anything else is no
	if !adaptive || m.Protocol != messages.ProtocolAnthropic {
		return set
	}
	out := map[string]string{}
	for name, value := range set {
		if http.CanonicalHeaderKey(name) == betaHeader {
			betas := strings.Split(value, ",")
			for i := range betas {
				betas[i] = strings.TrimSpace(betas[i])
			}
			betas = slices.DeleteFunc(betas, func(b string) bool { return b == "" || slices.Contains(adaptiveBetas, b) })
			if value = strings.Join(betas, ","); value == "" {
				continue
			}
		}
		out[name] = value
	}
	return out
}
