package source

import (
	"encoding/hex"
	"errors"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"

	"codework/internal/plugin"
)

// Kind is where a module comes from.
type Kind string

// The kinds of modules.
const (
	Local   Kind = "local"
	NPM     Kind = "npm"
	Git     Kind = "git"
	Archive Kind = "archive"
)

// Spec is a module as settings name it, taken apart.
type Spec struct {
	Kind Kind
	Text string // as it was written

	Name    string // npm: the package, with its scope
	Version string // npm: a version, a range or a tag; "" is latest

	URL string // git: of the repository; archive: of the file
	Ref string // git: a branch, tag or whole commit id; "" is the default branch
	Sub string // git: the folder of the package; "" is the root

	SHA256 string // archive: in lower-case hexadecimal
}

// lazy is a regular expression that is compiled when it is first used: few
// processes need one, and all would wait for them at their start.
func lazy(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

var (
	packageName = lazy(`^(@[a-z0-9~_][a-z0-9._~-]*/)?[a-z0-9~_][a-z0-9._~-]*$`)
	// versionText has no ":" or "/", which would make it an address.
	versionText  = lazy(`^[A-Za-z0-9^~<>=*][A-Za-z0-9.^~<>=|*+_ -]*$`)
	exactVersion = lazy(`^\d+\.\d+\.\d+(-[A-Za-z0-9.-]+)?(\+[A-Za-z0-9.-]+)?$`)
	refText      = lazy(`^[A-Za-z0-9_@][A-Za-z0-9._/+@-]*$`)
	commitText   = lazy(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	githubName   = lazy(`^[A-Za-z0-9_-][A-Za-z0-9._-]*/[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
)

// maxSpec bounds a module's text, in bytes.
const maxSpec = 2048

// forms names what a module can be.
const forms = "./path, name@version, github:owner/repository#ref, git+https://…#ref or https://….tar.gz#sha256=…"

// Parse takes a module apart. The error says what is wrong with it, without
// repeating it.
func Parse(text string) (Spec, error) {
	s := Spec{Text: text}
	if len(text) > maxSpec {
		return s, errors.New("it is too long")
	}
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			return s, errors.New("it holds control characters")
		}
	}
	switch {
	case plugin.IsLocal(text):
		s.Kind = Local
		return s, nil
	case strings.HasPrefix(text, "github:"):
		repository, fragment, _ := strings.Cut(strings.TrimPrefix(text, "github:"), "#")
		if !githubName().MatchString(repository) {
			return s, errors.New("github: is followed by owner/repository")
		}
		s.URL = "https://github.com/" + strings.TrimSuffix(repository, ".git") + ".git"
		return s.git(fragment)
	case strings.HasPrefix(text, "git+"):
		address, fragment, _ := strings.Cut(strings.TrimPrefix(text, "git+"), "#")
		u, err := addressIn(address, "https", "file")
		if err != nil {
			return s, err
		}
		s.URL = u.String()
		return s.git(fragment)
	case strings.Contains(text, "://"):
		return s.archive()
	}
	s.Kind = NPM
	at := strings.LastIndexByte(text, '@')
	if s.Name = text; at > 0 {
		s.Name, s.Version = text[:at], text[at+1:]
		if !versionText().MatchString(s.Version) {
			return s, errors.New("what follows @ is no version, range or tag")
		}
	}
	if len(s.Name) > 214 || !packageName().MatchString(s.Name) { // npm's own limit
		return s, errors.New("it is none of " + forms)
	}
	return s, nil
}

// addressIn is an address with one of the schemes, and nothing secret in it.
func addressIn(text string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("its address makes no sense")
	}
	known := false
	for _, scheme := range schemes {
		known = known || u.Scheme == scheme
	}
	switch {
	case !known:
		return nil, errors.New("only " + strings.Join(schemes, " and ") + " addresses are fetched")
	case u.User != nil:
		return nil, errors.New("an address with a name or password in it does not belong into settings")
	case u.RawQuery != "" || u.ForceQuery:
		return nil, errors.New("its address has a query")
	case (u.Host == "") != (u.Scheme == "file") || u.Path == "" || u.Path == "/" || u.Opaque != "", !strings.HasPrefix(u.String(), u.Scheme+"://"):
		return nil, errors.New("its address is not complete")
	}
	return u, nil
}

// git reads "ref::path:sub", both of which may be missing.
func (s Spec) git(fragment string) (Spec, error) {
	s.Kind = Git
	ref, rest, more := strings.Cut(fragment, "::")
	if more {
		sub, ok := strings.CutPrefix(rest, "path:")
		sub = strings.TrimSuffix(strings.TrimPrefix(sub, "/"), "/")
		if !ok || sub == "" || path.Clean(sub) != sub || sub == ".." || strings.HasPrefix(sub, "../") || strings.ContainsAny(sub, `\:`) {
			return s, errors.New("what follows :: is not path: and a folder of the repository")
		}
		s.Sub = sub
	}
	if ref != "" && (!refText().MatchString(ref) || strings.Contains(ref, "..")) {
		return s, errors.New("what follows # is no branch, tag or commit")
	}
	s.Ref = ref
	return s, nil
}

func (s Spec) archive() (Spec, error) {
	s.Kind = Archive
	address, fragment, _ := strings.Cut(s.Text, "#")
	u, err := addressIn(address, "https")
	if err != nil {
		return s, err
	}
	if !strings.HasSuffix(u.Path, ".tar.gz") && !strings.HasSuffix(u.Path, ".tgz") {
		return s, errors.New("only archives that end in .tar.gz or .tgz are fetched")
	}
	sum, ok := strings.CutPrefix(fragment, "sha256=")
	sum = strings.ToLower(sum)
	if b, err := hex.DecodeString(sum); !ok || err != nil || len(b) != 32 {
		return s, errors.New("an archive needs #sha256= and its 64 digits behind the address")
	}
	s.URL, s.SHA256 = u.String(), sum
	return s, nil
}

// Fixed tells that the module is always the same: an exact version, a whole
// commit id, or an archive.
func (s Spec) Fixed() bool {
	switch s.Kind {
	case NPM:
		return exactVersion().MatchString(s.Version)
	case Git:
		return commitText().MatchString(s.Ref)
	}
	return s.Kind == Archive
}

// Base is the module without its version: the same for all versions of it.
func (s Spec) Base() string {
	switch s.Kind {
	case NPM:
		return s.Name
	case Git:
		base := "git+" + s.URL
		if short, ok := strings.CutPrefix(s.URL, "https://github.com/"); ok {
			base = "github:" + strings.TrimSuffix(short, ".git")
		}
		if s.Sub != "" {
			base += "#::path:" + s.Sub
		}
		return base
	case Archive:
		return s.URL
	}
	return s.Text
}

// canonical is the same for all ways to write the module.
func (s Spec) canonical() string {
	switch s.Kind {
	case NPM:
		if s.Version == "" {
			return "npm " + s.Name + "@latest"
		}
		return "npm " + s.Name + "@" + s.Version
	case Git:
		return "git " + s.URL + "#" + s.Ref + "::path:" + s.Sub
	}
	return "archive " + s.URL + "#sha256=" + s.SHA256
}
