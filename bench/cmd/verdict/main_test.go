package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files are raw samples as the programs write them: every budget is met, most of
// them just so. Of three rounds the middle one counts, each by its own floor.
func files() map[string]string {
	return map[string]string{
		"oneshot.jsonl": `
{"peer":"codework","scenario":"version","run":0,"exit":0,"wall_s":0.015}
{"peer":"codework","scenario":"text:1","run":-1,"exit":0,"wall_s":9,"user_s":9,"sys_s":9,"tree_rss_mb":900,"requests":1,"sent_kb":90}
{"peer":"codework","scenario":"text:1","run":0,"exit":0,"wall_s":0.1,"user_s":0.04,"sys_s":0.02,"tree_rss_mb":60,"requests":1,"sent_kb":5}
{"peer":"codework","scenario":"tools:20","run":0,"exit":0,"user_s":0.1,"sys_s":0.06,"gaps_ms":[1,5,30]}
{"peer":"codework-warm","scenario":"text:1","run":0,"exit":0,"wall_s":0.03,"user_s":0.01,"sys_s":0.01,"tree_rss_mb":20}
{"peer":"codework-warm","scenario":"tools:20","run":0,"exit":0,"user_s":0.02,"sys_s":0.02,"gaps_ms":[5]}
{"peer":"codex-native","scenario":"text:1","run":0,"exit":0,"wall_s":0.2,"user_s":0.1,"sys_s":0.1,"tree_rss_mb":140}
{"peer":"codex-native","scenario":"text:1","run":1,"exit":1,"wall_s":0.001}
`,
		"home.jsonl": `
{"scenario":"text:1","runs":4,"cpu_s":0.04,"rss_mb":40}
{"scenario":"tools:20","runs":4,"cpu_s":0.24,"rss_mb":60}
`,
		"load.jsonl": `
{"driver":"direct","mode":"load","n":200,"wall_s":1,"delta_ms":[1,2,10,11]}
{"driver":"codework","mode":"load","n":200,"ready_s":0.05,"wall_s":1.3,"admit_ms":[20,30,40],"delta_ms":[1,2,30,40],"cpu_create_s":1,"cpu_prompt_s":3,"rss_idle_mb":20,"rss_end_mb":49}
{"driver":"codex-ws","mode":"load","n":200,"ready_s":0.2,"wall_s":17,"admit_ms":[3700,4000,5100],"delta_ms":[1200,2000,3800,4000],"failures":0}
{"driver":"qwen","mode":"load","n":200,"wall_s":42,"admit_ms":[168,200,307],"delta_ms":[1,2,3,4],"failures":137}
{"driver":"direct","mode":"load","n":200,"wall_s":2,"delta_ms":[1,2,100,110]}
{"driver":"codework","mode":"load","n":200,"ready_s":0.06,"wall_s":2.2,"admit_ms":[20,30,40],"delta_ms":[1,2,110,140],"cpu_create_s":1,"cpu_prompt_s":3,"rss_idle_mb":20,"rss_end_mb":49}
{"driver":"direct","mode":"load","n":200,"wall_s":1,"delta_ms":[1,2,10,11]}
{"driver":"codework","mode":"load","n":200,"ready_s":0.07,"wall_s":5,"admit_ms":[20,30,40],"delta_ms":[1,2,300,400],"cpu_create_s":1,"cpu_prompt_s":3,"rss_idle_mb":20,"rss_end_mb":49}
{"driver":"direct","mode":"load","n":1000,"wall_s":2,"delta_ms":[1,2,10,11]}
{"driver":"codework","mode":"load","n":1000,"ready_s":0.06,"wall_s":3,"admit_ms":[20,30,40],"delta_ms":[1,2,30,40]}
{"driver":"codework","mode":"interrupt","n":7,"ready_s":0.06,"stopped_ms":[5,6,7],"process_gone_ms":[5,6]}
{"driver":"codex-ws","mode":"interrupt","n":7,"ready_s":0.2,"stopped_ms":[14,16,17],"process_gone_ms":[0,0],"process_still_alive_after_5s":7}
`,
		"once.jsonl":   `{"binary_mb":25}` + "\n" + `{"idle_mb":25,"idle_tree_mb":33}` + "\n",
		"absent.jsonl": `{"pi":"not installed in /opt"}` + "\n",
	}
}

