package acp

import (
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"strings"

	"codework/messages"
)

// Prompt is what session/prompt asks.
type Prompt struct {
	SessionID string
	Text      string          // before the first image
	Parts     []messages.Part // from the first image on
	Images    bool
}

// DecodePrompt reads the params of session/prompt. The blocks become one
// message, in order, separated by empty lines.
func DecodePrompt(p Params) (Prompt, *Error) {
	session, err := p.need("sessionId")
	if err != nil {
		return Prompt{}, err
	}
	blocks, err := p.list("prompt")
	if err != nil {
		return Prompt{}, err
	}
	if len(blocks) == 0 {
		return Prompt{}, invalid("prompt: expected a list of content blocks that is not empty")
	}
	out := Prompt{SessionID: session}
	var text []string
	flush := func() {
		joined := strings.Join(text, "\n\n")
		text = nil
		switch {
		case joined == "":
		case out.Images:
			out.Parts = append(out.Parts, messages.Part{Type: messages.PartText, Text: joined})
		default:
			out.Text = joined
		}
	}
	for _, raw := range blocks {
		var b Params
		if raw[0] != '{' || json.Unmarshal(raw, &b) != nil {
			return Prompt{}, invalid("prompt: expected content blocks")
		}
		kind, err := b.need("type")
		if err != nil {
			return Prompt{}, err
		}
		if kind == "image" {
			image, err := imagePart(b)
			if err != nil {
				return Prompt{}, err
			}
			flush()
			out.Images = true
			out.Parts = append(out.Parts, image)
			continue
		}
		words, err := words(kind, b)
		if err != nil {
			return Prompt{}, err
		}
		text = append(text, words)
	}
	flush()
	return out, nil
}

// words is what a block says to the model.
func words(kind string, b Params) (string, *Error) {
	switch kind {
	case "text":
		if !b.has("text") {
			return "", invalid("prompt: a text block without text")
		}
		return b.text("text")
	case "resource":
		return resource(b)
	case "resource_link":
		uri, err := b.need("uri")
		if err != nil {
			return "", err
		}
		name, err := b.text("name")
		if err != nil {
			return "", err
		}
		if name == "" {
			name = uri
		}
		return "[" + linkText(name) + "](" + linkTarget(uri) + ")", nil
	case "audio":
		return "", invalid("audio is not supported")
	}
	return "", invalid("prompt: unknown content block " + kind)
}

// linkText and linkTarget keep a Markdown link one link.
func linkText(s string) string {
	return strings.NewReplacer("[", `\[`, "]", `\]`, "\n", " ", "\r", " ").Replace(s)
}

func linkTarget(uri string) string {
	if strings.ContainsAny(uri, " ()<>\n\r") {
		return "<" + strings.NewReplacer("<", "%3C", ">", "%3E", "\n", "%0A", "\r", "%0D").Replace(uri) + ">"
	}
	return uri
}

func resource(b Params) (string, *Error) {
	r, err := b.object("resource")
	if err != nil {
		return "", err
	}
	if r == nil {
		return "", invalid("prompt: a resource block without resource")
	}
	uri, err := r.text("uri")
	if err != nil {
		return "", err
	}
	switch {
	case r.has("text"):
		text, err := r.text("text")
		if err != nil {
			return "", err
		}
		return uri + "\n" + fenced("", text), nil
	case r.has("blob"):
		return "", invalid("Binary resources are not supported: " + uri)
	}
	return "", invalid("prompt: a resource without text")
}

func imagePart(b Params) (messages.Part, *Error) {
	data, err := b.text("data")
	if err != nil {
		return messages.Part{}, err
	}
	kind, err := b.text("mimeType")
	if err != nil {
		return messages.Part{}, err
	}
	if !strings.HasPrefix(kind, "image/") || len(kind) == len("image/") {
		return messages.Part{}, invalid("prompt: expected an image with a mimeType of image/…")
	}
	raw, bad := base64.StdEncoding.DecodeString(data)
	if bad != nil || len(raw) == 0 {
		return messages.Part{}, invalid("prompt: the data of an image is not base64")
	}
	return messages.Part{Type: messages.PartImage, MediaType: kind, Data: raw}, nil
}

// fenced puts text into a fence that nothing in it can close.
func fenced(language, text string) string {
	longest, run := 2, 0
	for i := 0; i < len(text); i++ {
		if text[i] == '`' {
			run++
			longest = max(longest, run)
			continue
		}
		run = 0
	}
	fence := strings.Repeat("`", longest+1)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return fence + language + "\n" + text + fence
}

// Initialize is what a client says of itself.
type Initialize struct {
	// Notices tells that it shows notices.
	Notices bool `json:"notices,omitempty"`
}

