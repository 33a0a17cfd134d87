package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/scrub"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
)

// scrubbed waits until the scrub is done, and nothing has failed.
func (r *rig) scrubbed() {
	r.Helper()
	if failed := r.scrubEnded(); failed > 0 {
		r.Fatalf("%d failed", failed)
	}
}

// scrubEnded waits until the scrub is done, and returns how much has failed.
func (r *rig) scrubEnded() (failed int64) {
	r.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if s := r.m.scrubStatus(); s != nil && !s.Done.IsZero() {
			return s.Failed
		}
		if time.Now().After(deadline) {
			r.Fatalf("scrub %+v", r.m.scrubStatus())
		}
		time.Sleep(time.Millisecond)
	}
}

// canaryPods commits objects that hold the plaintext, in numbers that make
// dictionaries, and leaves them in the queue, in dead letters and among those retried.
func canaryPods(r *rig, s *commit.Feed, n int) {
	r.Helper()
	for i := range n {
		raw := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"pod-%d","uid":"u-%d","resourceVersion":"%d"},"spec":{"password":%q,"n":%d}}`, i, i, 2*i+1, plaintext, i)
		first := r.edited(s, raw)
		second := r.edited(s, strings.Replace(strings.Replace(raw, fmt.Sprintf(`"%d"}`, 2*i+1), fmt.Sprintf(`"%d"}`, 2*i+2), 1), plaintext, plaintext+"-2", 1))
		r.commit(addedTo(s, first), updatedIn(s, second, first))
	}
	q, err := r.Store.Queue("sink")
	if err != nil {
		r.Fatal(err)
	}
	items, err := q.Read(0, 6, 1<<20)
	if err != nil {
		r.Fatal(err)
	}
	for _, it := range items {
		if err := q.DeadLetter(it.Position, store.Letter{Reason: "refused: status 422: no " + plaintext}); err != nil {
			r.Fatal(err)
		}
	}
	if _, err := q.RetryDeadLetters(0, items[0].Position, items[1].Position); err != nil {
		r.Fatal(err)
	}
}

// recordedStates is the JSON of everything in the ledger.
func (r *rig) recordedStates() string {
	r.Helper()
	var all []byte
	for _, p := range r.Store.Partitions() {
		err := r.Store.ScanState(p, "", func(_ string, value []byte) error {
			o, err := compact.NewCodec(r.m.dicts).Decode(value)
			if err != nil {
				return err
			}
			all, err = o.AppendJSON(all)
			return err
		})
		if err != nil {
			r.Fatal(err)
		}
	}
	return string(all)
}

func hiding(w *plan.Watch) { w.Edits.Redact = []string{"spec.password"} }

// TestScrub hides what is recorded and finds nothing of it in the store when the scrub
// is done, nor in the next life.
func TestScrub(t *testing.T) {
	dir := t.TempDir()
	const pods20 = 40
	t.Run("scrub", func(t *testing.T) {
		r := newRig(t, dir, committest.PodWatch())
		r.adopt([]plan.Watch{committest.PodWatch()})
		s := r.source(pods)
		canaryPods(r, s, pods20)
		if len(testkit.FilesWith(t, dir, plaintext)) == 0 {
			t.Fatal("the plaintext is in no file to begin with")
		}
		stop := r.stop
		r.adopt([]plan.Watch{committest.PodWatch(hiding)})
		if err := r.m.startScrub(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.scrubbed()
		stop()
		if files := testkit.FilesWith(t, dir, plaintext); len(files) > 0 {
			t.Errorf("the plaintext is in %v", files)
		}
		text, events := r.everything()
		if strings.Contains(text, plaintext) || len(events) != 2*(2*pods20) {
			t.Errorf("%d events: %.1000s", len(events), text)
		}
		// A cache that still holds objects of before writes them as they are to be.
		old := r.edited(s, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"late","uid":"u","resourceVersion":"9"},"spec":{}}`)
		if r.m.dicts.Retired(old.Body().Dict) {
			t.Error("a retired dictionary is used")
		}
	})
	t.Run("next life", func(t *testing.T) {
		r := newRig(t, dir, committest.PodWatch(hiding))
		// Wide open, nothing is hidden by reading.
		r.adopt([]plan.Watch{committest.PodWatch()})
		text, events := r.everything()
		if strings.Contains(text, plaintext) || !strings.Contains(text, "redacted:hmac-sha256:") {
			t.Errorf("%d events: %.1000s", len(events), text)
		}
		states := r.recordedStates()
		if strings.Contains(states, plaintext) || strings.Count(states, "redacted:hmac-sha256:") != pods20 {
			t.Errorf("states %.1000s", states)
		}
		if s := r.m.scrubStatus(); s == nil || s.Done.IsZero() || s.Rewritten == 0 {
			t.Errorf("scrub %+v", s)
		}
	})
	report, err := inspect.Check(dir)
	if err != nil || !report.OK() {
		t.Errorf("%v, %v", report.Problems, err)
	}
}

