//go:build amd64 || arm64

package isolated

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"codework/sandboxes"
	"codework/sandboxes/local"
)

// p50 reports the median of what was measured, in microseconds.
func p50(b *testing.B, all []time.Duration, name string) time.Duration {
	slices.Sort(all)
	mid := all[len(all)/2]
	b.ReportMetric(float64(mid.Microseconds()), name)
	return mid
}

// timeRun is how long a command takes that does nothing.
func timeRun(b *testing.B, m sandboxes.Mount) time.Duration {
	start := time.Now()
	if e, err := m.Run(bg, sandboxes.Command{Script: "true"}); err != nil || e.Code != 0 {
		b.Fatal(e, err)
	}
	return time.Since(start)
}

// BenchmarkFirst measures from nothing to the end of the first command, and the
// same for the host.
func BenchmarkFirst(b *testing.B) {
	d := newDriver(b)
	project := b.TempDir()
	spec := sandboxes.Spec{ID: "sbx_bench", Project: project}
	r, err := d.Create(bg, spec)
	if err != nil {
		b.Fatal(err)
	}
	state := b.TempDir()
	// On a machine that is busy with other things the time says little; what the
	// processes use says more.
	var cpu, hostCPU time.Duration
	measure := func(used *time.Duration, open func() (sandboxes.Sandbox, error)) time.Duration {
		before := cpuTime(b)
		defer func() { *used += cpuTime(b) - before }()
		start := time.Now()
		sb, err := open()
		if err != nil {
			b.Fatal(err)
		}
		m, err := sb.Mount(bg, sandboxes.MountOptions{Dir: project, Umask: -1})
		if err != nil {
			b.Fatal(err)
		}
		timeRun(b, m)
		took := time.Since(start)
		if err := sb.Close(bg); err != nil {
			b.Fatal(err)
		}
		return took
	}
	var here, host []time.Duration
	for b.Loop() {
		here = append(here, measure(&cpu, func() (sandboxes.Sandbox, error) { return d.Attach(bg, spec, r) }))
		host = append(host, measure(&hostCPU, func() (sandboxes.Sandbox, error) { return local.New(local.Options{StateDir: state}) }))
	}
	ratio := float64(p50(b, here, "p50-µs")) / float64(p50(b, host, "local-p50-µs"))
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs")
	b.ReportMetric(float64(hostCPU.Microseconds())/float64(b.N), "local-cpu-µs")
}

// cpuTime is what this process and those that it has waited for have used.
func cpuTime(b *testing.B) time.Duration {
	var sum int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += u.Utime.Nano() + u.Stime.Nano()
	}
	return time.Duration(sum)
}

// BenchmarkNext measures a further command, and the same on the host.
func BenchmarkNext(b *testing.B) {
	project := b.TempDir()
	m := newMount(b, newSandbox(b, newDriver(b), project, ""))
	sb, err := local.New(local.Options{StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer sb.Close(bg)
	host, err := sb.Mount(bg, sandboxes.MountOptions{Dir: project, Umask: -1})
	if err != nil {
		b.Fatal(err)
	}
	timeRun(b, m)
	timeRun(b, host)
	var here, there []time.Duration
	for b.Loop() {
		here = append(here, timeRun(b, m))
		there = append(there, timeRun(b, host))
	}
	ratio := float64(p50(b, here, "p50-µs")) / float64(p50(b, there, "local-p50-µs"))
	b.ReportMetric(ratio, "ratio")
}
