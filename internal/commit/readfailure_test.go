package commit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// failing is a store of which one call fails.
type failing struct {
	*store.Store
	left   int // calls until then; negative: none fails
	failed bool
}

var errFailing = errors.New("failing")

func (f *failing) next() error {
	f.left--
	if f.left != -1 {
		return nil
	}
	f.failed = true
	return errFailing
}

func (f *failing) State(partition, key string, dst []byte) ([]byte, bool, error) {
	if err := f.next(); err != nil {
		return nil, false, err
	}
	return f.Store.State(partition, key, dst)
}

func (f *failing) ScanStateAfter(partition, prefix, after string, fn func(key string, value []byte) error) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Store.ScanStateAfter(partition, prefix, after, fn)
}

func (f *failing) Meta(key string) ([]byte, bool, error) {
	if err := f.next(); err != nil {
		return nil, false, err
	}
	return f.Store.Meta(key)
}

func (f *failing) ScanMeta(prefix string, fn func(key string, value []byte) error) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Store.ScanMeta(prefix, fn)
}

func (f *failing) ScanMetaFrom(prefix, from string, fn func(key string, value []byte) error) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Store.ScanMetaFrom(prefix, from, fn)
}

func (f *failing) Commit(b *store.Batch) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Store.Commit(b)
}

