package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program under measurement, or one that helps.
type process struct {
	name string
	cmd  *exec.Cmd
	log  output
	done chan struct{} // closed when it has ended
	err  error         // how; read after done is closed
}

// start starts a program in a folder. It is killed if this process dies.
func start(dir, name string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stopTimeout is how long a program may take to end.
const stopTimeout = 60 * time.Second

// stop ends the program as a user would, and waits.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill() // the error below is enough
		return fmt.Errorf("%s did not end within %v", p.name, stopTimeout)
	}
}

// ended returns an error if the program is gone.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %w; its output:\n%s", p.name, p.err, p.log.String())
	default:
		return nil
	}
}

// awaitLog returns when the output has text.
func (p *process) awaitLog(ctx context.Context, text string) error {
	return p.await(ctx, text, func() (bool, error) { return strings.Contains(p.log.String(), text), nil })
}

// patience is how long a condition may take.
const patience = 10 * time.Minute

// await polls a condition while the program runs.
func (p *process) await(ctx context.Context, what string, ok func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		if err := p.ended(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: gave up waiting for %s; its output:\n%s", p.name, what, p.log.String())
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cpu is what the process has used so far, in user and system mode, to 10 ms.
func (p *process) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may contain anything; utime and stime are the 12th
	// and 13th field after it.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("stat of %s: %q", p.name, b)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	const perSecond = 100 // USER_HZ, the same on all Linux machines
	return time.Duration(ticks) * time.Second / perSecond, nil
}

// memory is the resident memory now and at its highest, in bytes.
func (p *process) memory() (now, peak float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	read := func(field string) float64 {
		_, rest, _ := strings.Cut(string(b), "\n"+field+":")
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		n, nerr := strconv.ParseFloat(number, 64)
		if nerr != nil {
			err = fmt.Errorf("%s of %s: %w", field, p.name, nerr)
		}
		return n * 1024
	}
	now, peak = read("VmRSS"), read("VmHWM")
	return now, peak, err
}

// awaitRest returns when the process has used next to no CPU for a while, and what
// it has used in all.
func (p *process) awaitRest(ctx context.Context) (total time.Duration, err error) {
	const window, most = 500 * time.Millisecond, 10 * time.Millisecond
	for {
		before, err := p.cpu()
		if err != nil {
			return 0, err
		}
		if err := pause(ctx, window); err != nil {
			return 0, err
		}
		if total, err = p.cpu(); err != nil || total-before <= most {
			return total, err
		}
	}
}

// awaitSettled returns the resident memory once it has stayed the same for some
// seconds: both garbage collection and giving memory back to the system take
// their time.
func (p *process) awaitSettled(ctx context.Context) (now, peak float64, err error) {
	const steady, most = 5, 60
	last, same := 0.0, 0
	for range most {
		if now, peak, err = p.memory(); err != nil {
			return 0, 0, err
		}
		if same++; now < last*0.995 || now > last*1.005 {
			last, same = now, 0
		}
		if same == steady {
			break
		}
		if err := pause(ctx, time.Second); err != nil {
			return 0, 0, err
		}
	}
	return now, peak, nil
}

// output collects what a program prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
