package credentials

import (
	"slices"

	"codework/messages"
)

// names are the variables that hold keys and tokens: those of the catalog's
// providers (a test compares them with the embedded snapshot) and those of
// logins, remote sandboxes and the server.
var names = []string{
	"AI_GATEWAY_API_KEY",
	"ANTHROPIC_API_KEY",
	"BASETEN_API_KEY",
	"CEREBRAS_API_KEY",
	"CODEWORK_SERVER_TOKEN",
	"COPILOT_GITHUB_TOKEN",
	"DAYTONA_API_KEY",
	"DEEPSEEK_API_KEY",
	"FIREWORKS_API_KEY",
	"GEMINI_API_KEY",
	"GH_TOKEN",
	"GITHUB_TOKEN",
	"GOOGLE_GENERATIVE_AI_API_KEY",
	"GROQ_API_KEY",
	"HF_TOKEN",
	"KIMI_API_KEY",
	"META_API_KEY",
	"MINIMAX_API_KEY",
	"MINIMAX_CN_API_KEY",
	"MOONSHOT_API_KEY",
	"NVIDIA_API_KEY",
	"OPENAI_API_KEY",
	"OPENAI_CODEX_API_KEY",
	"OPENCODE_API_KEY",
	"OPENROUTER_API_KEY",
	"TOGETHER_API_KEY",
	"VERCEL_OIDC_TOKEN",
	"XAI_API_KEY",
	"XIAOMI_API_KEY",
	"ZAI_API_KEY",
	"ZAI_CODING_CN_API_KEY",
}

// EnvNames returns the names of all variables that hold keys, sorted: the
// known ones and those that the given models name. Commands must not see them.
func EnvNames(models []messages.Model) []string {
	all := slices.Clone(names)
	for _, m := range models {
		all = append(all, m.Provider.Env...)
		if name, ok := reference(m.Provider.Key); ok {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
