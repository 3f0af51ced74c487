// Command verdict reads the raw samples of bench/budgets and prints, as a table
// in Markdown, what each budget is, what was measured, what the other agents
// needed in the same run, and whether it is met.
//
//	verdict OUT
//
// The exit code is 0 when no budget is missed, 1 when one is missed or was not
// measured, 2 when the samples cannot be read. A budget that is a ratio to
// another agent which is not there is not judged; the table says why.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	exitMissed = 1
	exitBroken = 2
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: verdict OUT")
		os.Exit(exitBroken)
	}
	s, err := readSamples(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "verdict:", err)
		os.Exit(exitBroken)
	}
	if !report(os.Stdout, s) {
		os.Exit(exitMissed)
	}
}

// samples are what was measured.
type samples struct {
	oneshot []oneshot
	loads   []load
	home    map[string]homeSample // by scenario
	once    map[string]float64    // measured once
	absent  map[string]string     // agents that are not there, and why
}

// oneshot is a run of an agent, as the comparison's program writes it.
type oneshot struct {
	Peer     string    `json:"peer"`
	Scenario string    `json:"scenario"`
	Run      int       `json:"run"` // -1 is for warming up
	Exit     int       `json:"exit"`
	Wall     float64   `json:"wall_s"`
	User     float64   `json:"user_s"`
	System   float64   `json:"sys_s"`
	TreeMB   float64   `json:"tree_rss_mb"`
	Requests int       `json:"requests"`
	SentKB   float64   `json:"sent_kb"`
	GapsMs   []float64 `json:"gaps_ms"`
}

// load is a run of a server, or of the floor, whose driver is called direct.
type load struct {
	Driver   string `json:"driver"`
	Mode     string `json:"mode"` // load or interrupt
	Sessions int    `json:"n"`
	Failures int    `json:"failures"`
	Short    int    `json:"short"` // sessions of which pieces of text are missing

	ReadyS     float64   `json:"ready_s"`
	WallS      float64   `json:"wall_s"`
	AdmitMs    []float64 `json:"admit_ms"` // p50, p90, largest
	DeltaMs    []float64 `json:"delta_ms"` // p50, p90, p99, largest
	CreateCPU  float64   `json:"cpu_create_s"`
	PromptCPU  float64   `json:"cpu_prompt_s"`
	IdleMB     float64   `json:"rss_idle_mb"`
	EndMB      float64   `json:"rss_end_mb"`
	StoppedMs  []float64 `json:"stopped_ms"`      // p50, p90, largest
	GoneMs     []float64 `json:"process_gone_ms"` // p50, largest
	StillAlive int       `json:"process_still_alive_after_5s"`

	floor *load // of the same round, if this one is compared with it
}

// homeSample is what the home process that ran already used in a scenario's
// runs, with all its children.
type homeSample struct {
	Scenario string  `json:"scenario"`
	Runs     int     `json:"runs"`
	CPU      float64 `json:"cpu_s"` // of all runs
	MB       float64 `json:"rss_mb"`
}

// floorDriver stands for no server in between.
const floorDriver = "direct"

func readSamples(dir string) (*samples, error) {
	s := &samples{home: map[string]homeSample{}, once: map[string]float64{}, absent: map[string]string{}}
	floors := map[int]*load{}
	err := errors.Join(
		eachLine(filepath.Join(dir, "oneshot.jsonl"), func(o oneshot) { s.oneshot = append(s.oneshot, o) }),
		eachLine(filepath.Join(dir, "load.jsonl"), func(l load) {
			// A round begins with its floor.
			if l.Mode == "load" {
				if l.Driver == floorDriver {
					floors[l.Sessions] = &l
				}
				l.floor = floors[l.Sessions]
			}
			s.loads = append(s.loads, l)
		}),
		eachLine(filepath.Join(dir, "home.jsonl"), func(h homeSample) {
			sum := s.home[h.Scenario]
			s.home[h.Scenario] = homeSample{Runs: sum.Runs + h.Runs, CPU: sum.CPU + h.CPU, MB: max(sum.MB, h.MB)}
		}),
		eachLine(filepath.Join(dir, "once.jsonl"), func(m map[string]float64) {
			for k, v := range m {
				s.once[k] = v
			}
		}),
		eachLine(filepath.Join(dir, "absent.jsonl"), func(m map[string]string) {
			for k, v := range m {
				s.absent[k] = v
			}
		}),
	)
	if err == nil && len(s.oneshot)+len(s.loads)+len(s.once) == 0 {
		err = fmt.Errorf("no samples in %s", dir)
	}
	return s, err
}

// eachLine decodes the lines of a file. That there is no such file means that
// nothing of this kind was measured.
func eachLine[T any](name string, use func(T)) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		if strings.TrimSpace(line) != "" {
			var v T
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			use(v)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
