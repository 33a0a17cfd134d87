package main

import (
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/status"
)

// TestStatusOfAReplica shows what a replica does and how far it is.
func TestStatusOfAReplica(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		journal *status.Journal
		want    string
	}{
		{nil, ""},
		{
			&status.Journal{Stream: "S", Replica: "a/x", Role: status.Leader, Leader: "a/x", Term: 3, Last: 70, Lag: 2 * time.Second},
			"replica  a/x leads   journal S, term 3, entry 70   last append 2s ago\n",
		},
		{
			&status.Journal{Stream: "S", Replica: "b/y", Role: status.Follower, Leader: "a/x", Term: 3, Last: 69, Lag: time.Second},
			"replica  b/y follows a/x   journal S, term 3, entry 69   had all of it 1s ago\n",
		},
		{
			&status.Journal{Stream: "S", Role: status.Follower, Lag: -1},
			"replica  ? follows no leader yet   journal S, term 0, entry 0   had all of it never\n",
		},
	} {
		var b strings.Builder
		if err := printStatus(&b, &status.Status{Store: status.Store{Journal: tc.journal}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		line := ""
		for l := range strings.Lines(b.String()) {
			if strings.HasPrefix(l, "replica") {
				line = l
			}
		}
		if line != tc.want {
			t.Errorf("%q, want %q", line, tc.want)
		}
	}
}

// TestStatusOfAClosedStore: a store that is not open yet has no sizes and no events that could be taken for its own.
func TestStatusOfAClosedStore(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]status.Store{
		"store    ./data   is being opened\n": {Path: "./data", Opening: true},
		"store    ./data   a copy of the leader's\nreplica  b/y follows a/x   journal S, term 3, entry 69   had all of it 1s ago\n": {
			Path: "./data", Opening: true,
			Journal: &status.Journal{Stream: "S", Replica: "b/y", Role: status.Follower, Leader: "a/x", Term: 3, Last: 69, Lag: time.Second},
		},
	} {
		var b strings.Builder
		if err := printStatus(&b, &status.Status{Store: s}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "in the log") {
			t.Errorf("got\n%s\nwant %q", b.String(), want)
		}
	}
}

// TestProblemsOfAnOutage: what all watches fail for is one line, and what one fails for is its own.
func TestProblemsOfAnOutage(t *testing.T) {
	t.Parallel()
	now := time.Now()
	source := func(resource, message string) status.Source {
		s := status.Source{Resource: resource, Synced: true}
		s.State, s.Message = "backing-off", message
		return s
	}
	st := &status.Status{Pipeline: status.Pipeline{Applied: true, Watches: []status.Watch{
		{Name: "w", Sources: []status.Source{source("pods.v1", "connection refused"), source("secrets.v1", "forbidden"), source("configmaps.v1", "connection refused")}},
		{Name: "v", Sources: []status.Source{source("jobs.v1.batch", "connection refused"), source("nodes.v1", "connection refused"), source("leases.v1.coordination.k8s.io", "connection refused")}},
	}}}
	var b strings.Builder
	if err := printStatus(&b, st, now); err != nil {
		t.Fatal(err)
	}
	_, problems, _ := strings.Cut(b.String(), "since then.\n\n")
	want := "!  watch/w/pods.v1, watch/w/configmaps.v1, watch/v/jobs.v1.batch, and 2 more: backing-off: connection refused\n" +
		"!  watch/w/secrets.v1: backing-off: forbidden\n"
	if problems != want {
		t.Errorf("got\n%swant\n%s", problems, want)
	}
}

// TestStatusIsForTerminals: a warning may quote a key that an object names.
func TestStatusIsForTerminals(t *testing.T) {
	t.Parallel()
	st := &status.Status{Pipeline: status.Pipeline{
		Watches: []status.Watch{{Name: "w", Warnings: []string{"no \x1b[2Jb"}}},
		Routes:  []status.Route{{Name: "r", Unseen: []status.Unseen{{Key: "when", Field: "no such key: \x1b[2Ja", Changes: 100}}}},
	}}
	var b strings.Builder
	if err := printStatus(&b, st, time.Now()); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Contains(text, "\x1b") || !strings.Contains(text, "no such key: [2Ja") || !strings.Contains(text, "no [2Jb") {
		t.Errorf("%q", text)
	}
}
