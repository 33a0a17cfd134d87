package testcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
)

// The server gives up by itself when it is not ready in two minutes.
const startLimit = 150 * time.Second

// stopLimit is how long a server may take to stop. It needs about a second.
const stopLimit = 30 * time.Second

// process is one run of the server.
type process struct {
	cmd      *exec.Cmd
	lifeline io.Closer
	url      string // from the ready line
	stderr   Output

	exited chan struct{} // closed when the process is gone
	err    error         // how it ended; read only after exited is closed
}

// startProcess starts the server and returns when it is ready. Its standard
// input is a pipe that ends when this process does.
func startProcess(ctx context.Context, binary string, args []string) (*process, error) {
	p := &process{cmd: exec.Command(binary, args...), exited: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.lifeline, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		defer close(p.exited)
		// Wait closes the pipe, so everything has to be read before.
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if rest, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
				url, _, _ := strings.Cut(rest, " ")
				ready <- url
			}
		}
		p.err = errors.Join(lines.Err(), p.cmd.Wait())
	}()

	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case p.url = <-ready:
		return p, nil
	case <-p.exited:
		return nil, fmt.Errorf("the server ended before it was ready: %w\n%s", p.ending(), p.stderr.String())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("the server is not ready: %w\n%s", ctx.Err(), p.stderr.String()),
			p.signal(os.Kill))
	}
}

// signal sends a signal, waits until the process has ended and returns its error.
// That it ended by that signal is no error.
func (p *process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.exited:
	case <-limit.C:
		err := p.cmd.Process.Kill()
		<-p.exited
		return errors.Join(fmt.Errorf("the server did not stop within %s and was killed", stopLimit), err)
	}
	if s == os.Kill && p.killed() {
		return nil
	}
	return p.err
}

func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// ending is how a process that is gone ended by itself, which is an error even if
// the process doesn't think so.
func (p *process) ending() error {
	if p.err != nil {
		return p.err
	}
	return errors.New("exit status 0")
}

// running reports whether the process still runs.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Output collects what a process writes, for readers at any time.
type Output struct{ testkit.Log }

// Tail is the end of the output, enough to see what went wrong.
func (o *Output) Tail() string {
	s := o.String()
	return s[max(0, len(s)-100_000):]
}
