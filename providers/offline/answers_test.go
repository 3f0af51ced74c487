package offline

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// expect checks an answer for texts that must be in it, and for those behind
// a "!" that must not.
func expect(t *testing.T, answer string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if not, ok := strings.CutPrefix(text, "!"); ok {
			if strings.Contains(answer, not) {
				t.Errorf("should not say %q:\n%s", not, answer)
			}
		} else if !strings.Contains(answer, text) {
			t.Errorf("should say %q:\n%s", text, answer)
		}
	}
	if !strings.HasSuffix(answer, "(offline guide: fixed rules, not a language model)") {
		t.Errorf("does not say who speaks:\n%s", answer)
	}
}

// markerTree has markers in many comment styles, words that are none, and
// places that do not count.
var markerTree = map[string]string{
	"main.go":                "package main\n// TODO(ann): first\nfunc main() { println(\"TODO list\") } // FIXME second\n/* HACK: third */\n",
	"lib/a.py":               "# XXX fourth\nx = 'TODO: quoted'\n\"\"\"TODO fifth\"\"\"\n",
	"README.md":              "Our TODO is short.\n- [ ] TODO sixth\n<!-- TODO seventh -->\nTODOs and todo are none, mktemp XXXXXX neither\n",
	"a b/it's.sql":           "-- TODO: eighth\n",
	"node_modules/m/x.js":    "// TODO: no\n",
	"sub/vendor/v/y.go":      "// TODO: no\n",
	"image.bin":              "\x00// TODO: no\n",
	".hidden/z.rs":           "// TODO: ninth\n",
	"sub/vendored/notes.txt": "* TODO tenth\n",
}

func TestMarkersAreFoundAndCounted(t *testing.T) {
	for name, s := range map[string]*session{"plain folder": tree(t, markerTree), "repository": tree(t, markerTree).commit()} {
		t.Run(name, func(t *testing.T) {
			a := s.ask("Summarize the open TODOs in this repo")
			expect(t, a,
				"10 open markers in 6 files of this project: 7 TODO, 1 FIXME, 1 HACK, 1 XXX.",
				"main.go (3)", "main.go:2 TODO(ann): first", "main.go:3 FIXME second", "main.go:4 HACK: third\n",
				"lib/a.py:1 XXX fourth", "lib/a.py:3 TODO fifth\n",
				"README.md:2 TODO sixth", "README.md:3 TODO seventh\n", "a b/it's.sql:1 TODO: eighth",
				".hidden/z.rs:1 TODO: ninth", "sub/vendored/notes.txt:1 TODO tenth",
				"2 other lines only mention such a word, in text or code: README.md:1, lib/a.py:2.",
				"!TODO: no", "!TODOs and todo",
			)
		})
	}
}

func TestLineWithTwoMarkersCountsOnce(t *testing.T) {
	s := tree(t, map[string]string{"a.go": "// TODO: this FIXME too\n"})
	expect(t, s.ask("list TODOs"), "1 open marker in 1 file of this project: 1 TODO.", "a.go:1 TODO: this FIXME too")
}

func TestMarkersOfOneFolderOrFile(t *testing.T) {
	s := tree(t, markerTree)
	expect(t, s.ask("list the TODOs in lib/"), "2 open markers in 1 file of lib/", "!main.go")
	expect(t, s.ask("list the TODOs in main.go"), "3 open markers in main.go", "main.go:2", "!lib/a.py")
	expect(t, s.ask("list the TODOs in the sub folder"), "sub/vendored/notes.txt:1", "!main.go")
	expect(t, s.ask("list the TODOs in nowhere/"), "There is no nowhere/ here.")
}

func TestNoMarkersIsSaidPlainly(t *testing.T) {
	expect(t, tree(t, nil).ask("Summarize the open TODOs in this repo"), "No open markers: no TODO, FIXME, XXX or HACK in this project.")
	s := tree(t, map[string]string{"a.txt": "the TODO word\n"})
	expect(t, s.ask("any TODOs?"), "No open markers in this project. 1 other line only mentions", "a.txt:1")
}

