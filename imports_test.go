// Package codework holds the checks that concern the whole repository.
package codework

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

const module = "codework"

// rooms says which folders of the module the code in a folder may import,
// tests left out. Imports go downwards only, so that a reader who follows a
// prompt never comes back to where he was.
var rooms = map[string][]string{
	"messages":  {},
	"protocol":  {"messages", "protocol"},
	"providers": {"messages", "providers"},
	"sandboxes": {"messages", "sandboxes"},
	"internal":  {"messages", "sandboxes", "internal"},
	// The host of plugins speaks the protocol's extension, which is theirs.
	"internal/plugin": {"messages", "protocol/plugin", "sandboxes", "internal"},
	"docs/examples":   {"protocol/plugin"},
	"actors":          {"messages", "protocol", "providers", "sandboxes", "internal"},
	"cmd/codework":    {"messages", "protocol", "providers", "sandboxes", "internal", "actors"},
	// The load harness is a client like any other, with a model of its own.
	"cmd/codework-load": {"messages", "protocol", "integration/mockmodel", "cmd/codework-load"},
	"integration":       {"integration", "messages", "protocol"},
	// The comparison with other agents is outside of the program.
	"bench": {},
}

func TestImportsGoDownwardsOnly(t *testing.T) {
	eachFile(t, func(path string, f *ast.File) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		room, allowed := roomOf(path)
		if room == "" {
			t.Errorf("%s lies in a folder that is no room of the house; say in this test what it may import", path)
			return
		}
		for _, imp := range f.Imports {
			p := strings.Trim(imp.Path.Value, `"`)
			rest, ours := strings.CutPrefix(p, module+"/")
			if !ours {
				continue
			}
			ok := false
			for _, a := range allowed {
				ok = ok || rest == a || strings.HasPrefix(rest, a+"/")
			}
			if !ok {
				t.Errorf("%s imports %s; %s may only import %v", path, p, room, allowed)
			}
		}
	})
}

// Protoactor has traps (lost askers, races, spinning mailboxes). One file
// keeps them out; everything else speaks to that file.
func TestOnlyTheFacadeTouchesProtoactor(t *testing.T) {
	const facade = "actors/runtime.go"
	trapped := []string{"RequestFuture", "StopFuture", "PoisonFuture", "SetReceiveTimeout", "Stash", "ReenterAfter",
		"Bounded", "BoundedDropping", "EventStream", "WithDeveloperSupervisionLogging", "GetMessages"}
	eachFile(t, func(path string, f *ast.File) {
		for _, imp := range f.Imports {
			if strings.Contains(imp.Path.Value, "protoactor-go") && path != facade {
				t.Errorf("%s imports protoactor-go; use %s", path, facade)
			}
		}
		if !strings.HasPrefix(path, "actors/") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			for _, name := range trapped {
				if sel.Sel.Name == name {
					t.Errorf("%s uses %s, which %s is there to avoid", path, name, facade)
				}
			}
			return true
		})
	})
}

// A reader learns from the package comment what may be relied on.
func TestEveryPackageHasAComment(t *testing.T) {
	documented := map[string]bool{}
	eachFile(t, func(path string, f *ast.File) {
		dir := filepath.Dir(path)
		if f.Doc != nil && !strings.HasSuffix(path, "_test.go") {
			documented[dir] = true
		} else if _, ok := documented[dir]; !ok && !strings.HasSuffix(path, "_test.go") {
			documented[dir] = false
		}
	})
	for dir, ok := range documented {
		if !ok {
			t.Errorf("the package in %s has no comment that states its promises", dir)
		}
	}
}

// Standard output belongs to commands: the answer, and in an editor the
// protocol.
func TestOnlyCommandsPrint(t *testing.T) {
	// These are the whole of a process whose output is its protocol.
	processes := map[string]bool{"sandboxes/agent/agent.go": true, "protocol/plugin/sdk.go": true}
	eachFile(t, func(path string, f *ast.File) {
		if processes[path] {
			return
		}
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "cmd/") || strings.Contains(path, "/cmd/") || strings.Contains(path, "/gen/") {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch pkg.Name + "." + sel.Sel.Name {
			case "fmt.Print", "fmt.Println", "fmt.Printf", "os.Stdout":
				t.Errorf("%s uses %s.%s; only commands print", path, pkg.Name, sel.Sel.Name)
			}
			return true
		})
	})
}

func roomOf(path string) (string, []string) {
	found := ""
	for room := range rooms {
		if strings.HasPrefix(path, room+"/") && len(room) > len(found) {
			found = room
		}
	}
	return found, rooms[found]
}

func eachFile(t *testing.T, f func(path string, file *ast.File)) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || !strings.Contains(path, "/") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		n++
		f(filepath.ToSlash(path), file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 20 {
		t.Fatalf("only %d files were looked at", n)
	}
}
