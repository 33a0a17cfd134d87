package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// TestConformanceCommand runs the suite over the example, which the sink starts, and which is killed and stopped.
func TestConformanceCommand(t *testing.T) {
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		if strings.Contains(t.Name(), "body") {
			t.Skip("the example wants CloudEvents")
		}
		if strings.Contains(t.Name(), "replaced") || strings.Contains(t.Name(), "hangs") {
			t.Skip("each sink has a program of its own")
		}
		p, command := testservers.PluginCommand(t, root)
		return sinktest.Destination{
			Config: func() sinks.Config {
				c := plugin.NewConfig()
				c.Command = command
				return c
			},
			Options: func(o *sinks.Options) { o.Dir = p.Dir },
			Received: func(t *testing.T) []string {
				if _, err := os.Stat(filepath.Join(p.Dir, "db")); err != nil {
					return nil
				}
				return history(t, p)
			},
			Break: func(t *testing.T) {
				testkit.Write(t, filepath.Join(p.Dir, "broken"), nil)
				p.Signal(syscall.SIGKILL)
			},
			Repair: func(t *testing.T) {
				if err := os.RemoveAll(filepath.Join(p.Dir, "broken")); err != nil {
					t.Error(err)
				}
				p.Signal(syscall.SIGKILL) // a stopped one
			},
			Hang:       func(*testing.T) { p.Signal(syscall.SIGSTOP) },
			Restart:    func(*testing.T) { p.Signal(syscall.SIGKILL) },
			Idempotent: true,
		}
	})
}

// gone waits until there is no process of that number.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

// number is the number in a file, once it is there.
func number(t *testing.T, path string) int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(path)
		if n, err := strconv.Atoi(strings.TrimSuffix(string(text), "\n")); err == nil && strings.HasSuffix(string(text), "\n") {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has %q", path, text)
		}
	}
}

// TestCommand: what a program gets, says and leaves.
func TestCommand(t *testing.T) {
	t.Setenv("OTHER_PASSWORD", canary)
	t.Setenv("PLUGIN_PASSWORD", "own-"+canary)
	for _, test := range []struct {
		name, script string
		class        sinks.Class
		text         string // of the error
		log          []string
	}{
		{"it fails", "echo cannot open the database >&2; exit 3", sinks.ClassRetry, "exit status 3: cannot open the database", []string{"output of the program", "the program has ended"}},
		{"it ends", "exit 0", sinks.ClassRetry, "ended without an error", nil},
		{"it does not listen", "exec sleep 1000", sinks.ClassRetry, "does not listen", nil},
		{"its variables", `env; test "$WATCHERD_SOCKET" = "$1" && test "$PASSWORD" = own-` + canary + ` && test "$LEVEL" = debug && echo right; exit 1`, sinks.ClassRetry, "right", nil},
		{"much output", "i=0; while test $i -lt 500; do echo line $i; i=$((i+1)); done; exit 1", sinks.ClassRetry, "line 499", []string{"more output than is logged"}},
		{"a long line", "head -c 100000 /dev/zero | tr '\\0' x; exit 1", sinks.ClassRetry, "xxx", nil},
		{"a long line with a secret where it is cut", `printf begin; head -c 1015 /dev/zero | tr '\0' x; echo "$PASSWORD and more"; exit 1`, sinks.ClassRetry, "exit status 1: beginxxx", nil},
		{"it leaves a child with its output", "sleep 1000 & exit 1", sinks.ClassRetry, "exit status 1", nil},
		{"it is deaf", "trap '' TERM; exec sleep 1000", sinks.ClassRetry, "does not listen", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			c := plugin.NewConfig()
			c.Command = []string{"sh", "-c", "echo $$ >pid; " + test.script, "sh", "{socket}"}
			c.Env = map[string]sinks.Header{"PASSWORD": {Secret: sinks.Secret{Env: "PLUGIN_PASSWORD"}}, "LEVEL": {Text: "debug"}}
			c.Timeout = sinks.Duration(300 * time.Millisecond)
			if strings.Contains(test.name, "output") || test.name == "it fails" || strings.HasPrefix(test.name, "a long line") || test.name == "its variables" || test.name == "it ends" {
				c.Timeout = sinks.Duration(30 * time.Second)
			}
			var log sinktest.Log
			o := sinks.Options{Name: "s", Dir: dir, Registerer: prometheus.NewRegistry()}
			log.Option(&o)
			s, err := c.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), test.class, test.text)
			pid := number(t, filepath.Join(dir, "pid"))
			ctx, cancel := context.WithCancel(t.Context())
			if test.name == "it is deaf" {
				cancel() // there is no time left
			}
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
			cancel()
			gone(t, pid)
			for _, text := range test.log {
				if strings.Count(log.String(), text) != 1 {
					t.Errorf("%q is not said once:\n%s", text, &log)
				}
			}
			if lines := strings.Count(log.String(), "\n"); lines > 110 || len(log.String()) > 30_000 {
				t.Errorf("%d lines are logged", lines)
			}
			if strings.Contains(log.String(), canary) {
				t.Error("it got the secret of another sink, or its own is logged")
			}
		})
	}
	c := plugin.NewConfig()
	c.Command = []string{"./nothing"}
	err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
	sinktest.WantClass(t, err, sinks.ClassPause, "start ./nothing", "no such file")
}

