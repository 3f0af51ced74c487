package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

func cat(p *process, args []string) int {
	f, ok := p.flags(args, "nuA", "")
	if !ok {
		return usage
	}
	n := 0
	return p.each(f.rest, func(_ string, r io.Reader) error {
		if !f.has('n') {
			_, err := io.Copy(p.out, ended{p, r})
			return err
		}
		return p.lines(r, func(line string, _ bool) error {
			n++
			p.printf("%6d\t%s\n", n, line)
			return nil
		})
	})
}

// ended is a reader that ends with the command.
type ended struct {
	p *process
	r io.Reader
}

func (e ended) Read(b []byte) (int, error) {
	if e.p.stopped() {
		return 0, e.p.ctx.Err()
	}
	return e.r.Read(b)
}

func yes(p *process, args []string) int {
	word := "y"
	if len(args) > 0 {
		word = strings.Join(args, " ")
	}
	block := []byte(strings.Repeat(word+"\n", 1+pieceSize/(len(word)+1)))
	for !p.stopped() {
		if _, err := p.out.Write(block); err != nil {
			return 1
		}
	}
	return 1
}

// count reads the N of head and tail: "-n 5", "-5", "-c 10", "+3".
func (p *process) count(args []string) (n int64, bytes, fromStart bool, rest []string, ok bool) {
	text := "10"
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-n" || a == "-c":
			bytes = a == "-c"
			if i++; i >= len(args) {
				p.errorf("option %s needs a value", a)
				return 0, false, false, nil, false
			}
			text = args[i]
		case strings.HasPrefix(a, "-n") || strings.HasPrefix(a, "-c"):
			bytes, text = a[1] == 'c', a[2:]
		case len(a) > 1 && a[0] == '-' && a[1] >= '0' && a[1] <= '9':
			text = a[1:]
		case a == "-q":
		case len(a) > 1 && a[0] == '-':
			p.errorf("unknown option %s in this sandbox", a)
			return 0, false, false, nil, false
		default:
			rest = append(rest, a)
		}
	}
	fromStart = strings.HasPrefix(text, "+")
	factor := int64(1)
	for suffix, by := range map[string]int64{"K": 1 << 10, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if t, found := strings.CutSuffix(text, suffix); found {
			text, factor = t, by
		}
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(text, "+"), 10, 40)
	if err != nil {
		p.errorf("bad number %q", text)
		return 0, false, false, nil, false
	}
	return n * factor, bytes, fromStart, rest, true
}

func head(p *process, args []string) int {
	n, bytes, _, rest, ok := p.count(args)
	if !ok || n < 0 {
		return usage
	}
	return p.each(rest, func(name string, r io.Reader) error {
		if len(rest) > 1 {
			p.printf("==> %s <==\n", name)
		}
		if bytes {
			_, err := io.Copy(p.out, io.LimitReader(ended{p, r}, n))
			return err
		}
		left := n
		if left == 0 {
			return nil
		}
		err := p.lines(r, func(line string, whole bool) error {
			p.line(line, whole)
			if left--; left == 0 {
				return errDone
			}
			return nil
		})
		if err == errDone {
			err = nil
		}
		return err
	})
}

// errDone ends the reading of one input.
var errDone = fmt.Errorf("done")

// line prints a line, with its end if it had one.
func (p *process) line(line string, whole bool) {
	if whole {
		line += "\n"
	}
	io.WriteString(p.out, line)
}

