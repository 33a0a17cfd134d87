package pipeline

import (
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
)

// TestReloadBesideTheChecksOfARollback replaces the feeds that are to be checked after a rollback, which takes a while: their successors are to be checked.
func TestReloadBesideTheChecksOfARollback(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api, _ := podServer(t, 3)
		l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
		checking := func(st *plan.State) *plan.State {
			st.ConsistencyCheck = plan.ConsistencyCheck{Enabled: true, Interval: 1000 * time.Hour}
			return st
		}
		l.apply(checking(l.state(watchOf("p", nil, "pods"))))
		l.synced()
		time.Sleep(2 * time.Minute) // checks begin when watches are established
		held, released, applied := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			_ = l.m.committer.AtBarrier(func(commit.Barrier) { close(held); <-released })
		}()
		<-held
		go func() {
			defer close(applied)
			l.apply(checking(l.state(watchOf("p", nil, "nodes"))))
			l.apply(checking(l.state(watchOf("p", nil, "pods"))))
		}()
		eventually(t, "the feed ends", func() bool { return len(l.m.informerList()) == 0 })
		if err := ledger.PutMeta(l.store, ledger.SetBackMeta, []byte(`"2027-01-01T00:00:00Z"`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		noted := l.m.setBack() != nil
		close(released)
		<-applied
		if !noted {
			t.Error("no feed was checked, and none is to be")
		}
	})
}
