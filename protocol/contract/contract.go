// Package contract is CodeWork's RPC contract: which methods there are, and the
// JSON of their payloads, results, errors and events. It knows neither sockets
// nor actors; both halves of a connection use it.
//
// Decode is strict where a mistake would be silent: a missing or null field is
// refused with its name. Unknown keys are ignored, so that newer clients can
// talk to older servers.
package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"codework/messages"
	"codework/protocol/rawjson"
)

// Version is the version of the contract, exchanged in the hello. Processes
// with different versions do not talk.
const Version = 1

// Path and LegacyPath are where the contract is served.
const (
	Path       = "/rpc/v1"
	LegacyPath = "/rpc"
)

// Methods of the contract.
const (
	SessionCreate    = "session.create"
	SessionList      = "session.list"
	SessionInfo      = "session.info"
	SessionConfigure = "session.configure"
	SessionPrompt    = "session.prompt"
	SessionInterrupt = "session.interrupt"
	SessionWait      = "session.wait"
	SessionMessage   = "session.message"
	SessionQueue     = "session.queue"
	SessionHistory   = "session.history"
	SessionLink      = "session.link"
	SessionRelink    = "session.relink"
	SessionRename    = "session.rename"
	SessionFork      = "session.fork"
	SessionDelete    = "session.delete"
	SessionCheck     = "session.check"
	SessionBlob      = "session.blob"
	ModelsList       = "models.list"
	SandboxDrivers   = "sandbox.drivers"
	SandboxList      = "sandbox.list"
	SandboxCreate    = "sandbox.create"
	SandboxRegister  = "sandbox.register"
	SandboxStop      = "sandbox.stop"
	SandboxDestroy   = "sandbox.destroy"
	SandboxExec      = "sandbox.exec"
	AuthSave         = "auth.save"
	AuthStatus       = "auth.status"
	AuthRefresh      = "auth.refresh"
	AuthLogout       = "auth.logout"
	PluginReload     = "plugin.reload"
	EventSubscribe   = "event.subscribe"
	ServerInfo       = "server.info"
	ServerHello      = "server.hello"
	ServerHandover   = "server.handover"
	ServerTop        = "server.top"
)

// method says how a payload is decoded.
type method struct {
	payload  func() any
	required []string
	local    bool // only over the socket of this machine
}

