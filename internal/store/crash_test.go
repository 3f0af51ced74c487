package store

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// crashRounds is how often TestAcknowledgedEventsSurviveKill kills.
var crashRounds = flag.Int("crash-rounds", 20, "rounds of the kill test")

// childEnv makes the test binary append to the store it names until killed.
const childEnv = "STORE_TEST_APPEND_TO"

// childSessions is how many sessions the child writes at once.
const childSessions = 8

// appendForEver appends to a few sessions and prints "session seq" for each
// event that was acknowledged. The store is told to rest now and then.
func appendForEver(dir string) {
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var out sync.Mutex
	for i := range childSessions {
		id := fmt.Sprint("ses_", i)
		var last int64
		b := Batch{Session: id}
		if snap, err := s.Load(context.Background(), id); err == nil {
			if last = snap.Head.Seq; snap.Damaged != nil {
				fmt.Println("error", snap.Damaged)
				os.Exit(1)
			}
		}
		go func() {
			for saved := int64(0); ; { // each child begins its checkpoints anew
				b.Record = session(id, "T", last+1)
				b.Events = events(id, last, 1+int(last)%3)
				b.Checkpoint = nil
				if end := last + int64(len(b.Events)); end > saved+10 {
					b.Checkpoint = at(end, saved)
					saved = end
				}
				if err := commit(s, b); err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				last += int64(len(b.Events))
				out.Lock()
				fmt.Println(id, last)
				out.Unlock()
			}
		}()
	}
	for {
		if err := s.Rest(context.Background()); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond)
	}
}

// runChild lets a child append for a while, kills it and notes what it
// acknowledged.
func runChild(t *testing.T, dir string, acked map[string]int64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	first := true
	for lines.Scan() {
		if first {
			first = false
			time.AfterFunc(time.Duration(rand.IntN(60_000))*time.Microsecond, func() { cmd.Process.Kill() })
		}
		id, n, _ := strings.Cut(lines.Text(), " ")
		seq, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			if id == "error" {
				t.Fatal(lines.Text())
			}
			break // the last line may be cut
		}
		acked[id] = max(acked[id], seq)
	}
	cmd.Wait() // killed: nothing to learn from its error
	if first {
		t.Fatal("child acknowledged nothing")
	}
}

func TestAcknowledgedEventsSurviveKill(t *testing.T) {
	dir := t.TempDir()
	acked := make(map[string]int64)
	for range *crashRounds {
		runChild(t, dir, acked)
		s, err := Open(context.Background(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		for id, seq := range acked {
			snap := mustLoad(t, s, id)
			if snap.Damaged != nil || snap.Head.Seq < seq {
				t.Errorf("%s: acknowledged %d, found %d, damage %v", id, seq, snap.Head.Seq, snap.Damaged)
			}
			// What checkpoints cover and what is behind them is the log.
			kept := mustRecall(t, s, id)
			covered := int64(0)
			for _, c := range kept.Checkpoints {
				if !reflect.DeepEqual(c, *at(c.Seq, covered)) {
					t.Errorf("%s: a checkpoint %+v behind %d", id, c, covered)
				}
				covered = c.Seq
			}
			if kept.Head != snap.Head || covered+int64(len(kept.Events)) != snap.Head.Seq {
				t.Errorf("%s: checkpoints to %d and %d events are not the log to %d", id, covered, len(kept.Events), snap.Head.Seq)
			}
			if problems, err := s.Check(context.Background(), id); err != nil || problems != nil {
				t.Errorf("%s: %q %v", id, problems, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(acked) != childSessions {
		t.Errorf("only %d sessions were written", len(acked))
	}
}
