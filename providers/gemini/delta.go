package gemini

import "codework/providers/internal/scan"

// quick reads a chunk in the form in which nearly all come: one candidate with
// one piece of text. It is false, with c in any state, for whatever else; then
// the decoder decides. c is empty before.
func (c *chunk) quick(data []byte) bool {
	s := scan.Scanner{Data: data}
	ok := s.Object(func(name []byte) int {
		switch string(name) {
		case "candidates":
			if s.Next('[') && c.quickCandidate(&s) && s.Next(']') {
				return 0
			}
		case "usageMetadata":
			if c.Usage.quick(&s) {
				return 1
			}
		case "modelVersion":
			if raw, plain := s.Raw(); plain {
				c.Model = append(c.Model[:0], raw...)
				return 2
			}
		case "responseId":
			if raw, plain := s.Raw(); plain {
				c.ID = append(c.ID[:0], raw...)
				return 3
			}
		case "createTime":
			if s.Skip() {
				return 4
			}
		}
		return -1
	})
	return ok && s.End()
}

func (c *chunk) quickCandidate(s *scan.Scanner) bool {
	if cap(c.Candidates) == 0 {
		c.Candidates = make([]candidate, 0, 1)
	}
	c.Candidates = c.Candidates[:1]
	cand := &c.Candidates[0]
	return s.Object(func(name []byte) int {
		var ok bool
		switch string(name) {
		case "content":
			if cand.quickContent(s) {
				return 0
			}
		case "index":
			if cand.Index, ok = s.Number(); ok {
				return 1
			}
		}
		return -1
	})
}

func (cand *candidate) quickContent(s *scan.Scanner) bool {
	return s.Object(func(name []byte) int {
		switch string(name) {
		case "parts":
			if s.Next('[') && cand.quickPart(s) && s.Next(']') {
				return 0
			}
		case "role":
			if s.Skip() {
				return 1
			}
		}
		return -1
	})
}

func (cand *candidate) quickPart(s *scan.Scanner) bool {
	parts := &cand.Content.Parts
	if cap(*parts) == 0 {
		*parts = make([]part, 0, 1)
	}
	*parts = (*parts)[:1]
	p := &(*parts)[0]
	return s.Object(func(name []byte) int {
		var ok bool
		switch string(name) {
		case "text":
			if p.Text, ok = s.Text(); ok {
				return 0
			}
		case "thought":
			if p.Thought = s.Literal("true"); p.Thought || s.Literal("false") {
				return 1
			}
		case "thoughtSignature":
			if p.Signature, ok = s.Text(); ok {
				return 2
			}
		}
		return -1
	})
}

func (u *usage) quick(s *scan.Scanner) bool {
	return s.Object(func(name []byte) int {
		var count *int64
		field := 0
		switch string(name) {
		case "promptTokenCount":
			count, field = &u.Prompt, 0
		case "toolUsePromptTokenCount":
			count, field = &u.ToolPrompt, 1
		case "cachedContentTokenCount":
			count, field = &u.Cached, 2
		case "candidatesTokenCount":
			count, field = &u.Candidates, 3
		case "thoughtsTokenCount":
			count, field = &u.Thoughts, 4
		case "totalTokenCount":
			count, field = &u.Total, 5
		case "promptTokensDetails":
			field = 6
		case "candidatesTokensDetails":
			field = 7
		case "cacheTokensDetails":
			field = 8
		case "trafficType", "serviceTier":
			field = 9
		default:
			return -1
		}
		if count == nil {
			if !s.Skip() {
				return -1
			}
			return field
		}
		n, ok := s.Number()
		if !ok {
			return -1
		}
		*count = int64(n)
		return field
	})
}
