package modes

import (
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// controlFD is where the hidden modes find their end of the control socket.
const controlFD = 3

// OwnExe names the running program also when its file was replaced or removed.
const OwnExe = "/proc/self/exe"

// BareEnv is the whole environment of supervisor and runner: commands can read
// it. Two threads are all that they can use.
var BareEnv = []string{"GOMAXPROCS=2"}

// init serves the hidden modes: a process that has one does nothing else, and
// ends here.
func init() {
	if len(os.Args) < 2 {
		return
	}
	var serve func(args []string) int
	switch os.Args[1] {
	case SupervisorArg:
		serve = superviseWith
	case RunnerArg:
		serve = run
	default:
		return
	}
	// This goroutine is bound to its thread until all packages are initialised,
	// so that each of its steps would switch threads.
	code := make(chan int)
	go func() { code <- serve(os.Args) }()
	syscall.Exit(<-code) // os.Exit takes a second under the race detector
}

// superviseWith is the mode of a supervisor: SupervisorArg and its mark.
func superviseWith(args []string) int {
	if len(args) != 3 {
		return 2
	}
	mark, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return 2
	}
	if err := prepare(); err != nil {
		return 1
	}
	// A stricter limit of the user's stays: then the server finds what a
	// dead supervisor left only through the runners' own end of file.
	_ = setMark(mark)
	supervise(args[0])
	return 0
}

// run is the mode of a runner.
func run([]string) int {
	if err := prepare(); err != nil {
		return 1
	}
	serveCommands()
	return 0
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
			if flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); errno == 0 && flags&syscall.FD_CLOEXEC == 0 {
				_ = syscall.Close(fd)
			}
		}
	}
	syscall.CloseOnExec(controlFD)
	if _, err := syscall.GetsockoptInt(controlFD, syscall.SOL_SOCKET, syscall.SO_TYPE); err != nil {
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
func receive() (Frame, []int, error) {
	c := &control{}
	f, err := ReadFrame(c)
	if err != nil {
		closeAll(c.fds)
		return Frame{}, nil, err
	}
	return f, c.fds, nil
}

// control reads the control socket and collects descriptors.
type control struct{ fds []int }

// maxFDs is how many descriptors a frame carries at most.
const maxFDs = 3

func (c *control) Read(b []byte) (int, error) {
	oob := make([]byte, syscall.CmsgSpace(maxFDs*4))
	for {
		n, oobn, _, _, err := syscall.Recvmsg(controlFD, b, oob, syscall.MSG_CMSG_CLOEXEC)
		if err == syscall.EINTR {
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
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range msgs {
		if fds, err := syscall.ParseUnixRights(&msgs[i]); err == nil {
			c.fds = append(c.fds, fds...)
		}
	}
}

// send writes a frame to the server. Frames of this direction are far smaller
// than the socket's buffer; when the server does not read, or is gone, the
// reading side will see the end.
func send(f Frame) {
	b := f.Encode()
	for len(b) > 0 {
		n, err := syscall.Write(controlFD, b)
		if err == syscall.EINTR {
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
		_ = syscall.Close(fd)
	}
}
