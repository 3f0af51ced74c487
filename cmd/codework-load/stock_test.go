package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is stored is measured against what it should answer, filled once and
// found again; plots and thresholds are those of other runs.
func TestAStockIsFilledOnceAndMeasured(t *testing.T) {
	dir := t.TempDir()
	home, plots := filepath.Join(dir, "home"), filepath.Join(dir, "plots")
	for round := range 2 {
		r := load(t, "--stored", "200", "--entries", "50", "--samples", "2", "--home", home, "--svg", plots, "--json", "--max", "open.p50=1h", "--max", "failures=0")
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		if r.code != 0 || len(lines) != 2 {
			t.Fatalf("%+v", r)
		}
		for i, want := range []struct {
			stock      string
			number     int
			operations []string
		}{{"stored", 200, storedTimes}, {"entries", 50, entriesTimes}} {
			var got struct {
				Stock       string
				Number      int
				FillSeconds float64
				Operations  []struct {
					Name  string
					Times struct{ N int }
				}
			}
			if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
				t.Fatal(err)
			}
			if got.Stock != want.stock || got.Number != want.number || len(got.Operations) != len(want.operations) || (got.FillSeconds > 0) != (round == 0) {
				t.Errorf("round %d: %s", round, lines[i])
			}
			for _, o := range got.Operations {
				if o.Times.N == 0 {
					t.Errorf("%s was not measured", o.Name)
				}
				if !slices.Contains(want.operations, o.Name) {
					t.Errorf("a threshold cannot name %s", o.Name)
				}
			}
		}
	}
	for _, name := range []string{"stored", "entries"} {
		b, err := os.ReadFile(filepath.Join(plots, name+".svg"))
		if err != nil || !bytes.Contains(b, []byte("<svg")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := load(t, "--stored", "200", "--samples", "1", "--home", home, "--max", "search.p50=1ns")
	if r.code != exitFailed || !strings.Contains(r.out, "missed: search.p50=1ns: it is ") {
		t.Errorf("%+v", r)
	}
}

func TestWrongUseOfAStock(t *testing.T) {
	for _, args := range [][]string{
		{"--stored", "0"}, {"--stored", "x"}, {"--entries", "1"}, {"--idle", "0"}, {"--idle", "5", "--curve", "1"}, {"--stored", "1000", "--floor"},
		{"--home", "x"}, {"--home", "x", "--idle", "1"}, {"--idle", "1", "--beside", "burn"}, {"--stored", "1000", "--samples", "0"}, {"--stored", "1000", "--html", "x"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != exitUsage || out.Len() > 0 || errs.Len() == 0 || strings.Contains(errs.String(), "find codework") {
			t.Errorf("%v: %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
}
