package status_test

import (
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// healthy is a daemon that has nothing to complain of.
func healthy() *status.Status {
	pods := status.Source{Resource: "pods.v1", Synced: true}
	pods.State, pods.LastContact = dynamicfactory.StateWatching, now
	return &status.Status{Pipeline: status.Pipeline{
		Applied: true,
		Beat:    now,
		Watches: []status.Watch{{Name: "w", Sources: []status.Source{pods}}},
		Routes:  []status.Route{{Name: "r"}},
		Sinks:   []status.Sink{{Name: "s", Configured: true, State: "idle"}},
	}}
}

func TestHealthy(t *testing.T) {
	s := healthy()
	for _, c := range append(s.Checks(now), s.Live(now)...) {
		if c.Verdict != status.OK || c.Reason != "" {
			t.Errorf("%s: %v %s", c.Name, c.Verdict, c.Reason)
		}
	}
}

// TestChecks has one fault at a time, which one check must tell of and no other.
func TestChecks(t *testing.T) {
	for name, test := range map[string]struct {
		fault func(*status.Status)
		want  status.Check
	}{
		"stopping":           {func(s *status.Status) { s.Stopping = true }, status.Check{Name: "shutdown", Verdict: status.Failed, Reason: "the daemon is stopping"}},
		"not applied":        {func(s *status.Status) { s.Applied = false }, status.Check{Name: "pipeline", Verdict: status.Failed, Reason: "the configuration is not running yet"}},
		"store opens":        {func(s *status.Status) { s.Store.Opening = true }, status.Check{Name: "store", Verdict: status.Failed, Reason: "it is being opened and checked"}},
		"store failed":       {func(s *status.Status) { s.Store.Failed = "EIO" }, status.Check{Name: "store", Verdict: status.Failed, Reason: "EIO"}},
		"commit hangs":       {func(s *status.Status) { s.Store.CommitStuck = 3 * time.Minute }, status.Check{Name: "store", Verdict: status.Failed, Reason: "a commit hangs for 3m0s"}},
		"disk is slow":       {func(s *status.Status) { s.Store.CommitStuck = time.Minute }, status.Check{}},
		"store paused":       {func(s *status.Status) { s.Store.Paused, s.Store.Reason = true, "disk nearly full" }, status.Check{Name: "store", Verdict: status.Degraded, Reason: "ingest is paused: disk nearly full; deliveries continue"}},
		"bad reload":         {func(s *status.Status) { s.Config.LastError = "w.yaml:1:1: x" }, status.Check{Name: "config", Verdict: status.Degraded, Reason: "the file is not what runs: w.yaml:1:1: x"}},
		"needs a restart":    {func(s *status.Status) { s.Config.NeedsRestart = []string{"store.path"} }, status.Check{Name: "config", Verdict: status.Degraded, Reason: "changes of store.path take effect at a restart"}},
		"first list":         {func(s *status.Status) { s.Watches[0].Sources[0].Synced = false }, status.Check{Name: "watch/w/pods.v1", Verdict: status.Failed, Reason: "watching: the first list is not complete"}},
		"forbidden":          {forbidden, status.Check{Name: "watch/w/pods.v1/prod", Verdict: status.Degraded, Reason: "forbidden: may not list pods"}},
		"silent watch":       {func(s *status.Status) { s.Watches[0].Sources[0].LastContact = now.Add(-6 * time.Minute) }, status.Check{Name: "watch/w/pods.v1", Verdict: status.Degraded, Reason: "watching: nothing was heard from the API server for 6m0s"}},
		"paused watch":       {func(s *status.Status) { s.Watches[0].Sources[0].PausedSince = now.Add(-time.Minute) }, status.Check{Name: "watch/w/pods.v1", Verdict: status.Degraded, Reason: "watching: paused for 1m0s until the store has taken what was read; the API server may drop what comes meanwhile"}},
		"paused a moment":    {func(s *status.Status) { s.Watches[0].Sources[0].PausedSince = now.Add(-time.Second) }, status.Check{}},
		"quiet for a while":  {func(s *status.Status) { s.Watches[0].Sources[0].LastContact = now.Add(-4 * time.Minute) }, status.Check{}},
		"no server yet":      {func(s *status.Status) { s.Undiscovered, s.DiscoveryError = true, "refused" }, status.Check{Name: "discovery", Verdict: status.Failed, Reason: "no watch can start: refused"}},
		"discovery not read": {func(s *status.Status) { s.Undiscovered = true }, status.Check{Name: "discovery", Verdict: status.Failed, Reason: "the served resources are not known yet"}},
		"discovery fails":    {func(s *status.Status) { s.DiscoveryError = "refused" }, status.Check{Name: "discovery", Verdict: status.Degraded, Reason: "refused"}},
		"resource missing": {func(s *status.Status) {
			s.Watches[0].Missing = []status.Missing{{Resource: "a.b", Reason: "not served"}}
		}, status.Check{Name: "watch/w/a.b", Verdict: status.Degraded, Reason: "waiting: not served"}},
		"resource not read yet": {func(s *status.Status) {
			s.Watches[0].Missing = []status.Missing{{Resource: "namespaces", Reason: "not listed yet", Pending: true}}
		}, status.Check{Name: "watch/w/namespaces", Verdict: status.Failed, Reason: "waiting: not listed yet"}},
		"first list refused": {refused(now.Add(-30 * time.Second)), status.Check{Name: "watch/w/pods.v1", Verdict: status.Failed, Reason: "backing-off: the first list is not complete: too many requests"}},
		"first list fails":   {refused(now.Add(-31 * time.Second)), status.Check{Name: "watch/w/pods.v1", Verdict: status.Degraded, Reason: "backing-off: too many requests"}},
		"withheld":           {func(s *status.Status) { s.Routes[0].Errors = 2 }, status.Check{Name: "route/r", Verdict: status.Degraded, Reason: "its expression failed 2 times; the error may quote what is hidden now"}},
		"route fails":        {func(s *status.Status) { s.Routes[0].Errors, s.Routes[0].FirstError = 2, "no such key" }, status.Check{Name: "route/r", Verdict: status.Degraded, Reason: "its expression failed 2 times, first with: no such key"}},
		"sink is down":       {down, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "backing-off: connection refused; 7 events wait; next attempt in 30s"}},
		"sink stopped":       {func(s *status.Status) { s.Sinks[0].State, s.Sinks[0].LastError = "stopped", "panic" }, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "stopped: panic"}},
		"objects held back":  {func(s *status.Status) { s.Sinks[0].Blocked = 3 }, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "3 events wait for a retry: no reason known"}},
		"object fails": {func(s *status.Status) {
			s.Sinks[0].Blocked, s.Sinks[0].FailingObjects = 3, 2
			s.Sinks[0].Failing = []status.Failing{{Subject: "/api/v1/pods/a", Since: now.Add(-time.Hour), LastError: "status 403"}}
		}, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "3 events wait behind objects that fail: /api/v1/pods/a for 1h0m0s, and 1 more: status 403"}},
		"reading stopped": {func(s *status.Status) {
			s.Sinks[0].Blocked, s.Sinks[0].Stalled, s.Sinks[0].FailingObjects = 65536, true, 1
			s.Sinks[0].Failing = []status.Failing{{Sequence: 7, Since: now.Add(-time.Minute)}}
		}, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "reading has stopped: 65536 events wait behind objects that fail: the object of event 7 for 1m0s: no reason known"}},
		"dead letters":      {func(s *status.Status) { s.Sinks[0].DeadLetters = 1 }, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "dead letters are kept: 1; see 'watcherd deadletters list --sink s'"}},
		"orphaned backlog":  {func(s *status.Status) { s.Sinks[0].Configured, s.Sinks[0].Queued = false, 5 }, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "it is not configured any more; 5 events wait for it to come back, or for a purge"}},
		"orphaned event":    {func(s *status.Status) { s.Sinks[0].Configured, s.Sinks[0].Queued = false, 1 }, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "it is not configured any more; 1 event waits for it to come back, or for a purge"}},
		"removed and empty": {func(s *status.Status) { s.Sinks[0].Configured = false }, status.Check{}},
		"paused":            {func(s *status.Status) { s.Sinks[0].State, s.Sinks[0].Reason = "paused", "status 401" }, status.Check{Name: "sink/s", Verdict: status.Degraded, Reason: "paused: status 401; 0 events wait"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			test.fault(s)
			var got status.Check
			checks := s.Checks(now)
			for _, c := range checks {
				if c.Verdict == status.OK {
					continue
				}
				if got.Name != "" {
					t.Errorf("%s complains too: %s", c.Name, c.Reason)
				}
				got = c
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if worst := status.Worst(checks); worst != test.want.Verdict {
				t.Errorf("the worst is %v, want %v", worst, test.want.Verdict)
			}
		})
	}
}