// TestSocketGone: a program whose socket something has deleted, as what tidies up /tmp does, is started again.
func TestSocketGone(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	p, command := testservers.PluginCommand(t, root)
	c := plugin.NewConfig()
	c.Command = command
	for _, removed := range []string{"watcherd-plugin-*/sink.sock", "watcherd-plugin-*"} {
		s := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = p.Dir })
		if err := s.Write(t.Context(), sinktest.Events(2, 2)); err != nil {
			t.Fatal(err)
		}
		paths, err := filepath.Glob(filepath.Join(folder, removed))
		if err != nil || len(paths) != 1 {
			t.Fatalf("%v, error %v", paths, err)
		}
		if err := os.RemoveAll(paths[0]); err != nil {
			t.Fatal(err)
		}
		const lanes = 4 // which need more connections than there are
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			errs := make([]error, lanes)
			var running sync.WaitGroup
			for i := range lanes {
				running.Go(func() { errs[i] = s.Write(t.Context(), []*event.Event{sinktest.Event(10+i, i)}) })
			}
			running.Wait()
			err := errors.Join(errs...)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestCommandQuotesItsSecrets: what a program answers is without the secrets among its variables.
func TestCommandQuotesItsSecrets(t *testing.T) {
	t.Setenv("PLUGIN_PASSWORD", "own-"+canary)
	c := plugin.NewConfig()
	c.Command = []string{os.Args[0], "-test.run", "^TestAnswerer$"}
	c.Env = map[string]sinks.Header{"PLUGIN_TEST_ANSWERER": {Text: "yes"}, "PASSWORD": {Secret: sinks.Secret{Env: "PLUGIN_PASSWORD"}}}
	s := sinktest.Open(t, c)
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err == nil || !strings.Contains(err.Error(), "cannot log in as ***") || strings.Contains(err.Error(), canary) {
		t.Errorf("the error is %v", err)
	}
}

// TestAnswerer is the program of [TestCommandQuotesItsSecrets].
func TestAnswerer(t *testing.T) {
	if os.Getenv("PLUGIN_TEST_ANSWERER") == "" {
		t.Skip("it is a part of another test")
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", os.Getenv("WATCHERD_SOCKET"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "cannot log in as "+os.Getenv("PASSWORD"), http.StatusInternalServerError)
	})}
	go func() { _ = server.Serve(l) }()
	_, _ = io.Copy(io.Discard, os.Stdin) // until the sink ends
	_ = server.Close()
}

// TestCommandEndsWithWatcherd kills the process that has started a program.
func TestCommandEndsWithWatcherd(t *testing.T) {
	p, command := testservers.PluginCommand(t, root)
	text, err := json.Marshal(command)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestStarter$")
	cmd.Env = append(os.Environ(), "PLUGIN_TEST_STARTER="+string(text), "PLUGIN_TEST_DIR="+p.Dir)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v\n%s", err, out)
	}
	gone(t, number(t, filepath.Join(p.Dir, "pid")))
	if n := len(history(t, p)); n != 1 {
		t.Errorf("it has %d events", n)
	}
}

// TestStarter is the process of [TestCommandEndsWithWatcherd].
func TestStarter(t *testing.T) {
	text := os.Getenv("PLUGIN_TEST_STARTER")
	if text == "" {
		t.Skip("it is a part of another test")
	}
	c := plugin.NewConfig()
	if err := json.Unmarshal([]byte(text), &c.Command); err != nil {
		t.Fatal(err)
	}
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = os.Getenv("PLUGIN_TEST_DIR") })
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // nothing is left to report it
}
