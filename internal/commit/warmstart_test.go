package commit

import (
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/pkg/compact"
)

// TestWarmStartReadsTheLedgerOnce hands a source the objects that its informer was
// given out of the ledger: they are not looked up again. What the watch tells
// meanwhile of an object of theirs is.
func TestWarmStartReadsTheLedgerOnce(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	s := r.feed(pods)
	r.commit(
		addedTo(s, r.Object("a", "u1", "1")),
		addedTo(s, r.Object("b", "u2", "2")),
		addedTo(s, r.Object("c", "u3", "3")),
	)
	r.Expect("added a u1 1", "added b u2 2", "added c u3 3")

	s = r.feed(pods) // as after a restart
	s.start, s.synced, s.resume.ResourceVersion = warm, true, "3"
	r.running = append(r.running, s)
	snap, err := r.c.Begin(s)
	if err != nil {
		t.Fatal(err)
	}
	given := append([]*compact.Object(nil), snap.Objects...)
	// Without entries a look at the ledger would show.
	b := r.Store.NewBatch()
	for _, o := range given[:2] {
		b.DeleteState(s.Partition, ledger.Key(o.GetNamespace(), o.GetName()))
	}
	if err := r.Store.Commit(b); err != nil {
		t.Fatal(err)
	}
	last := given[2].WithPosition(1)
	r.commit(
		listedBy(s, given[0]),
		listedBy(s, r.Object("d", "u4", "4")), // of the watch
		listedBy(s, given[1]),
		listedBy(s, last),
		&feedSynced{feed: s},
	)
	r.Expect("added d u4 4")
	r.commit(updatedIn(s, r.Object("c", "u3", "5"), last))
	r.Expect("updated c u3 5")
	if s.warmObjects != nil {
		t.Error("the objects of the start are kept after it")
	}
}
