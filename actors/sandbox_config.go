package actors

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"codework/internal/settings"
	"codework/messages"
	"codework/sandboxes"
)

// driverConfig is what the settings say to a driver. Every driver is told of
// network and limits: one that cannot keep them refuses.
func driverConfig(s settings.Sandbox, driver string) map[string]any {
	c := map[string]any{}
	put := func(key string, value any) {
		if !reflect.ValueOf(value).IsZero() {
			c[key] = value
		}
	}
	put("network", sandboxes.Network{None: s.Network.None, Host: s.Network.Host, Addresses: s.Network.Addresses})
	put("limits", sandboxes.Limits(s.Limits))
	switch driver {
	case "isolated":
		put("write", s.Isolated.Write)
		put("hide", s.Isolated.Hide)
		put("gitReadOnly", s.Isolated.GitReadOnly)
		put("level", s.Isolated.Level)
	case "container":
		put("socket", s.Container.Socket)
		put("image", s.Container.Image)
		put("pull", s.Container.Pull)
		put("runtime", s.Container.Runtime)
		put("volume", s.Container.Volume)
	case "ssh":
		put("host", s.SSH.Host)
		put("user", s.SSH.User)
		put("port", s.SSH.Port)
		put("base", s.SSH.Base)
		put("keyFile", s.SSH.KeyFile)
		put("agent", s.SSH.Agent)
		put("knownHosts", s.SSH.KnownHosts)
	case "daytona":
		put("baseURL", s.Daytona.BaseURL)
		put("apiKey", s.Daytona.APIKey)
		put("organization", s.Daytona.Organization)
		put("region", s.Daytona.Region)
		put("image", s.Daytona.Image)
	}
	return c
}

// joinConfig lays a call's own configuration over that of the settings: objects
// key by key, everything else as a whole. Null takes a key away. The result is
// nil when nothing is left, and always spelled the same.
func joinConfig(from map[string]any, own json.RawMessage) (json.RawMessage, error) {
	b, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	var base map[string]any
	if err := json.Unmarshal(b, &base); err != nil {
		return nil, err
	}
	if len(own) > 0 {
		var over map[string]any
		if err := json.Unmarshal(own, &over); err != nil {
			return nil, err
		}
		base = overlay(base, over)
	}
	if len(base) == 0 {
		return nil, nil
	}
	return messages.JSON(base)
}

func overlay(base, over map[string]any) map[string]any {
	for key, value := range over {
		inner, ok := value.(map[string]any)
		old, was := base[key].(map[string]any)
		switch {
		case value == nil:
			delete(base, key)
		case ok && was:
			base[key] = overlay(old, inner)
		default:
			base[key] = value
		}
	}
	return base
}

// secretFields end the names of fields whose value is a secret: it is named by
// its variable, since configurations are stored.
var secretFields = []string{"apikey", "token", "password", "passphrase", "secret"}

// literalSecret names the field of a configuration that holds a secret itself.
func literalSecret(config json.RawMessage) string {
	var fields map[string]any
	if len(config) == 0 || json.Unmarshal(config, &fields) != nil {
		return ""
	}
	for name, value := range fields {
		text, ok := value.(string)
		for _, end := range secretFields {
			if ok && strings.HasSuffix(strings.ToLower(name), end) && !isReference(text) {
				return name
			}
		}
	}
	return ""
}

// isReference tells whether text is "${NAME}" as a whole.
func isReference(text string) bool {
	name, ok := strings.CutPrefix(text, "${")
	name, closed := strings.CutSuffix(name, "}")
	return ok && closed && name != "" && !strings.ContainsAny(name, "${} ")
}

// checkSecrets refuses configurations that hold a secret.
func checkSecrets(driver string, config json.RawMessage) error {
	if field := literalSecret(config); field != "" {
		return &messages.SandboxDriverRegistration{Driver: driver,
			Reason: fmt.Sprintf(`%s: expected the name of a variable that holds it, as "${NAME}"`, field)}
	}
	return nil
}

// sandboxSettings finds what the settings say about sandboxes for somebody who
// works in a directory of this machine; "" has the user's settings only.
type sandboxSettings func(hostDir string, w *messages.World) (settings.Sandbox, error)

// SandboxSettings reads what the settings say about sandboxes.
func (w *Workshop) SandboxSettings(hostDir string, world *messages.World) (settings.Sandbox, error) {
	set, err := w.settings(ExchangeQuery{Session: messages.SessionRecord{HostDir: hostDir}, World: world})
	if err != nil {
		return settings.Sandbox{}, err
	}
	return set.Sandbox, nil
}
