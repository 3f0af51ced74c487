package local

import "unsafe"

// bytePointer is the address of the first byte, for a raw system call.
func bytePointer(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
