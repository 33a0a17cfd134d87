package history

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// trimmed has records, a minute apart, that retention removes soon.
func (w *world) trimmed(n int) {
	h := w.c.Handler(w.feed)
	for i := range n {
		name := fmt.Sprint("o", i)
		w.cluster[name] = w.object(name, "u-"+name)
		h.OnAdd(w.cluster[name], false)
		w.c.Flush()
		time.Sleep(time.Minute)
	}
}

// A page that continues behind records which are not in the log any more is not complete.
func TestContinueBehindRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 10*time.Minute)
		defer w.end()
		w.restart(false) // the history has begun
		w.trimmed(30)
		page, err := w.r.Query(t.Context(), Query{Oldest: true, Limit: 3})
		w.must(err)
		if !page.Complete || page.Continue == "" || len(page.Items) != 3 {
			t.Fatalf("the first page: %+v", page)
		}
		again, err := w.r.Query(t.Context(), Query{Oldest: true, Limit: 3, Continue: page.Continue})
		w.must(err)
		if !again.Complete || len(again.Items) != 3 {
			t.Errorf("the second page: %+v", again)
		}
		w.trimmed(15)
		late, err := w.r.Query(t.Context(), Query{Oldest: true, Limit: 3, Continue: page.Continue})
		w.must(err)
		if late.Items[0].Sequence == again.Items[0].Sequence {
			t.Fatal("retention has removed nothing")
		}
		if late.Complete {
			t.Errorf("a page that begins %v after the one before ends is complete: %+v", late.Items[0].Time.Sub(page.Items[2].Time), late)
		}
	})
}

// trims lets records be read when retention has removed some whose headlines were read.
type trims struct {
	Store
	now func()
}

func (s *trims) trim() {
	if now := s.now; now != nil {
		s.now = nil
		now()
	}
}

func (s *trims) ReadRecord(sequence uint64) (store.Item, bool, error) {
	s.trim()
	return s.Store.ReadRecord(sequence)
}

func (s *trims) ReadLog(after uint64, most int) ([]store.Item, error) {
	s.trim()
	return s.Store.ReadLog(after, most)
}

// A change that leaves the log while a page is made is no hit, and the page is not complete.
func TestRetentionDuringAQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 10*time.Minute)
		defer w.end()
		w.restart(false) // the history has begun
		w.trimmed(30)
		none := &Test{Accepts: func(*record.Record) (bool, error) { return false, nil }}
		path, err := rawjson.ParsePath("spec.nodeName")
		w.must(err)
		for name, q := range map[string]Query{
			"with a test": {Test: none}, "with a test, the oldest first": {Test: none, Oldest: true}, "with a path": {Path: &path},
		} {
			first := w.st.LogStats().First
			w.r.store = &trims{w.st, func() { w.trimmed(15) }}
			q.Limit = 100
			page, err := w.r.Query(t.Context(), q)
			w.must(err)
			if w.st.LogStats().First == first {
				t.Fatalf("%s: retention has removed nothing", name)
			}
			if len(page.Items) > 0 || page.Complete {
				t.Errorf("%s: got %+v", name, page)
			}
		}
	})
}
