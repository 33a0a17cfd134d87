package commit

import (
	"testing"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/plan"
)

// TestEndBeforeAWiderSourceGives ends the process when the rules of the parts of a source
// are dropped and its watches have not been given their objects: the next start has not
// forgotten that.
func TestEndBeforeAWiderSourceGives(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	other := r.watches
	r.watches = []plan.Watch{committest.PodWatch(func(w *plan.Watch) { w.Name = "other" })}
	parts := []*Feed{r.feedIn(pods, "a"), r.feedIn(pods, "b")}
	r.watches = other
	if err := r.c.noteSelections(givenBy(parts)); err != nil {
		t.Fatal(err)
	}
	s := r.feed(pods)
	j := newSnapshot(s, s.Watches()[0])
	if err := r.c.durable([]*snapshot{j}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.c.noteSelections(given{s.ID: {"w": nil}}); err != nil {
		t.Fatal(err)
	}
	if gained, err := r.c.addedBefore([]*Feed{s}); err != nil || len(gained) != 1 {
		t.Errorf("%d watches are given objects at the next start, %v", len(gained), err)
	}
}

// TestSelectorGoesWithTheDefinition takes a namespace selector out of a watch, and with
// that the labels are forgotten, when a definition goes: its deletions reach the watch.
func TestSelectorGoesWithTheDefinition(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(inProd))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.running = nil
	r.commit(addedTo(s, r.Object("a", "u1", "2")))
	if err := r.c.noteSelections(givenBy([]*Feed{s})); err != nil {
		t.Fatal(err)
	}
	r.Expect("added a u1 2")
	r.watches = []plan.Watch{committest.PodWatch()}
	if err := (Barrier{r.group}).ForgetNamespaces(r.watches); err != nil {
		t.Fatal(err)
	}
	former, err := r.c.FormerFeed(s.Partition, r.watches, func(*plan.Watch) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	Barrier{r.group}.add(&Farewell{feed: former, notify: make(chan struct{}, 1)})
	r.commit()
	r.Expect("deleted a u1 2")
}

// TestSelectorComesAndGoes takes a namespace selector out of a watch and puts it back,
// with an end of the process before the watch was given what it covered in between, and
// while the labels are not known: until they are, it judges by what was in force.
func TestSelectorComesAndGoes(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch(inProd))
	s := r.know(&namespaceSeen{obj: r.namespace("1", "prod")})
	r.running = nil
	if err := r.c.noteSelections(givenBy([]*Feed{s})); err != nil {
		t.Fatal(err)
	}
	r.watches = []plan.Watch{committest.PodWatch()}
	if err := (Barrier{r.group}).ForgetNamespaces(r.watches); err != nil {
		t.Fatal(err)
	}
	given, err := r.c.ledger.Selections()
	if err != nil {
		t.Fatal(err)
	}
	next := committest.PodWatch(inProd)
	former, err := given.Watch(s.Partition, &next)
	if err != nil || former == nil || former.Filter.NeedsNamespaces() {
		t.Fatalf("the watch judges by %+v, which needs labels that are not known, %v", former, err)
	}
	r.watches = []plan.Watch{*former}
	if gained, err := r.c.addedBefore([]*Feed{r.feed(pods)}); err != nil || len(gained) != 1 {
		t.Errorf("%d watches are given objects, %v", len(gained), err)
	}
}
