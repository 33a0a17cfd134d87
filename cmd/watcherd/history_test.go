package main

import (
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestVerdictOfGaps: gaps of one outage in which nothing was missed are one line, and no line of what changes may be missing in.
func TestVerdictOfGaps(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)
	gap := func(resource, namespace, cause string, from, to time.Duration) event.GapData {
		return event.GapData{Resource: event.Resource{Version: "v1", Resource: resource}, Namespace: namespace, Cause: cause, From: at.Add(from), To: at.Add(to)}
	}
	var b strings.Builder
	printVerdict(&b, &history.Span{Gaps: []event.GapData{
		gap("pods", "prod", "quiet", time.Second, time.Minute), gap("nodes", "", "expired", time.Second, time.Minute), gap("jobs", "", "quiet", 0, 59*time.Second),
		gap("secrets", "", "quiet", time.Second, 61*time.Second), gap("services", "", "quiet", time.Second, time.Minute),
		gap("pods", "prod", "quiet", time.Hour, time.Hour+time.Minute),
	}})
	const want = `watcherd: pods.v1 prod, jobs.v1, secrets.v1, and 1 more: no change was missed, except of objects that came and went, from 2026-11-21T06:00:00.000Z to 2026-11-21T06:01:01.000Z: quiet
watcherd: nodes.v1: changes may be missing from 2026-11-21T06:00:01.000Z to 2026-11-21T06:01:00.000Z: expired
watcherd: pods.v1 prod: no change was missed, except of objects that came and went, from 2026-11-21T07:00:00.000Z to 2026-11-21T07:01:00.000Z: quiet
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

// TestPagesOverRetention: pages together are complete from where the last one is.
func TestPagesOverRetention(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)
	page := func(from time.Duration) *history.Page {
		return &history.Page{Span: history.Span{From: at.Add(from), To: at.Add(time.Hour), Complete: true}, Items: make([]history.Change, 2)}
	}
	all := page(0)
	join(all, page(time.Minute))
	if join(all, page(0)); !all.Complete || !all.From.Equal(at.Add(time.Minute)) || len(all.Items) != 6 {
		t.Errorf("complete %t from %v, %d items", all.Complete, all.From, len(all.Items))
	}
}
