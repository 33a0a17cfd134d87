package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestDowntime changes objects while the daemon is away. Where the API server
// still has the history every change is delivered; where it has not, every final
// state and every deletion is, and a gap says so. What did not change is not
// delivered again.
func TestDowntime(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		killed  bool
		compact bool
	}{
		{"terminated", false, false},
		{"killed", true, false},
		{"terminated-compacted", false, true},
		{"killed-compacted", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := testcluster.Start(t)
			c.Apply(t, widgetCRD)
			ns := c.Namespace(t)
			w := newClient(t, c, ns)
			objects, err := w.populate(t.Context(), 300)
			if err != nil {
				t.Fatal(err)
			}
			d := newDaemon(t, c.Kubeconfig, feedConfig(ns))
			d.start()
			w.settleAll(d.path("events"), kinds...)
			if tc.killed {
				d.kill()
			} else {
				d.stop()
			}
			known := len(readEvents(t, d.path("events")))

			if err := w.whileAway(t.Context(), objects); err != nil {
				t.Fatal(err)
			}
			if tc.compact {
				// The watch cache would still know: it has to go too.
				c.Compact(t, 0)
				c.Restart(t)
			}
			d.start()
			w.settleAll(d.path("events"), kinds...)
			d.stop()

			events := readEvents(t, d.path("events"))
			if tc.killed {
				events = distinct(events) // what was being written may come again, as the same event
			}
			t.Logf("%d events before, %d after", known, len(events)-known)
			if tc.compact {
				checkFinal(t, w.history, events)
				checkGaps(t, events, "expired")
				return
			}
			checkExact(t, w.history, events)
			for _, g := range events {
				if g.verb() == "gap" {
					t.Errorf("gap without a loss of history: %+v", g.Data)
				}
			}
		})
	}
}

type placed struct {
	k kind
	u *unstructured.Unstructured
}

// populate creates n objects, spread over the kinds.
func (c *client) populate(ctx context.Context, n int) ([]placed, error) {
	var all []placed
	for i := range n {
		k := kinds[i%len(kinds)]
		u, err := c.create(ctx, k, fmt.Sprintf("object-%d", i))
		if err != nil {
			return nil, err
		}
		all = append(all, placed{k, u})
	}
	return all, nil
}

// whileAway deletes 30 objects, updates 50 twice, creates 20, and deletes and
// recreates 10 under the same names.
func (c *client) whileAway(ctx context.Context, objects []placed) error {
	for _, o := range objects[:30] {
		if err := c.remove(ctx, o.k, o.u); err != nil {
			return err
		}
	}
	for _, o := range objects[30:80] {
		u, err := c.update(ctx, o.k, o.u)
		if err == nil {
			_, err = c.update(ctx, o.k, u)
		}
		if err != nil {
			return err
		}
	}
	for i := range 20 {
		if _, err := c.create(ctx, kinds[i%len(kinds)], fmt.Sprintf("late-%d", i)); err != nil {
			return err
		}
	}
	for _, o := range objects[80:90] {
		if err := c.remove(ctx, o.k, o.u); err != nil {
			return err
		}
		if _, err := c.create(ctx, o.k, o.u.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// checkFinal compares a feed with the history where states may have been lost in
// gaps: what is delivered is in order and follows on the state delivered before,
// final states and deletions are all there, and nothing is delivered twice.
func checkFinal(t testing.TB, h *history, events []got) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	problems := checkIDs(events)
	feed := byObject(events)
	for uid, p := range h.objects {
		problems = append(problems, p.compareFinal(uid, feed[uid])...)
	}
	report(t, problems)
}

func (p *past) compareFinal(uid string, events []got) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s %s (%s): ", p.gvr.Resource, p.name, uid)+fmt.Sprintf(format, args...))
	}
	at := -1 // place in the history of the last state delivered
	gone := false
	for i, g := range events {
		if gone {
			bad("event %d after the deletion", i)
		}
		if g.verb() == "deleted" {
			gone = true
			continue
		}
		if p.terminating(&g) {
			continue
		}
		next := slices.Index(p.versions, g.Data.ResourceVersion)
		if next <= at {
			bad("event %d is of version %s, not later than the one before", i, g.Data.ResourceVersion)
		}
		if g.verb() == "updated" && (g.Data.OldObject == nil || at < 0 || g.Data.OldObject.Metadata.ResourceVersion != p.versions[at]) {
			bad("event %d doesn't follow on the state delivered before", i)
		}
		at = next
	}
	switch {
	case p.deleted && len(events) > 0 && !gone:
		bad("the deletion is missing")
	case !p.deleted && gone:
		bad("deleted, but it exists")
	case !p.deleted && at != len(p.versions)-1:
		bad("the final state is missing")
	}
	return problems
}

// checkGaps expects a gap of that cause for every kind.
func checkGaps(t testing.TB, events []got, cause string) {
	t.Helper()
	told := map[string]bool{}
	for _, g := range events {
		if g.verb() == "gap" {
			if g.Data.Cause != cause {
				t.Errorf("gap with cause %q, want %q", g.Data.Cause, cause)
			}
			told[g.Subject] = true
		}
	}
	if len(told) != len(kinds) {
		t.Errorf("gaps for %v, want one for each of %d kinds", told, len(kinds))
	}
}
