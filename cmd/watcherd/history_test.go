package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestUnreadForOneCause: what is not read for one cause, such as the end of a store, is one line, whenever each of it ends.
func TestUnreadForOneCause(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)
	var b strings.Builder
	printUnread(&b, []history.Unread{
		{Resource: "pods", Since: at.Add(time.Second), Cause: "ends"}, {Resource: "nodes", Since: at, Cause: "fails"}, {Resource: "jobs.batch", Namespace: "prod", Since: at, Cause: "ends"},
	})
	const want = `watcherd: changes of pods, jobs.batch prod since 2026-11-21T06:00:00.000Z or later are not read yet: ends
watcherd: changes of nodes since 2026-11-21T06:00:00.000Z are not read yet: fails
`
	if b.String() != want {
		t.Errorf("got\n%s", &b)
	}
}

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
		gap("pods", "prod", "quiet", 30*time.Second, time.Minute),
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

// TestVerdictOfBeginning: a gap does not hide that the history begins within the period.
func TestVerdictOfBeginning(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)
	s := history.Span{From: at, To: at.Add(time.Hour), Since: at.Add(time.Minute), Gaps: []event.GapData{{Cause: "expired", From: at, To: at}}}
	var b strings.Builder
	printVerdict(&b, &s)
	if want := "the history begins at 2026-11-21T06:01:00Z\n"; !strings.Contains(b.String(), "changes may be missing") || !strings.HasSuffix(b.String(), want) {
		t.Errorf("got\n%swant the gap and %q", b.String(), want)
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
	gap := event.GapData{Watch: "w", Cause: "expired", From: at, To: at.Add(time.Minute)}
	for range 2 { // it was found behind the first page
		next := page(0)
		next.Complete, next.Gaps = false, []event.GapData{gap}
		join(all, next)
	}
	if all.Complete || len(all.Gaps) != 1 || all.Gaps[0] != gap {
		t.Errorf("complete %t, with the gaps %+v", all.Complete, all.Gaps)
	}
}

// TestTimesOfTheDaemon: how long ago a flag has counts back from now by the daemon's clock, which the records have, also for pages
// and resources that are read later. A clock that is right to the second counts as right.
func TestTimesOfTheDaemon(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-3 * time.Minute, 3 * time.Minute, 0} {
		began := time.Now()
		asked := map[string][]string{} // parameters of the paths, and bodies
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
			if r.Method == http.MethodHead {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			asked[r.URL.Path] = append(asked[r.URL.Path], r.URL.RawQuery+string(body))
			answer := `{}`
			if strings.Contains(r.URL.Path, "/objects/") && !strings.Contains(r.URL.RawQuery, "continue") {
				answer = `{"continue":"x"}`
			}
			_, _ = io.WriteString(w, answer) // the command may have failed
		}))
		for _, command := range [][]string{
			{"history", "pods", "--since", "5m"},
			{"changes", "--from", "-5m"},
			{"diff", "pods", "a", "-n", "b", "--from", "5m"},
			{"get", "pods,jobs", "--at", "5m", "-o", "json"},
			{"deadletters", "list", "--sink", "s", "--since", "5m"},
			{"deadletters", "retry", "--sink", "s", "--since", "5m"},
			{"tail", "--no-follow", "--since", "5m"},
			{"replay", "--sink", "s", "--since", "5m"},
		} {
			clear(asked)
			cmd := newRootCommand(io.Discard, io.Discard)
			cmd.SetArgs(append(command, "--admin", s.URL))
			_ = cmd.ExecuteContext(t.Context()) // some answers have nothing
			n := 0
			for path, all := range asked {
				for _, text := range all {
					text = strings.ReplaceAll(text, "%3A", ":")
					at, err := time.Parse(time.RFC3339, instants.FindString(text))
					if err != nil {
						t.Errorf("%v asks %s for %q: %v", command, path, text, err)
						continue
					}
					earliest, latest := began.Add(off-5*time.Minute).Truncate(time.Second), time.Now().Add(off-5*time.Minute)
					if n++; at.Before(earliest) || at.After(latest) {
						t.Errorf("%v asks %s for %v, want from %v to %v", command, path, at, earliest, latest)
					}
					if len(all) > 1 && instants.FindString(text) != instants.FindString(strings.ReplaceAll(all[0], "%3A", ":")) {
						t.Errorf("%v has two times: %q", command, all)
					}
				}
			}
			if n == 0 {
				t.Errorf("%v asked for nothing", command)
			}
		}
		s.Close()
	}
}

var instants = regexp.MustCompile(`20\d\d-\d\d-\d\dT[\d:.]+Z`)

// TestStamp has the printed time of a change given back: the state at that time has the change.
func TestStamp(t *testing.T) {
	at := time.Date(2026, 1, 31, 10, 2, 0, 0, time.UTC)
	for after, want := range map[time.Duration]string{
		0: "2026-01-31T10:02:00.000Z", 1: "2026-01-31T10:02:00.001Z", time.Millisecond: "2026-01-31T10:02:00.001Z", 123456789: "2026-01-31T10:02:00.124Z",
	} {
		if got := stamp(at.Add(after)); got != want {
			t.Errorf("%v after: %s, want %s", after, got, want)
		}
	}
}

// TestMoreChanges: where a page ends, older changes are certain only without a test that each has to pass.
func TestMoreChanges(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"items":[{}],"complete":true,"continue":"x"}`) // the command may have failed
	}))
	t.Cleanup(s.Close)
	for flag, want := range map[string]string{"--by=me": "there are older changes", "--path=spec.replicas": "there may be older changes", "--when=true": "there may be older changes"} {
		var notes strings.Builder
		cmd := newRootCommand(io.Discard, &notes)
		cmd.SetArgs([]string{"history", "pods", "--limit", "1", flag, "--admin", s.URL})
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(notes.String(), want) {
			t.Errorf("%s: %v, %q, want %q", flag, err, &notes, want)
		}
	}
}

// TestBacktestWithDamagedRecords: what a backtest could not read is not left out silently.
func TestBacktestWithDamagedRecords(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(io.Discard)
	cmd.SetErr(&b)
	if err := printBacktest(cmd, &retrace.Backtest{Scanned: 5, Damaged: 2, Overtaken: true}); err != nil || !strings.Contains(b.String(), "2 records of this time cannot be read") || !strings.Contains(b.String(), "retention deleted records") {
		t.Errorf("got %q %v", b.String(), err)
	}
}
