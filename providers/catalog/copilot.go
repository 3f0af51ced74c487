package catalog

import (
	"regexp"

	"codework/messages"
)

const copilotID = "github-copilot"

// Names of models by the format that Copilot offers them in.
var (
	messagesModels  = regexp.MustCompile(`^claude-(haiku|sonnet|opus|fable)-[45]`)
	responsesModels = regexp.MustCompile(`^(gpt-([5-9]|[1-9][0-9])|grok-|oswe|mai-)`)
)

// CopilotFormat guesses in which of its three formats GitHub Copilot offers a
// model, by the name; other is for names that tell nothing, where it is one of
// the three.
func CopilotFormat(id string, other messages.Protocol) messages.Protocol {
	switch {
	case messagesModels.MatchString(id):
		return messages.ProtocolAnthropic
	case responsesModels.MatchString(id):
		return messages.ProtocolOpenAI
	case other == messages.ProtocolAnthropic, other == messages.ProtocolOpenAI:
		return other
	}
	return messages.ProtocolCompatible
}