func TestManyMarkersAreCountedInFullAndShownInPart(t *testing.T) {
	files := map[string]string{}
	for i := range 30 {
		files[fmt.Sprintf("f%02d.go", i)] = strings.Repeat("// TODO: again and again\n", 12)
	}
	s := tree(t, files)
	a := s.ask("list the TODOs")
	expect(t, a, "360 lines in 30 files hold one of the words", "Most are in:\n- f00.go (12)\n", "the first 200 lines", "f00.go:5", "- and 7 more", "In other files:")
	if n := strings.Count(a, "again and again"); n != shownMarkers {
		t.Errorf("%d lines shown", n)
	}
	if s.rounds != 2 {
		t.Errorf("%d rounds", s.rounds)
	}
}

func TestIgnoredFilesOfARepositoryDoNotCount(t *testing.T) {
	s := tree(t, map[string]string{".gitignore": "out/\n", "out/gen.go": "// TODO: no\n", "a.go": "// TODO: tracked\n"}).commit()
	if err := os.WriteFile(filepath.Join(s.dir, "new.go"), []byte("// TODO: not yet tracked\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, s.ask("list the TODOs"), "2 open markers", "TODO: tracked", "TODO: not yet tracked", "!out/gen.go")
}

var weather = map[string]string{
	"pyproject.toml":      "[project]\nname = \"weather\"\ndescription = \"Fetches the weather\"\n",
	"README.md":           "# Weather\n\n[![ci](x)](y)\n\nA small **weather** client that\nprints the `forecast`.\n\n## Use\n\nrun it\n",
	"src/app/main.py":     "\"\"\"Entry point of weather.\"\"\"\nimport os\n\n\nclass App:\n    def run(self):\n        pass\n\n\ndef main():\n    App().run()\n",
	"src/app/util.py":     "def pad(s): return s\n",
	"tests/test_main.py":  "def test_ok():\n    assert True\n",
	"main.py":             "import app\n",
	"docs/a/deep/page.md": "# Page\n",
}

func TestLayoutTellsWhatTheProjectIs(t *testing.T) {
	for name, s := range map[string]*session{"plain folder": tree(t, weather), "repository": tree(t, weather).commit()} {
		t.Run(name, func(t *testing.T) {
			expect(t, s.ask("Describe the layout of this project"),
				"README.md: Weather. A small weather client that prints the forecast.", "!ci](x)",
				"pyproject.toml: Python project weather, Fetches the weather",
				"7 files, 1 test file among them. By ending: 4 .py, 2 .md, 1 .toml.",
				"- docs/ (1 file): a", "- src/ (2 files): app", "- tests/ (1 file)",
				"Programs probably start in: main.py, src/app/main.py",
				"At the top: README.md, main.py, pyproject.toml",
			)
			if s.rounds != 2 {
				t.Errorf("%d rounds", s.rounds)
			}
		})
	}
	expect(t, tree(t, nil).ask("describe this project"), "This folder holds no files")
}

func TestLayoutOfOneFolder(t *testing.T) {
	s := tree(t, weather)
	expect(t, s.ask("describe the structure of src/"), "In src/: 2 files. By ending: 2 .py.", "- app/ (2 files)", "!README.md")
	expect(t, s.ask("list the files in ./nowhere"), "There is no ./nowhere here.")
	expect(t, s.ask("list the files in main.py"), "I could not list the files: ")
}

func TestFilesAreShown(t *testing.T) {
	s := tree(t, weather)
	expect(t, s.ask("show README.md"), "README.md, 10 lines:", "```\n# Weather\n", "run it\n```")
	expect(t, s.ask("show the readme"), "README.md, 10 lines:")
	expect(t, s.ask("show src/app/main.py lines 5-6"), "src/app/main.py, lines 5 to 6:", "class App:\n    def run(self):\n```", "!import os")
	expect(t, s.ask("show util.py"), "src/app/util.py, 1 line:")
	expect(t, s.ask("show main.py"), "main.py, 1 line:", "import app")
	expect(t, s.ask("show missing.py"), "The tool says: read missing.py: ")
	expect(t, s.ask("show tests"), "tests is a folder with 1 entry:\n- test_main.py")
	expect(t, s.ask("explain the util file"), "src/app/util.py: 1 line of Python")
	expect(t, s.ask("explain yourself"), "no file or folder named yourself here", "no language model behind it")
	expect(t, s.ask("what is in docs/?"), "docs/ is a folder with 1 entry:\n- a/")
}

func TestNameOfSeveralFilesIsNotGuessed(t *testing.T) {
	s := tree(t, map[string]string{"a/x.go": "package a\n", "b/x.go": "package b\n", "b/xx.go": "package b\n"})
	expect(t, s.ask("show x.go"), "There is no x.go here", "- a/x.go\n- b/x.go\n", "!xx.go")
}

func TestLongFilesAreShownInPartsThatCanBeAskedFor(t *testing.T) {
	var text strings.Builder
	for i := range 450 {
		fmt.Fprintf(&text, "line %d\n", i+1)
	}
	s := tree(t, map[string]string{"long.txt": text.String()})
	expect(t, s.ask("show long.txt"), "long.txt, lines 1 to 200:", "line 200\n```", "!line 202", "show long.txt from line 201", "!offset=")
	expect(t, s.ask("show long.txt from line 401"), "long.txt, lines 401 to 450:", "line 450\n```", "!The file goes on")
}

func TestFilesAreOutlined(t *testing.T) {
	s := tree(t, map[string]string{
		"app.py":   weather["src/app/main.py"],
		"log.go":   "// Copyright 2026 X\n\n//go:build linux\n\n// Package log keeps\n// records.\npackage log\n\ntype Log struct {\n\tn int\n}\n\nfunc (l *Log) Add() {\n}\n",
		"Makefile": "all: test\nX = 1\ntest:\n\ttrue\n",
		"doc.md":   "# Title\n\nWords here.\n\n## Part\n",
		"odd.zzz":  "first words\nsecond\n",
	})
	expect(t, s.ask("explain app.py"), "app.py: 11 lines of Python.", "It says of itself: Entry point of weather.", "app.py:5 class App:", "app.py:10 def main():")
	expect(t, s.ask("explain log.go"), "It says of itself: Package log keeps records.", "log.go:9 type Log struct\n", "log.go:13 func (l *Log) Add()\n", "!Copyright")
	expect(t, s.ask("what does the Makefile do?"), "Makefile:1 all: test", "Makefile:3 test:", "!X = 1")
	expect(t, s.ask("summarize doc.md"), "It says of itself: Title. Words here.", "doc.md:5 ## Part")
	expect(t, s.ask("explain odd.zzz"), "Its first lines:\n- first words")
}

func TestSearchTellsDefinitionsFromUses(t *testing.T) {
	files := map[string]string{
		"a.go":           "package a\n\nfunc Open() error { return nil }\n\nfunc use() { Open() }\n",
		"b.go":           "package a\n\n// see Open\ntype T struct{}\n\nfunc (t *T) Close() {}\n",
		"open_test.go":   "package a\n",
		"vendor/v/v.go":  "package v\n\nfunc Open() {}\n",
		"-dash.txt":      "plain\n",
		"sub/c/conf.yml": "retry: 3 # connection refused\n",
	}
	for name, s := range map[string]*session{"plain folder": tree(t, files), "repository": tree(t, files).commit()} {
		t.Run(name, func(t *testing.T) {
			expect(t, s.ask("find uses of Open"),
				"\"Open\" is on 3 lines in 2 files.",
				"Looks like its definition:\n- a.go:3 func Open() error { return nil }\n",
				"Used or mentioned in:\n- a.go:5 func use() { Open() }\n- b.go:3 // see Open\n",
				"1 file with that in the name:\n- open_test.go", "!vendor")
			expect(t, s.ask("where is Close defined?"), "b.go:6 func (t *T) Close() {}")
			expect(t, s.ask(`search for "connection refused"`), "sub/c/conf.yml:1")
			expect(t, s.ask("find `(t *T)`"), "b.go:6")
			expect(t, s.ask("find conf.yml"), "sub/c/conf.yml", "1 file with that in the name")
			expect(t, s.ask("find OPEN"), "open_test.go")
			expect(t, s.ask("where is the refused connection?"), "\"refused connection\" as it stands is nowhere", "\"connection\" in upper or lower case", "sub/c/conf.yml:1")
			expect(t, s.ask("find uses of Nothing42"), "Nothing found: \"Nothing42\"")
			expect(t, s.ask("find '--help; touch pwned'"), "Nothing found")
			expect(t, s.ask(`find "a'; touch pwned; '"`), "Nothing found")
			if _, err := os.Stat(filepath.Join(s.dir, "pwned")); err == nil {
				t.Error("a text that was looked for was run")
			}
		})
	}
}

func TestLinesAreCounted(t *testing.T) {
	files := map[string]string{"a.go": "1\n2\n", "b/c.go": "1\n", "d.py": "1\n", "e": "1\n", "x.bin": "\x00\n\n", "vendor/v.go": "1\n", "empty.go": ""}
	for name, s := range map[string]*session{"plain folder": tree(t, files), "repository": tree(t, files).commit()} {
		t.Run(name, func(t *testing.T) {
			expect(t, s.ask("How many lines of code are there?"), "5 lines in 4 text files", "- .go: 3 lines in 2 files\n", "- .py: 1 line in 1 file\n", "- other: 1 line in 1 file\n")
			expect(t, s.ask("how many files are in b/?"), "1 line in 1 text file in b/")
			expect(t, s.ask("how many files are in q/?"), "There is no q/ here.")
		})
	}
}

func TestHistoryTellsChangesAndCommits(t *testing.T) {
	s := tree(t, map[string]string{"a.go": "1\n", "b.go": "1\n"})
	expect(t, s.ask("git status"), "This folder is not in a git repository.")
	s.commit()
	expect(t, s.ask("what changed?"), "Branch: main", "The working tree is clean.", "Ann: first commit")
	for name, text := range map[string]string{"a.go": "2\n", "été.go": "1\n"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.bash("git rm -q b.go")
	expect(t, s.ask("git status"), "Changed, not staged (1):\n- a.go\n", "Staged (1):\n- b.go\n", "Not tracked (1):\n- été.go\n", "!clean")
	empty := tree(t, nil)
	empty.bash("git init -q -b main")
	expect(t, empty.ask("show the last commits"), "There are no commits yet.")
}

func TestChecksOfTheProjectAreRun(t *testing.T) {
	s := tree(t, map[string]string{"Makefile": "lint:\n\t@echo linted\ntest: lint\n\t@echo tested\nbuild:\n\t@echo built >built.txt\n"})
	expect(t, s.ask("run the checks"), "Passed: 2 commands found through Makefile.", "`make lint` passed", "`make test` passed", "tested")
	expect(t, s.ask("run the tests"), "Passed: 1 command", "`make test` passed", "!make build")
	if _, err := os.Stat(filepath.Join(s.dir, "built.txt")); err == nil {
		t.Error("built without being asked")
	}
	expect(t, s.ask("does it compile?"), "`make build` passed")
}

func TestFailedChecksNameWhatFailed(t *testing.T) {
	s := tree(t, map[string]string{
		"go.mod":    "module example.com/x\n\ngo 1.24\n",
		"x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n\nfunc TestBad(t *testing.T) { t.Error(\"seven is not eight\") }\n",
	})
	s.env = []string{"GOFLAGS=-mod=mod", "GOWORK=off"}
	expect(t, s.ask("run the tests"), "Failed: 1 of 1 command found through go.mod.", "`go test ./...` failed",
		"1 Go package: 0 ok, 1 failed", "Failed:\n- TestBad\n", "seven is not eight", "!- TestGood")
}

// bin makes a folder with programs that only say that they ran.
func bin(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range programs {
		if err := os.WriteFile(filepath.Join(dir, p), []byte("#!/bin/sh\necho \"fake $(basename $0) $*\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return "PATH=" + dir + ":/usr/bin:/bin"
}

func TestOwnWordsOfTheProjectComeFirst(t *testing.T) {
	s := tree(t, map[string]string{
		"Taskfile.yml": "version: '3'\n\nvars:\n  X: 1\n\ntasks:\n  build:\n    cmds: [true]\n  check:\n    deps: [test]\n  test:\n    cmds:\n      - go test\n",
		"go.mod":       "module x\n",
		"Cargo.toml":   "[package]\nname = \"x\"\n",
	})
	s.env = []string{bin(t, "task", "go")}
	expect(t, s.ask("run the checks"), "`task check` passed", "fake task check", "Also there, not run:\n- go.mod: go vet ./... && go test ./...\n- Cargo.toml: cargo test (cargo is not installed)\n")
	s.env = []string{bin(t, "go")}
	expect(t, s.ask("run the tests"), "`go test ./...` passed", "Taskfile.yml: task test (task is not installed)")
	s.env = []string{bin(t)}
	expect(t, s.ask("run the tests"), "what runs them is not installed here", "- Cargo.toml: cargo test (no cargo)")
}

func TestPackageScriptsRunWithTheProjectsManager(t *testing.T) {
	s := tree(t, map[string]string{
		"package.json":   "{\"name\":\"x\",\"scripts\":{\"test\":\"vitest\",\"lint\":\"eslint .\",\"build\":\"tsc\"},\"dependencies\":{}}",
		"pnpm-lock.yaml": "",
	})
	s.env = []string{bin(t, "npm", "pnpm")}
	expect(t, s.ask("run the checks"), "fake pnpm run lint", "fake pnpm run test", "!npm run build")
	fresh := tree(t, map[string]string{"package.json": `{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}`})
	fresh.env = s.env
	expect(t, fresh.ask("run the tests"), "nothing that names checks")
	expect(t, fresh.ask("run the linter"), "nothing that names checks")
	expect(t, tree(t, map[string]string{"pyproject.toml": ""}).ask("build it"), "names nothing that I know as its build")
}

func TestPytestIsRunOnlyWhereItIsInstalled(t *testing.T) {
	s := tree(t, weather)
	s.env = []string{bin(t, "python3")} // says yes to import pytest
	expect(t, s.ask("run the tests"), "`python3 -m pytest -q` passed", "fake python3 -m pytest -q")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.env = []string{"PATH=" + dir + ":/usr/bin:/bin"}
	expect(t, s.ask("run the tests"), "pyproject.toml: python3 -m pytest -q (no pytest)")
}

func TestOwnCommandIsRunAsItIs(t *testing.T) {
	s := tree(t, map[string]string{"a.txt": "x\n"})
	expect(t, s.ask("Run `cat a.txt | tr x y`"), "`cat a.txt | tr x y` ran:", "y\n")
	if got := s.calls[0].Arguments; !strings.Contains(got, `"command":"cat a.txt | tr x y"`) {
		t.Error(got)
	}
	expect(t, s.ask("$ exit 3"), "`exit 3` failed:")
}

func TestTextIsReplacedInOneFile(t *testing.T) {
	s := tree(t, map[string]string{"docs/style.md": "the colour of it\n", "two.md": "a a\n"})
	expect(t, s.ask(`Replace "colour" with "color" in docs/style.md.`), "docs/style.md is changed: \"colour\" is now \"color\".")
	if data, _ := os.ReadFile(filepath.Join(s.dir, "docs/style.md")); string(data) != "the color of it\n" {
		t.Errorf("%q", data)
	}
	expect(t, s.ask("replace `a` with `b` in two.md"), "I did not change two.md: edit 1: 2 matches")
}

func TestFileIsCreatedButNeverOverwritten(t *testing.T) {
	s := tree(t, nil)
	expect(t, s.ask(`Create notes.txt with "remember the milk"`), "notes.txt is written.")
	expect(t, s.ask(`Create notes.txt with "something else"`), "I leave notes.txt alone")
	if data, _ := os.ReadFile(filepath.Join(s.dir, "notes.txt")); string(data) != "remember the milk\n" {
		t.Errorf("%q", data)
	}
}

func TestEverythingElseGetsThePageOfWhatCanBeAsked(t *testing.T) {
	s := tree(t, nil)
	expect(t, s.ask("Write me a poem"), "no language model behind it", "Summarize the open TODOs", "--model anthropic/", "ANTHROPIC_API_KEY", "codework models")
	if s.rounds != 0 {
		t.Error("called a tool")
	}
}

func TestCommandsRunInAPlainShellToo(t *testing.T) {
	if _, err := os.Stat("/bin/dash"); err != nil {
		t.Fatalf("this test needs dash, a shell without what bash adds: %v", err)
	}
	s := tree(t, markerTree)
	s.shell = "/bin/dash"
	expect(t, s.ask("list the TODOs"), "10 open markers")
	expect(t, s.ask("describe this project"), "files")
	expect(t, s.ask("how many lines?"), "lines in")
	expect(t, s.ask("show it's.sql"), "TODO: eighth")
	expect(t, s.ask("find fourth"), "lib/a.py:1")
	expect(t, s.ask("run the checks"), "nothing that names checks")
}
