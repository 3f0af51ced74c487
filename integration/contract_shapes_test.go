package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// This file states the contract once more, from the side of a client: which
// errors a method may fail with, and what results, errors and events consist
// of. Everything that comes over a wire of the tests is held against it.

var (
	sandboxErrors = []string{"SandboxNotFoundError", "SandboxDriverNotRegisteredError", "SandboxDriverRegistrationError",
		"SandboxUnsupportedError", "SandboxProviderError", "SandboxUnavailError", "SandboxRemovedError",
		"SandboxTransitionConflictError", "SandboxBusyError"}
	placeErrors = append([]string{"SessionNotFoundError", "SessionLinkedSpaceNotFoundError", "RelinkError",
		"Location.DirectoryNotFoundError", "Location.NotDirectoryError"}, sandboxErrors...)
	noSession = []string{"SessionNotFoundError"}
	noLogin   = []string{"Server.OAuthError"}
)

// shape tells what stands behind a key: a letter for its kind, "?" behind it
// when the key may be left out.
//
//	s string, n number ≥ 0, i integer ≥ 0, b boolean, o object, l list,
//	d date, p absolute path, a anything, S session, X sandbox, v string or null
type shape map[string]string

var sessionShape = shape{"id": "s", "title": "s", "directory": "p", "hostDir": "p?", "sandbox": "X?", "status": "s?", "queued": "i?",
	"model": "o?", "thinkingLevel": "s?", "usage": "o?", "createdAt": "d?", "updatedAt": "d?", "parentId": "s?"}

var sandboxShape = shape{"id": "s", "driver": "s", "kind": "s", "providerResourceId": "v", "ownership": "s", "status": "s",
	"usage": "s", "refCount": "i", "createdAt": "d", "updatedAt": "d"}

var oauthShape = shape{"provider": "s", "expires": "i", "accountId": "s?", "apiEndpoint": "s?", "enterpriseUrl": "s?", "availableModels": "i?"}

// result is what a method answers with.
type result struct {
	errors []string
	void   bool  // null, and nothing else
	orNull bool  // null is an answer too
	list   bool  // a list of objects of that shape
	shape  shape // of an object
}

var results = map[string]result{
	"session.create":    {errors: placeErrors, shape: sessionShape},
	"session.list":      {list: true, shape: sessionShape},
	"session.info":      {errors: noSession, shape: sessionShape},
	"session.configure": {errors: noSession, shape: sessionShape},
	"session.link":      {errors: noSession, shape: sessionShape},
	"session.relink":    {errors: placeErrors, shape: sessionShape},
	"session.prompt":    {errors: []string{"SessionNotFoundError", "PromptConflictError"}, void: true},
	"session.interrupt": {shape: shape{"interrupted": "b"}},
	"session.wait":      {errors: noSession, void: true},
	"session.message":   {shape: shape{"found": "b"}},
	"sandbox.drivers":   {list: true, shape: shape{"name": "s", "kind": "s", "available": "b?", "reason": "s?"}},
	"sandbox.list":      {list: true, shape: sandboxShape},
	"sandbox.create":    {errors: sandboxErrors, shape: sandboxShape},
	"sandbox.register":  {errors: sandboxErrors, shape: sandboxShape},
	"sandbox.stop":      {errors: sandboxErrors, void: true},
	"auth.save":         {errors: noLogin, shape: oauthShape},
	"auth.status":       {errors: noLogin, orNull: true, shape: oauthShape},
	"auth.refresh":      {errors: noLogin, orNull: true, shape: oauthShape},
	"auth.logout":       {errors: noLogin, void: true},
	"plugin.reload":     {shape: shape{"plugins": "i", "failure": "s?"}},
	"event.subscribe":   {errors: []string{"SubscriptionOverflowError", "EventEncodingError", "SessionNotFoundError"}, void: true},

	"server.info": {shape: shape{"name": "s", "version": "s", "protocol": "i", "startedAt": "d", "pid": "i", "home": "s?", "sessions": "o"}},
	"server.hello": {errors: []string{"WrongWorldError"},
		shape: shape{"name": "s", "version": "s", "protocol": "i", "startedAt": "d", "pid": "i", "home": "s?", "sessions": "o"}},
	"server.handover": {shape: shape{"waitsFor": "l"}},
	"server.top": {shape: shape{"at": "d", "server": "o", "sessions": "l", "omitted": "i", "actors": "l", "subscribers": "o?",
		"complete": "b"}},
	"session.history": {errors: noSession, shape: shape{"entries": "l", "more": "b", "seq": "i"}},
	"session.queue":   {errors: noSession, shape: shape{"queued": "l"}},
	"session.rename":  {errors: noSession, shape: sessionShape},
	"session.fork":    {errors: noSession, shape: sessionShape},
	"session.delete":  {errors: []string{"SessionNotFoundError", "SessionBusyError"}, void: true},
	"session.check":   {errors: noSession, shape: shape{"findings": "l"}},
	"models.list": {list: true, shape: shape{"provider": "s", "id": "s", "name": "s", "reasoning": "b", "input": "l",
		"contextWindow": "i", "maxTokens": "i", "cost": "o", "available": "b"}},
	"sandbox.destroy": {errors: append([]string{"SandboxMustBeStoppedError"}, sandboxErrors...), void: true},
	"sandbox.exec":    {errors: sandboxErrors, void: true},
	"session.blob":    {errors: []string{"SessionNotFoundError", "BlobNotFoundError"}, shape: shape{"data": "s", "more": "b"}},
}