// TestScrubOfWhatRoutesHold hides what a throttle holds, and delivers it without what is hidden.
func TestScrubOfWhatRoutesHold(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, committest.PodWatch())
	held := allParts("held")
	held.Throttle = time.Hour
	r.adopt([]plan.Watch{committest.PodWatch()}, held)
	s := r.source(pods)
	const n = 2 * 64 // more than a step of the scrub
	canaryPods(r, s, n)
	r.adopt([]plan.Watch{committest.PodWatch(hiding)}, held)
	if err := r.m.startScrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.scrubbed()
	if files := testkit.FilesWith(t, dir, plaintext); len(files) > 0 {
		t.Errorf("the plaintext is in %v", files)
	}
	r.adopt([]plan.Watch{committest.PodWatch()}, allParts("free")) // wide open, nothing is hidden by reading
	r.m.committer.Flush()
	text, events := r.everything()
	if strings.Contains(text, plaintext) || !strings.Contains(text, "redacted:hmac-sha256:") {
		t.Errorf("%d events: %.1000s", len(events), text)
	}
	q, err := r.Store.Queue("sink")
	if err != nil {
		t.Fatal(err)
	}
	if st := q.Stats(); st.Length+st.DeadLetters != 2*n {
		t.Errorf("the sink has %d events, want %d", st.Length+st.DeadLetters, 2*n)
	}
}

// TestScrubPastADamagedRow counts what a route holds and cannot be read, and goes on.
func TestScrubPastADamagedRow(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, committest.PodWatch())
	held := allParts("held")
	held.Throttle = time.Hour
	r.adopt([]plan.Watch{committest.PodWatch()}, held)
	canaryPods(r, r.source(pods), 64)
	b := r.Store.NewBatch()
	b.PutMeta("timer/row/held/sink/a", []byte("damaged"))
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	r.adopt([]plan.Watch{committest.PodWatch(hiding)}, held)
	if err := r.m.startScrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	if failed := r.scrubEnded(); failed != 1 {
		t.Errorf("%d failed, want the damaged one", failed)
	}
	rows := 0
	if err := timer.NewTable(r.Store).Rows(nil, "", func(key string, row *timer.Row) error {
		if rows++; row == nil {
			return nil
		}
		if of, err := record.Decode(row.Record); err != nil || of.Edits != r.m.edits.Load().Form(of) {
			t.Errorf("%s is in the form of %x, %v", key, of.Edits, err)
		}
		return nil
	}); err != nil || rows != 65 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// TestScrubKeepsLaterStates records a state between the moment a scrub reads the one
// before and the moment it writes: the later one stays, and is hidden as well.
func TestScrubKeepsLaterStates(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	r.adopt([]plan.Watch{committest.PodWatch()})
	s := r.source(pods)
	raw := func(version string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":%q},"spec":{"password":%q}}`, version, plaintext)
	}
	first, second := r.edited(s, raw("1")), r.edited(s, raw("2"))
	r.commit(addedTo(s, first))
	r.adopt([]plan.Watch{committest.PodWatch(hiding)})
	state := r.m.scrub.load()
	state.Stage = scrub.Ledger
	run := scrub.New(scrub.Config{
		Store: r.Store, Dictionaries: r.m.dicts, Edits: r.m.edits.Load(),
		AtBarrier: func(do func(commit.Barrier)) error {
			r.commit(updatedIn(s, second, first))
			do(commit.Barrier{})
			return nil
		},
		Keep: func(ledger.Scrub) error { return nil }, Count: func(int, int) {}, Now: time.Now,
	}, state)
	if _, err := run.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if states := r.recordedStates(); !strings.Contains(states, `"resourceVersion":"2"`) || strings.Contains(states, plaintext) {
		t.Errorf("states %s", states)
	}
}

