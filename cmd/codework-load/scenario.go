package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind is what a session does in each of its rounds.
type kind struct {
	name  string
	about string
	// marks are the scripted model's markers, of which each round takes one by
	// chance.
	marks []string

	steers    int  // prompts that join the running work
	followUps int  // prompts that wait for its end
	interrupt bool // the work is stopped some time after it began
	image     bool // the prompt has a picture
	slow      bool // somebody who hardly reads subscribes to everything
	vanish    bool // the reader's connection breaks off and is made anew
	churn     bool // each round has a connection and a session of its own
}

// The kinds by name. The delays are milliseconds between deltas.
var kinds = map[string]kind{
	"short":     {about: "one short answer", marks: []string{"text:3"}},
	"stream":    {about: "50 pieces of text, 20 ms apart", marks: []string{"text:50:20"}},
	"firehose":  {about: "2000 pieces of text as fast as they go", marks: []string{"text:2000"}},
	"tools":     {about: "5 shell calls, then a text", marks: []string{"tools:5,text:5:10"}},
	"steer":     {about: "3 shell calls and a text; 2 steers and a followUp join", marks: []string{"tools:3,text:30:10"}, steers: 2, followUps: 1},
	"interrupt": {about: "a long text or a sleeping command, stopped at some time", marks: []string{"text:1500:20", "sleep:60"}, interrupt: true},
	"image":     {about: "a prompt with a picture, then a text", marks: []string{"text:10:10"}, image: true},
	"slow":      {about: "as stream; every tenth session brings a subscriber that hardly reads", marks: []string{"text:50:20"}, slow: true},
	"vanish":    {about: "as stream; the subscriber's connection breaks off and is made anew", marks: []string{"text:50:20", "tools:5,text:5:10"}, vanish: true},
	"churn":     {about: "a connection and a session for one short answer, then both go", marks: []string{"text:3"}, churn: true},
	"faults":    {about: "the model is too busy twice, or breaks off once, before it answers", marks: []string{"429:2,text:10:5", "drop:1,text:20:5"}},
}

// mixes are scenarios of several kinds.
var mixes = map[string]string{
	"mix": "short=4,stream=4,tools=4,steer=2,interrupt=2,image=1,vanish=1,churn=1,faults=1",
}

// scenario is what the sessions of a run do.
type scenario struct {
	name  string
	kinds []kind // as often as they weigh
}

// parseScenario understands the name of a kind or mix, a list of kinds with
// weights (stream=3,tools), or a marker of the scripted model (text:50:20).
func parseScenario(text string) (scenario, error) {
	s := scenario{name: text}
	list := text
	if m, ok := mixes[text]; ok {
		list = m
	}
	if first, _, _ := strings.Cut(list, ","); strings.ContainsRune(first, ':') {
		s.kinds = []kind{{name: "prompt", marks: []string{list}}}
		return s, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		name, weight, weighed := strings.Cut(part, "=")
		k, ok := kinds[name]
		if !ok {
			return s, fmt.Errorf("no scenario %q; there are %s", name, strings.Join(scenarioNames(), ", "))
		}
		n := 1
		if weighed {
			var err error
			if n, err = strconv.Atoi(weight); err != nil || n < 1 || n > maxWeight {
				return s, fmt.Errorf("%s: expected a weight from 1 to %d, not %q", name, maxWeight, weight)
			}
		}
		k.name = name
		s.kinds = append(s.kinds, slices.Repeat([]kind{k}, n)...)
	}
	return s, nil
}

// maxWeight keeps a slip of the keyboard from filling memory.
const maxWeight = 1000

func scenarioNames() []string {
	return append(slices.Sorted(maps.Keys(kinds)), slices.Sorted(maps.Keys(mixes))...)
}

// of says what a session does: in turns, so that a mix holds for any number.
func (s scenario) of(i int) kind { return s.kinds[i%len(s.kinds)] }

// turns has the kinds mixed by a seed.
func (s scenario) shuffled(r *rand.Rand) scenario {
	s.kinds = slices.Clone(s.kinds)
	r.Shuffle(len(s.kinds), func(i, j int) { s.kinds[i], s.kinds[j] = s.kinds[j], s.kinds[i] })
	return s
}

// comparable tells whether the same prompts straight to the model are a floor
// for this scenario: work that is stopped or joined has none.
func (s scenario) comparable() bool {
	return !slices.ContainsFunc(s.kinds, func(k kind) bool {
		return k.interrupt || k.steers+k.followUps > 0 || k.churn || slices.ContainsFunc(k.marks, func(m string) bool {
			return strings.Contains(m, "429:") || strings.Contains(m, "500:") || strings.Contains(m, "drop:")
		})
	})
}

// prompt is the text of a round; the number keeps its faults apart from those
// of others.
func (k kind) prompt(r *rand.Rand, session, round int) string {
	return fmt.Sprintf("load mock=%s#s%d-%d", k.marks[r.IntN(len(k.marks))], session, round)
}

// between is a time by chance.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// pictureSide is the width of a picture in pixels; with noise it makes a file
// of about 50 KB, as a screenshot of a window has.
const pictureSide = 128

// picture is a PNG that differs from all others.
func picture(r *rand.Rand) ([]byte, error) {
	m := image.NewNRGBA(image.Rect(0, 0, pictureSide, pictureSide))
	for y := range pictureSide {
		for x := range pictureSide {
			v := r.Uint32()
			m.SetNRGBA(x, y, color.NRGBA{uint8(v), uint8(v >> 8), uint8(v >> 16), 255})
		}
	}
	var b bytes.Buffer
	err := png.Encode(&b, m)
	return b.Bytes(), err
}

// dataURL is a picture as Chat Completions takes it.
func dataURL(png []byte) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(png)
}
