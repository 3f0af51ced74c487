package responses

import (
	"bytes"
	"encoding/json"
	"strings"

	"codework/messages"
	"codework/providers"
)

// thoughtSignature is the signature of a thinking part: how its item is sent back.
type thoughtSignature struct {
	ItemID    string `json:"itemId"`
	Encrypted string `json:"reasoningEncryptedContent"`
}

// signThought makes the signature of a reasoning item; empty when the item
// could not be sent back. Of the Codex backend the whole item is kept, since
// nobody but OpenAI says what is in it.
func signThought(raw json.RawMessage, it *outputItem, codex bool) string {
	if it.Encrypted == "" {
		return ""
	}
	if codex {
		var compact bytes.Buffer
		if json.Compact(&compact, raw) != nil {
			return ""
		}
		return compact.String()
	}
	dst := append([]byte(nil), `{"itemId":`...)
	dst = providers.AppendString(dst, it.ID)
	dst = append(dst, `,"reasoningEncryptedContent":`...)
	return string(append(providers.AppendString(dst, it.Encrypted), '}'))
}

// reasoningItem is the item of a thinking part and its id; nil without a
// signature of this dialect.
func reasoningItem(p messages.Part) (item []byte, id string) {
	var s struct {
		thoughtSignature
		Type    string `json:"type"`
		ID      string `json:"id"`
		Content string `json:"encrypted_content"`
	}
	if json.Unmarshal([]byte(p.Signature), &s) != nil {
		return nil, ""
	}
	if s.Type == "reasoning" && s.Content != "" {
		return []byte(p.Signature), s.ID
	}
	if s.Encrypted == "" {
		return nil, ""
	}
	item = append(item, `{"type":"reasoning"`...)
	if s.ItemID != "" {
		item = append(item, `,"id":`...)
		item = providers.AppendString(item, s.ItemID)
	}
	item = append(item, `,"summary":[`...)
	if strings.TrimSpace(p.Text) != "" {
		item = append(item, `{"type":"summary_text","text":`...)
		item = append(providers.AppendString(item, strings.ToValidUTF8(p.Text, "\uFFFD")), '}')
	}
	item = append(item, `],"encrypted_content":`...)
	return append(providers.AppendString(item, s.Encrypted), '}'), s.ItemID
}

// signText makes the signature of a text part: the id of its message, and its
// phase where the model names one. Newer models answer worse when the phase
// does not come back.
func signText(id, phase string) string {
	if phase == "" {
		return id
	}
	dst := append([]byte(nil), `{"id":`...)
	dst = providers.AppendString(dst, id)
	dst = append(dst, `,"phase":`...)
	return string(append(providers.AppendString(dst, phase), '}'))
}

func readTextSignature(signature string) (id, phase string) {
	if !strings.HasPrefix(signature, "{") {
		return signature, ""
	}
	var s struct {
		ID    string `json:"id"`
		Phase string `json:"phase"`
	}
	if json.Unmarshal([]byte(signature), &s) != nil {
		return "", ""
	}
	return s.ID, s.Phase
}