var methods = map[string]method{
	SessionCreate:    {payload: func() any { return &messages.CreateSession{} }},
	SessionList:      {payload: func() any { return &messages.ListSessions{} }},
	SessionInfo:      {payload: func() any { return &messages.GetSession{} }, required: []string{"sessionId"}},
	SessionConfigure: {payload: func() any { return &messages.Configure{} }, required: []string{"sessionId", "runtime"}},
	SessionPrompt:    {payload: func() any { return &PromptPayload{} }, required: []string{"sessionId", "text"}},
	SessionInterrupt: {payload: func() any { return &messages.Interrupt{} }, required: []string{"sessionId"}},
	SessionWait:      {payload: func() any { return &messages.Wait{} }, required: []string{"sessionId"}},
	SessionMessage:   {payload: func() any { return &messages.HasMessage{} }, required: []string{"sessionId", "messageId"}},
	SessionQueue:     {payload: func() any { return &messages.GetQueue{} }, required: []string{"sessionId"}},
	SessionHistory:   {payload: func() any { return &messages.GetHistory{} }, required: []string{"sessionId"}},
	SessionLink:      {payload: func() any { return &messages.Link{} }, required: []string{"sessionId"}},
	SessionRelink:    {payload: func() any { return &messages.Relink{} }, required: []string{"sessionId"}},
	SessionRename:    {payload: func() any { return &messages.Rename{} }, required: []string{"sessionId", "title"}},
	SessionFork:      {payload: func() any { return &messages.Fork{} }, required: []string{"sessionId"}},
	SessionDelete:    {payload: func() any { return &messages.Delete{} }, required: []string{"sessionId"}},
	SessionCheck:     {payload: func() any { return &messages.Check{} }, required: []string{"sessionId"}},
	SessionBlob:      {payload: func() any { return &messages.GetBlob{} }, required: []string{"sessionId", "blob"}},
	ModelsList:       {payload: func() any { return &messages.ListModels{} }},
	SandboxDrivers:   {payload: func() any { return &struct{}{} }},
	SandboxList:      {payload: func() any { return &struct{}{} }},
	SandboxCreate:    {payload: func() any { return &messages.CreateSandbox{} }, required: []string{"driver"}},
	SandboxRegister:  {payload: func() any { return &messages.RegisterSandbox{} }, required: []string{"driver", "providerResourceId"}},
	SandboxStop:      {payload: func() any { return &messages.StopSandbox{} }, required: []string{"sandboxId"}},
	SandboxDestroy:   {payload: func() any { return &messages.DestroySandbox{} }, required: []string{"sandboxId"}},
	SandboxExec:      {payload: func() any { return &messages.ExecSandbox{} }, required: []string{"sandboxId", "argv"}},
	AuthSave:         {payload: func() any { return &messages.AuthSave{} }, required: []string{"credentials"}},
	AuthStatus:       {payload: func() any { return &messages.AuthStatus{} }, required: []string{"provider"}},
	AuthRefresh:      {payload: func() any { return &messages.AuthRefresh{} }, required: []string{"provider"}},
	AuthLogout:       {payload: func() any { return &messages.AuthLogout{} }, required: []string{"provider"}},
	PluginReload:     {payload: func() any { return &struct{}{} }},
	EventSubscribe:   {payload: func() any { return &messages.Subscribe{} }},
	ServerInfo:       {payload: func() any { return &struct{}{} }},
	ServerHello:      {payload: func() any { return &messages.Hello{} }, required: []string{"version", "build", "protocol", "host", "cwd", "umask", "env"}, local: true},
	ServerHandover:   {payload: func() any { return &struct{}{} }, local: true},
	ServerTop:        {payload: func() any { return &messages.GetTop{} }},
}

// PromptPayload is the payload of session.prompt. Bound is accepted over the
// socket of this machine only.
type PromptPayload struct {
	SessionID string            `json:"sessionId"`
	Text      string            `json:"text"`
	Parts     []PromptPart      `json:"parts,omitempty"`
	Delivery  messages.Delivery `json:"delivery,omitempty"`
	ID        string            `json:"id,omitempty"`
	Bound     bool              `json:"bound,omitempty"`
}

// PromptPart is a text or an image of a prompt; Data is base64 in JSON.
type PromptPart struct {
	Type      messages.PartType `json:"type"`
	Text      string            `json:"text,omitempty"`
	MediaType string            `json:"mediaType,omitempty"`
	Data      []byte            `json:"data,omitempty"`
}

// ErrUnknownMethod means the contract has no such method, or not on this kind
// of connection.
var ErrUnknownMethod = errors.New("unknown method")

