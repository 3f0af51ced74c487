package isolated

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func attacksHere() []attack {
	return []attack{
		{"x32 unshare", func() error { return call(x32Bit|unix.SYS_UNSHARE, unix.CLONE_NEWUSER) }, []error{unix.ENOSYS}},
		{"ports", func() error { return call(unix.SYS_IOPL, 3) }, []error{unix.EPERM}},
	}
}

// program32 is a static 32-bit program that calls unshare for a new user
// namespace and exits with the number of the error, or 0 when it got one.
func program32() []byte {
	const base, header = 0x08048000, 52 + 32
	code := []byte{
		0xb8, 0x36, 0x01, 0x00, 0x00, // mov eax, 310 (unshare)
		0xbb, 0x00, 0x00, 0x00, 0x10, // mov ebx, CLONE_NEWUSER
		0xcd, 0x80, // int 0x80
		0x89, 0xc3, // mov ebx, eax
		0xf7, 0xdb, // neg ebx
		0xb8, 0x01, 0x00, 0x00, 0x00, // mov eax, 1 (exit)
		0xcd, 0x80, // int 0x80
	}
	size := uint32(header + len(code))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), uint16(3), uint32(1), uint32(base + header), uint32(52), uint32(0), uint32(0),
		uint16(52), uint16(32), uint16(1), uint16(0), uint16(0), uint16(0), // file header
		uint32(1), uint32(0), uint32(base), uint32(base), size, size, uint32(5), uint32(0x1000), // what to load
	} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	b.Write(code)
	return b.Bytes()
}

// TestOtherMachineInterfacesAreRefused runs a 32-bit program, for which the
// numbers of system calls mean something else.
func TestOtherMachineInterfacesAreRefused(t *testing.T) {
	project := t.TempDir()
	m := newMount(t, newSandbox(t, newDriver(t), project, ""))
	if err := os.WriteFile(filepath.Join(project, "p32"), program32(), 0o755); err != nil {
		t.Fatal(err)
	}
	// Outside it runs, or the test would prove nothing.
	if r := runHost(t, filepath.Join(project, "p32")); r != 0 && r != int(unix.EPERM) {
		t.Fatalf("on the host the program ended with %d", r)
	}
	if r := run(t, m, "./p32"); r.Code != 128+int(unix.SIGSYS) {
		t.Errorf("a 32-bit program ended with %+v", r)
	}
}
