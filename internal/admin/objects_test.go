package admin

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/history"
)

func pod(namespace, name, tier string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":"u","resourceVersion":"7","labels":{"tier":%q}},"spec":{"n":12345678901234567890}}`, name, namespace, tier)
}

func TestPagesOfObjects(t *testing.T) {
	f := newFixture(t)
	for _, ns := range []string{"a", "b"} {
		for i := range 7 {
			f.add(pod(ns, fmt.Sprintf("p%d", i), []string{"web", "db"}[i%2]))
		}
	}
	f.serve()
	var names []string
	for query := (url.Values{"limit": {"4"}, "labelSelector": {"tier=web"}}); ; {
		code, body := f.get("/api/v1/objects/pods?" + query.Encode())
		f.expect(code, body, 200)
		var page ObjectList
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Items) > 4 || page.Kind != "List" {
			t.Errorf("page: %s", body)
		}
		for _, item := range page.Items {
			var o struct {
				Metadata struct{ Namespace, Name string }
				Spec     json.RawMessage
			}
			if err := json.Unmarshal(item, &o); err != nil {
				t.Fatal(err)
			}
			if string(o.Spec) != `{"n":12345678901234567890}` {
				t.Errorf("the object is not as it was recorded: %s", item)
			}
			names = append(names, o.Metadata.Namespace+"/"+o.Metadata.Name)
		}
		if page.Metadata.Continue == "" {
			break
		}
		query.Set("continue", page.Metadata.Continue)
		if len(names) == 4 && page.Metadata.RemainingItemCount != 4 {
			t.Errorf("%d remain, want 4", page.Metadata.RemainingItemCount)
		}
	}
	if got, want := fmt.Sprint(names), "[a/p0 a/p2 a/p4 a/p6 b/p0 b/p2 b/p4 b/p6]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	for _, tc := range []struct {
		path string
		code int
		says string
	}{
		{"/api/v1/objects/po/b?limit=1", 200, `"remainingItemCount":6`},
		{"/api/v1/objects/pods?namespace=b&name=p3", 200, `"name":"p3"`},
		{"/api/v1/objects/pods/b/p3", 200, `"n":12345678901234567890`},
		{"/api/v1/objects/pods/b/p3?metadata=true", 200, `"labels":{"tier":"db"}`},
		{"/api/v1/objects/pods/b/p9", 404, `pods.v1 \"p9\" in namespace b is not among`},
		{"/api/v1/objects/nodes", 404, "no watch reads it"},
		{"/api/v1/objects/pods?limit=0", 400, "limit"},
		{"/api/v1/objects/pods?limit=x", 400, "limit"},
		{"/api/v1/objects/pods?continue=!", 400, "continue"},
		{"/api/v1/objects/pods?labelSelector=a+in", 400, "labelSelector"},
		{"/api/v1/objects/pods?labelSelector=" + strings.Repeat("!a,", 5000) + "!a", 400, "100 terms"},
		{"/api/v1/objects/pods?at=-1s&labelSelector=" + strings.Repeat("!a,", 5000) + "!a", 400, "100 terms"},
		{"/api/v1/objects/pods?metadata=perhaps", 400, "metadata"},
	} {
		code, body := f.get(tc.path)
		f.expect(code, body, tc.code, tc.says)
	}
}

// TestSlowReadersHoldLittle has many clients ask for long lists of large objects and read
// none of the answers: together they hold an object each, for some of them.
func TestSlowReadersHoldLittle(t *testing.T) {
	f := newFixture(t)
	random := make([]byte, 512<<10)
	_, _ = rand.Read(random)
	f.add(strings.Replace(pod("a", "large", "web"), `"n":`, fmt.Sprintf(`"text":"%x","n":`, random), 1))
	for range 5 {
		f.objects = append(f.objects, f.objects...)
	}
	f.serve()
	for range 2 * maxReads {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(f.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := fmt.Fprint(c, "GET /api/v1/objects/pods HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(20 * time.Second); len(f.srv.reads) < maxReads; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d answers are under way", len(f.srv.reads), maxReads)
		}
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 256<<20 {
		t.Errorf("%d clients hold %d MiB", 2*maxReads, m.HeapAlloc>>20)
	}
}

// TestListsOfThePastWait has many clients ask for the past at once: a few are answered at a time,
// and the present has places of its own.
func TestListsOfThePastWait(t *testing.T) {
	f := newFixture(t)
	f.add(pod("a", "one", "web"))
	var now, peak atomic.Int32
	release := make(chan struct{})
	f.cfg.At = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		peak.Store(max(peak.Load(), now.Add(1)))
		<-release
		now.Add(-1)
	})
	f.serve()
	var clients sync.WaitGroup
	for range maxReads {
		clients.Go(func() { f.get("/at/-5m/api/v1/pods") })
	}
	for end := time.Now().Add(20 * time.Second); now.Load() < maxAsks; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d answers are under way", now.Load())
		}
	}
	code, body := f.get("/api/v1/objects/pods")
	f.expect(code, body, http.StatusOK, "one")
	close(release)
	clients.Wait()
	if peak.Load() > maxAsks {
		t.Errorf("%d answers at a time, want %d", peak.Load(), maxAsks)
	}
}

// A Role has a name of any length, and a request is bounded: a page ends with any name.
func TestPagesOfLongNames(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("ä", 10<<10)
	for _, name := range []string{"a", long[:1024], long[:1026], long + "a", long + "b", "ö"} {
		f.add(pod("ns", name, "web"))
	}
	f.serve()
	path := "/api/v1/objects/pods?limit=1"
	var next string
	for n := 6; n > 0; n-- {
		code, body := f.get(path + "&continue=" + next)
		f.expect(code, body[:min(len(body), 200)], 200)
		var page ObjectList
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(err)
		}
		if page.Metadata.RemainingItemCount != n-1 {
			t.Fatalf("%d objects remain, want %d", page.Metadata.RemainingItemCount, n-1)
		}
		next = page.Metadata.Continue
	}
	if next != "" {
		t.Errorf("a page follows the last: %s", next)
	}
	gone := place{"ns", history.Place(long + "c")}.token()
	code, body := f.get(path + "&continue=" + gone)
	f.expect(code, body, 410, "list again")
}
