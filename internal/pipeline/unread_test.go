package pipeline

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/committest"
	past "github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

// span is how complete the history since a time is: of one resource, or of all that is watched.
func (l *live) span(resource *event.Resource, from time.Time) past.Span {
	l.Helper()
	p, err := l.m.Reader().History().Query(l.Context(), past.Query{Filter: past.Filter{Resource: resource, From: from}, Limit: 1})
	if err != nil {
		l.Fatal(err)
	}
	return p.Span
}

// complete waits until all that is watched is complete, of all resources or of one, and returns a time from which on it is.
func (l *live) complete(resource *event.Resource) (from time.Time) {
	l.Helper()
	eventually(l.T, "complete", func() bool {
		from = time.Now()
		return l.span(resource, from).Complete && l.span(nil, from).Complete
	})
	return from
}

// TestUnreadIsNotComplete: while a watch fails, what happens is not in the history, and the
// history says so: with the time up to which it is complete.
func TestUnreadIsNotComplete(t *testing.T) {
	api, _ := podServer(t, 3)
	g := &gate{path: podPath}
	api.Intercept(g.answer)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.caughtUp()
	about := event.Resource{Resource: "pods"}
	begun := l.complete(&about)

	g.code.Store(http.StatusServiceUnavailable)
	api.Cut()
	eventually(t, "not complete", func() bool { return !l.span(&about, begun).Complete })
	api.Put(podPath, "ns", "meanwhile", nil)
	for _, of := range []*event.Resource{&about, nil} {
		s := l.span(of, begun)
		if s.Complete || len(s.Unread) != 1 || len(s.Gaps) > 0 {
			t.Fatalf("while the watch fails: %+v", s)
		}
		u := s.Unread[0]
		if u.Resource != "pods" || u.Since.After(time.Now()) || u.Since.Before(begun.Add(-time.Minute)) || u.Cause == "" {
			t.Errorf("unread: %+v", u)
		}
	}
	if w, err := l.m.Reader().History().WorthAt(about, "", time.Now()); err != nil || w.As != past.Exact || len(w.Unread) != 1 {
		t.Errorf("the state of now: %+v, %v", w, err)
	}
	h, o := l.m.Reader().History(), past.Object{Resource: about, Namespace: "ns", Name: "pod-00000"}
	list, err := h.ListAt(t.Context(), past.Objects{Resource: about}, time.Now(), "", 1)
	versions, err2 := h.Versions(t.Context(), past.VersionQuery{Object: o, Limit: 1})
	diff, err3 := h.Diff(t.Context(), o, begun, time.Now())
	blame, err4 := h.Blame(t.Context(), o)
	state, err5 := h.At(t.Context(), o, time.Now())
	owned, err6 := h.Owned(t.Context(), o, time.Now(), 1)
	if err := errors.Join(err, err2, err3, err4, err5, err6); err != nil {
		t.Fatal(err)
	}
	for of, unread := range map[string][]past.Unread{"a state": state.Unread, "owned objects": owned.Unread, "a list": list.Unread, "versions": versions.Unread, "a difference": diff.Unread, "blame": blame.Unread} {
		if len(unread) != 1 {
			t.Errorf("%s, while the watch fails: unread %+v", of, unread)
		}
	}
	view, err := l.m.Reader().View("pods")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, why := view.About(); !strings.Contains(why, "are not read yet") {
		t.Errorf("the objects of now, while the watch fails: %q", why)
	}
	g.code.Store(0)
	eventually(t, "complete again", func() bool { return l.log().types("meanwhile") == "added" && l.span(&about, begun).Complete })

	l.apply(l.state())
	eventually(t, "no watch reads it", func() bool {
		s := l.span(&about, begun)
		return !s.Complete && len(s.Unread) == 1 && s.Unread[0].Cause == "no watch reads it"
	})
	if s := l.span(nil, begun); !s.Complete {
		t.Errorf("of all that is watched: %+v", s)
	}
}

// TestUnreadWithoutHistory: the history says of which resource it lacks the changes as its watch keeps none. What others keep is complete.
func TestUnreadWithoutHistory(t *testing.T) {
	l := runLive(t, t.TempDir(), store.Options{}, podsAndWidgets(t), served{pods, widgets})
	l.apply(l.state(watchOf("p", nil, "pods"), watchOf("w", func(w *plan.Watch) { w.History = false }, "widgets.example.com")))
	l.caughtUp()
	kept := event.Resource{Resource: "pods"}
	eventually(t, "pods are complete", func() bool { return l.span(&kept, time.Now()).Complete })
	from := time.Now()
	if s := l.span(&kept, from); !s.Complete || len(s.Unread) > 0 {
		t.Errorf("of pods: %+v", s)
	}
	for _, of := range []*event.Resource{nil, {Group: "example.com", Resource: "widgets"}} {
		s := l.span(of, from)
		if s.Complete || len(s.Unread) != 1 || s.Unread[0].Resource != "widgets.example.com" || s.Unread[0].Cause != "its watches have history: false" {
			t.Errorf("of %v: %+v", of, s)
		}
	}
}

