package testservers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Plugin is the example of a plugin in Python. Its methods may be called from any goroutine, one at a time.
type Plugin struct {
	process

	Socket string
	Token  string // that it demands from its next start on; "": none
	Dir    string // of PluginCommand

	interpreter, program, db string
}

// python is Python's own program: the one in the path may be a script that looks for it.
var python = sync.OnceValues(func() (string, error) {
	out, err := exec.CommandContext(context.Background(), "python3", "-c", "import sys, sqlite3; print(sys.executable)").Output()
	return strings.TrimSpace(string(out)), err
})

// Python returns the interpreter. Where Python is not installed it skips the test or, in CI, fails it.
func Python(t testing.TB) string {
	t.Helper()
	interpreter, err := python()
	if err != nil {
		const missing = "Python is not installed: apt-get install -y --no-install-recommends python3"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return interpreter
}

// StartPlugin starts the plugin, which is killed at the end of the test. The module's folder is root.
func StartPlugin(t testing.TB, root, token string) *Plugin {
	t.Helper()
	interpreter := Python(t)
	dir := SocketDir(t)
	p := &Plugin{
		process: process{t: t}, Socket: filepath.Join(dir, "s"), Token: token,
		interpreter: interpreter, program: filepath.Join(root, "examples/plugin/sink.py"), db: filepath.Join(dir, "db"),
	}
	t.Cleanup(p.Kill)
	if p.Start(); t.Failed() {
		t.FailNow()
	}
	return p
}

// PluginCommand is the plugin for a `command` that runs in Dir, which starts it and writes the number of its process to
// the file pid. While there is a file broken, it fails at once.
func PluginCommand(t testing.TB, root string) (p *Plugin, command []string) {
	t.Helper()
	interpreter := Python(t)
	program, err := filepath.Abs(filepath.Join(root, "examples/plugin/sink.py"))
	if err != nil {
		t.Fatal(err)
	}
	p = &Plugin{process: process{t: t}, Dir: t.TempDir(), interpreter: interpreter}
	p.db = filepath.Join(p.Dir, "db")
	return p, []string{"sh", "-c", `echo $$ >pid; test ! -e broken || { echo it is broken; exit 3; }; exec "$1" -B "$2" "$3" db`, "sh", interpreter, program, "{socket}"}
}

// Signal signals the process of the file pid, if there is one.
func (p *Plugin) Signal(sig syscall.Signal) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.Dir, "pid"))
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		p.t.Error(err)
		return
	}
	_ = syscall.Kill(pid, sig) // it may have ended
}

// SocketDir is a folder of the test whose path is short enough for sockets in it.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugin") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Start starts the plugin again, with its database, at its socket.
func (p *Plugin) Start() {
	p.t.Helper()
	_ = os.Remove(p.Socket) // of an earlier process
	p.cmd = exec.CommandContext(context.WithoutCancel(p.t.Context()), p.interpreter, p.program, p.Socket, p.db)
	p.cmd.Env = append(os.Environ(), "SINK_TOKEN="+p.Token, "PYTHONDONTWRITEBYTECODE=1")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Error(err)
		return
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", p.Socket)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(deadline) {
			p.t.Error(err)
			return
		}
	}
}

// Restart kills the plugin and starts it again.
func (p *Plugin) Restart() {
	p.Kill()
	p.Start()
}

// History are the events behind the first n, in the order in which they were stored.
func (p *Plugin) History(n int) [][]byte {
	p.t.Helper()
	return p.query("select event from history where rowid > " + strconv.Itoa(n) + " order by rowid")
}

// Objects are the current states of the objects that are not deleted.
func (p *Plugin) Objects() [][]byte {
	p.t.Helper()
	return p.query("select object from objects where not deleted")
}

// query returns the values of one column.
func (p *Plugin) query(sql string) [][]byte {
	p.t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(p.t.Context()), p.interpreter, "-c", `import sqlite3, sys
for value, in sqlite3.connect(sys.argv[1], timeout=60).execute(sys.argv[2]):
    print(value)`, p.db, sql).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		p.t.Error(err)
		return nil
	}
	return bytes.Split(bytes.TrimSuffix(out, []byte("\n")), []byte("\n"))[:bytes.Count(out, []byte("\n"))]
}
