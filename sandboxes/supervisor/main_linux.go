package supervisor

import (
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// controlFD is where the hidden modes find their end of the control socket.
const controlFD = 3

// ownExe names the running program also when its file was replaced or removed.
const ownExe = "/proc/self/exe"

// bareEnv is the whole environment of supervisor and runner: commands can read
// it. Two threads are all that they can use.
var bareEnv = []string{"GOMAXPROCS=2"}

// Main serves the hidden modes of the binary and must be called first thing in
// main, with os.Args. When handled is false the arguments are somebody else's;
// else the process has done its work and exits with code.
func Main(args []string) (handled bool, code int) {
	if len(args) < 2 {
		return false, 0
	}
	switch args[1] {
	case supervisorArg:
		if len(args) != 3 {
			return true, 2
		}
		mark, err := strconv.ParseUint(args[2], 10, 64)
		if err != nil {
			return true, 2
		}
		if err := prepare(); err != nil {
			return true, 1
		}
		// A stricter limit of the user's stays: then the server finds what a
		// dead supervisor left only through the runners' own end of file.
		_ = setMark(mark)
		supervise(args[0])
		return true, 0
	case runnerArg:
		if err := prepare(); err != nil {
			return true, 1
		}
		serveCommands()
		return true, 0
	}
	return false, 0
}

// prepare makes this process fit to adopt and to start commands.
func prepare() error {
	// What the server itself inherited without close-on-exec came along; a pipe
	// among it would be held open here. Our runtime's own have the flag.
	if d, err := os.Open("/proc/self/fd"); err == nil {
		names, _ := d.Readdirnames(-1)
		d.Close()
		for _, name := range names {
			fd, err := strconv.Atoi(name)
			if err != nil || fd <= controlFD {
				continue
			}
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				_ = unix.Close(fd)
			}
		}
	}
	unix.CloseOnExec(controlFD)
	if _, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return err // started by hand
	}
	// The end comes by end of file alone. A handler also undoes a signal that
	// the server was started with ignored, which commands would inherit.
	drop := make(chan os.Signal, 1)
	signal.Notify(drop, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	return Subreaper()
}

// receive reads a frame and the descriptors that came with it from the control
// socket. An end of any kind is an error.
func receive() (frame, []int, error) {
	c := &control{}
	f, err := readFrame(c)
	if err != nil {
		closeAll(c.fds)
		return frame{}, nil, err
	}
	return f, c.fds, nil
}

// control reads the control socket and collects descriptors.
type control struct{ fds []int }

// maxFDs is how many descriptors a frame carries at most.
const maxFDs = 3

func (c *control) Read(b []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(controlFD, b, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		if oobn > 0 {
			c.take(oob[:oobn])
		}
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
}

func (c *control) take(oob []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			c.fds = append(c.fds, fds...)
		}
	}
}

// send writes a frame to the server. Frames of this direction are far smaller
// than the socket's buffer; when the server does not read, or is gone, the
// reading side will see the end.
func send(f frame) {
	b := f.encode()
	for len(b) > 0 {
		n, err := unix.Write(controlFD, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		b = b[n:]
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
