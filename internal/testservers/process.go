package testservers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
	"github.com/watcherd/watcherd/internal/testkit"
)

// process is a server that is a program of the module servers: it takes a spec as its argument and prints its address.
type process struct {
	Addr string

	t       testing.TB
	program playground.Program
	spec    func(port int) any
	port    int
	cmd     *exec.Cmd
	input   io.WriteCloser
	output  *bufio.Reader
}

// run starts a server that is killed at the end of the test.
func run(t testing.TB, program playground.Program, spec func(port int) any) *process {
	t.Helper()
	p := &process{t: t, program: program, spec: spec, port: testkit.Port(t)}
	t.Cleanup(p.Kill)
	if p.Start(); t.Failed() {
		t.FailNow()
	}
	return p
}

// Start starts the server again, with its data, at its address.
func (p *process) Start() {
	p.t.Helper()
	if err := p.start(); err != nil {
		p.t.Errorf("server of the test: %v", err)
	}
}

func (p *process) start() error {
	source, err := p.program.Source(".")
	if err != nil {
		return err
	}
	program, err := p.program.Path(p.t.Context(), source, os.Stderr)
	if err != nil {
		return err
	}
	spec, err := json.Marshal(p.spec(p.port))
	if err != nil {
		return err
	}
	p.cmd = exec.CommandContext(context.WithoutCancel(p.t.Context()), program, string(spec))
	p.cmd.Stderr = os.Stderr
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.output = bufio.NewReader(stdout)
	line, err := p.output.ReadString('\n')
	if err != nil {
		return err
	}
	p.Addr = strings.TrimSpace(line)
	return nil
}

// Kill ends the process at once, if it still runs.
func (p *process) Kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Restart kills the process and starts it again.
func (p *process) Restart() {
	p.Kill()
	p.Start()
}

// Freeze stops the process, which keeps its connections and reads nothing.
func (p *process) Freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		p.t.Errorf("the server is not stopped: %v, %v", status, err)
	}
}

// Thaw lets it continue.
func (p *process) Thaw() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Error(err)
	}
}

// accepted are the documents that a server has noted in its folder, in their order.
func accepted[T any](t testing.TB, dir string) []T {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "accepted"))
	if err != nil {
		t.Fatal(err)
	}
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	var out []T
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

// refuse makes a server refuse what holds the text; "" ends that.
func refuse(t testing.TB, dir, text string) {
	t.Helper()
	path := filepath.Join(dir, "refuse")
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if text != "" {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