// TestUnreadAfterAMove: what a watch reads no more, as it selects otherwise at the API server, does not have the answers about what it
// reads be incomplete. Objects that only the part of the ledger before has are in no list of now, and what is not known of them comes with their own answers.
func TestUnreadAfterAMove(t *testing.T) {
	api, _ := podServer(t, 2)
	l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
	named := func(name string, namespaces ...string) plan.Watch {
		return committest.PodWatch(func(w *plan.Watch) {
			w.Fingerprint, w.ServerFields, w.Namespaces = name, "metadata.name="+name, namespaces
		})
	}
	l.apply(l.state(committest.PodWatch()))
	l.caughtUp()
	time.Sleep(time.Millisecond) // a later time than that of the changes
	about, before := event.Resource{Resource: "pods"}, time.Now()
	eventually(t, "read up to the time", func() bool {
		api.Put(podPath, "ns", "busy", nil)
		c, _, err := l.m.ledger.Checkpoint(ledger.FeedID("pods", ""))
		return err == nil && c.Time.After(before)
	})
	l.apply(l.state(named("pod-00000")))
	h := l.m.Reader().History()
	eventually(t, "complete, with what is read now", func() bool {
		s, err := h.At(t.Context(), past.Object{Resource: about, Namespace: "ns", Name: "pod-00000"}, time.Now())
		return err == nil && s.As == past.Exact && l.span(&about, time.Now()).Complete
	})
	check := func(name string, at time.Time, as past.As, listed, unread int) {
		t.Helper()
		o := past.Object{Resource: about, Namespace: "ns", Name: name}
		s, err := h.At(t.Context(), o, at)
		list, err2 := h.ListAt(t.Context(), past.Objects{Resource: about, Named: func(_, of string) bool { return of == name }}, at, "", 2)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if s.As != as || len(s.Object) == 0 || list.As != past.Exact && unread > 0 || len(list.Items) != listed || listed > 0 && list.Items[0].As != as || len(list.Unread) > 0 {
			t.Errorf("%s is %s, in a list %+v, want %s, listed %d times", name, s.As, list, as, listed)
		}
		versions, err := h.Versions(t.Context(), past.VersionQuery{Object: o, To: at, Limit: 1})
		diff, err2 := h.Diff(t.Context(), o, before, at)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if len(versions.Unread) != unread || len(diff.Unread) != unread || diff.To.As != as {
			t.Errorf("%s: unread %+v, by its difference %+v, which is %s; want %d", name, versions.Unread, diff.Unread, diff.To.As, unread)
		}
	}
	check("pod-00000", time.Now(), past.Exact, 1, 0)
	check("pod-00001", time.Now(), past.Gap, 0, 1)
	check("pod-00001", before, past.Exact, 1, 0)

	l.apply(l.state(named("pod-00001", "other"))) // which leaves the others unread
	eventually(t, "read in one namespace", func() bool {
		p, err := h.Query(t.Context(), past.Query{Filter: past.Filter{Resource: &about, Namespace: "other", From: time.Now()}, Limit: 1})
		return err == nil && p.Complete
	})
	if s := l.span(&about, time.Now()); s.Complete || len(s.Unread) != 2 {
		t.Errorf("of all namespaces: %+v", s)
	}
}

