package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// program is what `command` starts, in a process group of its own, again after each end. Its methods may be called from any
// goroutine.
type program struct {
	command []string
	env     map[string]sinks.Header
	dir     string // to run in
	log     *slog.Logger
	timeout time.Duration // for it to listen
	folder  string        // of the socket; made by Open
	turn    chan struct{} // holds a token while it is being started
	sent    post.Sent     // secrets among its variables

	mu     sync.Mutex // guards what follows
	run    *running   // nil: it was never started
	closed bool
}

// running is a process.
type running struct {
	process *os.Process
	input   io.Closer     // its end is the process's sign to end, and comes with the end of this one
	heard   bool          // its socket has been there; of the turn
	ended   chan struct{} // closed when it has ended and its output is read
	err     error         // why it ended; valid then
	last    string        // line of its output; valid then
}

func (r *running) alive() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// failure is the error of a Write to a program that has ended.
func (r *running) failure() error {
	text := "it ended without an error"
	if r.err != nil {
		text = r.err.Error()
	}
	if r.last != "" {
		text += ": " + r.last
	}
	return fmt.Errorf("the program does not run: %s", text)
}

func (p *program) socket() string { return filepath.Join(p.folder, "sink.sock") }

// errClosed is the failure of a Write behind Close.
var errClosed = errors.New("the sink is closed")

// listening starts the program unless it runs, and returns once it listens.
func (p *program) listening(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.mu.Lock()
	run, closed := p.run, p.closed
	p.mu.Unlock()
	switch {
	case closed:
		return errClosed
	case run != nil && run.alive():
		_, err := os.Lstat(p.socket())
		run.heard = run.heard || err == nil
		if !run.heard || !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		p.log.Warn("the socket of the program was deleted: the program is started again", "command", p.command[0])
		run.kill()
		<-run.ended // soon, as it is killed
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	run, err := p.start()
	if err != nil {
		return sinks.Pause(fmt.Errorf("start %s: %w", p.command[0], err))
	}
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", p.socket())
		if err == nil {
			run.heard = true
			return conn.Close()
		}
		select {
		case <-run.ended:
			return run.failure()
		case <-ctx.Done():
			return fmt.Errorf("the program does not listen on its socket: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// start starts the program, which has no socket of an earlier one.
func (p *program) start() (*running, error) {
	if err := os.Mkdir(p.folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) { // it may have been deleted
		return nil, err
	}
	if err := os.Remove(p.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var hidden []string // what the program may print
	args := make([]string, len(p.command))
	for i, arg := range p.command {
		args[i] = strings.ReplaceAll(arg, "{socket}", p.socket())
	}
	path := args[0]
	if strings.ContainsRune(path, filepath.Separator) {
		path = sinks.InDir(p.dir, path)
	}
	cmd := exec.Command(path, args[1:]...) //nolint:gosec,noctx // what the configuration wants; it lives as long as the sink
	cmd.Args[0], cmd.Dir = args[0], p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	for _, name := range []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"} { // and no secret of another sink
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Env = append(cmd.Env, "WATCHERD_SOCKET="+p.socket())
	for name, value := range p.env {
		text, err := value.Value(p.dir)
		if err != nil {
			return nil, fmt.Errorf("env.%s: %w", name, err)
		}
		cmd.Env = append(cmd.Env, name+"="+text)
		if !value.Secret.IsZero() {
			hidden = append(hidden, text)
		}
	}
	hidden = p.sent.Note(hidden...)
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, write, err := os.Pipe()
	if err != nil {
		_ = input.Close() // of a process that there is not
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = write, write
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		err = errClosed
	} else {
		err = cmd.Start()
	}
	_ = write.Close() // the process has its own
	if err != nil {
		_, _ = input.Close(), output.Close() // of a process that there is not
		return nil, err
	}
	run := &running{process: cmd.Process, input: input, ended: make(chan struct{})}
	p.run = run
	go func() {
		defer close(run.ended)
		read := make(chan string, 1)
		go func() { read <- p.forward(output, post.NewMask(hidden)) }()
		run.err = cmd.Wait()
		run.kill()                                              // what it has started, which may hold the output
		_ = output.SetReadDeadline(time.Now().Add(time.Second)) // what left its group may hold it as well
		run.last = <-read
		_ = output.Close() // it is read
		p.log.Warn("the program has ended", "command", p.command[0], "err", run.err)
	}()
	return run, nil
}

// Bounds of a program's output in the log: bytes of a line, and lines in a period.
const (
	maxLine  = 1 << 10
	maxLines = 100
	period   = time.Minute
)

// forward logs what the program prints, without its secrets, and returns its last line.
func (p *program) forward(output io.Reader, mask *post.Mask) (last string) {
	var begin time.Time
	lines := bufio.NewReaderSize(output, maxLine)
	for n := 0; ; {
		line, more, err := lines.ReadLine()
		if err != nil {
			return last
		}
		text := string(line)
		for more && err == nil { // the rest of a longer one, which takes its place
			_, more, err = lines.ReadLine()
		}
		if last = strings.ToValidUTF8(mask.HideCut(text), "?"); time.Since(begin) > period {
			begin, n = time.Now(), 0
		}
		switch n++; {
		case n <= maxLines:
			p.log.Info("output of the program", "line", last)
		case n == maxLines+1:
			p.log.Warn("the program has more output than is logged in a minute", "lines", maxLines)
		}
	}
}

// kill ends the process, if it has not ended, and all that it has started.
func (r *running) kill() {
	_ = syscall.Kill(-r.process.Pid, syscall.SIGKILL) // there may be none left
}

// grace is how long a program has for its end.
const grace = 5 * time.Second

// close ends the program.
func (p *program) close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	run := p.run
	p.mu.Unlock()
	if run != nil && run.alive() { // else its number may be another process's
		_ = run.input.Close()                               // it may have ended since
		_ = syscall.Kill(-run.process.Pid, syscall.SIGTERM) // the same
		late := time.NewTimer(grace)
		defer late.Stop()
		select {
		case <-run.ended:
		case <-late.C:
			run.kill()
		case <-ctx.Done():
			run.kill()
		}
		<-run.ended // soon, as it is killed
	}
	return os.RemoveAll(p.folder)
}