// Decode returns the command that a call asks for: a value of package
// messages, or for calls without fields nil. local tells that the connection
// is the socket of this machine. Errors other than ErrUnknownMethod name the
// field that is wrong.
func Decode(name string, payload json.RawMessage, local bool) (any, error) {
	m, ok := methods[name]
	if !ok || m.local && !local {
		return nil, ErrUnknownMethod
	}
	v := m.payload()
	if err := decodeObject(payload, v, m.required); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case *messages.CreateSession:
		return *v, v.Validate()
	case *messages.ListSessions:
		if v.Limit < 0 {
			return nil, errors.New("expected a number of at least 0\n  at [\"limit\"]")
		}
		return *v, nil
	case *messages.GetSession:
		return *v, sessionID(v.SessionID)
	case *messages.Configure:
		return *v, errors.Join(sessionID(v.SessionID), v.Runtime.Validate())
	case *PromptPayload:
		return v.prompt()
	case *messages.Interrupt:
		return *v, sessionID(v.SessionID)
	case *messages.Wait:
		return *v, sessionID(v.SessionID)
	case *messages.HasMessage:
		return *v, sessionID(v.SessionID)
	case *messages.GetQueue:
		return *v, sessionID(v.SessionID)
	case *messages.Subscribe:
		if v.SessionID != "" {
			return *v, sessionID(v.SessionID)
		}
		return *v, nil
	case *messages.Hello:
		return *v, nil
	case *messages.GetTop:
		if v.Limit < 0 {
			return nil, errors.New("expected a number of at least 0\n  at [\"limit\"]")
		}
		return *v, nil
	case *messages.GetHistory:
		if v.Limit < 0 {
			return nil, errors.New("expected a number of at least 0\n  at [\"limit\"]")
		}
		return *v, sessionID(v.SessionID)
	case *messages.Link:
		return *v, errors.Join(sessionID(v.SessionID), v.Validate())
	case *messages.Relink:
		err := sessionID(v.SessionID)
		if v.Sandbox != nil {
			err = errors.Join(err, v.Sandbox.Validate())
		}
		return *v, err
	case *messages.Rename:
		return *v, sessionID(v.SessionID)
	case *messages.Fork:
		return *v, sessionID(v.SessionID)
	case *messages.Delete:
		return *v, sessionID(v.SessionID)
	case *messages.Check:
		return *v, sessionID(v.SessionID)
	case *messages.GetBlob:
		return *v, sessionID(v.SessionID)
	case *messages.ListModels:
		return *v, nil
	case *messages.CreateSandbox:
		return *v, errors.Join(notEmpty("driver", v.Driver), messages.ValidateSandboxConfig(v.Config))
	case *messages.RegisterSandbox:
		return *v, errors.Join(notEmpty("driver", v.Driver), notEmpty("providerResourceId", v.ProviderResourceID), messages.ValidateSandboxConfig(v.Config))
	case *messages.StopSandbox:
		return *v, notEmpty("sandboxId", v.SandboxID)
	case *messages.DestroySandbox:
		return *v, notEmpty("sandboxId", v.SandboxID)
	case *messages.ExecSandbox:
		switch {
		case len(v.Argv) == 0:
			return nil, errors.New("expected a command\n  at [\"argv\"]")
		case v.TimeoutMs < 0:
			return nil, errors.New("expected a number of at least 0\n  at [\"timeoutMs\"]")
		}
		return *v, notEmpty("sandboxId", v.SandboxID)
	case *messages.AuthSave:
		return *v, errors.Join(oauthProvider("credentials", v.Credentials.Provider), loginKeys(payload, v.Credentials.Provider))
	case *messages.AuthStatus:
		return *v, oauthProvider("provider", v.Provider)
	case *messages.AuthRefresh:
		return *v, oauthProvider("provider", v.Provider)
	case *messages.AuthLogout:
		return *v, oauthProvider("provider", v.Provider)
	}
	return nil, nil
}

func notEmpty(key, value string) error {
	if value == "" {
		return fmt.Errorf("expected a string that is not empty\n  at [%q]", key)
	}
	return nil
}

func oauthProvider(key, id string) error {
	if id != "openai-codex" && id != "github-copilot" {
		return fmt.Errorf("expected openai-codex or github-copilot\n  at [%q]", key)
	}
	return nil
}

// loginKeys refuses a login that lacks a key of its provider. One that is there
// and empty is the business of whoever stores it.
func loginKeys(payload json.RawMessage, provider string) error {
	var p struct{ Credentials map[string]json.RawMessage }
	if err := json.Unmarshal(payload, &p); err != nil {
		return err
	}
	keys := []string{"access", "refresh", "expires"}
	if provider == "openai-codex" {
		keys = append(keys, "accountId")
	}
	for _, k := range keys {
		if _, ok := p.Credentials[k]; !ok {
			return payloadErrorf("Missing key\n  at [\"credentials\"][%q]", k)
		}
	}
	return nil
}

