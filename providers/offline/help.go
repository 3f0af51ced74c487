package offline

// help says what this is and what can be asked.
func help(*talk) string {
	return `This is the offline guide, a set of fixed rules inside codework. There is no language model behind it, it needs no key, and nothing leaves this machine. It answers a few kinds of questions by really calling the tools of this session:

- Summarize the open TODOs in this repo
- Describe the layout of this project
- Show README.md, or: explain main.go
- Run the checks, or: run the tests
- Find uses of "NewServer", or: where is parseConfig defined?
- How many lines of code are there?
- Show the git status and the last commits
- Run ` + "`go version`" + ` (the command between backquotes, as it is)
- Replace "colour" with "color" in docs/style.md
- Create notes.txt with "remember the milk"

Anything else needs a real model:

- codework models shows which there are
- set a key, such as export ANTHROPIC_API_KEY=…, and choose a model of that provider:
  codework run --model anthropic/claude-sonnet-5-5 "…"`
}
