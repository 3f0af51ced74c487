package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"codework/internal/tools"
)

const (
	// maxToolName is what every provider takes, in bytes.
	maxToolName = 64
	// maxDescription bounds what one tool may add to every request.
	maxDescription = 8 << 10
	// maxSchema is the same for its arguments.
	maxSchema = 64 << 10
)

// Tool is a tool of a plugin.
type Tool struct {
	Name string // the plugin's own
	// Tool is what a session gets, with its schema compiled; Run is not set,
	// and Name is the plugin's own.
	Tool tools.Tool
	// Hints are what the plugin says of the tool's effects, as JSON; they are
	// shown and decide nothing.
	Hints json.RawMessage
}

// Tools are the plugin's tools. When it has said that they changed, they are
// listed again.
func (i *Instance) Tools(ctx context.Context) ([]Tool, error) {
	select {
	case <-i.relist:
		if err := i.list(ctx); err != nil {
			return nil, err
		}
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.tools, nil
}

// list asks for the tools. One that cannot be offered to a model is left out.
func (i *Instance) list(ctx context.Context) error {
	if caps := i.session.InitializeResult().Capabilities; caps == nil || caps.Tools == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeLimit)
	defer cancel()
	var found []Tool
	for t, err := range i.session.Tools(ctx, nil) {
		if err != nil {
			return fmt.Errorf("list its tools: %w", err)
		}
		if len(found) == maxTools {
			i.warnOnce("many", "a plugin has more tools than can be taken; the rest is left out", fmt.Sprint(maxTools))
			break
		}
		one, err := toTool(t)
		if err != nil {
			i.warnOnce("tool "+t.Name, "a tool of a plugin is left out", shortLine([]byte(t.Name+": "+err.Error())))
			continue
		}
		found = append(found, one)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tools = found
	return nil
}

func toTool(t *mcp.Tool) (Tool, error) {
	if t == nil || t.Name == "" {
		return Tool{}, fmt.Errorf("it has no name")
	}
	schema, err := json.Marshal(t.InputSchema)
	if err != nil {
		return Tool{}, fmt.Errorf("its schema: %w", err)
	}
	if len(schema) > maxSchema {
		return Tool{}, fmt.Errorf("its schema is larger than %d KiB", maxSchema>>10)
	}
	if string(schema) == "null" {
		schema = []byte(`{"type":"object"}`)
	}
	out := Tool{Name: t.Name}
	label := t.Title
	if label == "" && t.Annotations != nil {
		label = t.Annotations.Title
	}
	if t.Annotations != nil {
		out.Hints, _ = json.Marshal(t.Annotations) // plain fields
	}
	set, err := tools.NewSet(tools.Tool{Name: t.Name, Label: shortLine([]byte(label)), Description: cut(t.Description, maxDescription), Schema: schema})
	if err != nil {
		return Tool{}, err
	}
	out.Tool = set.Tools()[0]
	return out, nil
}

// ValidToolName tells whether every provider takes the name of a tool.
func ValidToolName(name string) bool {
	if name == "" || len(name) > maxToolName {
		return false
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return false
		}
	}
	return true
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// WireName is what a model calls a tool of a server that only speaks MCP:
// "<short>_<tool>", where short is the last segment of the server's id. What
// is too long is cut and gets a hash of the whole, and so does a name that is
// taken. The same names always give the same result.
func WireName(id, tool string, taken func(string) bool) string {
	short := id[strings.LastIndexByte(id, '.')+1:]
	whole := short + "_" + tool
	name := []byte(whole)
	for i, c := range name {
		if !nameByte(c) {
			name[i] = '_'
		}
	}
	if len(name) <= maxToolName && !taken(string(name)) {
		return string(name)
	}
	for n := 0; ; n++ {
		sum := sha256.Sum256([]byte(id + "\x00" + tool + "\x00" + strings.Repeat("+", n)))
		hash := "_" + hex.EncodeToString(sum[:4])
		s := string(name[:min(len(name), maxToolName-len(hash))]) + hash
		if !taken(s) {
			return s
		}
	}
}

// cut shortens s to at most n bytes, between runes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
