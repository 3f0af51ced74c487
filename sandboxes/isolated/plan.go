package isolated

// A plan is what the process that becomes a sandbox is told. All paths are
// absolute and without symlinks.
type plan struct {
	Level Level    `json:"level"`
	Try   bool     `json:"try,omitempty"` // build it all, check the walls, and end
	Args  []string `json:"args"`          // of the agent, after the program's name
	Dir   string   `json:"dir"`           // where the agent begins
	// Write are folders, or files, that stay writable, parents first.
	Write []string `json:"write"`
	// Keep are folders below those that must not be moved away, parents first.
	Keep []string `json:"keep,omitempty"`
	// ReadOnly are files and folders below those that are not writable.
	ReadOnly []string `json:"readOnly,omitempty"`
	// Read are, at the level that has only paths to go by, the files and folders
	// that can be read.
	Read []string `json:"read,omitempty"`
	// Hide are files and folders that cannot be read.
	Hide []string `json:"hide,omitempty"`
	// Secrets are names of what is hidden, and of what would be if it existed,
	// for who watches from outside that they stay as they are.
	Secrets []string `json:"-"`
	// Show are files and folders that stay readable below the folders that
	// every sandbox has of its own.
	Show   []string `json:"show,omitempty"`
	Caches []cache  `json:"caches,omitempty"`
	// Internet gives the machine's network.
	Internet bool   `json:"internet,omitempty"`
	Limits   limits `json:"limits"`
}

// cache is a folder for what a build tool keeps. Where the host has one its
// content shows through, and what is written goes to Upper.
type cache struct {
	Target string `json:"target"` // where commands find it
	Lower  string `json:"lower,omitempty"`
	Upper  string `json:"upper"`
	Work   string `json:"work"` // for the kernel, beside Upper
}

// limits are those that a process sets for itself and what it starts; 0 is none.
type limits struct {
	Data      uint64 `json:"data,omitempty"`      // bytes of memory, of each process
	Processes uint64 `json:"processes,omitempty"` // of the user in the sandbox
	OpenFiles uint64 `json:"openFiles,omitempty"` // of each process
}

// failure is why a sandbox could not be built.
type failure struct {
	Step  string `json:"step"` // what was being done
	Path  string `json:"path,omitempty"`
	Errno int    `json:"errno,omitempty"`
	Text  string `json:"text"`
}
