package responses

import (
	"encoding/json"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"codework/messages"
	"codework/providers"
)

// failure classifies an error that came inside the stream.
func (s *stream) failure(body []byte) *messages.Failure {
	return s.refused(providers.ReadFault(0, nil, body), body)
}

// tryAgain is how OpenAI words a wait inside a stream, where there is no
// header for it.
var tryAgain = regexp.MustCompile(`(?i)try again in ([0-9.]+) ?(ms|s)\b`)

// refused classifies what the provider said went wrong.
func (s *stream) refused(f providers.Fault, body []byte) *messages.Failure {
	code := strings.ToLower(f.Code)
	if m := tryAgain.FindStringSubmatch(f.Message); m != nil && f.Wait == 0 {
		if n, err := strconv.ParseFloat(m[1], 64); err == nil && n >= 0 {
			unit := time.Second
			if strings.EqualFold(m[2], "ms") {
				unit = time.Millisecond
			}
			f.Wait = time.Duration(math.Min(n*float64(unit), float64(time.Hour)))
		}
	}
	if code == "slow_down" {
		f.Type = "overloaded_error" // what it means
	}
	out := providers.Classify(s.req, f)
	if code == "invalid_prompt" || strings.Contains(code, "cyber_policy") {
		// The names under which prompts are refused for what they ask.
		out.Type, out.Retryable = messages.FailContentFilter, false
		out.Hint = "rephrase the request, or try another model"
	}
	if code == "invalid_encrypted_content" {
		// What one account's model thought is sealed for that account.
		out.Hint = "the thinking in this session belongs to another account: use that one, another model, or a new session"
	}
	if s.dialect.Codex {
		planLimit(out, f, body)
	}
	return out
}

// limits are what the Codex backend says of a plan whose limit is reached.
type limits struct {
	Plan     string          `json:"plan_type"`
	ResetsAt json.RawMessage `json:"resets_at"`         // epoch seconds
	ResetsIn json.RawMessage `json:"resets_in_seconds"` // from now
}

// planLimit words the failure of a request for which the plan is used up or
// does not pay, with when it will again.
func planLimit(out *messages.Failure, f providers.Fault, body []byte) {
	ids := strings.ToLower(f.Code + " " + f.Type)
	excluded := strings.Contains(ids, "usage_not_included")
	reached := strings.Contains(ids, "usage_limit_reached")
	if !excluded && !reached && !strings.Contains(ids, "rate_limit_exceeded") && f.Status != http.StatusTooManyRequests {
		return
	}
	var in struct {
		limits
		Error limits `json:"error"`
	}
	decode(body, &in)
	l := in.Error
	if l.Plan == "" && l.ResetsAt == nil && l.ResetsIn == nil {
		l = in.limits
	}
	plan := "the ChatGPT plan"
	if l.Plan != "" {
		plan += " " + l.Plan
	}
	if excluded {
		out.Message = providers.Sentence(plan + " does not include this use")
		out.Hint = "upgrade the plan, or use another provider"
		return
	}
	message := "the usage limit of " + plan + " is reached"
	if wait := l.wait(); wait > 0 {
		minutes := int64(math.Ceil(wait.Minutes()))
		message += ", it resets in about " + strconv.FormatInt(minutes, 10) + " min"
	}
	out.Message = providers.Sentence(message)
	if reached {
		out.Hint = "wait until then, or use another model"
	}
}

// maxWait bounds a wait, so that arithmetic on it cannot overflow.
const maxWait = 90 * 24 * time.Hour

// wait is how long it takes until the limit resets; 0 when nobody said.
func (l limits) wait() time.Duration {
	if s, err := strconv.ParseFloat(string(l.ResetsIn), 64); err == nil && s > 0 {
		return time.Duration(math.Min(s, maxWait.Seconds()) * float64(time.Second))
	}
	if s, err := strconv.ParseFloat(string(l.ResetsAt), 64); err == nil {
		s -= float64(time.Now().UnixMilli()) / 1000
		if s > 0 {
			return time.Duration(math.Min(s, maxWait.Seconds()) * float64(time.Second))
		}
	}
	return 0
}
