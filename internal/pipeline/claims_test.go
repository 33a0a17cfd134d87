package pipeline

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/committest"
	past "github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// claim is an answer about a time that was said to be complete, or exact.
type claim struct {
	to      time.Time
	changes int    // since the time that was asked for
	state   string // empty: it is not one of a state

	difference string // empty: it is not one of two states
	list       string // empty: it is not one of objects
	of         string // what changed: empty, all objects
}

// changes returns a claim of the changes of objects, or of one with a name, from a time until another one; to is zero if they are not complete.
func (l *live) changes(of *event.Resource, name string, from, to time.Time) (claim, error) {
	f := past.Filter{Resource: of, Name: name, From: from, To: to}
	if name != "" {
		f.Namespace = "ns"
	}
	p, err := l.m.Reader().History().Query(l.Context(), past.Query{Filter: f, Limit: 100_000})
	if err != nil || !p.Complete || p.Continue != "" {
		return claim{}, err
	}
	return claim{to: p.To, changes: len(p.Items), of: name}, nil
}

// object returns a claim of the state of an object; to is zero if it is not exact.
func (l *live) object(o past.Object, at time.Time) (claim, error) {
	s, err := l.m.Reader().History().At(l.Context(), o, at)
	if err != nil || s.As != past.Exact || len(s.Unread) > 0 {
		return claim{}, err
	}
	return claim{to: at, state: fmt.Sprint(s.Exists, string(s.Object))}, nil
}

// difference returns a claim of what differs in an object between two times; to is zero if it is not exact.
func (l *live) difference(o past.Object, from, to time.Time) (claim, error) {
	d, err := l.m.Reader().History().Diff(l.Context(), o, from, to)
	if err != nil || d.From.As != past.Exact || d.To.As != past.Exact || len(d.Unread) > 0 {
		return claim{}, err
	}
	return claim{to: to, difference: "differs" + d.Diff}, nil
}

// listed returns a claim of the objects at a time, by their versions; to is zero if they are not all exact.
func (l *live) listed(of event.Resource, at time.Time) (claim, error) {
	list, err := l.m.Reader().History().ListAt(l.Context(), past.Objects{Resource: of}, at, "", 100_000)
	if err != nil || list.As != past.Exact || len(list.Unread) > 0 || list.Continue != "" {
		return claim{}, err
	}
	h := fnv.New64a()
	for i := range list.Items {
		if list.Items[i].As != past.Exact {
			return claim{}, nil
		}
		h.Write(list.Items[i].Object)
	}
	return claim{to: at, list: fmt.Sprint(len(list.Items), " objects ", h.Sum64())}, nil
}

