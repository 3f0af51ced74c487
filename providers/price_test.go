package providers

import (
	"math"
	"testing"

	"codework/messages"
)

func TestPrice(t *testing.T) {
	base := messages.Rates{Input: 5, Output: 30, CacheRead: 0.5, CacheWrite: 6.25}
	tiers := []messages.CostTier{ // on purpose not in order
		{InputTokensAbove: 500_000, Rates: messages.Rates{Input: 20, Output: 90, CacheRead: 2, CacheWrite: 25}},
		{InputTokensAbove: 272_000, Rates: messages.Rates{Input: 10, Output: 45, CacheRead: 1, CacheWrite: 12.5}},
	}
	for _, c := range []struct {
		name  string
		usage messages.Usage
		bill  Billing
		want  messages.Cost // without Total
		total int64
	}{
		{"plain", messages.Usage{Input: 1000, Output: 100}, Billing{}, messages.Cost{Input: 0.005, Output: 0.003}, 1100},
		{"all four", messages.Usage{Input: 1_000_000, Output: 1_000_000, CacheRead: 100, CacheWrite: 100}, Billing{},
			messages.Cost{Input: 20, Output: 90, CacheRead: 0.0002, CacheWrite: 0.0025}, 2_000_200},
		{"exactly at the threshold", messages.Usage{Input: 272_000}, Billing{}, messages.Cost{Input: 1.36}, 272_000},
		{"one above the threshold", messages.Usage{Input: 272_001}, Billing{}, messages.Cost{Input: 2.72001}, 272_001},
		{"cached tokens count towards the tier", messages.Usage{Input: 1, CacheRead: 200_000, CacheWrite: 72_000}, Billing{},
			messages.Cost{Input: 0.00001, CacheRead: 0.2, CacheWrite: 0.9}, 272_001},
		{"output does not", messages.Usage{Input: 1, Output: 1_000_000}, Billing{}, messages.Cost{Input: 0.000005, Output: 30}, 1_000_001},
		{"the provider's total stays", messages.Usage{Input: 1000, TotalTokens: 7}, Billing{}, messages.Cost{Input: 0.005}, 7},
		{"an hour of cache costs twice the input", messages.Usage{CacheWrite: 1000}, Billing{CacheWriteHour: 400}, messages.Cost{CacheWrite: 600*6.25e-6 + 400*10e-6}, 1000},
		{"more hours than written", messages.Usage{CacheWrite: 1000}, Billing{CacheWriteHour: 4000}, messages.Cost{CacheWrite: 0.01}, 1000},
		{"flex", messages.Usage{Input: 1000, Output: 100}, Billing{Factor: ServiceTierFactor("gpt-5.6-sol", "flex")}, messages.Cost{Input: 0.0025, Output: 0.0015}, 1100},
		{"priority", messages.Usage{Input: 1000}, Billing{Factor: ServiceTierFactor("gpt-5.6-sol", "priority")}, messages.Cost{Input: 0.01}, 1000},
		{"priority of gpt-5.5", messages.Usage{Input: 1000}, Billing{Factor: ServiceTierFactor("gpt-5.5", "priority")}, messages.Cost{Input: 0.0125}, 1000},
		{"default tier", messages.Usage{Input: 1000}, Billing{Factor: ServiceTierFactor("gpt-5.5", "default")}, messages.Cost{Input: 0.005}, 1000},
		{"counts below zero", messages.Usage{Input: -5, Output: -1, TotalTokens: -3}, Billing{}, messages.Cost{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Price(messages.Model{Cost: messages.ModelCost{Rates: base, Tiers: tiers}}, c.usage, c.bill)
			c.want.Total = c.want.Input + c.want.Output + c.want.CacheRead + c.want.CacheWrite
			for _, n := range []struct {
				name      string
				got, want float64
			}{
				{"input", got.Cost.Input, c.want.Input}, {"output", got.Cost.Output, c.want.Output}, {"cache read", got.Cost.CacheRead, c.want.CacheRead},
				{"cache write", got.Cost.CacheWrite, c.want.CacheWrite}, {"total", got.Cost.Total, c.want.Total}, {"tokens", float64(got.TotalTokens), float64(c.total)},
			} {
				if math.Abs(n.got-n.want) > 1e-12 {
					t.Errorf("%s: %g, want %g", n.name, n.got, n.want)
				}
			}
			if !got.Valid() {
				t.Errorf("not valid: %+v", got)
			}
		})
	}
}

func TestABrokenRateGivesAValidPrice(t *testing.T) {
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1)} {
		m := messages.Model{Cost: messages.ModelCost{Rates: messages.Rates{Input: rate, Output: 1}}}
		if got := Price(m, messages.Usage{Input: 5, Output: 1_000_000, Reasoning: 2_000_000}, Billing{CacheWriteHour: -1}); !got.Valid() || got.Cost.Total != 1 || got.Reasoning != 1_000_000 {
			t.Errorf("%g: %+v", rate, got)
		}
	}
}

// What the provider says stays beside what is computed, unless it is no cost.
func TestTheProvidersOwnCostIsKept(t *testing.T) {
	for given, want := range map[float64]float64{0.25: 0.25, 0: 0, -1: 0, math.Inf(1): 0} {
		u := Price(messages.Model{Cost: messages.ModelCost{Rates: messages.Rates{Input: 1}}}, messages.Usage{Input: 1e6, ProviderCost: given}, Billing{})
		if u.ProviderCost != want || u.Cost.Total != 1 || !u.Valid() {
			t.Errorf("%v: %+v", given, u)
		}
	}
}
