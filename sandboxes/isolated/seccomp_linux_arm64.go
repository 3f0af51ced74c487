package isolated

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// refusedHere are the refused system calls that only this machine has.
var refusedHere []uint32
