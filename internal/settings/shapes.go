package settings

import (
	"net/url"
	"slices"
	"strings"

	"codework/messages"
)

// shape says what is accepted at one place of a settings file. The table below
// is the one list of keys: validation walks it, and the published JSON Schema
// is held against it by a test.
type shape struct {
	kind byte   // { [ " as in JSON, 0 number, i integer, b boolean, * anything
	want string // for people: what is accepted

	// Objects. A key is one of fields, else its value must fit others, else
	// it is unknown: warned about, or refused when strict.
	fields   []field
	others   *shape
	keyOK    func(string) bool // keys that are none of fields
	keyWant  string
	keyRule  string   // keyOK as a pattern of JSON Schema
	reserved []string // keys that are refused
	strict   bool

	elem     *shape // of arrays
	mustHave string // a string that the array must contain

	words    []string          // strings: one of these
	valid    func(string) bool // strings
	pattern  string            // valid as a pattern of JSON Schema; "" if valid only wants some text
	min, max float64           // numbers
	either   []*shape          // instead of all above: one of these
}

type field struct {
	key      string
	shape    *shape
	required bool
}

const (
	// maxWhole is the largest integer that every JSON reader keeps exact.
	maxWhole = 1<<53 - 1
	maxPort  = 65535
	// maxRetryDelayMs is a day: longer waits than that are no retries.
	maxRetryDelayMs = 86_400_000
	maxRetries      = 100
)

func optional(key string, s *shape) field { return field{key: key, shape: s} }
func required(key string, s *shape) field { return field{key: key, shape: s, required: true} }

func object(fields ...field) *shape { return &shape{kind: '{', want: "an object", fields: fields} }
func strict(fields ...field) *shape {
	s := object(fields...)
	s.strict = true
	return s
}
func array(elem *shape, want string) *shape { return &shape{kind: '[', want: want, elem: elem} }
func oneOf(words ...string) *shape {
	return &shape{kind: '"', want: "one of " + strings.Join(words, ", "), words: words}
}
func integer(low, high float64, want string) *shape {
	return &shape{kind: 'i', want: want, min: low, max: high}
}

const maxNumber = 0x1p1023 // every finite number but those that no setting needs

const (
	nameRule      = `^[A-Za-z_][A-Za-z0-9_]*$`
	referenceRule = `^\$\{[A-Za-z_][A-Za-z0-9_]*\}$`
	webRule       = `^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]`
	// plainRule is: no "${" at all, or a reference and nothing else.
	plainRule  = `^(\$\{[A-Za-z_][A-Za-z0-9_]*\}|([^$]|\$+[^{$])*\$*)$`
	headerRule = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
)

var (
	anything = &shape{kind: '*', want: "any value"}
	anyText  = &shape{kind: '"', want: "a string"}
	text     = &shape{kind: '"', want: "a non-empty string", valid: func(s string) bool { return s != "" }}
	boolean  = &shape{kind: 'b', want: "true or false"}
	anyMap   = &shape{kind: '{', want: "an object", others: anything}
	number   = &shape{kind: '0', want: "a finite number", min: -maxNumber, max: maxNumber}
	notBelow = &shape{kind: '0', want: "a finite number, 0 or more", max: maxNumber}

	fromZero = integer(0, maxWhole, "an integer, 0 or more")
	fromOne  = integer(1, maxWhole, "an integer, 1 or more")

	reference = &shape{kind: '"', want: `a variable reference "${NAME}" and nothing else`, valid: isReference, pattern: referenceRule}
	webURL    = &shape{kind: '"', want: "an http or https URL", valid: isWebURL, pattern: webRule}
	varName   = &shape{kind: '"', want: "the name of an environment variable", valid: isName, pattern: nameRule}

	textList = array(text, "an array of non-empty strings")

	level     = oneOf(words(messages.ThinkingLevels)...)
	execution = oneOf(string(Sequential), string(Parallel))
	retention = oneOf(string(messages.CacheNone), string(messages.CacheShort), string(messages.CacheLong))
	method    = oneOf("languageModel", "chat", "completion", "completionModel", "messages", "responses")

	headers = &shape{kind: '{', want: "an object of strings",
		keyOK: isHeaderName, keyWant: "the name of a header", keyRule: headerRule,
		others: &shape{kind: '"', want: `text on one line, or a variable reference "${NAME}" and nothing else`,
			valid: func(s string) bool { return isPlain(s) && !strings.ContainsFunc(s, isControl) },
			// The control characters are left to the decoder.
			pattern: plainRule}}

	budgets = strict(levelFields(messages.ThinkingLevels[1:], notBelow)...)
)

// levelFields gives every level the same shape.
func levelFields(levels []messages.ThinkingLevel, s *shape) []field {
	out := make([]field, len(levels))
	for i, l := range levels {
		out[i] = optional(string(l), s)
	}
	return out
}

func words[T ~string](in []T) []string {
	out := make([]string, len(in))
	for i, w := range in {
		out[i] = string(w)
	}
	return out
}

// optionBlock is a set of request options. Keys it does not know go to the
// provider as they are.
var optionBlock = &shape{kind: '{', want: "an object",
	fields: []field{
		optional("temperature", number),
		optional("maxTokens", fromOne),
		optional("timeoutMs", fromOne),
		optional("idleTimeoutMs", fromOne),
		optional("maxRetries", fromZero),
		optional("cacheRetention", retention),
		optional("headers", headers),
		optional("baseURL", webURL),
		optional("apiKey", reference),
		optional("metadata", anyMap),
		optional("thinkingBudgets", budgets),
		optional("method", method),
		optional("thinkingLevel", level),
		optional("toolExecution", execution),
		optional("contextWindow", notBelow),
		optional("extras", anyMap),
	},
	others: anything,
	// What a request is made of besides its options: an option of that name
	// would reach into it.
	reserved: []string{
		"toolChoice", "activeTools", "provider", "id", "signal", "sessionId", "reasoning", "modelId",
		"onPayload", "api", "npm", "providerOptionsKey", "compat", "thinkingLevelMap", "protocol",
	},
}

