package actors

import (
	"testing"

	"codework/messages"
)

// An image is found wherever it stands, also in what came since the last look.
func TestImagesInTheConversation(t *testing.T) {
	said := messages.Message{Parts: []messages.Part{{Type: messages.PartText, Text: "hello"}}}
	shown := messages.Message{Parts: []messages.Part{{Type: messages.PartImage, Blob: "b"}}}
	result := messages.ToolResult{Content: []messages.Part{{Type: messages.PartImage, Blob: "b"}}}
	called := messages.Message{Parts: []messages.Part{{Type: messages.PartToolCall, Result: &result}}}
	for name, image := range map[string]messages.Message{"prompt": shown, "result": called} {
		l := newLedger(messages.SessionRecord{})
		for range 3 {
			l.entries = append(l.entries, said)
			if l.showsImage() {
				t.Errorf("%s: found before it came", name)
			}
		}
		l.entries = append(l.entries, image)
		for range 2 {
			if !l.showsImage() {
				t.Errorf("%s: not found", name)
			}
			l.entries = append(l.entries, said)
		}
	}
}
