package memory

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// sed knows the commands s (with g, p, i and a number), d, p, q, =, a, i and c;
// addresses are numbers, $, /expression/ and pairs of them, and !.
func sed(p *process, args []string) int {
	f, ok := p.flags(args, "nErsi", "e")
	if !ok {
		return usage
	}
	scripts, names := f.set['e'], f.rest
	if len(scripts) == 0 {
		if len(names) == 0 {
			p.errorf("usage: sed [-n] [-E] [-i] SCRIPT [FILE…]")
			return usage
		}
		scripts, names = names[:1], names[1:]
	}
	commands, err := parseSed(strings.Join(scripts, "\n"), f.has('E') || f.has('r'))
	if err != nil {
		p.errorf("%v", err)
		return 1
	}
	if !f.has('i') {
		return p.each(names, func(_ string, r io.Reader) error { return p.edit(commands, r, p.out, f.has('n')) })
	}
	return p.all(names, "cannot edit", func(name string) error {
		r, err := p.input(name)
		if err != nil {
			return err
		}
		var out strings.Builder
		if err := p.edit(commands, r, &out, f.has('n')); err != nil && err != errEnough {
			return err
		}
		return p.tree().write(p.abs(name), []byte(out.String()), filePerm&^p.j.m.umask)
	})
}

// sedAddress is a line number, the last line ($: -1), or an expression.
type sedAddress struct {
	line int
	re   *regexp.Regexp
}

type sedCommand struct {
	from, to *sedAddress
	not      bool
	name     byte
	re       *regexp.Regexp
	text     string // replacement, or what a, i and c print
	all      bool
	nth      int
	print    bool
	inside   bool // a pair of addresses has begun
}

// parseSed reads a script.
func parseSed(s string, extended bool) ([]*sedCommand, error) {
	var out []*sedCommand
	for {
		s = strings.TrimLeft(s, " \t\n;")
		if s == "" {
			return out, nil
		}
		if s[0] == '#' {
			_, s, _ = strings.Cut(s, "\n")
			continue
		}
		c := &sedCommand{}
		var err error
		if c.from, s, err = parseAddress(s, extended); err != nil {
			return nil, err
		}
		if c.from != nil && strings.HasPrefix(s, ",") {
			if c.to, s, err = parseAddress(s[1:], extended); err != nil {
				return nil, err
			}
			if c.to == nil {
				return nil, errors.New("an address is missing after ','")
			}
		}
		s = strings.TrimLeft(s, " ")
		if strings.HasPrefix(s, "!") {
			c.not, s = true, strings.TrimLeft(s[1:], " ")
		}
		if s == "" {
			return nil, errors.New("a command is missing")
		}
		c.name, s = s[0], s[1:]
		switch c.name {
		case 'd', 'p', 'q', '=':
		case 'a', 'i', 'c':
			s = strings.TrimPrefix(strings.TrimLeft(s, " "), "\\")
			c.text, s, _ = strings.Cut(strings.TrimLeft(s, "\n "), "\n")
			c.text = escapes.Replace(c.text)
		case 's':
			if s, err = c.substitution(s, extended); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("command %q is not available in this sandbox", c.name)
		}
		out = append(out, c)
	}
}

func parseAddress(s string, extended bool) (*sedAddress, string, error) {
	switch {
	case s == "":
		return nil, s, nil
	case s[0] == '$':
		return &sedAddress{line: -1}, s[1:], nil
	case s[0] >= '0' && s[0] <= '9':
		i := 0
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		n, err := strconv.Atoi(s[:i])
		return &sedAddress{line: n}, s[i:], err
	case s[0] == '/':
		text, rest, ok := delimited(s[1:], '/')
		if !ok {
			return nil, s, errors.New("an expression is not ended by '/'")
		}
		re, err := regexp.Compile(expression(text, extended))
		return &sedAddress{re: re}, rest, err
	}
	return nil, s, nil
}

// delimited cuts s at the next delimiter that has no backslash before it.
func delimited(s string, d byte) (text, rest string, ok bool) {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			if s[i+1] != d {
				out.WriteByte(s[i])
			}
			i++
			out.WriteByte(s[i])
		case s[i] == d:
			return out.String(), s[i+1:], true
		default:
			out.WriteByte(s[i])
		}
	}
	return "", s, false
}

