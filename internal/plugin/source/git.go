package source

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"codework/internal/plugin"
)

// packageDir is where a fetch from git or of an archive puts the package.
const packageDir = "package"

// gitSettings keep git from running anything of the repository's or the user's
// while it fetches.
var gitSettings = []string{
	"core.hooksPath=" + os.DevNull, "core.fsmonitor=false", "gc.auto=0", "maintenance.auto=false",
	"submodule.recurse=false", "fetch.recurseSubmodules=false", "advice.detachedHead=false",
}

// gitPlaces are the variables that tell git of another repository, as it is in
// its hooks.
var gitPlaces = []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
	"GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_TEMPLATE_DIR", "GIT_EXTERNAL_DIFF", "GIT_TRACE"}

// git is a git command for a repository at address.
func git(ctx context.Context, address string, env []string, args ...string) *exec.Cmd {
	var all []string
	for _, s := range gitSettings {
		all = append(all, "-c", s)
	}
	cmd := command(ctx, "git", append(all, args...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(gitPlaces, name)
	})
	protocols := "https:ssh" // ssh where the user's own settings rewrite an address
	if strings.HasPrefix(address, "file:") {
		protocols = "file"
	}
	cmd.Env = append(cmd.Env, "GIT_TERMINAL_PROMPT=0", "GIT_ALLOW_PROTOCOL="+protocols, "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0")
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// alone keeps the user's settings out: filters, which are programs.
var alone = []string{"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1"}

func gitMissing(e plugin.Entry, err error) error {
	if !errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	f := fault(e, plugin.MissingDependency, "git is not on the PATH")
	f.Hint = "install git"
	return f
}

// fetchGit fetches one commit and unpacks its files. There is no working tree
// that git could run anything for.
func (s *Store) fetchGit(ctx context.Context, e plugin.Entry, sp Spec, dir string) (fetched, error) {
	repository := filepath.Join(dir, "git")
	format := "sha1"
	if len(sp.Ref) == 64 && sp.Fixed() {
		format = "sha256"
	}
	if out, err := git(ctx, sp.URL, alone, "init", "--quiet", "--bare", "--template=", "--object-format="+format, repository).CombinedOutput(); err != nil {
		if missing := gitMissing(e, err); missing != nil {
			return fetched{}, missing
		}
		return fetched{}, fault(e, plugin.FetchFailed, "git: %s", said(out, err))
	}
	ref := sp.Ref
	if ref == "" {
		ref = "HEAD"
	}
	if out, err := git(ctx, sp.URL, nil, "-C", repository, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", sp.URL, ref).CombinedOutput(); err != nil {
		return fetched{}, gitFailure(e, sp, out, err)
	}
	out, err := git(ctx, sp.URL, alone, "-C", repository, "rev-parse", "--verify", "--end-of-options", "FETCH_HEAD^{commit}").CombinedOutput()
	commit := strings.TrimSpace(string(out))
	if err != nil || !commitText().MatchString(commit) {
		return fetched{}, fault(e, plugin.NoCommit, "%s is no commit", ref)
	}
	if sp.Fixed() && commit != sp.Ref {
		return fetched{}, fault(e, plugin.IntegrityFailed, "the repository answered with the commit %s", commit)
	}
	tree := commit
	if sp.Sub != "" {
		tree += ":" + sp.Sub
		kind, err := git(ctx, sp.URL, alone, "-C", repository, "cat-file", "-t", tree).CombinedOutput()
		if err != nil || strings.TrimSpace(string(kind)) != "tree" {
			return fetched{}, fault(e, plugin.NotFound, "the commit %s has no folder %s", shortCommit(commit), sp.Sub)
		}
	}
	if err := unpackTree(ctx, e, sp, repository, tree, filepath.Join(dir, packageDir)); err != nil {
		return fetched{}, err
	}
	if err := os.RemoveAll(repository); err != nil {
		return fetched{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	return fetched{packageDir, shortCommit(commit), commit}, nil
}

func unpackTree(ctx context.Context, e plugin.Entry, sp Spec, repository, tree, into string) error {
	cmd := git(ctx, sp.URL, alone, "-C", repository, "archive", "--format=tar", "--end-of-options", tree)
	var messages capped
	cmd.Stderr = &messages
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fault(e, plugin.FetchFailed, "git: %v", err)
	}
	bad := unpack(out, into)
	if bad == nil {
		_, bad = io.Copy(io.Discard, out)
	} else {
		_ = cmd.Cancel()
	}
	err = cmd.Wait()
	if bad != nil {
		return unpackFault(e, bad)
	}
	if err != nil {
		return fault(e, plugin.FetchFailed, "git: %s", said(messages.b, err))
	}
	return nil
}

func gitFailure(e plugin.Entry, sp Spec, out []byte, err error) error {
	if missing := gitMissing(e, err); missing != nil {
		return missing
	}
	text := strings.ToLower(string(out))
	for _, s := range []string{"couldn't find remote ref", "not our ref", "unadvertised object", "did not send all necessary objects"} {
		if strings.Contains(text, s) {
			f := fault(e, plugin.NoCommit, "the repository has no %s", orDefault(sp.Ref))
			if sp.Ref != "" && !sp.Fixed() {
				f.Hint = "name a branch, a tag, or a commit by its whole id"
			}
			return f
		}
	}
	return fault(e, plugin.FetchFailed, "git: %s", said(out, err))
}

func orDefault(ref string) string {
	if ref == "" {
		return "default branch"
	}
	return ref
}

// said is what a program said last, or how it ended.
func said(out []byte, err error) string {
	for _, line := range slices.Backward(strings.Split(string(out), "\n")) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "fatal: "); ok {
			return lastLine([]byte(text))
		}
	}
	if line := lastLine(out); line != "" {
		return line
	}
	return err.Error()
}

func shortCommit(commit string) string { return commit[:min(12, len(commit))] }

// askGit asks which commit a module is now.
func (s *Store) askGit(ctx context.Context, e plugin.Entry, sp Spec) (string, error) {
	args := []string{"ls-remote", "--quiet", "--", sp.URL}
	names := []string{"HEAD"}
	if sp.Ref != "" {
		// Git's own order. Of a tag with a message, the commit is what counts.
		names = []string{"refs/tags/" + sp.Ref + "^{}", "refs/tags/" + sp.Ref, "refs/heads/" + sp.Ref, sp.Ref}
	}
	cmd := git(ctx, sp.URL, nil, append(args, names...)...)
	var messages capped
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		return "", gitFailure(e, sp, messages.b, err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		commit, name, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if ok && commitText().MatchString(commit) {
			found[name] = commit
		}
	}
	for _, name := range names {
		if c := found[name]; c != "" {
			return c, nil
		}
	}
	return "", fault(e, plugin.NoCommit, "the repository has no %s", orDefault(sp.Ref))
}