func forbidden(s *status.Status) {
	src := &s.Watches[0].Sources[0]
	src.Namespace, src.State, src.Reason, src.Message, src.Synced = "prod", "forbidden", "Forbidden", "may not list pods", false
}

// refused is a first list that fails since a time.
func refused(since time.Time) func(*status.Status) {
	return func(s *status.Status) {
		src := &s.Watches[0].Sources[0]
		src.State, src.Since, src.Message, src.Synced = dynamicfactory.StateBackingOff, since, "too many requests", false
	}
}

func down(s *status.Status) {
	sink := &s.Sinks[0]
	sink.State, sink.LastError, sink.Queued, sink.NextAttempt = "backing-off", "connection refused", 7, now.Add(30*time.Second)
}

// TestLive: only what a restart can mend is a reason for one.
func TestLive(t *testing.T) {
	for name, test := range map[string]struct {
		fault func(*status.Status)
		want  status.Verdict
	}{
		"a hanging commit":             {func(s *status.Status) { s.Store.CommitStuck = 3 * time.Minute }, status.Failed},
		"a hanging committer":          {func(s *status.Status) { s.Beat = now.Add(-3 * time.Minute) }, status.Failed},
		"a committer that waits":       {func(s *status.Status) { s.Beat, s.Store.Paused = now.Add(-3*time.Minute), true }, status.OK},
		"a committer that has ended":   {func(s *status.Status) { s.Beat, s.Stopping = now.Add(-3*time.Minute), true }, status.OK},
		"a committer not started":      {func(s *status.Status) { s.Beat = time.Time{} }, status.OK},
		"a sink that is down":          {down, status.OK},
		"a resource that is forbidden": {forbidden, status.OK},
	} {
		s := healthy()
		test.fault(s)
		if got := status.Worst(s.Live(now)); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
