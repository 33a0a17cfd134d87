package pipeline

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/committest"
	past "github.com/watcherd/watcherd/internal/history"
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
	begun := time.Now()
	eventually(t, "complete", func() bool { return l.span(&about, begun).Complete && l.span(nil, begun).Complete })

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
	if err := errors.Join(err, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	for of, unread := range map[string][]past.Unread{"a list": list.Unread, "versions": versions.Unread, "a difference": diff.Unread, "blame": blame.Unread} {
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
