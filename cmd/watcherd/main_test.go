package main

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

func TestMain(m *testing.M) {
	// Under nohup, scripts would hang up a command that ignores it. What this process
	// takes for itself is ignored by it, but not by its children.
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	testcluster.Main(m)
}
