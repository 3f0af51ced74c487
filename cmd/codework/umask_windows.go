package main

// umask is -1: there is none.
func umask() int { return -1 }