// prompt is the command that the payload means.
func (p *PromptPayload) prompt() (any, error) {
	m := messages.Prompt{SessionID: p.SessionID, Text: p.Text, Delivery: p.Delivery, ID: p.ID}
	for i, q := range p.Parts {
		if q.Type == messages.PartImage && (len(q.Data) == 0 || !strings.HasPrefix(q.MediaType, "image/")) {
			return nil, fmt.Errorf("expected an image with data and mediaType\n  at [\"parts\"][%d]", i)
		}
		m.Parts = append(m.Parts, messages.Part{Type: q.Type, Text: q.Text, MediaType: q.MediaType, Data: q.Data})
	}
	if p.Bound {
		// The gateway, which knows its connection, puts its name here.
		m.Bound = "bound"
	}
	return m, m.Validate()
}

func sessionID(id string) error {
	if !messages.ValidSessionID(id) {
		return errors.New("expected a string starting with \"ses\"\n  at [\"sessionId\"]")
	}
	return nil
}

// payloadError says what is wrong with a payload, in the words of the library
// whose clients show it: these begin with a capital.
type payloadError string

func (e payloadError) Error() string { return string(e) }

func payloadErrorf(format string, a ...any) error { return payloadError(fmt.Sprintf(format, a...)) }

// decodeObject decodes a payload: an object whose known keys have values of
// the right type, none of them null, with the required ones there.
func decodeObject(payload json.RawMessage, into any, required []string) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(payload, &keys); err != nil || keys == nil {
		return errors.New("expected an object as payload")
	}
	for _, k := range required {
		if _, ok := keys[k]; !ok {
			return payloadErrorf("Missing key\n  at [%q]", k)
		}
	}
	t := reflect.TypeOf(into).Elem()
	if err := noVoids(payload, t, ""); err != nil {
		return err
	}
	payload = asSpelled(payload, keys, t)
	if err := json.Unmarshal(payload, into); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return payloadErrorf("Expected %s, got %s\n  at [%q]", wrong.Type, wrong.Value, wrong.Field)
		}
		return errors.New("payload does not decode")
	}
	return nil
}

// neverEmpty are the texts of which the empty one is none: it would look like a
// key that was left out.
var neverEmpty = map[reflect.Type]bool{
	reflect.TypeFor[messages.Delivery](): true, reflect.TypeFor[messages.ThinkingLevel](): true,
}

