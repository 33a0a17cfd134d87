package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/internal/testkit"
)

// counting is a command that ends at SIGTERM, with the number of interrupts as its exit code.
const counting = `n=0; trap 'n=$((n+1)); echo interrupted' INT; trap 'exit $n' TERM; echo ready; while :; do sleep 0.05; done`

// TestInterrupts: the command of a recording gets each interrupt once: from the keyboard
// even if the input is no terminal, and from other processes even if it is one, unless that
// controls the recording, whose interrupts count as the keyboard's.
func TestInterrupts(t *testing.T) {
	if os.Getenv("WATCHERD_TEST_INTERRUPTS") != "" {
		o := recordOptions{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
		if err := o.command(t.Context(), []string{"sh", "-c", counting}, os.Environ()); err != nil {
			t.Fatal(err)
		}
		os.Exit(o.code)
	}
	for _, keyboard := range []bool{true, false} {
		t.Run(fmt.Sprint("keyboard ", keyboard), func(t *testing.T) {
			screen, terminal := testkit.OpenTerminal(t)
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInterrupts$")
			cmd.Env = append(os.Environ(), "WATCHERD_TEST_INTERRUPTS=1")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if keyboard {
				cmd.ExtraFiles = []*os.File{terminal}
				cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, 3
			} else {
				cmd.Stdin = terminal
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			await := func(want string) {
				t.Helper()
				for lines.Scan() {
					if lines.Text() == want {
						return
					}
				}
				t.Fatalf("it ended without %q", want)
			}
			send := func(s syscall.Signal) {
				t.Helper()
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			await("ready")
			if keyboard {
				send(syscall.SIGSTOP) // so that the command has taken the interrupt before it could get another
				for stopped := false; !stopped; {
					stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
					if err != nil {
						t.Fatal(err)
					}
					stopped = bytes.Contains(stat, []byte(") T "))
				}
				if _, err := screen.WriteString("\x03"); err != nil {
					t.Fatal(err)
				}
				await("interrupted")
				send(syscall.SIGCONT)
			} else {
				send(syscall.SIGINT)
				await("interrupted")
			}
			send(syscall.SIGTERM)
			err = cmd.Wait()
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
				t.Errorf("the command ended with %v, want 1, the number of interrupts", err)
			}
		})
	}
}
