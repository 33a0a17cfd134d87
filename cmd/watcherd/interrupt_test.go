package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestInterruptedCommand: a command that an interrupt ends while it waits for the daemon does not report its context.
func TestInterruptedCommand(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	daemon := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		interrupt()
		<-r.Context().Done()
	}))
	defer daemon.Close()
	var out, errs strings.Builder
	if code := run(ctx, []string{"status", "--admin", daemon.URL}, &out, &errs); code != exitFailed || errs.String() != "watcherd: interrupted\n" {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