// errorShapes are the fields of the errors, of which none may be missing and
// none may stand beside them.
var errorShapes = map[string]shape{
	"SessionNotFoundError":            {"sessionId": "s"},
	"SessionLinkedSpaceNotFoundError": {"sessionId": "s"},
	"RelinkError":                     {"sessionId": "s", "reason": "s"},
	"PromptConflictError":             {"sessionId": "s", "messageId": "s"},
	"Location.DirectoryNotFoundError": {"directory": "s", "sandboxInstanceId": "s"},
	"Location.NotDirectoryError":      {"directory": "s", "sandboxInstanceId": "s"},
	"SandboxNotFoundError":            {"id": "s"},
	"SandboxDriverNotRegisteredError": {"driver": "s", "registered": "l?"},
	"SandboxDriverRegistrationError":  {"driver": "s", "reason": "s"},
	"SandboxUnsupportedError":         {"id": "s?", "driver": "s", "operation": "s"},
	"SandboxProviderError":            {"driver": "s", "operation": "s", "sanitized": "o"},
	"SandboxUnavailError":             {"id": "s", "reason": "s"},
	"SandboxRemovedError":             {"id": "s", "removedAt": "d?"},
	"SandboxTransitionConflictError":  {"id": "s", "expected": "l", "actual": "s"},
	"SandboxBusyError":                {"id": "s", "refCount": "i"},
	"SubscriptionOverflowError":       {"capacity": "i"},
	"EventEncodingError":              {"type": "s", "cause": "a"},
	"Server.OAuthError":               {"message": "s"},
	"WrongWorldError":                 {"reason": "s"},
	"SessionBusyError":                {"sessionId": "s"},
	"SandboxMustBeStoppedError":       {"id": "s", "status": "s"},
	"BlobNotFoundError":               {"blob": "s"},
}

// eventShape is one type of event.
type eventShape struct {
	durable bool
	data    shape
}

