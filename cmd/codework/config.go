package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"codework/internal/settings"
)

func newConfig(g *global) *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Look at the settings",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var origin, asJSON bool
	show := &cobra.Command{
		Use:   "show",
		Short: "Print what your settings and the project's come to here",
		Long: `Print the settings that hold in this directory: the defaults, your settings over
them, the project's over both. Values that may be secrets are shown as ***.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, set, err := g.settings()
			if err != nil {
				return err
			}
			if !g.quiet {
				for _, w := range set.Warnings {
					fmt.Fprintln(g.err, "warning: "+oneLine(w.Text))
				}
			}
			text, err := configText(set, origin, asJSON)
			if err != nil {
				return err
			}
			_, err = g.out.WriteString(text)
			return err
		},
	}
	show.Flags().BoolVar(&origin, "origin", false, "print one value a line, with the file it came from")
	show.Flags().BoolVar(&asJSON, "json", false, "print JSON on one line; with --origin an array of key, value and file")
	c.AddCommand(show)
	return c
}

// setting is one value with the file that set it; File is "" for a default.
type setting struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
	File  string          `json:"file,omitempty"`
}

func configText(set *settings.Settings, origin, asJSON bool) (string, error) {
	merged := set.Merged()
	var text bytes.Buffer
	var err error
	switch {
	case origin && asJSON:
		var b []byte
		b, err = json.Marshal(originList(merged, set.Origins()))
		text.Write(b)
	case origin:
		for _, s := range originList(merged, set.Origins()) {
			file := "default"
			if s.File != "" {
				file = oneLine(s.File)
			}
			var value bytes.Buffer
			if err = json.Compact(&value, s.Value); err != nil {
				break
			}
			fmt.Fprintf(&text, "%s = %s  # %s\n", oneLine(s.Key), value.Bytes(), file)
		}
		return escapeControls(text.String()), err
	case asJSON:
		err = json.Compact(&text, merged)
	default:
		err = json.Indent(&text, merged, "", "  ")
	}
	if err != nil {
		return "", fmt.Errorf("print settings: %w", err)
	}
	return escapeControls(text.String()) + "\n", nil
}

// originList takes the settings apart into the values that have an origin of
// their own, sorted by key.
func originList(merged json.RawMessage, origins map[string]string) []setting {
	list := []setting{}
	var walk func(key string, value json.RawMessage)
	walk = func(key string, value json.RawMessage) {
		var object map[string]json.RawMessage
		var array []json.RawMessage
		switch {
		case json.Unmarshal(value, &object) == nil && len(object) > 0:
			for _, k := range slices.Sorted(maps.Keys(object)) {
				walk(strings.TrimPrefix(key+"."+k, "."), object[k])
			}
		case (key == "models" || key == "plugins") && json.Unmarshal(value, &array) == nil:
			// Lists that grow over the layers: each entry has its file.
			for i, v := range array {
				k := key + "." + strconv.Itoa(i)
				list = append(list, setting{k, v, origins[k]})
			}
		default:
			list = append(list, setting{key, value, origins[key]})
		}
	}
	walk("", merged)
	return list
}

// escapeControls makes JSON safe for a terminal: what JSON itself lets through
// of control characters is escaped, and means the same.
func escapeControls(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
