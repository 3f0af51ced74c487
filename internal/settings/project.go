package settings

import (
	"os"
	"path/filepath"
)

// projectDir is the folder whose presence makes its parent a project.
const projectDir = ".codework"

// FindProject walks up from hostDir, hostDir included, to the nearest
// directory that holds a .codework directory, which may be empty. A .codework
// that is home itself does not count. hostDir is absolute; of anything else
// no project is known, as this process's own directory has no say.
func FindProject(hostDir, home string) (root string, ok bool) {
	if !filepath.IsAbs(hostDir) {
		return "", false
	}
	var homeInfo os.FileInfo
	for dir := filepath.Clean(hostDir); ; {
		info, err := os.Stat(filepath.Join(dir, projectDir))
		if err == nil && info.IsDir() {
			if homeInfo == nil && home != "" {
				homeInfo, _ = os.Stat(home)
			}
			if homeInfo == nil || !os.SameFile(homeInfo, info) {
				return dir, true
			}
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}