var eventShapes = map[string]eventShape{
	"session.execution.started":     {true, shape{}},
	"session.execution.succeeded":   {true, shape{}},
	"session.execution.failed":      {true, shape{"error": "o"}},
	"session.execution.interrupted": {true, shape{"reason": "s"}},
	"session.prompt.admitted":       {true, shape{"messageId": "s", "prompt": "o", "delivery": "s"}},
	"session.prompt.promoted":       {true, shape{"messageId": "s", "prompt": "o", "delivery": "s"}},
	"session.prompt.removed":        {true, shape{"messageId": "s"}},
	"session.turn.started":          {false, shape{}},
	"session.turn.ended":            {true, shape{"messageId": "s"}},
	"session.turn.aborted":          {false, shape{"cause": "o"}},
	"session.llm.started":           {true, shape{"messageId": "s", "message": "o", "requestDigest": "s?"}},
	"session.llm.text.start":        {false, shape{"messageId": "s", "partIndex": "i"}},
	"session.llm.text.delta":        {false, shape{"messageId": "s", "partIndex": "i", "delta": "s"}},
	"session.llm.text.end":          {false, shape{"messageId": "s", "partIndex": "i", "content": "s"}},
	"session.llm.thinking.start":    {false, shape{"messageId": "s", "partIndex": "i"}},
	"session.llm.thinking.delta":    {false, shape{"messageId": "s", "partIndex": "i", "delta": "s"}},
	"session.llm.thinking.end":      {false, shape{"messageId": "s", "partIndex": "i", "content": "s"}},
	"session.llm.toolcall.start":    {false, shape{"messageId": "s", "partIndex": "i"}},
	"session.llm.toolcall.delta":    {false, shape{"messageId": "s", "partIndex": "i"}},
	"session.llm.toolcall.end":      {false, shape{"messageId": "s", "partIndex": "i"}},
	"session.llm.ended":             {true, shape{"messageId": "s", "reason": "s", "message": "o"}},
	"session.llm.failed":            {true, shape{"messageId": "s", "reason": "s", "message": "o"}},
	"session.tool.started":          {false, shape{"messageId": "s", "callID": "s", "name": "s", "label": "s?", "arguments": "o"}},
	"session.tool.progress":         {false, shape{"messageId": "s", "callID": "s", "partial": "a"}},
	"session.tool.settled":          {true, shape{"messageId": "s", "callID": "s", "part": "o"}},
	"session.next.forked":           {true, shape{"sourceSessionId": "s", "sourceEntryId": "s", "baseSeq": "i"}},
	"session.retry.scheduled":       {false, shape{"attempt": "i", "delayMs": "i", "error": "o"}},
	"session.updated":               {false, shape{"session": "S"}},
	"session.notice":                {false, shape{"severity": "s", "text": "s"}},
}

// enumerations are the words that a key may hold, by "type key".
var enumerations = map[string][]string{
	"session.execution.interrupted reason": {"user", "shutdown"},
	"session.prompt.admitted delivery":     {"steer", "followUp"},
	"session.prompt.promoted delivery":     {"steer", "followUp"},
	"session.llm.ended reason":             {"stop", "length", "toolUse"},
	"session.llm.failed reason":            {"aborted", "error"},
}

var datePattern = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)