// DecodeInitialize reads the params of initialize. Whatever version the client
// asks for, the answer is ours; it only has to be a number.
func DecodeInitialize(p Params) (Initialize, *Error) {
	if v := p["protocolVersion"]; !absent(v) {
		if strings.Trim(strings.TrimPrefix(string(v), "-"), "0123456789") != "" {
			return Initialize{}, invalid("protocolVersion: expected an integer")
		}
	}
	// Whatever is odd about the capabilities means that they are not there.
	var caps struct {
		Session struct {
			Notices json.RawMessage `json:"notices"`
		} `json:"session"`
	}
	if v := p["clientCapabilities"]; !absent(v) && json.Unmarshal(v, &caps) != nil {
		return Initialize{}, nil
	}
	n := caps.Session.Notices
	return Initialize{Notices: !absent(n) && string(n) != "false"}, nil
}

// Open is what session/new, session/load and session/resume ask.
type Open struct {
	SessionID string // not of session/new
	Cwd       string // absolute and cleaned; links are kept
	// Servers are the MCP servers of the editor that can be started here,
	// Others the names of the rest.
	Servers []messages.MCPServer
	Others  []string
}

// DecodeOpen reads their params.
func DecodeOpen(p Params, withID bool) (Open, *Error) {
	var o Open
	var err *Error
	if withID {
		if o.SessionID, err = p.need("sessionId"); err != nil {
			return o, err
		}
	}
	if o.Cwd, err = folder(p, true); err != nil {
		return o, err
	}
	list, err := p.list("mcpServers")
	if err != nil {
		return o, err
	}
	for _, raw := range list {
		if err := o.server(raw); err != nil {
			return o, err
		}
	}
	return o, nil
}

// folder is the member cwd: an absolute path.
func folder(p Params, needed bool) (string, *Error) {
	if !needed && !p.has("cwd") {
		return "", nil
	}
	cwd, err := p.need("cwd")
	switch {
	case err != nil:
		return "", err
	case !filepath.IsAbs(cwd):
		return "", invalid("cwd: expected an absolute path, not " + cwd)
	case strings.ContainsRune(cwd, 0):
		return "", invalid("cwd: expected a path")
	}
	return filepath.Clean(cwd), nil
}

// server takes one entry of mcpServers: started over stdio, or reached over
// http or sse. Its environment is secret and never part of a message.
func (o *Open) server(raw json.RawMessage) *Error {
	var m Params
	if raw[0] != '{' || json.Unmarshal(raw, &m) != nil {
		return invalid("mcpServers: expected a list of objects")
	}
	name, err := m.need("name")
	if err != nil {
		return invalid("mcpServers: a server without a name")
	}
	kind, err := m.text("type")
	if err != nil {
		return err
	}
	if kind == "http" || kind == "sse" || kind == "" && m.has("url") {
		if _, err := m.need("url"); err != nil {
			return invalid("mcpServers: " + name + " has neither command nor url")
		}
		o.Others = append(o.Others, clip(name, maxShown))
		return nil
	}
	s := messages.MCPServer{Name: name}
	if s.Command, err = m.need("command"); err != nil {
		return invalid("mcpServers: " + name + " has neither command nor url")
	}
	args, err := m.list("args")
	if err != nil {
		return err
	}
	for _, a := range args {
		var text string
		if a[0] != '"' || json.Unmarshal(a, &text) != nil {
			return invalid("mcpServers: args of " + name + ": expected strings")
		}
		s.Args = append(s.Args, text)
	}
	env, err := m.list("env")
	if err != nil {
		return err
	}
	for _, e := range env {
		var v struct{ Name, Value *string }
		if json.Unmarshal(e, &v) != nil || v.Name == nil || *v.Name == "" || v.Value == nil {
			return invalid("mcpServers: env of " + name + ": expected a list of name and value")
		}
		s.Env = append(s.Env, *v.Name+"="+*v.Value)
	}
	o.Servers = append(o.Servers, s)
	return nil
}

// SetConfig is what session/set_config_option asks.
type SetConfig struct{ SessionID, ConfigID, Value string }

// DecodeSetConfig reads its params.
func DecodeSetConfig(p Params) (SetConfig, *Error) {
	var s SetConfig
	var err *Error
	if s.SessionID, err = p.need("sessionId"); err != nil {
		return s, err
	}
	if s.ConfigID, err = p.need("configId"); err != nil {
		return s, err
	}
	if kind, err := p.text("type"); err != nil || kind == "boolean" {
		return s, invalid("type: every option here is a select")
	}
	v := p["value"]
	if absent(v) || v[0] != '"' || json.Unmarshal(v, &s.Value) != nil {
		return s, invalid("value: expected a string, not " + clip(string(v), maxShown))
	}
	return s, nil
}

// maxShown bounds how much of a wrong value an error repeats, in runes.
const maxShown = 100

// List is what session/list asks.
type List struct {
	Cwd    string // "" for all folders
	Cursor string
}

// DecodeList reads its params.
func DecodeList(p Params) (List, *Error) {
	var l List
	var err *Error
	if l.Cwd, err = folder(p, false); err != nil {
		return l, err
	}
	l.Cursor, err = p.text("cursor")
	return l, err
}

// DecodeSession reads the only member of session/close, session/delete and
// session/cancel.
func DecodeSession(p Params) (string, *Error) { return p.need("sessionId") }

// DecodeCancelled reads the params of $/cancel_request: the Key of a request.
func DecodeCancelled(p Params) string { return keyOf(p["requestId"]) }