// TestScrubStartsOver hides more while a scrub runs: what it has been through is looked at
// again.
func TestScrubStartsOver(t *testing.T) {
	r := newRig(t, t.TempDir(), committest.PodWatch())
	r.adopt([]plan.Watch{committest.PodWatch()})
	r.adopt([]plan.Watch{committest.PodWatch(hiding)})
	state := r.m.scrub.load()
	state.Stage, state.Name, state.After, state.Key = scrub.Files, "sink", 7, "ns/a"
	r.m.scrub.set(state)
	r.adopt([]plan.Watch{committest.PodWatch(hiding, func(w *plan.Watch) { w.Edits.Redact = append(w.Edits.Redact, "spec.n") })})
	if s := r.m.scrub.load(); !s.Pending() || s.Stage != "" || s.Name != "" || s.After != 0 || s.Key != "" || !s.Concerns("pods") {
		t.Errorf("scrub %+v", s)
	}
}

// TestScrubGoesOn is stopped before, between and behind its stages.
func TestScrubGoesOn(t *testing.T) {
	for _, stage := range scrub.Stages {
		t.Run(stage, func(t *testing.T) {
			dir := t.TempDir()
			t.Run("first life", func(t *testing.T) {
				r := newRig(t, dir, committest.PodWatch())
				r.adopt([]plan.Watch{committest.PodWatch()})
				canaryPods(r, r.source(pods), 20)
				stop := r.stop
				r.adopt([]plan.Watch{committest.PodWatch(hiding)})
				state := r.m.scrub.load()
				state.Retired = r.m.dicts.Retire(func(string, uint32) bool { return true })
				state.Dictionaries = true
				run := scrub.New(scrub.Config{
					Store: r.Store, Dictionaries: r.m.dicts, Edits: r.m.edits.Load(), AtBarrier: r.m.committer.AtBarrier,
					Keep: r.m.keepScrub, Count: r.m.metrics.scrubCounted, Now: r.m.cfg.Now,
				}, state)
				for stage != scrub.Log && state.Stage != stage {
					var err error
					if state, err = run.Next(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := r.m.keepScrub(state); err != nil {
					t.Fatal(err)
				}
				stop()
			})
			t.Run("second life", func(t *testing.T) {
				r := newRig(t, dir, committest.PodWatch(hiding))
				stop := r.stop
				r.adopt([]plan.Watch{committest.PodWatch(hiding)})
				if err := r.m.startScrub(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.scrubbed()
				stop()
				if files := testkit.FilesWith(t, dir, plaintext); len(files) > 0 {
					t.Errorf("the plaintext is in %v", files)
				}
				if text, _ := r.everything(); strings.Contains(text, plaintext) {
					t.Errorf("events %.1000s", text)
				}
				if states := r.recordedStates(); strings.Contains(states, plaintext) {
					t.Errorf("states %.1000s", states)
				}
			})
		})
	}
}

// TestDictionaryIsInUseAgain stops a scrub that has removed its dictionaries. What the next
// life records, with a dictionary of the same content, stays readable when the one after it
// goes on with the scrub.
func TestDictionaryIsInUseAgain(t *testing.T) {
	dir := t.TempDir()
	var dictionary uint32
	life := func(t *testing.T, dir string) {
		r := newRig(t, dir, committest.PodWatch())
		r.adopt([]plan.Watch{committest.PodWatch()})
		s := r.source(pods)
		var last *compact.Object
		for i := range 20 {
			last = r.edited(s, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"%d"}}`, i+1))
		}
		r.commit(addedTo(s, last))
		if dictionary != 0 && last.Body().Dict != dictionary {
			t.Error("the dictionary is another one")
		}
		dictionary = last.Body().Dict
	}
	t.Run("which dictionary comes of the objects", func(t *testing.T) { life(t, t.TempDir()) })

	st, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	keep := func(state ledger.Scrub) error { return ledger.PutMeta(st, ledger.ScrubMeta, ledger.Encode(state)) }
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = scrub.New(scrub.Config{Store: st, Dictionaries: compact.NewDictionaries(nil), Keep: keep, Now: time.Now}, ledger.Scrub{
		Resources: []string{"pods"}, Began: time.Unix(1_700_000_000, 0), Dictionaries: true, Retired: []uint32{dictionary}, Stage: scrub.Files,
	}).Next(stopped)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a stopped scrub: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}

	t.Run("next life", func(t *testing.T) { life(t, dir) })
	r := newRig(t, dir, committest.PodWatch())
	r.adopt([]plan.Watch{committest.PodWatch()})
	if err := r.m.startScrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.scrubbed()
	if _, ok, err := r.Store.Meta(ledger.DictionaryKey(dictionary)); err != nil || !ok {
		t.Errorf("the dictionary is gone, %v", err)
	}
}