// asks asks for the changes since a time and the state of an object until the end, and then again for what was claimed: all of that is still so.
func (l *live) asks(o past.Object, from time.Time) (end func()) {
	var over atomic.Bool
	var claims []claim
	var asking sync.WaitGroup
	asking.Go(func() {
		for !over.Load() {
			changes, err := l.changes(&o.Resource, "", from, time.Now())
			own, err4 := l.changes(&o.Resource, o.Name, from, time.Now())
			state, err2 := l.object(o, time.Now())
			difference, err3 := l.difference(o, from, time.Now())
			listed, err5 := l.listed(o.Resource, time.Now())
			if err := errors.Join(err, err2, err3, err4, err5); err != nil {
				l.Error(err)
				return
			}
			claims = append(claims, changes, own, state, difference, listed)
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		l.Helper()
		over.Store(true)
		asking.Wait()
		wrong := 0
		for _, c := range claims {
			var now claim
			var err error
			switch {
			case c.to.IsZero():
				continue
			case c.state != "":
				now, err = l.object(o, c.to)
			case c.list != "":
				now, err = l.listed(o.Resource, c.to)
			case c.difference != "":
				now, err = l.difference(o, from, c.to)
			default:
				now, err = l.changes(&o.Resource, c.of, from, c.to)
			}
			if err != nil {
				l.Fatal(err)
			}
			if !now.to.Equal(c.to) || now.changes != c.changes || now.state != c.state || now.difference != c.difference || now.list != c.list {
				if wrong++; wrong < 5 {
					l.Errorf("the answer was %+v, and is %+v", c, now)
				}
			}
		}
		if wrong > 0 {
			l.Errorf("%d of %d answers were wrong", wrong, len(claims))
		}
	}
}

// TestClaimsLast: what was said to be complete or exact stays so, also of the moments between the reading of changes, of a list with a gap
// or of one in another form and their commit.
func TestClaimsLast(t *testing.T) {
	const n = 3000
	about := event.Resource{Resource: "pods"}
	complete := func(l *live) bool { return l.span(&about, time.Now().Add(-1)).Complete }
	for name, happens := range map[string]func(l *live, g *gate, names []string, ask func()){
		"changes": func(l *live, _ *gate, names []string, ask func()) {
			ask()
			for i, name := range names[:n/10] {
				l.api.Put(podPath, "ns", name, phase(fmt.Sprint(i)))
			}
		},
		"an outage with a gap": func(l *live, g *gate, names []string, ask func()) {
			g.code.Store(http.StatusServiceUnavailable)
			l.api.Cut()
			eventually(l.T, "it fails", func() bool { return !complete(l) })
			ask()
			l.api.Delete(podPath, "ns", names[:n/2]...)
			for i, name := range names[n/2:] {
				l.api.Put(podPath, "ns", name, phase(fmt.Sprint(i)))
			}
			l.api.Compact()
			g.code.Store(0)
		},
		"a namespace is relabelled": func(l *live, _ *gate, names []string, ask func()) {
			var err error
			w := committest.PodWatch(named("selecting"))
			if w.Filter, err = selector.NewFilter(selector.Namespaces{Selector: "!excluded"}, "", ""); err != nil {
				l.Fatal(err)
			}
			relabel := func(labels map[string]any) {
				l.api.Put(namespacePath, "", "ns", map[string]any{"metadata": map[string]any{"name": "ns", "uid": "uid-ns", "labels": labels}})
			}
			relabel(nil)
			l.apply(l.state(w))
			eventually(l.T, "complete", func() bool { return l.m.committer.NamespacesReady() && complete(l) })
			ask()
			for _, labels := range []map[string]any{{"excluded": ""}, {}, {"excluded": ""}, {}} { // what changes while it is excluded makes earlier times unknown
				relabel(labels)
			}
			eventually(l.T, "the object is back", func() bool {
				return strings.HasSuffix(l.log().types(names[7]), strings.Repeat(" updated", 4))
			})
		},
		"other edits": func(l *live, _ *gate, _ []string, ask func()) {
			ask()
			l.apply(l.state(committest.PodWatch(func(w *plan.Watch) { w.Edits, w.Fingerprint = redact.Edits{Drop: []string{"spec"}}, "later" })))
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, names := podServer(t, n)
			g := &gate{path: podPath}
			api.Intercept(g.answer)
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.caughtUp()
			l.synced()
			eventually(t, "complete", func() bool { return complete(l) })
			end, from := func() {}, time.Now()
			happens(l, g, names, func() { end = l.asks(past.Object{Resource: about, Namespace: "ns", Name: names[7]}, from) })
			l.caughtUp()
			l.synced()
			end()
		})
	}
}

// TestUnreadBeforeItIsRecorded: what is observed and not committed yet is unread.
func TestUnreadBeforeItIsRecorded(t *testing.T) {
	api, names := podServer(t, 3)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.caughtUp()
	about := event.Resource{Resource: "pods"}
	begun := l.complete(&about)
	held, release := make(chan struct{}), make(chan struct{})
	go func() {
		_ = l.m.committer.AtBarrier(func(commit.Barrier) {
			close(held)
			<-release
		})
	}()
	<-held
	api.Put(podPath, "ns", names[0], phase("later"))
	var s past.Span
	eventually(t, "not complete", func() bool { s = l.span(&about, begun); return !s.Complete })
	if len(s.Unread) != 1 || s.Unread[0].Since.Before(begun) || s.Unread[0].Since.After(s.To) {
		t.Errorf("while the commit is held: %+v", s)
	}
	state, err := l.m.Reader().History().At(t.Context(), past.Object{Resource: about, Namespace: "ns", Name: names[0]}, time.Now())
	if err != nil || len(state.Unread) != 1 {
		t.Errorf("a state, while the commit is held: %+v, %v", state, err)
	}
	if s, err := l.changes(&about, "", begun, s.Unread[0].Since.Add(-1)); err != nil || s.to.IsZero() {
		t.Errorf("before that, while the commit is held: %+v, %v", s, err)
	}
	close(release)
	l.caughtUp()
	if !l.span(&about, begun).Complete {
		t.Error("not complete once it is committed")
	}
}
