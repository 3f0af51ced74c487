package providers

import (
	"math"

	"codework/messages"
)

const (
	perMillion = 1e6
	// maxCount bounds a count: far beyond any window, and low enough that
	// everything a session ever counts can be added up.
	maxCount = 1 << 40
)

// Billing is what decides a price beside the token counts. The zero value is
// the plain rate.
type Billing struct {
	// CacheWriteHour is the part of Usage.CacheWrite that the provider keeps
	// for an hour (Anthropic); it costs twice the input rate.
	CacheWriteHour int64
	// Factor multiplies every rate, for service tiers; 0 means 1.
	Factor float64
}

// Price returns u with total and cost filled in and every count made sane:
// none below zero or without measure, no more reasoning than output. TotalTokens and ProviderCost
// are kept where the provider gave them. The rates are per million tokens; of
// the tiers whose threshold the whole prompt passes, the highest one's hold for
// everything.
func Price(m messages.Model, u messages.Usage, b Billing) messages.Usage {
	for _, n := range []*int64{&u.Input, &u.Output, &u.Reasoning, &u.CacheRead, &u.CacheWrite, &u.TotalTokens} {
		*n = min(max(*n, 0), maxCount)
	}
	u.Reasoning = min(u.Reasoning, u.Output)
	if !(u.ProviderCost >= 0) || math.IsInf(u.ProviderCost, 0) {
		u.ProviderCost = 0
	}
	if u.TotalTokens == 0 {
		u.TotalTokens = u.Input + u.Output + u.CacheRead + u.CacheWrite
	}

	rates, above := m.Cost.Rates, int64(-1)
	prompt := u.Input + u.CacheRead + u.CacheWrite
	for _, t := range m.Cost.Tiers {
		if prompt > t.InputTokensAbove && t.InputTokensAbove > above {
			rates, above = t.Rates, t.InputTokensAbove
		}
	}
	factor := b.Factor
	if factor == 0 {
		factor = 1
	}
	cost := func(tokens int64, rate float64) float64 {
		c := float64(tokens) / perMillion * rate * factor
		if !(c >= 0) || math.IsInf(c, 0) {
			return 0 // a broken rate must not spoil the log
		}
		return c
	}
	hour := min(max(b.CacheWriteHour, 0), u.CacheWrite)
	u.Cost = messages.Cost{
		Input:      cost(u.Input, rates.Input),
		Output:     cost(u.Output, rates.Output),
		CacheRead:  cost(u.CacheRead, rates.CacheRead),
		CacheWrite: cost(u.CacheWrite-hour, rates.CacheWrite) + cost(hour, 2*rates.Input),
	}
	u.Cost.Total = u.Cost.Input + u.Cost.Output + u.Cost.CacheRead + u.Cost.CacheWrite
	return u
}

// ServiceTierFactor is what OpenAI's service tiers multiply the rates by. The
// tier is the one the answer reports.
func ServiceTierFactor(modelID, tier string) float64 {
	switch tier {
	case "flex":
		return 0.5
	case "priority":
		if modelID == "gpt-5.5" {
			return 2.5
		}
		return 2
	}
	return 1
}
