package plugin

import (
	"errors"
	"io"
	"os/exec"
	"syscall"
	"testing"
)

// TestCloseLeavesOthers: the number of a program that ended long ago is another process's.
func TestCloseLeavesOthers(t *testing.T) {
	other := exec.CommandContext(t.Context(), "sleep", "600")
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	close(ended)
	p := &program{folder: t.TempDir(), run: &running{process: other.Process, input: io.NopCloser(nil), ended: ended}}
	if err := p.close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Error(err)
	}
	exit, ok := errors.AsType[*exec.ExitError](other.Wait())
	if status, _ := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the other process has ended before: %v", exit)
	}
}