var idPattern = regexp.MustCompile(`^(ses|evt|sbx)_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// nullable are keys that may be null: where something is told that is not a
// field of the contract but JSON of somebody else.
var nullable = map[string]bool{"providerResourceId": true, "details": true, "arguments": true, "partial": true}

// nulls finds the keys that are null.
func nulls(raw json.RawMessage, where string) []string {
	var m map[string]json.RawMessage
	var l []json.RawMessage
	var out []string
	switch {
	case string(raw) == "null":
		return []string{where + " is null"}
	case json.Unmarshal(raw, &m) == nil:
		for k, v := range m {
			if !nullable[k] {
				out = append(out, nulls(v, where+"."+k)...)
			}
		}
	case json.Unmarshal(raw, &l) == nil:
		for i, v := range l {
			out = append(out, nulls(v, fmt.Sprintf("%s[%d]", where, i))...)
		}
	}
	return out
}

// against holds an object against its shape. Closed objects have no further
// keys.
func against(raw json.RawMessage, s shape, closed bool) []string {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil || m == nil {
		return []string{fmt.Sprintf("%.200s is no object", raw)}
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(s)) {
		v, ok := m[k]
		kind, optional := strings.CutSuffix(s[k], "?")
		switch {
		case !ok && !optional:
			out = append(out, k+" is missing")
		case ok && !kinds[kind](v):
			out = append(out, fmt.Sprintf("%s is %.200s", k, v))
		case ok && kind == "S":
			out = append(out, against(v, sessionShape, false)...)
		case ok && kind == "X":
			out = append(out, against(v, sandboxShape, false)...)
		}
	}
	for k := range m {
		if _, known := s[k]; closed && !known && k != "_tag" {
			out = append(out, k+" does not belong there")
		}
	}
	return out
}

var kinds = map[string]func(json.RawMessage) bool{
	"s": isString, "a": func(json.RawMessage) bool { return true },
	"n": func(v json.RawMessage) bool {
		var f float64
		return json.Unmarshal(v, &f) == nil && string(v) != "null" && f >= 0
	},
	"i": func(v json.RawMessage) bool {
		var f float64
		return json.Unmarshal(v, &f) == nil && string(v) != "null" && f >= 0 && f == math.Trunc(f)
	},
	"b": func(v json.RawMessage) bool { return string(v) == "true" || string(v) == "false" },
	"o": isObject, "S": isObject, "X": isObject,
	"l": func(v json.RawMessage) bool { return len(v) > 0 && v[0] == '[' },
	"d": func(v json.RawMessage) bool {
		_, err := time.Parse(time.RFC3339, at(v))
		return err == nil && datePattern.MatchString(at(v))
	},
	"p": func(v json.RawMessage) bool { return isString(v) && strings.HasPrefix(at(v), "/") },
	"v": func(v json.RawMessage) bool { return isString(v) || string(v) == "null" },
}

func isString(v json.RawMessage) bool { return len(v) > 0 && v[0] == '"' }
func isObject(v json.RawMessage) bool { return len(v) > 0 && v[0] == '{' }

// offends tells what is wrong with the answer to a call.
func offends(method string, a answer) []string {
	r, known := results[method]
	switch {
	case a.kind == "Die" && len(a.body) > 0 && a.body[0] == '{':
		return against(a.body, shape{"name": "s", "message": "s"}, false)
	case a.kind == "Die", a.kind == "Interrupt":
		return nil
	case !known:
		return []string{"there is no such method, and yet: " + a.String()}
	case a.kind == "Fail":
		tag := at(a.body, "_tag")
		if !slices.Contains(r.errors, tag) {
			return []string{fmt.Sprintf("it may not fail with %s", a.body)}
		}
		return append(against(a.body, errorShapes[tag], true), nulls(a.body, tag)...)
	case a.kind != "Success":
		return []string{"an Exit of kind " + a.kind}
	case r.void:
		if string(a.body) != "null" {
			return []string{fmt.Sprintf("answered with %.200s instead of null", a.body)}
		}
		return nil
	case r.orNull && string(a.body) == "null":
		return nil
	case r.list:
		var l []json.RawMessage
		if json.Unmarshal(a.body, &l) != nil || l == nil {
			return []string{fmt.Sprintf("answered with %.200s instead of a list", a.body)}
		}
		var out []string
		for _, v := range l {
			out = append(append(out, against(v, r.shape, false)...), nulls(v, "")...)
		}
		return out
	}
	return append(against(a.body, r.shape, false), nulls(a.body, "")...)
}

// offendingEvent tells what is wrong with an event.
func offendingEvent(e event) []string {
	if !idPattern.MatchString(e.ID) || !strings.HasPrefix(e.ID, "evt_") {
		return []string{"its id is " + e.ID}
	}
	if e.Type == "server.connected" {
		if string(e.Data) != "{}" || e.Durable != nil {
			return []string{"it is more than its type"}
		}
		return nil
	}
	if strings.HasPrefix(e.Type, "plugin.") {
		return nil
	}
	s, known := eventShapes[e.Type]
	if !known {
		return []string{"a type that nobody declared"}
	}
	out := against(e.raw, shape{"id": "s", "type": "s", "data": "o", "durable": "o?", "metadata": "o?"}, true)
	out = append(out, against(e.Data, s.data, false)...)
	out = append(out, against(e.Data, shape{"timestamp": "i", "sessionId": "s"}, false)...)
	out = append(out, nulls(e.Data, "data")...)
	switch {
	case s.durable != (e.Durable != nil):
		out = append(out, fmt.Sprintf("durable is %v", e.Durable != nil))
	case s.durable && (e.Durable.AggregateID != e.session() || e.Durable.Seq < 1 || e.Durable.Version != 1):
		out = append(out, "its place in the log is odd")
	}
	for k := range s.data {
		if words := enumerations[e.Type+" "+k]; words != nil && !slices.Contains(words, at(e.Data, k)) {
			out = append(out, k+" is "+at(e.Data, k))
		}
	}
	if m := e.Data; at(m, "message", "usage") != "" {
		var v struct {
			Message struct{ Usage json.RawMessage }
		}
		_ = json.Unmarshal(m, &v) // its form was looked at above
		out = append(out, against(v.Message.Usage, shape{"input": "n", "output": "n", "cacheRead": "n", "cacheWrite": "n", "totalTokens": "n", "cost": "o"}, false)...)
		var u struct{ Cost json.RawMessage }
		_ = json.Unmarshal(v.Message.Usage, &u)
		out = append(out, against(u.Cost, shape{"input": "n", "output": "n", "cacheRead": "n", "cacheWrite": "n", "total": "n"}, false)...)
	}
	return out
}