// judge writes the files after a change and returns the table's rows by what they
// are about.
func judge(t *testing.T, change func(files map[string]string)) (rows map[string]string, met bool) {
	t.Helper()
	all := files()
	change(all)
	dir := t.TempDir()
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := readSamples(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	met = report(&out, s)
	rows = map[string]string{}
	topic := ""
	for line := range strings.Lines(out.String()) {
		cells := strings.Split(line, " | ")
		name := strings.TrimSpace(strings.TrimPrefix(cells[0], "| "))
		if rest, more := strings.CutPrefix(name, "… "); more {
			name = topic + ", " + rest
		} else {
			topic, _, _ = strings.Cut(name, ":")
		}
		rows[name] = strings.TrimSpace(line)
	}
	return rows, met
}

func TestLimitsThemselvesAreMet(t *testing.T) {
	rows, met := judge(t, func(map[string]string) {})
	if !met {
		t.Errorf("%v", rows)
	}
	for what, want := range map[string]string{
		"one short answer, cold: wall":                            "| one short answer, cold: wall | ≤ 0.5 × codex | 0.5 × codex | met | 0.100 s | 0.200 s | – | – | – | – |",
		"one short answer, cold, CPU, home process included":      "| … CPU, home process included | ≤ 0.15 × codex | 0.15 × codex | met | 0.030 s | 0.200 s | – | – | – | – |",
		"CPU per tool turn, bash included":                        "| CPU per tool turn, bash included | ≤ 5 ms | 5.00 ms | met | 5.00 ms | – | – | – | – | – |",
		"200 sessions prompted at once, delay of a delta, p99":    "| … delay of a delta, p99 | ≤ 20 ms + floor | 20 ms + floor | met | 110 ms | 3800 ms | – | 3.00 ms | – | 10.0 ms |",
		"200 sessions prompted at once, sessions failed or short": "| … sessions failed or short | ≤ 0 | 0 | met | 0 | 0 | – | 137 | – | 0 |",
		"interrupt during sleep 60, process gone, p50":            "| … process gone, p50 | ≤ 5 ms | 5.00 ms | met | 5.00 ms | – | – | – | – | – |",
		"interrupt during sleep 60, left running, or failed":      "| … left running, or failed | ≤ 0 | 0 | met | 0 | 7 | – | – | – | – |",
	} {
		if rows[what] != want {
			t.Errorf("%s:\n%s\n%s", what, rows[what], want)
		}
	}
	if _, said := rows["pi is absent: not installed in /opt."]; !said {
		t.Error("nothing says why pi is absent")
	}
}

func TestWhatIsAboveItsLimitIsMissed(t *testing.T) {
	tests := []struct{ row, file, old, new, want string }{
		{"one short answer, cold: wall", "oneshot.jsonl", `"wall_s":0.1,`, `"wall_s":0.11,`, "0.55 × codex | **missed**"},
		{"one short answer, cold, CPU, home process included", "home.jsonl", `"cpu_s":0.04`, `"cpu_s":0.08`, "0.2 × codex | **missed**"},
		{"harness time per tool turn, p50", "oneshot.jsonl", `[1,5,30]`, `[1,6,30]`, "6.00 ms | **missed**"},
		{"--version", "oneshot.jsonl", `"run":0,"exit":0,"wall_s":0.015`, `"run":0,"exit":0,"wall_s":0.015}` + "\n" + `{"peer":"codework","scenario":"version","run":1,"exit":2`, "– | **not measured**"},
		{"200 sessions prompted at once: wall", "load.jsonl", `"wall_s":2.2`, `"wall_s":3`, "1.5 × floor | **missed**"},
		{"200 sessions prompted at once, sessions failed or short", "load.jsonl", `"wall_s":5`, `"short":1,"wall_s":5`, "1 | **missed**"},
		{"200 sessions prompted at once, memory above idle per session", "load.jsonl", `"rss_end_mb":49`, `"rss_end_mb":50`, "154 KB | **missed**"},
		{"1000 sessions: wall", "load.jsonl", `"wall_s":3,`, `"wall_s":3.1,`, "1.55 × floor | **missed**"},
		{"interrupt during sleep 60, left running, or failed", "load.jsonl", `"process_gone_ms":[5,6]`, `"process_gone_ms":[0,0],"process_still_alive_after_5s":1`, "1 | **missed**"},
		{"interrupt during sleep 60, process gone, p50", "load.jsonl", `"process_gone_ms":[5,6]`, `"process_gone_ms":[0,0],"process_still_alive_after_5s":1`, "– | **not measured**"},
		{"stripped binary", "once.jsonl", `{"binary_mb":25}`, `{}`, "– | **not measured**"},
		{"1000 sessions: wall", "load.jsonl", `"driver":"direct","mode":"load","n":1000`, `"driver":"none","mode":"load","n":1000`, "– | **not measured**"},
		{"one short answer, cold: wall", "oneshot.jsonl", `codex-native`, `codex-other`, "– | **not measured**"},
	}
	for _, tt := range tests {
		rows, met := judge(t, func(files map[string]string) {
			if !strings.Contains(files[tt.file], tt.old) {
				t.Fatalf("%s is not in %s", tt.old, tt.file)
			}
			files[tt.file] = strings.ReplaceAll(files[tt.file], tt.old, tt.new)
		})
		if met || !strings.Contains(rows[tt.row], tt.want) {
			t.Errorf("%s to %s: all met: %v\n%s", tt.old, tt.new, met, rows[tt.row])
		}
	}
}

// Without the agent that a budget is a ratio to nothing can be said about it.
func TestRatiosToAnAbsentAgentAreNotJudged(t *testing.T) {
	absent := func(files map[string]string) {
		files["oneshot.jsonl"] = strings.ReplaceAll(files["oneshot.jsonl"], "codex-native", "other")
		files["absent.jsonl"] = `{"codex":"left out"}`
	}
	rows, met := judge(t, absent)
	n := 0
	for _, row := range rows {
		n += strings.Count(row, "| not judged: codex is absent |")
	}
	if !met || n != 4 {
		t.Errorf("all met: %v, %d not judged", met, n)
	}
}

func TestAFolderWithoutSamplesIsAnError(t *testing.T) {
	if _, err := readSamples(t.TempDir()); err == nil {
		t.Error("no error")
	}
}