// substitution reads what follows an s.
func (c *sedCommand) substitution(s string, extended bool) (string, error) {
	if s == "" {
		return s, errors.New("s needs an expression and a replacement")
	}
	d := s[0]
	text, rest, ok := delimited(s[1:], d)
	if ok {
		c.text, rest, ok = delimited(rest, d)
	}
	if !ok {
		return s, fmt.Errorf("s is not ended by %q", d)
	}
	text = expression(text, extended)
	for rest != "" && strings.IndexByte("gpiI0123456789", rest[0]) >= 0 {
		switch f := rest[0]; f {
		case 'g':
			c.all = true
		case 'p':
			c.print = true
		case 'i', 'I':
			text = "(?i)" + text
		default:
			c.nth = c.nth*10 + int(f-'0')
		}
		rest = rest[1:]
	}
	var err error
	c.re, err = regexp.Compile(text)
	return rest, err
}

// hits tells whether a command is for a line.
func (c *sedCommand) hits(n int, line string, last bool) bool {
	is := func(a *sedAddress) bool {
		if a.re != nil {
			return a.re.MatchString(line)
		}
		return a.line == n || a.line == -1 && last
	}
	hit := true
	switch {
	case c.from == nil:
	case c.to == nil:
		hit = is(c.from)
	case c.inside:
		if is(c.to) || c.to.re == nil && c.to.line > 0 && n >= c.to.line {
			c.inside = false
		}
	case is(c.from):
		c.inside = !(c.to.re == nil && (c.to.line > 0 && c.to.line <= n || c.to.line == -1 && last))
	default:
		hit = false
	}
	return hit != c.not
}

// replace is a line with what the expression matches replaced.
func (c *sedCommand) replace(line string) (string, bool) {
	var out strings.Builder
	at, n, done := 0, 0, false
	for _, m := range c.re.FindAllStringSubmatchIndex(line, -1) {
		n++
		if c.nth > 0 && n < c.nth {
			continue
		}
		out.WriteString(line[at:m[0]])
		for i := 0; i < len(c.text); i++ {
			switch ch := c.text[i]; {
			case ch == '&':
				out.WriteString(line[m[0]:m[1]])
			case ch == '\\' && i+1 < len(c.text):
				i++
				switch g := c.text[i]; {
				case g >= '0' && g <= '9':
					if k := int(g-'0') * 2; k+1 < len(m) && m[k] >= 0 {
						out.WriteString(line[m[k]:m[k+1]])
					}
				case g == 'n':
					out.WriteByte('\n')
				case g == 't':
					out.WriteByte('\t')
				default:
					out.WriteByte(g)
				}
			default:
				out.WriteByte(ch)
			}
		}
		at, done = m[1], true
		if !c.all {
			break
		}
	}
	out.WriteString(line[at:])
	return out.String(), done
}

// edit runs the commands over all lines.
func (p *process) edit(commands []*sedCommand, r io.Reader, w io.Writer, quiet bool) error {
	n := 0
	one := func(line string, whole, last bool) error {
		n++
		put := func(s string) {
			if whole || !last {
				s += "\n"
			}
			io.WriteString(w, s)
		}
		var after []string
		gone, quit := false, false
	commands:
		for _, c := range commands {
			if !c.hits(n, line, last) {
				continue
			}
			switch c.name {
			case 'd':
				gone = true
				break commands
			case 'p':
				put(line)
			case 'q':
				quit = true
				break commands
			case '=':
				fmt.Fprintln(w, n)
			case 'a':
				after = append(after, c.text)
			case 'i':
				fmt.Fprintln(w, c.text)
			case 'c':
				fmt.Fprintln(w, c.text)
				gone = true
				break commands
			case 's':
				var done bool
				if line, done = c.replace(line); done && c.print {
					put(line)
				}
			}
		}
		if !gone && !quiet {
			put(line)
		}
		for _, text := range after {
			fmt.Fprintln(w, text)
		}
		if quit {
			return errEnough
		}
		return nil
	}
	// A line is known to be the last one when the next is missing.
	held, heldWhole, have := "", false, false
	err := p.lines(r, func(line string, whole bool) error {
		if have {
			if err := one(held, heldWhole, false); err != nil {
				return err
			}
		}
		held, heldWhole, have = line, whole, true
		return nil
	})
	if err == nil && have {
		err = one(held, heldWhole, true)
	}
	return err
}
