package actors

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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
	block := set.Options(ref.Provider, ref.ID)
	m = reached(m, block)
	wire := wireOf(m)
	if !w.Speaks(m.Protocol) || !w.Speaks(wire) {
		return &messages.Failure{Type: messages.FailConfiguration,
			Message: fmt.Sprintf("%s speaks the protocol %s, which this version does not", ref, m.Protocol),
			Hint: "choose another with --model provider/id, or for good in settings.jsonc (model.provider, model.id); " +
				"codework models lists those that work; without a key: --model offline/guide"}
	}
	if block.ContextWindow > 0 {
		m.ContextWindow = block.ContextWindow
	}
	c := connectionTo{protocol: wire, provider: m.Provider.ID}
	for i, name := range networkVariables {
		c.network[i], _ = lookup(name)
	}
	logins := w.Credentials.With(c.client)
	found, failure := logins.Resolve(ctx, m, block.APIKey, lookup)
	if failure != nil {
		failure.Model = ref.String()
		return failure
	}
	ex.Login = loginOf(found)
	if block.BaseURL != "" && ex.Login != nil {
		ex.Login.Endpoint = ""
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
	ex.Model, ex.APIKey = m, found.Key
	ex.Thinking = providers.FitThinking(m, level)
	if own := q.Session.Runtime.ThinkingLevel; own != "" && own != ex.Thinking {
		ex.Notices = append(ex.Notices, fmt.Sprintf("%s has no thinking level %s; it is asked with %s", ref, own, ex.Thinking))
	}
	if !m.AcceptsTools() {
		ex.Notices = append(ex.Notices, ref.String()+" calls no tools; it can answer, and change nothing")
	}
	ex.Parallel = block.ToolExecution == settings.Parallel
	ex.Options = messages.RequestOptions{
		Temperature: block.Temperature, MaxTokens: block.MaxTokens, Timeout: block.Timeout, IdleTimeout: block.IdleTimeout, HTTPRetries: block.MaxRetries,
		CacheRetention: retention, Headers: headers, Metadata: block.Metadata, ThinkingBudgets: block.ThinkingBudgets, Extra: bodyOptions(m, block),
	}
	c.baseURL, c.credential = m.BaseURL, digest(found.Key)
	if ex.Login != nil && ex.Login.Endpoint != "" {
		c.baseURL = ex.Login.Endpoint
	}
	conn, err := Ask[*connectionSlot](ctx, w.guardian, c)
	if err != nil {
		return err
	}
	ex.Streamer = connection{conn, ex.Retry, w.asked(m, c)}
	if found.Login != nil {
		ex.Streamer = signedIn{ex.Streamer, logins, m.Provider.ID, block.BaseURL == ""}
	}
	return nil
}

// bodyOptions are the options that go into requests as they are. The fields by
// which OpenRouter is told where to send a request ("provider", "models") have
// names that no option can have, so there they are what extras say.
func bodyOptions(m messages.Model, block settings.Block) map[string]json.RawMessage {
	if m.Protocol != messages.ProtocolOpenRouter || len(block.Extras) == 0 {
		return block.Extra
	}
	all := maps.Clone(block.Extras)
	maps.Copy(all, block.Extra)
	return all
}

// methods are the protocols of option blocks and catalog entries that name how
// a model is called. The other methods are those of libraries.
var methods = map[string]messages.Protocol{
	"chat": messages.ProtocolCompatible, "responses": messages.ProtocolOpenAI, "messages": messages.ProtocolAnthropic,
}

// sameMethod are the protocols that call a model that way already.
var sameMethod = map[messages.Protocol]string{
	messages.ProtocolOpenRouter: "chat", messages.ProtocolXAI: "responses", messages.ProtocolCodex: "responses",
}

// reached lays what an option block says about the way to a model over its
// entry.
func reached(m messages.Model, block settings.Block) messages.Model {
	var api messages.ModelAPI
	if m.API != nil {
		api = *m.API
	}
	if block.BaseURL != "" {
		m.BaseURL, api.URL = block.BaseURL, ""
	}
	if block.Method != "" {
		api.Method = block.Method
	}
	if p := methods[api.Method]; p != "" && sameMethod[m.Protocol] != api.Method {
		m.Protocol = p
	}
	if api != (messages.ModelAPI{}) {
		m.API = &api
	} else {
		m.API = nil
	}
	return m
}

// wireOf is the dialect that a model is reached by: that of its protocol, or
// Copilot's own, which sends each of the three that are spoken there its way.
func wireOf(m messages.Model) messages.Protocol {
	if m.Provider.ID == credentials.CopilotID {
		return messages.ProtocolCopilot
	}
	return m.Protocol
}

// loginOf is what a dialect is told of the account behind a key; nil when
// there is nothing to tell.
func loginOf(found credentials.Found) *messages.Login {
	if found.Login != nil {
		return &messages.Login{AccountID: found.Login.AccountID, Endpoint: found.Login.Endpoint()}
	}
	if account := credentials.AccountOf(found.Key); account != "" { // a token of Codex, from a variable
		return &messages.Login{AccountID: account}
	}
	return nil
}

// asked is what to do when the model was asked: nothing for one that needs no
// network.
func (w *Workshop) asked(m messages.Model, c connectionTo) func() {
	if w.Asked == nil || m.Protocol == messages.ProtocolOffline {
		return func() {}
	}
	return func() { w.Asked(c.client) }
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
			has = w.Credentials.Has(m, lookup)
			available[who] = has
		}
		infos = append(infos, messages.ModelInfo{Provider: m.Provider.ID, ID: m.ID, Name: m.Name, Reasoning: m.Reasoning, Input: m.Input,
			ContextWindow: m.ContextWindow, MaxTokens: m.MaxTokens, Cost: m.Cost, Available: has && w.Speaks(m.Protocol)})
	}
	return infos, nil
}
