package history

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// slowSync holds up syncs of the write-ahead log.
type slowSync struct{ until atomic.Pointer[chan struct{}] }

func (s *slowSync) String() string { return "slow syncs" }

func (s *slowSync) MaybeError(op errorfs.Op) error {
	if until := s.until.Load(); until != nil && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && strings.HasSuffix(op.Path, ".log") {
		<-*until
	}
	return nil
}

// hold has syncs wait, and returns what ends that.
func (s *slowSync) hold() (end func()) {
	until := make(chan struct{})
	s.until.Store(&until)
	return func() {
		s.until.Store(nil)
		close(until)
	}
}

// TestAnswersBesideACommit: a commit that is not durable yet, of which the ledger shows the states already, leaves no answer less, or worth
// less, than it was.
func TestAnswersBesideACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, time.Hour)
		defer w.end()
		w.kill()
		w.must(w.st.Close())
		var slow slowSync
		w.fs = errorfs.Wrap(w.disk, &slow)
		w.open()
		w.rest()
		h := w.c.Handler(w.feed)
		first, gone := w.object("a", "u1"), w.object("b", "u2")
		h.OnAdd(first, false)
		h.OnAdd(gone, false)
		before := w.rest()
		w.rest()
		second := w.object("a", "u1")
		h.OnUpdate(first, second)
		h.OnDelete(w.object("b", "u2"))
		end := slow.hold()
		flushed := make(chan struct{})
		go func() {
			w.c.Flush()
			close(flushed)
		}()
		synctest.Wait()
		select {
		case <-flushed:
			t.Fatal("the commit does not wait for its sync")
		default:
		}
		for _, name := range []string{"a", "b"} {
			s, err := w.r.At(t.Context(), pod(name), before)
			w.must(err)
			if s.As != Exact || !s.Exists {
				t.Errorf("%s, before: %+v", name, s)
			}
			v, err := w.r.Versions(t.Context(), VersionQuery{Object: pod(name), Limit: 10})
			w.must(err)
			if len(v.Items) == 0 {
				t.Errorf("%s has no versions", name)
			}
		}
		if s, err := w.r.At(t.Context(), pod("a"), w.now()); err != nil || s.As != Exact || !s.Exists {
			t.Errorf("a, now: %+v, %v", s, err)
		}
		if s, err := w.r.At(t.Context(), pod("b"), w.now()); err != nil || s.As != Exact {
			t.Errorf("b, now: %+v, %v", s, err)
		}
		for at, want := range map[time.Time]int{before: 2, w.now(): 1} {
			list, err := w.r.ListAt(t.Context(), Objects{Resource: pods}, at, "", 10)
			w.must(err)
			if list.As != Exact || len(list.Items) < want {
				t.Errorf("at %v: %+v, want %d objects", at, list, want)
			}
			for _, s := range list.Items {
				if s.As != Exact {
					t.Errorf("at %v: %+v", at, s)
				}
			}
		}
		c, err := w.r.Changes(t.Context(), Filter{Resource: &pods, From: w.begin, To: before}, false)
		w.must(err)
		for _, n := range c.Items {
			if n.After != Exact {
				t.Errorf("the changes before have %+v", n)
			}
		}
		if len(c.Items) < 2 {
			t.Errorf("the changes before are %+v", c.Items)
		}
		end()
		<-flushed
	})
}
