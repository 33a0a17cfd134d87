package scrub

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
)

// TestStages goes through the stages from where a state has come to. What is removed from
// the store in the end is tested with the pipeline.
func TestStages(t *testing.T) {
	t.Parallel()
	st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	at := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		from string
		want []string
	}{
		{"", append(Stages[:], "")},
		{"of another version", append(Stages[:], "")},
		{Ledger, []string{Ledger, Again, Files, ""}},
		{Files, []string{Files, ""}},
	} {
		var kept []string
		cfg := Config{
			Store: st, Dictionaries: compact.NewDictionaries(nil),
			AtBarrier: func(do func(commit.Barrier)) error { do(commit.Barrier{}); return nil },
			Keep:      func(s ledger.Scrub) error { kept = append(kept, s.Stage); return nil },
			Count:     func(int, int) {}, Now: func() time.Time { return at },
		}
		run, state := New(cfg, ledger.Scrub{Began: at, Stage: tc.from, Retired: []uint32{7}}), ledger.Scrub{Began: at}
		for state.Pending() {
			if state, err = run.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(tc.want, kept); diff != "" {
			t.Errorf("from %q (-want +got):\n%s", tc.from, diff)
		}
		if diff := cmp.Diff(ledger.Scrub{Began: at, Done: at}, state); diff != "" {
			t.Errorf("from %q (-want +got):\n%s", tc.from, diff)
		}
		full := errors.New("full")
		cfg.Keep = func(ledger.Scrub) error { return full }
		if state, err = New(cfg, ledger.Scrub{Began: at}).Next(t.Context()); !errors.Is(err, full) || !state.Pending() {
			t.Errorf("without progress that is kept: %+v, %v", state, err)
		}
	}
}
