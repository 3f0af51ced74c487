package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

const (
	// maxFileSize is far above any settings file and keeps a wrong link from
	// costing memory at every prompt.
	maxFileSize = 1 << 20
	// maxDepth is far above any settings file too; the parser recurses, and
	// Go cannot recover from a stack that has run out.
	maxDepth = 200
)

// fileNames are tried in this order; the first that exists is the only one
// that is read in its directory.
var fileNames = [...]string{"settings.jsonc", "settings.json"}

// readDir reads the settings of one directory, if there are any.
func readDir(dir string) file {
	for _, name := range fileNames {
		f := file{path: filepath.Join(dir, name)}
		f.data, f.err = readFile(f.path)
		if errors.Is(f.err, fs.ErrNotExist) {
			if _, lerr := os.Lstat(f.path); lerr != nil {
				continue
			}
			f.err = errors.New("links to a file that does not exist")
		}
		if f.err != nil {
			f.err = &Error{Slug: SlugRead, File: f.path, Detail: reason(f.err)}
		}
		return f
	}
	return file{}
}

func readFile(file string) ([]byte, error) {
	// Asked first: opening a pipe would wait for a writer.
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, errors.New("is a directory")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > maxFileSize:
		return nil, fmt.Errorf("is larger than %d MiB", maxFileSize>>20)
	}
	return os.ReadFile(file)
}

// reason is what the system said, without the path that the message has
// already.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// parse reads JSON with comments and trailing commas. The result aliases data.
func parse(from *origin, data []byte) (*node, error) {
	data = bytes.TrimPrefix(data, byteOrderMark)
	fail := func(offset int, detail string) (*node, error) {
		line, column := position(data, offset)
		return nil, &Error{Slug: SlugParse, File: from.path, Detail: fmt.Sprintf("%s at %d:%d", detail, line, column)}
	}
	if i := invalidUTF8(data); i >= 0 {
		return fail(i, "expected UTF-8 text, found another byte")
	}
	if i := tooDeep(data); i >= 0 {
		return fail(i, fmt.Sprintf("expected at most %d levels of nesting", maxDepth))
	}
	// The parser wants a line comment to end with its line, even the last one.
	text := append(data[:len(data):len(data)], '\n')
	v, err := hujson.Parse(text)
	if err != nil {
		offset, detail := explain(text, err)
		return fail(min(offset, len(data)), detail)
	}
	if k := byte(v.Value.Kind()); k != '{' {
		return fail(v.StartOffset, "expected an object, found "+kindName(k))
	}
	return build(&v, from, atTop), nil
}

// explain takes the parser's message apart. What it says about a literal is
// left out: it repeats the literal, which may be a key somebody pasted.
func explain(text []byte, err error) (offset int, detail string) {
	var line, column int
	detail = err.Error()
	if _, scanErr := fmt.Sscanf(detail, "hujson: line %d, column %d:", &line, &column); scanErr == nil {
		_, detail, _ = strings.Cut(detail, "column ")
		_, detail, _ = strings.Cut(detail, ": ")
		for ; line > 1; line-- {
			offset += bytes.IndexByte(text[offset:], '\n') + 1
		}
		offset += column - 1
	}
	switch what, _, _ := strings.Cut(detail, ":"); {
	case what == "invalid literal" && offset < len(text) && text[offset] == '"':
		detail = "found a string that is not closed on its line or has an invalid escape"
	case what == "invalid literal":
		detail = "expected a value, found a word or number that is none"
	case strings.HasSuffix(detail, "unexpected EOF"):
		detail = "found the end of the file while " + what
	}
	return offset, detail
}

// position counts from 1, in characters.
func position(data []byte, offset int) (line, column int) {
	before := data[:offset]
	line = 1 + bytes.Count(before, []byte{'\n'})
	column = 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return line, column
}

func invalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// tooDeep is the offset of the bracket that goes below maxDepth, or -1. It
// need not be right about text that is no JSON at all.
func tooDeep(data []byte) int {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return i
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '/':
			end := ""
			switch {
			case bytes.HasPrefix(data[i:], []byte("//")):
				end = "\n"
			case bytes.HasPrefix(data[i:], []byte("/*")):
				end = "*/"
			default:
				continue
			}
			n := bytes.Index(data[i+2:], []byte(end))
			if n < 0 {
				return -1
			}
			i += 2 + n + len(end) - 1
		}
	}
	return -1
}

func kindName(kind byte) string {
	switch kind {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 't', 'f':
		return "a boolean"
	}
	return "null"
}