func tail(p *process, args []string) int {
	n, bytes, fromStart, rest, ok := p.count(args)
	if !ok || n < 0 {
		return usage
	}
	return p.each(rest, func(name string, r io.Reader) error {
		if len(rest) > 1 {
			p.printf("==> %s <==\n", name)
		}
		all, err := io.ReadAll(io.LimitReader(ended{p, r}, MaxValues))
		if err != nil {
			return err
		}
		text := string(all)
		switch {
		case bytes && fromStart:
			text = text[min(max(n-1, 0), int64(len(text))):]
		case bytes:
			text = text[max(0, int64(len(text))-n):]
		default:
			lines := strings.SplitAfter(text, "\n")
			if lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1]
			}
			if fromStart {
				lines = lines[min(max(n-1, 0), int64(len(lines))):]
			} else {
				lines = lines[max(0, int64(len(lines))-n):]
			}
			text = strings.Join(lines, "")
		}
		_, err = io.WriteString(p.out, text)
		return err
	})
}

func tac(p *process, args []string) int {
	return p.each(args, func(_ string, r io.Reader) error {
		var all []string
		err := p.lines(r, func(line string, _ bool) error { all = append(all, line); return nil })
		for _, line := range slices.Backward(all) {
			p.printf("%s\n", line)
		}
		return err
	})
}

func wc(p *process, args []string) int {
	f, ok := p.flags(args, "lwcm", "")
	if !ok {
		return usage
	}
	all := len(f.set) == 0
	var sum [4]int64
	show := func(n [4]int64, name string) {
		var parts []string
		for i, c := range []byte("lwmc") {
			if f.has(c) || all && c != 'm' {
				parts = append(parts, strconv.FormatInt(n[i], 10))
			}
		}
		if name != "-" {
			parts = append(parts, name)
		}
		p.printf("%s\n", strings.Join(parts, " "))
	}
	code := p.each(f.rest, func(name string, r io.Reader) error {
		var n [4]int64
		in := false
		b := bufio.NewReaderSize(ended{p, r}, pieceSize)
		for {
			c, size, err := b.ReadRune()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			n[2]++
			n[3] += int64(size)
			if c == '\n' {
				n[0]++
			}
			if space := unicode.IsSpace(c); !space && !in {
				n[1]++
				in = true
			} else if space {
				in = false
			}
		}
		for i := range sum {
			sum[i] += n[i]
		}
		show(n, name)
		return nil
	})
	if len(f.rest) > 1 {
		show(sum, "total")
	}
	return code
}

