package store

// syncFolder does nothing: Windows has no sync of a folder, its journal keeps
// names.
func syncFolder(string) error { return nil }

// locksFolders tells whether lockFolder keeps other processes out.
const locksFolders = false

// lockFolder does nothing: the home's own lock keeps other processes out until
// Badger has its own.
func lockFolder(string) (unlock func(), err error) { return func() {}, nil }
