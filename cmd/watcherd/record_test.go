package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/watcherd"
)

// recorder is a daemon whose watches have begun.
type recorder struct {
	gap    *event.GapData // of the period of the command
	paused bool           // the store is
	many   bool           // more objects changed than are listed
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	answer := any(&status.Status{Pipeline: status.Pipeline{Applied: true, Watches: []status.Watch{{Sources: []status.Source{{Synced: true}}}}}, Store: status.Store{Paused: r.paused, Reason: "disk nearly full"}})
	if strings.HasSuffix(req.URL.Path, "/changes") {
		span := history.Span{Complete: true}
		if r.gap != nil && req.FormValue("from") != req.FormValue("to") {
			span = history.Span{Gaps: []event.GapData{*r.gap}}
		}
		span.Complete = span.Complete && !r.many
		answer = &history.Changes{Span: span, Truncated: r.many}
	}
	w := httptest.NewRecorder()
	err := json.NewEncoder(w).Encode(answer)
	return w.Result(), err
}

func (r *recorder) local() watcherd.Local {
	done := func(context.Context) error { return nil }
	return watcherd.Local{API: r, CatchUp: done}
}

// TestGapInARecording ends with an error, after the summary, whatever the command's exit code is.
func TestGapInARecording(t *testing.T) {
	gap := &event.GapData{Cause: "expired", From: time.Unix(1, 0), To: time.Unix(2, 0)}
	for _, r := range []recorder{{}, {gap: gap}, {many: true}, {gap: gap, many: true}} {
		var out bytes.Buffer
		o := recordOptions{dir: t.TempDir(), ready: time.Minute, stdout: &out, stderr: &out}
		err := o.record(t.Context(), t.Context(), r.local(), []string{"sh", "-c", "exit 3"}, os.Environ())
		if lacks := r.gap != nil; (err != nil) != lacks || strings.Contains(out.String(), "changes may be missing from ") != lacks || o.code != 3 {
			t.Errorf("%+v: code %d, error %v\n%s", r, o.code, err, &out)
		}
		if _, err := os.Stat(filepath.Join(o.dir, recordedChanges)); err != nil {
			t.Error(err)
		}
	}
}

// TestVerdictOfChanges: standard error has it in every format.
func TestVerdictOfChanges(t *testing.T) {
	for _, output := range []string{"table", "json", "yaml"} {
		var out, notes bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetOut(&out)
		cmd.SetErr(&notes)
		gap := &event.GapData{Cause: "expired", From: time.Unix(1, 0), To: time.Unix(2, 0)}
		o := historyOptions{admin: adminFlags{local: &recorder{gap: gap}}, group: "none", from: "2026-01-01T00:00:00Z", output: output}
		if err := o.changes(cmd, nil); err != nil || !strings.Contains(notes.String(), "changes may be missing from ") {
			t.Errorf("-o %s: %v\n%s", output, err, &notes)
		}
	}
}

// TestPausedRecording ends with the reason why the watches do not catch up.
func TestPausedRecording(t *testing.T) {
	o := recordOptions{dir: t.TempDir(), ready: time.Minute, stdout: io.Discard, stderr: io.Discard}
	d := (&recorder{paused: true}).local()
	d.CatchUp = func(context.Context) error { return context.DeadlineExceeded }
	if err := o.record(t.Context(), t.Context(), d, []string{"true"}, os.Environ()); err == nil || err.Error() != "the store is paused: disk nearly full" {
		t.Error(err)
	}
}

// interrupter is standard error that is interrupted after a line.
type interrupter struct {
	bytes.Buffer
	interrupt func()
}

func (i *interrupter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("recording 1 resource in")) {
		i.interrupt()
	}
	return i.Buffer.Write(b)
}

// TestInterruptedBeforeTheCommand does not run it: it would not get the signal.
func TestInterruptedBeforeTheCommand(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	out := &interrupter{interrupt: interrupt}
	o := recordOptions{dir: t.TempDir(), ready: time.Minute, stdout: out, stderr: out}
	ran := filepath.Join(t.TempDir(), "ran")
	err := o.record(t.Context(), ctx, (&recorder{}).local(), []string{"touch", ran}, os.Environ())
	if exit, ok := errors.AsType[*exitError](err); !ok || exit.code != exitRecord {
		t.Errorf("error %v\n%s", err, &out.Buffer)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command has run")
	}
}

// TestWatchKeepsNothing: what watch has printed does not fill the folder of temporary files.
func TestWatchKeepsNothing(t *testing.T) {
	st, err := (&watchOptions{output: "pretty"}).configure(filepath.Join(t.TempDir(), recordedConfig), []string{"pods"})
	if err != nil {
		t.Fatal(err)
	}
	if age := st.Store.RetentionMaxAge; age > 1 {
		t.Errorf("events that were printed are kept for %s", age)
	}
}