// noVoids refuses null wherever the type has a value, and "" where it is none;
// what the type does not know is left alone.
func noVoids(raw json.RawMessage, t reflect.Type, at string) error {
	switch string(bytes.TrimSpace(raw)) {
	case "null":
		return payloadErrorf("Expected a value, got null\n  at [%s]", at)
	case `""`:
		// An absolute path is not empty either.
		if neverEmpty[t] || strings.HasSuffix(at, `"hostDir"`) {
			return payloadErrorf("Expected a value, got an empty string\n  at [%s]", at)
		}
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	inside := func(key any) string {
		if at == "" {
			return fmt.Sprintf("%q", key)
		}
		return fmt.Sprintf("%s][%q", at, key)
	}
	switch t.Kind() {
	case reflect.Struct:
		var keys map[string]json.RawMessage
		if json.Unmarshal(raw, &keys) != nil {
			return nil // of the wrong type, which decoding says better
		}
		for i := range t.NumField() {
			name := jsonName(t.Field(i))
			if value, ok := keys[name]; ok {
				if err := noVoids(value, t.Field(i).Type, inside(name)); err != nil {
					return err
				}
			}
		}
	case reflect.Map:
		var keys map[string]json.RawMessage
		if json.Unmarshal(raw, &keys) != nil {
			return nil
		}
		for name, value := range keys {
			if err := noVoids(value, t.Elem(), inside(name)); err != nil {
				return err
			}
		}
	case reflect.Slice:
		var values []json.RawMessage
		if t.Elem().Kind() == reflect.Uint8 || json.Unmarshal(raw, &values) != nil {
			return nil
		}
		for i, value := range values {
			if err := noVoids(value, t.Elem(), inside(strconv.Itoa(i))); err != nil {
				return err
			}
		}
	}
	return nil
}

// asSpelled leaves out keys that the decoder would take for a field because it
// does not look at the case of letters: they are keys that we do not know.
func asSpelled(payload json.RawMessage, keys map[string]json.RawMessage, t reflect.Type) json.RawMessage {
	known := map[string]bool{}
	for i := range t.NumField() {
		known[jsonName(t.Field(i))] = true
	}
	odd := false
	for key := range keys {
		if known[key] {
			continue
		}
		delete(keys, key)
		for name := range known {
			odd = odd || strings.EqualFold(name, key)
		}
	}
	if !odd {
		return payload
	}
	clean, err := json.Marshal(keys)
	if err != nil {
		return payload // which will not decode either
	}
	return clean
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// Encode returns a result as JSON; nil is the result of a method that returns
// nothing.
func Encode(v any) (json.RawMessage, error) {
	if v == nil {
		return json.RawMessage("null"), nil
	}
	b, err := messages.JSON(v)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return b, nil
}

// EncodeError returns the JSON of an error that the contract declares.
func EncodeError(err error) (json.RawMessage, bool) {
	var t messages.Tagged
	if !errors.As(err, &t) {
		return nil, false
	}
	b, err := json.Marshal(t)
	if err != nil {
		return nil, false
	}
	tag, err := json.Marshal(t.Tag())
	if err != nil {
		return nil, false
	}
	head := append([]byte(`{"_tag":`), tag...)
	if len(b) > len("{}") {
		head = append(head, ',')
	}
	return append(head, b[1:]...), true
}

// tagged makes the errors of the contract, by tag.
var tagged = map[string]func() messages.Tagged{}

func init() {
	for _, f := range []func() messages.Tagged{
		func() messages.Tagged { return &messages.SessionNotFound{} },
		func() messages.Tagged { return &messages.PromptConflict{} },
		func() messages.Tagged { return &messages.SessionBusy{} },
		func() messages.Tagged { return &messages.DirectoryNotFound{} },
		func() messages.Tagged { return &messages.NotDirectory{} },
		func() messages.Tagged { return &messages.SubscriptionOverflow{} },
		func() messages.Tagged { return &messages.EventEncoding{} },
		func() messages.Tagged { return &messages.WrongWorld{} },
		func() messages.Tagged { return &messages.BlobNotFound{} },
		func() messages.Tagged { return &messages.SandboxNotFound{} },
		func() messages.Tagged { return &messages.SandboxDriverNotRegistered{} },
		func() messages.Tagged { return &messages.SandboxDriverRegistration{} },
		func() messages.Tagged { return &messages.SandboxUnsupported{} },
		func() messages.Tagged { return &messages.SandboxMustBeStopped{} },
		func() messages.Tagged { return &messages.SandboxProvider{} },
		func() messages.Tagged { return &messages.SandboxUnavailable{} },
		func() messages.Tagged { return &messages.SandboxRemoved{} },
		func() messages.Tagged { return &messages.SandboxTransitionConflict{} },
		func() messages.Tagged { return &messages.SandboxBusy{} },
		func() messages.Tagged { return &messages.RelinkError{} },
		func() messages.Tagged { return &messages.OAuthError{} },
	} {
		tagged[f().Tag()] = f
	}
}

// DecodeError returns the typed error that a server sent, if the tag is known.
func DecodeError(tag string, body json.RawMessage) (error, bool) {
	f, ok := tagged[tag]
	if !ok {
		return nil, false
	}
	e := f()
	if json.Unmarshal(body, e) != nil {
		return nil, false
	}
	return e, true
}

// EncodeEvent returns an event's envelope. It is written by hand: every delta
// of every session passes here, and its data is JSON already.
func EncodeEvent(e messages.Event) (json.RawMessage, error) {
	if !rawjson.Valid(e.Data) {
		return nil, &messages.EventEncoding{Type: e.Type, Cause: json.RawMessage(`"the data is not JSON"`)}
	}
	b := make([]byte, 0, len(e.Data)+envelopeBytes)
	b = appendString(append(b, `{"id":`...), e.ID)
	b = appendString(append(b, `,"type":`...), e.Type)
	if e.Durable() {
		b = appendString(append(b, `,"durable":{"aggregateId":`...), e.Session)
		b = strconv.AppendInt(append(b, `,"seq":`...), e.Seq, 10)
		b = strconv.AppendInt(append(b, `,"version":`...), messages.EventVersion, 10)
		b = append(b, '}')
	}
	b = append(append(b, `,"data":`...), e.Data...)
	if len(e.Metadata) > 0 {
		m, err := json.Marshal(e.Metadata)
		if err != nil { // a map of strings has a JSON form
			return nil, fmt.Errorf("encode metadata: %w", err)
		}
		b = append(append(b, `,"metadata":`...), m...)
	}
	return append(b, '}'), nil
}

// envelopeBytes is about what an envelope takes beside its data.
const envelopeBytes = 200

// appendString appends a JSON string. Ids and types need no escapes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c > '~' {
			q, _ := json.Marshal(s) // a string always has a JSON form
			return append(b, q...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// DecodeEvent reads an envelope, by hand like EncodeEvent: every event of every
// client passes here. Its data, which stays a part of b, is looked into no
// further than to the session of a live event.
func DecodeEvent(b json.RawMessage) (messages.Event, error) {
	var id, kind, durable, data, metadata json.RawMessage
	envelope := rawjson.Members(b)
	for envelope.Next() {
		switch string(envelope.Key) {
		case "id":
			id = envelope.Value
		case "type":
			kind = envelope.Value
		case "durable":
			durable = envelope.Value
		case "data":
			data = envelope.Value
		case "metadata":
			metadata = envelope.Value
		}
	}
	err := envelope.Err()
	var e messages.Event
	if err == nil {
		e.ID, err = text("id", id)
	}
	if err == nil {
		e.Type, err = text("type", kind)
	}
	switch {
	case err != nil:
	case !absent(durable):
		e.Session, e.Seq, err = decodePosition(durable)
	default:
		e.Session = sessionOf(data)
	}
	if err == nil && !absent(metadata) {
		err = json.Unmarshal(metadata, &e.Metadata)
	}
	if err != nil {
		return messages.Event{}, fmt.Errorf("decode event: %w", err)
	}
	if !absent(data) {
		e.Data = data
	}
	return e, nil
}

// decodePosition reads where a durable event stands in the log of its session.
func decodePosition(b json.RawMessage) (session string, seq int64, err error) {
	var id, number json.RawMessage
	position := rawjson.Members(b)
	for position.Next() {
		switch string(position.Key) {
		case "aggregateId":
			id = position.Value
		case "seq":
			number = position.Value
		}
	}
	if err = position.Err(); err == nil {
		session, err = text("aggregateId", id)
	}
	if err != nil || absent(number) {
		return session, 0, err
	}
	if seq, err = strconv.ParseInt(string(number), 10, 64); err != nil {
		return "", 0, errors.New("expected an integer as seq")
	}
	return session, seq, nil
}

// sessionOf is the session that the data of an event names, "" if it does not.
func sessionOf(data json.RawMessage) string {
	for d := rawjson.Members(data); d.Next(); {
		if string(d.Key) == "sessionId" {
			id, _ := rawjson.Text(d.Value)
			return id // what follows may be long
		}
	}
	return ""
}

// text is a member that must be a string if it is there.
func text(key string, value json.RawMessage) (string, error) {
	if absent(value) {
		return "", nil
	}
	s, ok := rawjson.Text(value)
	if !ok {
		return "", fmt.Errorf("expected a string as %s", key)
	}
	return s, nil
}

func absent(value json.RawMessage) bool { return len(value) == 0 || string(value) == "null" }

// Methods returns the names of all methods, sorted.
func Methods() []string {
	var names []string
	for n := range methods {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
