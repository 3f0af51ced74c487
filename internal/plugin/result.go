package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"codework/internal/tools"
	"codework/messages"
)

const (
	// MaxDetails bounds what a result may carry for clients: it is stored and
	// sent with the result's event.
	MaxDetails = 256 << 10
	// maxText bounds a text that a result is made of; the tools' own limit
	// comes after it.
	maxText = 1 << 20
	// MaxParts is how many parts of one result are taken: each costs every
	// later request more than its text.
	MaxParts = 200
	// maxImages is how many images of one result are taken.
	maxImages = 20
)

func boundText(s string) string { return cut(strings.ToValidUTF8(s, "\uFFFD"), maxText) }

// toResult is a result as sessions know it: text and images; of anything else
// a note.
func toResult(ctx context.Context, r *mcp.CallToolResult, takesImages bool) messages.ToolResult {
	out := messages.ToolResult{IsError: r.IsError}
	note := func(format string, args ...any) {
		out.Content = append(out.Content, messages.Part{Type: messages.PartText, Text: fmt.Sprintf(format, args...)})
	}
	images := 0
	for n, c := range r.Content {
		if n == MaxParts {
			note("[%d more parts not shown]", len(r.Content)-n)
			break
		}
		switch c := c.(type) {
		case *mcp.TextContent:
			note("%s", boundText(c.Text))
		case *mcp.ImageContent:
			images++
			switch {
			case !takesImages:
				note("[image (%s, %d bytes) not shown: this model takes no images]", shortLine([]byte(c.MIMEType)), len(c.Data))
			case images > maxImages:
				note("[image not shown: a result has at most %d]", maxImages)
			default:
				p, err := tools.Image(ctx, c.Data)
				if err != nil {
					note("[image (%s, %d bytes) not shown: %v]", shortLine([]byte(c.MIMEType)), len(c.Data), err)
					continue
				}
				out.Content = append(out.Content, p)
			}
		case *mcp.AudioContent:
			note("[audio (%s, %d bytes) not shown]", shortLine([]byte(c.MIMEType)), len(c.Data))
		case *mcp.ResourceLink:
			note("[resource %s%s]", shortLine([]byte(c.URI)), described(c.Name, c.MIMEType))
		case *mcp.EmbeddedResource:
			switch {
			case c.Resource == nil:
				note("[resource without content]")
			case c.Resource.Text != "":
				note("[resource %s]\n%s", shortLine([]byte(c.Resource.URI)), boundText(c.Resource.Text))
			default:
				note("[resource %s (%s, %d bytes) not shown]", shortLine([]byte(c.Resource.URI)), shortLine([]byte(c.Resource.MIMEType)), len(c.Resource.Blob))
			}
		default:
			note("[content of a kind that is not known, not shown]")
		}
	}
	if r.StructuredContent != nil {
		details, err := json.Marshal(r.StructuredContent)
		switch {
		case err != nil:
			note("[structured content that cannot be encoded]")
		default:
			if len(out.Content) == 0 {
				note("%s", boundText(string(details)))
			}
			if len(details) <= MaxDetails {
				out.Details = details
			}
		}
	}
	return out
}

func described(name, kind string) string {
	s := shortLine([]byte(strings.TrimSpace(name + " " + kind)))
	if s == "" {
		return ""
	}
	return ": " + s
}
