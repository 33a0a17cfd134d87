package admin

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

func TestHealth(t *testing.T) {
	f := newFixture(t)
	f.cfg.Probes = "127.0.0.1:0"
	f.serve()
	probes := "http://" + f.srv.Addresses()[1].String()
	set := func(change func(*status.Status)) {
		s := &status.Status{Pipeline: status.Pipeline{
			Applied: true, Beat: time.Now(),
			Watches: []status.Watch{{Name: "w", Sources: []status.Source{pods(dynamicfactory.WatchStatus{State: "watching", LastContact: time.Now()})}}},
			Sinks:   []status.Sink{{Name: "ops", Configured: true, State: "idle"}},
		}}
		change(s)
		f.state.Store(s)
	}
	for _, tc := range []struct {
		name   string
		change func(*status.Status)
		ready  int
		live   int
		says   []string
	}{
		{"all is well", func(*status.Status) {}, 200, 200, []string{"[+]watch/w/pods.v1 ok", "[+]sink/ops ok", "readyz check passed\n"}},
		{"a sink is down", func(s *status.Status) { s.Sinks[0].State, s.Sinks[0].Reason = "paused", "status 401" }, 200, 200, []string{"[-]sink/ops degraded: paused: status 401", "1 degraded"}},
		{"a watch is forbidden", func(s *status.Status) {
			s.Watches[0].Sources[0] = pods(dynamicfactory.WatchStatus{State: "forbidden", Message: "you\nmay not"})
		}, 200, 200, []string{"[-]watch/w/pods.v1 degraded: forbidden: you may not\n"}},
		{"a watch is silent", func(s *status.Status) { s.Watches[0].Sources[0].LastContact = time.Now().Add(-time.Hour) }, 200, 200, []string{"[-]watch/w/pods.v1 degraded: watching: nothing was heard"}},
		{"a resource is not there", func(s *status.Status) {
			s.Watches[0].Missing = []status.Missing{{Resource: "gadgets", Reason: "not served"}}
		}, 200, 200, []string{"[-]watch/w/gadgets degraded: waiting: not served"}},
		{"the disk is full", func(s *status.Status) { s.Store.Paused, s.Store.Reason = true, "disk nearly full" }, 200, 200, []string{"[-]store degraded: ingest is paused: disk nearly full"}},
		{"a bad reload", func(s *status.Status) { s.Config.LastError = "watcherd.yaml:1:1: no" }, 200, 200, []string{"[-]config degraded"}},
		{"a first list is read", func(s *status.Status) { s.Watches[0].Sources[0].Synced = false }, 503, 200, []string{"[-]watch/w/pods.v1 failed", "readyz check failed"}},
		{"nothing is applied", func(s *status.Status) { s.Applied = false }, 503, 200, []string{"[-]pipeline failed"}},
		{"it is stopping", func(s *status.Status) { s.Stopping = true }, 503, 200, []string{"[-]shutdown failed"}},
		{"the store failed", func(s *status.Status) { s.Store.Failed = "fsync" }, 503, 200, []string{"[-]store failed: fsync"}},
		{"a commit hangs", func(s *status.Status) { s.Store.CommitStuck = 3 * time.Minute }, 503, 503, []string{"[-]store failed: a commit hangs for 3m0s"}},
		{"a slow commit", func(s *status.Status) { s.Store.CommitStuck = time.Minute }, 200, 200, nil},
		{"the committer hangs", func(s *status.Status) { s.Beat = time.Now().Add(-time.Hour) }, 200, 503, nil},
		{"the committer waits for disk", func(s *status.Status) { s.Beat, s.Store.Paused = time.Now().Add(-time.Hour), true }, 200, 200, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set(tc.change)
			code, body := f.get("/readyz?verbose")
			f.expect(code, body, tc.ready, tc.says...)
			code, body = f.get("/livez?verbose")
			f.expect(code, body, tc.live)
			// The kubelet gets the same answer, and no reasons.
			for path, want := range map[string]int{"/readyz?verbose": tc.ready, "/livez?verbose": tc.live} {
				code, body = f.ask(http.MethodGet, probes+path, "")
				f.expect(code, body, want)
				if strings.Contains(body, "401") || strings.Contains(body, "may not") {
					t.Errorf("the probes listener gives reasons away:\n%s", body)
				}
			}
		})
	}

	set(func(s *status.Status) { s.Applied = false })
	code, body := f.get("/readyz?verbose&exclude=pipeline")
	f.expect(code, body, 200, "[+]pipeline excluded")
	code, body = f.get("/readyz/sink")
	f.expect(code, body, 200, "ok")
	code, body = f.get("/readyz/pipeline")
	f.expect(code, body, 503)
	code, body = f.get("/readyz/nonsense")
	f.expect(code, body, 404, "no check")
	code, body = f.ask(http.MethodGet, probes+"/api/v1/status", "")
	f.expect(code, body, 404)
}

// pods is an informer of pods that has synced.
func pods(w dynamicfactory.WatchStatus) status.Source {
	return status.Source{Resource: "pods.v1", Synced: true, Status: dynamicfactory.Status{WatchStatus: w}}
}
