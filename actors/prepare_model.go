package actors

import (
	"context"
	"fmt"
	"strings"

	"codework/internal/settings"
	"codework/messages"
	"codework/providers"
	"codework/providers/credentials"
)

// model decides which model answers, how, and over which connection.
func (w *Workshop) model(ctx context.Context, ex *Exchange, q ExchangeQuery, set *settings.Settings, lookup credentials.Lookup) error {
	ref := messages.ModelRef{Provider: set.Model.Provider, ID: set.Model.ID}
	if own := q.Session.Runtime.Model; own != nil {
		ref = *own
	}
	m, err := w.Catalog.Lookup(ref, set.Models)
	if err != nil {
		return err
	}
	if !w.Speaks(m.Protocol) {
		return &messages.Failure{Type: messages.FailConfiguration,
			Message: fmt.Sprintf("%s speaks the protocol %s, which this version does not", ref, m.Protocol),
			Hint: "choose another with --model provider/id, or for good in settings.jsonc (model.provider, model.id); " +
				"codework models lists those that work; without a key: --model offline/guide"}
	}
	block := set.Options(ref.Provider, ref.ID)
	if block.BaseURL != "" {
		m.BaseURL, m.API = block.BaseURL, nil
	}
	if block.ContextWindow > 0 {
		m.ContextWindow = block.ContextWindow
	}
	key, _, failure := credentials.Resolve(m, block.APIKey, lookup, w.Credentials)
	if failure != nil {
		failure.Model = ref.String()
		return failure
	}
	level := block.ThinkingLevel
	if own := q.Session.Runtime.ThinkingLevel; own != "" {
		level = own
	}
	retention := block.CacheRetention
	if retention == "" {
		if v, ok := lookup("CODEWORK_CACHE_RETENTION"); ok {
			retention = messages.CacheRetention(v)
		}
	}
	headers := map[string]string{}
	for _, from := range []map[string]string{m.Headers, block.Headers} {
		for name, value := range from {
			v, err := credentials.Expand("headers."+name, value, lookup)
			if err != nil {
				return err
			}
			headers[name] = v
		}
	}
	m.Headers = nil
	ex.Model, ex.APIKey = m, key
	ex.Thinking = providers.FitThinking(m, level)
	ex.Parallel = block.ToolExecution == settings.Parallel
	ex.Options = messages.RequestOptions{
		Temperature: block.Temperature, MaxTokens: block.MaxTokens, Timeout: block.Timeout, IdleTimeout: block.IdleTimeout, HTTPRetries: block.MaxRetries,
		CacheRetention: retention, Headers: headers, Metadata: block.Metadata, ThinkingBudgets: block.ThinkingBudgets, Extra: block.Extra,
	}
	c := connectionTo{protocol: m.Protocol, baseURL: m.BaseURL, provider: m.Provider.ID, credential: digest(key)}
	for i, name := range networkVariables {
		c.network[i], _ = lookup(name)
	}
	conn, err := Ask[*connectionSlot](ctx, w.guardian, c)
	if err != nil {
		return err
	}
	ex.Streamer = connection{conn, ex.Retry.MaxDelay}
	return nil
}

// Models lists the models of the catalog and of the user's settings, with
// whether there is a key for them.
func (w *Workshop) Models(_ context.Context, provider string, world *messages.World) ([]messages.ModelInfo, error) {
	set, err := w.settings(ExchangeQuery{World: world})
	if err != nil {
		return nil, err
	}
	list, err := w.Catalog.List(provider, set.Models)
	if err != nil {
		return nil, err
	}
	lookup, available := lookupIn(world), map[string]bool{}
	infos := make([]messages.ModelInfo, 0, len(list))
	for _, m := range list {
		who := m.Provider.ID + " " + m.Provider.Key + " " + strings.Join(m.Provider.Env, " ")
		has, known := available[who]
		if !known {
			_, _, failure := credentials.Resolve(m, "", lookup, w.Credentials)
			has = failure == nil
			available[who] = has
		}
		infos = append(infos, messages.ModelInfo{Provider: m.Provider.ID, ID: m.ID, Name: m.Name, Reasoning: m.Reasoning, Input: m.Input,
			ContextWindow: m.ContextWindow, MaxTokens: m.MaxTokens, Cost: m.Cost, Available: has && w.Speaks(m.Protocol)})
	}
	return infos, nil
}