// TestUnreadSinceTheStart: a watch that has read nothing since the start has not read what happened since its checkpoint, whether it
// resumes or lists what is recorded in another form.
func TestUnreadSinceTheStart(t *testing.T) {
	about, o := event.Resource{Resource: "pods"}, past.Object{Resource: event.Resource{Resource: "pods"}, Namespace: "ns", Name: "pod-00000"}
	for name, tc := range map[string]struct {
		edits redact.Edits
		code  int
	}{
		"it resumes": {redact.DefaultEdits(), http.StatusServiceUnavailable},
		"it lists":   {redact.Edits{Drop: []string{"spec"}}, http.StatusServiceUnavailable},
		"refused":    {redact.Edits{Drop: []string{"spec"}}, http.StatusForbidden},
		"no answer":  {redact.Edits{Drop: []string{"spec"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			api, _ := podServer(t, 3)
			dir := t.TempDir()
			l := runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch()))
			l.caughtUp()
			begun := l.complete(&about)
			l.stop()

			var open func()
			if tc.code == 0 {
				open = closed(t, api, podPath)
			} else {
				g := &gate{path: podPath}
				g.code.Store(int64(tc.code))
				api.Intercept(g.answer)
				open = func() { g.code.Store(0) }
			}
			api.Delete(podPath, "ns", "pod-00000")
			l = runLive(t, dir, store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch(func(w *plan.Watch) { w.Edits, w.Fingerprint = tc.edits, "later" })))
			h := l.m.Reader().History()
			check := func() {
				t.Helper()
				for _, of := range []*event.Resource{&about, nil} {
					if s := l.span(of, begun); s.Complete || len(s.Unread) != 1 || s.Unread[0].Cause == "" || s.Unread[0].Since.After(time.Now()) || s.Unread[0].Since.IsZero() {
						t.Errorf("before it has read anything: %+v", s)
					}
				}
				if s, err := h.At(t.Context(), o, time.Now()); err != nil || len(s.Unread) != 1 {
					t.Errorf("a state of now: %+v, %v", s, err)
				}
			}
			check()
			time.Sleep(50 * time.Millisecond)
			check()
			open()
			eventually(t, "complete again", func() bool {
				s, err := h.At(t.Context(), o, time.Now())
				return err == nil && s.As == past.Exact && !s.Exists && l.span(&about, begun).Complete
			})
		})
	}
}

// TestUnreadBeforeDiscovery: while it is not known which resources the cluster serves, those that were read before the start are unread,
// also for a question about all resources.
func TestUnreadBeforeDiscovery(t *testing.T) {
	api, _ := podServer(t, 1)
	dir, about := t.TempDir(), event.Resource{Resource: "pods"}
	l := runLive(t, dir, store.Options{}, api, served{pods})
	l.apply(l.state(committest.PodWatch()))
	l.caughtUp()
	begun := l.complete(&about)
	l.stop()

	api.Put(podPath, "ns", "meanwhile", nil)
	later := unfound()
	l = runLive(t, dir, store.Options{}, api, later)
	check := func(when string) {
		t.Helper()
		for _, of := range []*event.Resource{&about, nil} {
			if s := l.span(of, begun); s.Complete || len(s.Unread) != 1 || s.Unread[0].Resource != "pods" || s.Unread[0].Since.IsZero() {
				t.Errorf("%s: %+v", when, s)
			}
		}
	}
	check("before a config is applied")
	l.apply(l.state(committest.PodWatch()))
	check("before the first discovery")
	later.set(pods)
	eventually(t, "complete again", func() bool { return l.span(&about, begun).Complete && l.span(nil, begun).Complete })
}

// TestUnreadSinceEver: a namespace that could not be read from the beginning is unread in answers about all namespaces, and in those
// about all resources unless the watch may not read it.
func TestUnreadSinceEver(t *testing.T) {
	for code, all := range map[int64]int{http.StatusForbidden: 0, http.StatusServiceUnavailable: 1} {
		t.Run(http.StatusText(int(code)), func(t *testing.T) {
			api, _ := podServer(t, 1)
			g := &gate{path: "/api/v1/namespaces/closed/pods"}
			g.code.Store(code)
			api.Intercept(g.answer)
			l := runLive(t, t.TempDir(), store.Options{}, api, served{pods})
			l.apply(l.state(committest.PodWatch(func(w *plan.Watch) { w.Namespaces = []string{"ns", "closed"} })))
			about, h := event.Resource{Resource: "pods"}, l.m.Reader().History()
			in := func(namespace string) past.Span {
				t.Helper()
				p, err := h.Query(t.Context(), past.Query{Filter: past.Filter{Resource: &about, Namespace: namespace, From: time.Now()}, Limit: 1})
				if err != nil {
					t.Fatal(err)
				}
				return p.Span
			}
			eventually(t, "one namespace is read, and the other is not", func() bool {
				s := in("closed")
				return in("ns").Complete && len(s.Unread) == 1 && s.Unread[0].Cause != "its watch has not begun"
			})
			for _, of := range []struct {
				span   past.Span
				unread int
			}{{in("closed"), 1}, {l.span(&about, time.Now()), 1}, {l.span(nil, time.Now()), all}} {
				s := of.span
				if s.Complete != (of.unread == 0) || len(s.Unread) != of.unread {
					t.Errorf("while the other namespace has never been read: %+v", s)
				}
				for _, u := range s.Unread {
					if u.Namespace != "closed" || u.Cause == "" || u.Since.IsZero() {
						t.Errorf("unread: %+v", u)
					}
				}
			}
			g.code.Store(0)
			eventually(t, "complete", func() bool { return l.span(&about, time.Now()).Complete && l.span(nil, time.Now()).Complete })
		})
	}
}