// TestStoreFailsAnywhere fails each call of the store in turn: the group ends with the store's error, which
// ends the process, and nothing of it is recorded.
func TestStoreFailsAnywhere(t *testing.T) {
	hidden := committest.PodWatch(func(w *plan.Watch) { w.Edits.Redact = append(w.Edits.Redact, "spec.a") })
	for name, tc := range map[string]struct {
		watch  plan.Watch
		route  route.Spec
		before func(r *rig, s *Feed)            // what is recorded
		group  func(r *rig, s *Feed) []change   // what is committed while the store fails
		jobs   func(r *rig, s *Feed, b Barrier) // of the group
	}{
		"an update": {
			before: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")) },
			group:  func(r *rig, s *Feed) []change { return []change{updatedIn(s, r.Object("a", "u", "2"), nil)} },
		},
		"a recreation": {
			before: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")) },
			group:  func(r *rig, s *Feed) []change { return []change{updatedIn(s, r.Object("a", "v", "2"), nil)} },
		},
		"a deletion": {
			before: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")) },
			group:  func(r *rig, s *Feed) []change { return []change{deletedFrom(s, r.Object("a", "u", "2"))} },
		},
		"a damaged state": {
			before: func(r *rig, s *Feed) { r.damaged(s, "a"); r.damaged(s, "b") },
			group: func(r *rig, s *Feed) []change {
				return []change{updatedIn(s, r.Object("a", "u", "2"), nil), missingFrom(s, r.Object("b", "u", "3"))}
			},
		},
		"lost history": {
			before: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")) },
			group: func(r *rig, s *Feed) []change {
				gap := &dynamicfactory.Gap{Cause: dynamicfactory.CauseExpired, From: "1", To: "9", FromTime: now, ToTime: now, Position: 2}
				return []change{&gapFound{feed: s, gap: gap}, updatedIn(s, r.Object("a", "u", "9").WithPosition(2), nil)}
			},
		},
		"another form": {
			watch: hidden,
			before: func(r *rig, s *Feed) {
				r.recorded(s, r.Object("a", "u", "1"))
				r.recorded(s, r.Object("b", "u", "1"))
				s.recordedForm = "v1"
			},
			group: func(r *rig, s *Feed) []change {
				return []change{updatedIn(s, r.Object("a", "u", "2"), nil), updatedIn(s, r.Object("b", "u", "1"), nil), &feedSynced{feed: s}}
			},
		},
		"the end of a first list": {
			before: func(r *rig, s *Feed) {
				r.recorded(s, r.Object("a", "u", "1"))
				s.listed, s.first = map[uint64]struct{}{}, "5"
			},
			group: func(_ *rig, s *Feed) []change { return []change{&feedSynced{feed: s}} },
		},
		"a snapshot": {
			before: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")) },
			jobs:   func(_ *rig, s *Feed, b Barrier) { b.add(newSnapshot(s, s.Watches()[0])) },
		},
		"a farewell": {
			before: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")); r.damaged(s, "b") },
			jobs:   func(_ *rig, s *Feed, b Barrier) { b.add(&Farewell{feed: s, notify: make(chan struct{}, 1)}) },
		},
		"a farewell, behind damage": {
			before: func(r *rig, s *Feed) { r.recorded(s, r.Object("a", "u", "1")) },
			jobs: func(_ *rig, s *Feed, b Barrier) {
				b.add(&Farewell{feed: s, damaged: true, notify: make(chan struct{}, 1)})
			},
		},
		"a repair": {
			before: func(r *rig, s *Feed) {
				s.acks.(*informer).list = &dynamicfactory.List{ResourceVersion: "5", End: 2}
				r.recorded(s, r.Object("a", "u", "1"))
			},
			group: func(r *rig, s *Feed) []change {
				gap := &dynamicfactory.Gap{Cause: CauseConsistencyCheck, To: "5", FromTime: now, ToTime: now, Position: 2}
				return []change{&gapFound{feed: s, gap: gap}, updatedIn(s, r.Object("a", "u", "1").WithPosition(2), nil)}
			},
		},
		"other labels of a namespace": {
			watch: committest.PodWatch(committest.ProdPods),
			before: func(r *rig, s *Feed) {
				r.commit(&namespaceSeen{obj: r.namespace("1", "dev")}, &namespacesSynced{names: map[string]struct{}{"ns": {}}})
				r.recorded(s, r.Object("a", "u", "1"))
				s.synced, r.running = true, []*Feed{s}
			},
			group: func(r *rig, _ *Feed) []change { return []change{&namespaceSeen{obj: r.namespace("2", "prod")}} },
		},
		"a throttle": {
			route: slow,
			before: func(r *rig, s *Feed) {
				r.commit(addedTo(s, r.Object("a", "u", "1")))
				r.commit(updatedIn(s, r.Object("a", "u", "2"), nil)) // is held
			},
			group: func(r *rig, s *Feed) []change { return []change{updatedIn(s, r.Object("a", "u", "3"), nil)} },
		},
		"the end of a throttle's time": {
			route: slow,
			before: func(r *rig, s *Feed) {
				r.commit(addedTo(s, r.Object("a", "u", "1")))
				r.commit(updatedIn(s, r.Object("a", "u", "2"), nil))
				r.at = r.at.Add(time.Hour)
				r.group.lookAtTimers()
			},
		},
		"a match": {
			route:  stuck,
			before: func(r *rig, s *Feed) { r.commit(&feedSynced{feed: s}) },
			group:  func(r *rig, s *Feed) []change { return []change{addedTo(s, r.Object("a", "u", "1", "stuck"))} },
		},
		"a match that has lasted": {
			route: stuck,
			before: func(r *rig, s *Feed) {
				r.commit(&feedSynced{feed: s})
				r.commit(addedTo(s, r.Object("a", "u", "1", "stuck")))
				r.at = r.at.Add(time.Hour)
				r.group.lookAtTimers()
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for n, failed := 0, true; failed; n++ {
				t.Run(fmt.Sprint("call ", n), func(t *testing.T) {
					if tc.watch.Name == "" {
						tc.watch = committest.PodWatch()
					}
					r := newRig(t, disk(), tc.watch)
					st := &failing{Store: r.Store, left: -1}
					r.c.store, r.c.ledger, r.c.timers.table = st, ledger.New(st, r.In.Dictionaries), timer.NewTable(st)
					if tc.route.Name != "" {
						r.route(tc.route)
					}
					s := r.liveFeed()
					s.recordedForm = s.Form
					tc.before(r, s)
					last := r.Store.LogStats().Last
					if tc.group != nil {
						for _, c := range tc.group(r, s) {
							r.add(c)
						}
					}
					if tc.jobs != nil {
						tc.jobs(r, s, Barrier{r.group})
					}

					st.left = n
					err := r.group.commit(true)
					for err == nil && len(r.group.jobs) > 0 {
						last = r.Store.LogStats().Last
						err = r.group.commit(true)
					}
					if failed = st.failed; failed != (err != nil) {
						t.Fatalf("a call failed: %t; the group ends with %v", failed, err)
					}
					if !failed {
						return
					}
					if !errors.Is(err, errFailing) || !errors.Is(err, ledger.ErrStore) {
						t.Errorf("the group ends with %v", err)
					}
					if now := r.Store.LogStats().Last; now != last {
						t.Errorf("sequences %d to %d are recorded", last+1, now)
					}
				})
			}
		})
	}
}