func tee(p *process, args []string) int {
	f, ok := p.flags(args, "a", "")
	if !ok {
		return usage
	}
	flag := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if f.has('a') {
		flag = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	to := []io.Writer{p.out}
	for _, name := range f.rest {
		w, err := p.j.openFile(p.abs(name), name, flag, filePerm)
		if err != nil {
			p.errorf("%v", err)
			return 1
		}
		to = append(to, w)
	}
	r, _ := p.input("-")
	if _, err := io.Copy(io.MultiWriter(to...), ended{p, r}); err != nil {
		p.errorf("%v", err)
		return 1
	}
	return 0
}

func sort(p *process, args []string) int {
	f, ok := p.flags(args, "nrufb", "kt")
	if !ok {
		return usage
	}
	var all []string
	code := p.each(f.rest, func(_ string, r io.Reader) error {
		return p.lines(r, func(line string, _ bool) error { all = append(all, line); return nil })
	})
	key := func(s string) string { return s }
	if f.has('k') {
		field, err := strconv.Atoi(strings.FieldsFunc(f.last('k'), func(r rune) bool { return r < '0' || r > '9' })[0])
		if err != nil || field < 1 {
			p.errorf("bad field %q", f.last('k'))
			return usage
		}
		key = func(s string) string {
			parts := strings.Fields(s)
			if f.has('t') {
				parts = strings.Split(s, f.last('t'))
			}
			return strings.Join(parts[min(field-1, len(parts)):], " ")
		}
	}
	less := func(a, b string) int {
		x, y := key(a), key(b)
		if f.has('n') {
			if d := leadingNumber(x) - leadingNumber(y); d != 0 {
				return map[bool]int{true: 1, false: -1}[d > 0]
			}
		}
		if f.has('f') {
			x, y = strings.ToLower(x), strings.ToLower(y)
		}
		if c := strings.Compare(x, y); c != 0 || f.has('u') {
			return c
		}
		return strings.Compare(a, b)
	}
	slices.SortStableFunc(all, less)
	if f.has('u') {
		all = slices.CompactFunc(all, func(a, b string) bool { return less(a, b) == 0 })
	}
	if f.has('r') {
		slices.Reverse(all)
	}
	for _, line := range all {
		p.printf("%s\n", line)
	}
	return code
}

var number = regexp.MustCompile(`^\s*-?[0-9]*\.?[0-9]*`)

func leadingNumber(s string) float64 {
	n, _ := strconv.ParseFloat(strings.TrimSpace(number.FindString(s)), 64) // no number counts as 0
	return n
}

func uniq(p *process, args []string) int {
	f, ok := p.flags(args, "cdu", "")
	if !ok {
		return usage
	}
	last, n := "", 0
	flush := func() {
		if n == 0 || f.has('d') && n < 2 || f.has('u') && n > 1 {
			return
		}
		if f.has('c') {
			p.printf("%7d ", n)
		}
		p.printf("%s\n", last)
	}
	code := p.each(f.rest, func(_ string, r io.Reader) error {
		return p.lines(r, func(line string, _ bool) error {
			if n > 0 && line == last {
				n++
				return nil
			}
			flush()
			last, n = line, 1
			return nil
		})
	})
	flush()
	return code
}

// ranges reads "1,3-5,7-".
func ranges(text string) (func(n int) bool, error) {
	type span struct{ from, to int }
	var spans []span
	for part := range strings.SplitSeq(text, ",") {
		from, to, dash := strings.Cut(part, "-")
		s := span{1, 1 << 30}
		var err error
		if from != "" {
			if s.from, err = strconv.Atoi(from); err != nil || s.from < 1 {
				return nil, fmt.Errorf("bad list %q", text)
			}
		}
		switch {
		case !dash:
			s.to = s.from
		case to != "":
			if s.to, err = strconv.Atoi(to); err != nil {
				return nil, fmt.Errorf("bad list %q", text)
			}
		}
		spans = append(spans, s)
	}
	return func(n int) bool {
		return slices.ContainsFunc(spans, func(s span) bool { return n >= s.from && n <= s.to })
	}, nil
}

func cut(p *process, args []string) int {
	f, ok := p.flags(args, "s", "fdcb")
	if !ok {
		return usage
	}
	list := f.last('f') + f.last('c') + f.last('b')
	in, err := ranges(list)
	if list == "" || err != nil {
		p.errorf("give one of -f, -c and -b with a list such as 1,3-5")
		return usage
	}
	delimiter := "\t"
	if f.has('d') {
		delimiter = f.last('d')
	}
	return p.each(f.rest, func(_ string, r io.Reader) error {
		return p.lines(r, func(line string, _ bool) error {
			var kept []string
			if f.has('f') {
				if !strings.Contains(line, delimiter) {
					if !f.has('s') {
						p.printf("%s\n", line)
					}
					return nil
				}
				for i, part := range strings.Split(line, delimiter) {
					if in(i + 1) {
						kept = append(kept, part)
					}
				}
				p.printf("%s\n", strings.Join(kept, delimiter))
				return nil
			}
			for i, c := range []rune(line) {
				if in(i + 1) {
					kept = append(kept, string(c))
				}
			}
			p.printf("%s\n", strings.Join(kept, ""))
			return nil
		})
	})
}

var classes = map[string]string{"[:upper:]": "A-Z", "[:lower:]": "a-z", "[:digit:]": "0-9", "[:alpha:]": "A-Za-z", "[:alnum:]": "A-Za-z0-9",
	"[:space:]": " \\t\\n\\r\\v\\f", "[:blank:]": " \\t", "[:punct:]": "!-/:-@[-`{-~"}

var escapes = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\r`, "\r", `\v`, "\v", `\f`, "\f", `\0`, "\x00", `\\`, `\`)

// charSet expands a set of tr.
func charSet(s string) []rune {
	for name, set := range classes {
		s = strings.ReplaceAll(s, name, set)
	}
	in := []rune(escapes.Replace(s))
	var out []rune
	for i := 0; i < len(in); i++ {
		if i+2 < len(in) && in[i+1] == '-' && in[i+2] >= in[i] {
			for c := in[i]; c <= in[i+2]; c++ {
				out = append(out, c)
			}
			i += 2
			continue
		}
		out = append(out, in[i])
	}
	return out
}

func tr(p *process, args []string) int {
	f, ok := p.flags(args, "dsc", "")
	if !ok || len(f.rest) == 0 || len(f.rest) < 2 && !f.has('d') && !f.has('s') {
		p.errorf("usage: tr [-cds] SET1 [SET2]")
		return usage
	}
	from := charSet(f.rest[0])
	var to []rune
	if len(f.rest) > 1 {
		to = charSet(f.rest[1])
	}
	squeeze := from
	if len(to) > 0 {
		squeeze = to
	}
	r, _ := p.input("-")
	in, out := bufio.NewReaderSize(ended{p, r}, pieceSize), bufio.NewWriterSize(p.out, pieceSize)
	last := rune(-1)
	for {
		c, _, err := in.ReadRune()
		if err != nil {
			break
		}
		i := slices.Index(from, c)
		if f.has('c') {
			i = map[bool]int{true: len(to) - 1, false: -1}[i < 0]
			if i < 0 && !slices.Contains(from, c) {
				i = 0
			}
		}
		if i >= 0 {
			if f.has('d') {
				continue
			}
			if len(to) > 0 {
				c = to[min(i, len(to)-1)]
			}
		}
		if f.has('s') && c == last && slices.Contains(squeeze, c) {
			continue
		}
		last = c
		out.WriteRune(c)
	}
	if err := out.Flush(); err != nil {
		return 1
	}
	return 0
}

func seq(p *process, args []string) int {
	n := []int{1, 1, 1}
	for i, a := range args {
		v, err := strconv.Atoi(a)
		if err != nil || len(args) > 3 {
			p.errorf("usage: seq [FIRST [STEP]] LAST, whole numbers")
			return usage
		}
		switch {
		case len(args) == 1:
			n[2] = v
		case len(args) == 2:
			n[i*2] = v
		default:
			n[i] = v
		}
	}
	if len(args) == 0 || n[1] == 0 {
		p.errorf("usage: seq [FIRST [STEP]] LAST, whole numbers")
		return usage
	}
	out := bufio.NewWriterSize(p.out, pieceSize)
	for i := n[0]; (n[1] > 0 && i <= n[2] || n[1] < 0 && i >= n[2]) && !p.stopped(); i += n[1] {
		fmt.Fprintln(out, i)
	}
	if out.Flush() != nil {
		return 1
	}
	return 0
}

// expression translates a basic or extended POSIX expression to Go's.
func expression(text string, extended bool) string {
	if extended {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text):
			i++
			if strings.IndexByte("(){}|+?", text[i]) >= 0 {
				out.WriteByte(text[i])
			} else {
				out.WriteString(text[i-1 : i+1])
			}
		case strings.IndexByte("(){}|+?", c) >= 0:
			out.WriteByte('\\')
			out.WriteByte(c)
		case c == '[':
			end := strings.IndexByte(text[min(i+2, len(text)):], ']')
			if end < 0 {
				out.WriteString(`\[`)
				continue
			}
			out.WriteString(text[i : i+2+end+1])
			i += 2 + end
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

func grep(p *process, args []string) int {
	for i, a := range args {
		switch a {
		case "--":
		case "--include", "--exclude":
			p.errorf("write %s=PATTERN", a)
			return usage
		}
		if strings.HasPrefix(a, "--color") || a == "--line-number" {
			args = slices.Delete(slices.Clone(args), i, i+1)
			break
		}
	}
	f, ok := p.flags(args, "ivnclqEFrRowxsHhI", "eABCm")
	if !ok {
		return usage
	}
	patterns, names := f.set['e'], f.rest
	if len(patterns) == 0 {
		if len(names) == 0 {
			p.errorf("usage: grep [options] PATTERN [FILE…]")
			return usage
		}
		patterns, names = names[:1], names[1:]
	}
	for i, text := range patterns {
		if f.has('F') {
			text = regexp.QuoteMeta(text)
		} else {
			text = expression(text, f.has('E'))
		}
		if f.has('w') {
			text = `\b(?:` + text + `)\b`
		}
		if f.has('x') {
			text = `^(?:` + text + `)$`
		}
		patterns[i] = "(?:" + text + ")"
	}
	whole := strings.Join(patterns, "|")
	if f.has('i') {
		whole = "(?i)" + whole
	}
	re, err := regexp.Compile(whole)
	if err != nil {
		p.errorf("%v", err)
		return usage
	}
	around := func(c byte) int {
		n, _ := strconv.Atoi(f.last(c) + f.last('C')) // no number is none
		return n
	}
	before, after := around('B'), around('A')
	most := -1
	if f.has('m') {
		most, _ = strconv.Atoi(f.last('m')) // no number is none
	}
	if f.has('r') || f.has('R') {
		if len(names) == 0 {
			names = []string{"."}
		}
		names = p.filesBelow(names)
	}
	prefix := (len(names) > 1 || f.has('r') || f.has('R') || f.has('H')) && !f.has('h')
	found := false
	code := p.each(names, func(name string, r io.Reader) error {
		n, hits, owed := 0, 0, 0
		var kept []string
		show := func(n int, sep, line string) {
			if prefix {
				p.printf("%s%s", name, sep)
			}
			if f.has('n') {
				p.printf("%d%s", n, sep)
			}
			p.printf("%s\n", line)
		}
		err := p.lines(r, func(line string, _ bool) error {
			n++
			if re.MatchString(line) == f.has('v') {
				if owed > 0 {
					owed--
					show(n, "-", line)
				} else if before > 0 {
					if kept = append(kept, line); len(kept) > before {
						kept = kept[1:]
					}
				}
				return nil
			}
			hits++
			found = true
			switch {
			case f.has('q'):
				return errEnough
			case f.has('l'):
				p.printf("%s\n", name)
				return errDone
			case f.has('c'):
			case f.has('o') && !f.has('v'):
				for _, m := range re.FindAllString(line, -1) {
					if m != "" {
						show(n, ":", m)
					}
				}
			default:
				for i, k := range kept {
					show(n-len(kept)+i, "-", k)
				}
				kept, owed = nil, after
				show(n, ":", line)
			}
			if hits == most {
				return errDone
			}
			return nil
		})
		if f.has('c') {
			if prefix {
				p.printf("%s:", name)
			}
			p.printf("%d\n", hits)
		}
		if err == errDone {
			err = nil
		}
		return err
	})
	switch {
	case code != 0 && !f.has('s'):
		return usage
	case found:
		return 0
	}
	return 1
}

// filesBelow names all regular files at and below the names.
func (p *process) filesBelow(names []string) []string {
	var out []string
	var walk func(name string, depth int)
	walk = func(name string, depth int) {
		if p.stopped() || depth > maxDepth {
			return
		}
		infos, err := p.tree().list(p.abs(name))
		if err != nil {
			out = append(out, name) // a file, or reading it says what is wrong
			return
		}
		for _, i := range infos {
			full := strings.TrimRight(name, "/") + "/" + i.Name
			if i.Mode.IsDir() {
				walk(full, depth+1)
			} else if i.Mode.IsRegular() {
				out = append(out, full)
			}
		}
	}
	for _, name := range names {
		walk(name, 0)
	}
	return out
}
