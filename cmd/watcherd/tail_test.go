package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

// TestTailOfAnOutage: the gaps of one outage of the API server in which nothing was missed are one line, which comes
// when the stream is idle, continues, or ends.
func TestTailOfAnOutage(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)
	sequence := uint64(0)
	send := func(e *event.Event) string {
		sequence++
		e.Cluster, e.Sequence = "c", sequence
		return fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", sequence, e.Type, event.AppendCloudEvent(nil, e))
	}
	gap := func(resource string, outage time.Duration) string {
		r := event.Resource{Version: "v1", Resource: resource}
		return send(&event.Event{ID: "a", Type: event.Gap, Time: began.Add(outage + time.Minute), Resource: r, Gap: &event.GapData{
			Watch: "w", Resource: r, Cause: "quiet", From: began.Add(outage), To: began.Add(outage + time.Minute),
		}})
	}
	added := func() string {
		return send(&event.Event{ID: "b", Type: event.Added, Time: began, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Name: "a"})
	}
	for name, tc := range map[string]struct {
		stream string
		limit  int
		want   []string // how many more, or the verb
	}{
		"an event follows":   {gap("pods", 0) + gap("jobs", 0) + gap("nodes", 0) + added(), 0, []string{"pods.v1 and 2 more", "ADDED"}},
		"the stream is idle": {gap("pods", 0) + gap("jobs", 0) + ": alive\n\n" + gap("nodes", 0), 0, []string{"pods.v1 and 1 more", "nodes.v1  no"}},
		"the stream ends":    {added() + gap("pods", 0) + gap("jobs", 0), 0, []string{"ADDED", "pods.v1 and 1 more"}},
		"another outage":     {gap("pods", 0) + gap("jobs", 0) + gap("pods", time.Hour), 0, []string{"pods.v1 and 1 more", "pods.v1  no"}},
		"a limit":            {gap("pods", 0) + gap("jobs", 0) + gap("nodes", 0), 2, []string{"pods.v1 and 1 more"}},
	} {
		var out strings.Builder
		tail := &tail{out: &out, notes: io.Discard, printer: &pretty.Printer{}, left: tc.limit}
		if err := tail.read(strings.NewReader(tc.stream)); err != nil {
			t.Fatal(err)
		}
		if err := tail.printQuiet(); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		ok := len(lines) == len(tc.want)
		for i := 0; ok && i < len(lines); i++ {
			ok = strings.Contains(lines[i], tc.want[i])
		}
		if !ok {
			t.Errorf("%s: got\n%swant %q", name, out.String(), tc.want)
		}
	}
}

// TestTailToTheEnd: with --no-follow a daemon that stops meanwhile is not the end of the log.
func TestTailToTheEnd(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)
	line := func(sequence uint64) string {
		e := event.Event{ID: "a", Cluster: "c", Sequence: sequence, Type: event.Added, Time: began, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Name: fmt.Sprint("pod-", sequence)}
		return fmt.Sprintf("id: %d\nevent: added\ndata: %s\n\n", sequence, event.AppendCloudEvent(nil, &e))
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := line(1) + "event: end\ndata: {\"reason\":\"the daemon is stopping\"}\n\n"
		if r.Header.Get("Last-Event-ID") == "1" {
			text = line(2)
		}
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(s.Close)
	client, err := (&adminFlags{url: s.URL}).client()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	tail := &tail{out: &out, notes: io.Discard}
	if err := tail.follow(t.Context(), client, url.Values{"follow": {"false"}}, true); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "pod-1") || !strings.Contains(got, "pod-2") {
		t.Errorf("it prints\n%s", got)
	}
}

// TestTailWithoutOutput: an output that takes nothing, such as a file on a full disk, ends the command. No other connection repairs it.
func TestTailWithoutOutput(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left on device")
	for name, left := range map[string]int{"all": 0, "one": 1} {
		ctx, cancel := context.WithCancel(t.Context())
		var requests atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if requests.Add(1) == 2 {
				cancel()
			}
			_, _ = io.WriteString(w, "id: 1\nevent: added\ndata: {}\n\n")
		}))
		t.Cleanup(s.Close)
		client, err := (&adminFlags{url: s.URL}).client()
		if err != nil {
			t.Fatal(err)
		}
		tail := &tail{out: fails{full}, notes: io.Discard, left: left}
		if err := tail.follow(ctx, client, nil, false); !errors.Is(err, full) {
			t.Errorf("%s: it ends with %v after %d connections, want %v", name, err, requests.Load(), full)
		}
	}
}

type fails struct{ err error }

func (f fails) Write([]byte) (int, error) { return 0, f.err }
