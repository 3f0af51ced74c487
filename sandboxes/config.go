package sandboxes

import (
	"bytes"
	"encoding/json"
)

// ReadConfig decodes a driver's configuration into *T. Unknown fields and wrong
// types are a *ConfigError that names the field.
func ReadConfig[T any](config json.RawMessage) (T, error) {
	var c T
	if len(config) == 0 || string(config) == "null" {
		return c, nil
	}
	d := json.NewDecoder(bytes.NewReader(config))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, &ConfigError{Reason: "config: " + err.Error()}
	}
	return c, nil
}