var rates = []field{
	required("input", notBelow),
	required("output", notBelow),
	required("cacheRead", notBelow),
	required("cacheWrite", notBelow),
}

var modelEntry = object(
	required("id", text),
	required("name", text),
	required("provider", object(
		required("id", text),
		required("name", text),
		required("source", oneOf("config", "env", "custom", "api", "unknown")),
		required("env", array(varName, "an array of variable names")),
		optional("key", reference),
		optional("options", anyMap),
	)),
	required("protocol", oneOf(
		string(messages.ProtocolCompatible), string(messages.ProtocolOpenAI), string(messages.ProtocolAnthropic),
		string(messages.ProtocolGoogle), string(messages.ProtocolOpenRouter), string(messages.ProtocolXAI),
		string(messages.ProtocolCodex), string(messages.ProtocolVertex), string(messages.ProtocolVertexAnthropic))),
	required("baseUrl", webURL),
	required("reasoning", boolean),
	required("input", &shape{kind: '[', want: `an array of "text" and "image", with "text" in it`,
		elem: oneOf("text", "image"), mustHave: "text"}),
	required("cost", object(append(slices.Clone(rates),
		optional("tiers", array(object(append(slices.Clone(rates), required("inputTokensAbove", fromZero))...),
			"an array of rates with inputTokensAbove")))...)),
	required("contextWindow", fromZero),
	required("maxTokens", fromZero),
	optional("thinkingLevelMap", strict(levelFields(messages.ThinkingLevels, text)...)),
	optional("headers", headers),
	optional("compat", anyMap),
	optional("options", optionBlock),
	optional("providerOptions", &shape{kind: '{', want: "an object of objects", others: anyMap}),
	optional("api", object(optional("id", text), optional("url", webURL), optional("method", method))),
)

var sandboxShape = strict(
	optional("driver", text),
	optional("env", strict(
		optional("pass", array(&shape{kind: '"', want: `the name of an environment variable, or "*"`,
			valid:   func(s string) bool { return s == "*" || isName(s) },
			pattern: `^(\*|[A-Za-z_][A-Za-z0-9_]*)$`}, "an array of variable names")),
		optional("set", &shape{kind: '{', want: "an object of strings",
			keyOK: isName, keyWant: "the name of an environment variable", keyRule: nameRule,
			others: &shape{kind: '"', want: `text without a zero byte, or a variable reference "${NAME}" and nothing else`,
				valid: func(s string) bool { return isPlain(s) && !strings.Contains(s, "\x00") }, pattern: plainRule}}),
	)),
	optional("background", oneOf(string(BackgroundSession), string(BackgroundServer))),
	optional("network", &shape{want: `"none", "host" or an array of addresses`,
		either: []*shape{oneOf(networkNone, networkHost), array(text, "an array of addresses")}}),
	optional("limits", strict(
		optional("memoryMiB", fromOne),
		optional("processes", fromOne),
		optional("cpus", &shape{kind: '0', want: "a number, 0.01 or more", min: 0.01, max: maxNumber}),
		optional("openFiles", fromOne),
	)),
	optional("isolated", strict(
		optional("write", textList),
		optional("hide", textList),
		optional("gitReadOnly", boolean),
		optional("level", oneOf("full", "landlock", "none")),
	)),
	optional("container", strict(
		optional("socket", text),
		optional("image", text),
		optional("pull", boolean),
		optional("runtime", text),
		optional("volume", text),
	)),
	optional("ssh", strict(
		optional("host", text),
		optional("user", text),
		optional("port", integer(1, maxPort, "an integer from 1 to 65535")),
		optional("base", text),
		optional("keyFile", text),
		optional("agent", &shape{want: `true, false, or the path of the agent's socket`,
			either: []*shape{boolean, text}}),
		optional("knownHosts", text),
	)),
	optional("daytona", strict(
		optional("baseURL", webURL),
		optional("apiKey", reference),
		optional("organization", text),
		optional("region", text),
		optional("image", text),
	)),
)

// fileShape is a whole settings file. What a plugin entry must hold is the
// business of whoever loads plugins.
var fileShape = object(
	optional("$schema", anyText),
	optional("model", object(
		optional("provider", text),
		optional("id", text),
		optional("thinkingLevel", level),
		optional("toolExecution", execution),
		optional("thinkingBudgets", budgets),
		optional("options", optionBlock),
		optional("providerOptions", &shape{kind: '{', want: "an object of objects",
			others: &shape{kind: '{', want: "an object of option blocks", others: optionBlock}}),
	)),
	optional("models", array(modelEntry, "an array of models")),
	optional("plugins", array(&shape{want: "a module string or an object", either: []*shape{text, anyMap}},
		"an array of module strings and objects")),
	optional("retry", object(
		optional("maxRetries", integer(0, maxRetries, "an integer from 0 to 100")),
		optional("baseDelayMs", integer(0, maxRetryDelayMs, "an integer from 0 to maxDelayMs, at most 86400000")),
		optional("maxDelayMs", integer(0, maxRetryDelayMs, "an integer from 0 to 86400000")),
	)),
	optional("sandbox", sandboxShape),
)

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

func isHeaderName(s string) bool {
	for _, r := range s {
		if !isNameRune(r) && !strings.ContainsRune("!#$%&'*+-.^`|~", r) {
			return false
		}
	}
	return s != ""
}

func isWebURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
