package settings

import (
	"math"
	"slices"
	"strconv"
)

// checker collects what is wrong with a file and which keys nobody reads.
type checker struct {
	faults  []Fault
	unknown []string
}

func (c *checker) fault(path, want string) { c.faults = append(c.faults, Fault{path, want}) }

// expected reports that n is not what s accepts. What is found is said by
// kind only.
func (c *checker) expected(path string, s *shape, n *node) {
	want := "expected " + s.want
	if !s.takes(n.kind) {
		want += ", found " + kindName(n.kind)
	}
	c.fault(path, want)
}

// takes tells whether a value of that kind can be right at all.
func (s *shape) takes(kind byte) bool {
	if s.either != nil {
		return slices.ContainsFunc(s.either, func(e *shape) bool { return e.takes(kind) })
	}
	switch s.kind {
	case 'i', '0':
		return kind == '0'
	case 'b':
		return kind == 't' || kind == 'f'
	case '*':
		return true
	}
	return kind == s.kind
}

func (c *checker) check(path string, s *shape, n *node) {
	if !s.takes(n.kind) {
		c.expected(path, s, n)
		return
	}
	if s.either != nil {
		one := s.either[slices.IndexFunc(s.either, func(e *shape) bool { return e.takes(n.kind) })]
		if one.kind != '[' && one.kind != '{' {
			one = &shape{kind: one.kind, want: s.want, words: one.words, valid: one.valid}
		}
		s = one
	}
	switch s.kind {
	case '{':
		c.object(path, s, n)
	case '[':
		for i, e := range n.elems {
			c.check(joinIndex(path, i), s.elem, e)
		}
		if s.mustHave != "" && !slices.ContainsFunc(n.elems, func(e *node) bool { return e.text() == s.mustHave }) {
			c.fault(path, "expected "+s.want)
		}
	case '"':
		t := n.text()
		if s.words != nil && !slices.Contains(s.words, t) || s.valid != nil && !s.valid(t) {
			c.expected(path, s, n)
		}
	case '0', 'i':
		f, err := strconv.ParseFloat(string(n.lit), 64)
		if err != nil || f < s.min || f > s.max || s.kind == 'i' && f != math.Trunc(f) {
			c.expected(path, s, n)
		}
	}
}

func (c *checker) object(path string, s *shape, n *node) {
	for _, m := range n.members {
		at := join(path, m.key)
		i := slices.IndexFunc(s.fields, func(f field) bool { return f.key == m.key })
		switch {
		case i >= 0:
			c.check(at, s.fields[i].shape, m.val)
		case slices.Contains(s.reserved, m.key):
			c.fault(at, "is reserved and cannot be set here")
		case s.others != nil:
			if s.keyOK != nil && !s.keyOK(m.key) {
				c.fault(at, "expected as key "+s.keyWant)
				continue
			}
			c.check(at, s.others, m.val)
		case s.strict:
			c.fault(at, "is not known; expected one of "+fieldNames(s.fields))
		default:
			c.unknown = append(c.unknown, at)
		}
	}
	for _, f := range s.fields {
		if f.required && n.get(f.key) == nil {
			c.fault(join(path, f.key), "is missing; expected "+f.shape.want)
		}
	}
}

func fieldNames(fields []field) string {
	var out string
	for i, f := range fields {
		if i > 0 {
			out += ", "
		}
		out += f.key
	}
	return out
}
