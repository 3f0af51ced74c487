package source

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"codework/internal/plugin"
)

// Bounds of a package. They are far above any plugin, and keep a wrong address
// or a hostile archive from filling the disk.
const (
	maxDownload = 512 << 20
	maxUnpacked = 2 << 30
	maxFiles    = 100_000
)

var (
	errEscapes = errors.New("leads out of the package")
	errTooBig  = errors.New("the package is too large")
)

// unpackFault says what is wrong with an archive.
func unpackFault(e plugin.Entry, err error) error {
	if errors.Is(err, errEscapes) {
		return fault(e, plugin.EscapesRoot, "%v", err)
	}
	return fault(e, plugin.FetchFailed, "unpack: %v", err)
}

// fetchArchive downloads an archive, and unpacks it if it is the right one.
func (s *Store) fetchArchive(ctx context.Context, e plugin.Entry, sp Spec, dir string) (_ fetched, err error) {
	file := filepath.Join(dir, "download")
	if err := s.download(ctx, e, sp, file); err != nil {
		return fetched{}, err
	}
	in, err := os.Open(file)
	if err != nil {
		return fetched{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err == nil {
		err = unpack(z, filepath.Join(dir, packageDir))
	}
	if err != nil {
		return fetched{}, unpackFault(e, err)
	}
	if err := os.Remove(file); err != nil {
		return fetched{}, fault(e, plugin.FetchFailed, "%v", err)
	}
	return fetched{packageRoot(dir), sp.SHA256[:12], sp.SHA256}, nil
}

// packageRoot is where the manifest lies: many archives hold one folder, and
// everything in it.
func packageRoot(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, packageDir, plugin.ManifestName)); err == nil {
		return packageDir
	}
	entries, err := os.ReadDir(filepath.Join(dir, packageDir))
	if err == nil && len(entries) == 1 && entries[0].IsDir() {
		return filepath.Join(packageDir, entries[0].Name())
	}
	return packageDir
}

func (s *Store) download(ctx context.Context, e plugin.Entry, sp Spec, file string) (err error) {
	failed := func(err error) error {
		var known *plugin.Error
		if errors.As(err, &known) {
			return known
		}
		return fault(e, plugin.FetchFailed, "%v", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, sp.URL, nil)
	if err != nil {
		return failed(err)
	}
	client := *s.opt.Client
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if req.URL.Scheme != "https" {
			return errors.New("it is sent on to an address without https")
		}
		if len(via) >= 10 {
			return errors.New("it is sent on too often")
		}
		return nil
	}
	answer, err := client.Do(req)
	if err != nil {
		return failed(err)
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusGone:
		return fault(e, plugin.NotFound, "there is no such archive")
	case answer.StatusCode != http.StatusOK:
		return failed(fmt.Errorf("the server answers %s", answer.Status))
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return failed(err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), io.LimitReader(answer.Body, maxDownload+1))
	err = errors.Join(err, out.Close())
	switch {
	case err != nil:
		return failed(err)
	case n > maxDownload:
		return failed(errTooBig)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != sp.SHA256 {
		f := fault(e, plugin.IntegrityFailed, "the archive that came has the checksum %s", got)
		f.Hint = "do not use it unless whoever publishes it names that checksum"
		return f
	}
	return nil
}

// unpack puts the files of a tar archive into dir, which it makes. Nothing is
// written outside of it, and no link leads out: archives are written by others.
// Only files, folders and symbolic links are taken.
func unpack(r io.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var size int64
	var links []string
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if size += h.Size; n >= maxFiles || h.Size < 0 || size > maxUnpacked {
			return errTooBig
		}
		name := path.Clean(h.Name)
		if name == "." {
			continue
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) || strings.Contains(h.Name, `\`) {
			return fmt.Errorf("%.80q %w", h.Name, errEscapes)
		}
		name = filepath.FromSlash(name)
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			err = unpackFile(root, name, t, h.FileInfo().Mode())
		case tar.TypeSymlink:
			if path.IsAbs(h.Linkname) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), filepath.FromSlash(h.Linkname))) {
				return fmt.Errorf("the link %.80q %w", h.Name, errEscapes)
			}
			links = append(links, name)
			err = root.Symlink(h.Linkname, name)
		default:
			err = fmt.Errorf("%.80q is neither a file, a folder nor a symbolic link", h.Name)
		}
		if err != nil {
			return err
		}
	}
	// Links may lead over other links: now it shows where they end.
	for _, name := range links {
		if _, err := root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the link %.80q %w", name, errEscapes)
		}
	}
	return nil
}

func unpackFile(root *os.Root, name string, r io.Reader, mode fs.FileMode) error {
	perm := fs.FileMode(0o644)
	if mode&0o111 != 0 {
		perm = 0o755
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
