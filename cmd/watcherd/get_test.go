package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/pretty"
)

// TestEachObject reads a list of several pages, with the same query for each.
func TestEachObject(t *testing.T) {
	pages := map[string]struct{ item, next string }{"": {"a", "1"}, "1": {"b", "2"}, "2": {"c", ""}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := pages[r.FormValue("continue")]
		if r.FormValue("labelSelector") != "tier=web" || r.URL.Path != "/api/v1/objects/pods" {
			t.Errorf("asked for %s", r.URL)
		}
		list := admin.ObjectList{Items: []json.RawMessage{json.RawMessage(`{"name":"` + page.item + `"}`)}}
		list.Metadata.Continue = page.next
		if err := json.NewEncoder(w).Encode(list); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	client, err := (&adminFlags{url: s.URL}).client()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = eachObject(t.Context(), client, "/api/v1/objects/pods", url.Values{"labelSelector": {"tier=web"}}, func(page *admin.ObjectList) error {
		for _, item := range page.Items {
			got = append(got, string(item))
		}
		return nil
	})
	if want := []string{`{"name":"a"}`, `{"name":"b"}`, `{"name":"c"}`}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %s; want %s", err, got, want)
	}
}

// TestPagesOfATime: objects that may be missing from one page of a list of a time may be missing from the list.
func TestPagesOfATime(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := history.List{As: history.Gap, Items: []history.State{}, Continue: "more", Unread: []history.Unread{{Resource: "pods", Cause: "fails"}}}
		if r.FormValue("continue") != "" {
			page = history.List{As: history.Exact, Items: []history.State{}}
		}
		if err := json.NewEncoder(w).Encode(page); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	var notes strings.Builder
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetErr(&notes)
	g := &getter{getOptions: &getOptions{at: "1h", output: "json"}, cmd: cmd}
	var err error
	if g.printer, err = newObjectPrinter(io.Discard, g.output); err != nil {
		t.Fatal(err)
	}
	if g.client, err = (&adminFlags{url: s.URL}).client(); err != nil {
		t.Fatal(err)
	}
	if err := g.each("pods", url.Values{}, func([]byte) error { return nil }); err != nil || !strings.Contains(notes.String(), "objects may be missing") || !strings.Contains(notes.String(), "not read yet: fails") {
		t.Errorf("%v, %q", err, &notes)
	}
}

// TestTailDates: the line with which another day begins has its date.
func TestTailDates(t *testing.T) {
	now := time.Now()
	var out strings.Builder
	tail := &tail{out: &out, printer: &pretty.Printer{}, day: now.Format(time.DateOnly)}
	yesterday := now.AddDate(0, 0, -1)
	for _, at := range []time.Time{now, yesterday, yesterday, now} {
		e := &event.Event{ID: "a", Type: event.Added, Time: at, Sequence: 1, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Name: "web", Object: json.RawMessage(`{}`)}
		data := event.AppendCloudEvent(nil, e)
		if err := tail.print("added", data); err != nil {
			t.Fatal(err)
		}
	}
	var dates []string
	for line := range strings.Lines(out.String()) {
		date, _, _ := strings.Cut(line, " ")
		if strings.Contains(date, ":") {
			date = ""
		}
		dates = append(dates, date)
	}
	if want := []string{"", yesterday.Format(time.DateOnly), "", now.Format(time.DateOnly)}; !slices.Equal(dates, want) {
		t.Errorf("dates %q, want %q:\n%s", dates, want, &out)
	}
}

// TestTailOverARestart loses the connection to a daemon that then answers 503 for a while.
func TestTailOverARestart(t *testing.T) {
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		if n == 2 {
			http.Error(w, `{"title":"starting","status":503}`, http.StatusServiceUnavailable)
			return
		}
		if last := r.Header.Get("Last-Event-ID"); n == 3 && last != "1" {
			t.Errorf("resumed after %q, want 1", last)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "id: %d\ndata: {\"n\":%d}\n\n", n, n)
	}))
	t.Cleanup(s.Close)
	var out, notes bytes.Buffer
	code := run(t.Context(), []string{"tail", "--admin", s.URL, "-o", "json", "--limit", "2"}, &out, &notes)
	if want := "{\"n\":1}\n{\"n\":3}\n"; code != exitOK || out.String() != want {
		t.Errorf("exit code %d, printed %q, want %q; %s", code, out.String(), want, notes.String())
	}
}

// TestVerdictWords has words of its own for each verdict on an event.
func TestVerdictWords(t *testing.T) {
	seen := map[string]route.Verdict{}
	for _, v := range []route.Verdict{
		route.Taken, route.OtherResources, route.OtherWatches, route.OtherEvents, route.Unchanged, route.Filtered,
		route.Missing, route.Failed, route.Unsampled, route.Lasting,
	} {
		if other, ok := seen[routeWords(v)]; ok {
			t.Errorf("%s and %s are both %q", v, other, routeWords(v))
		}
		seen[routeWords(v)] = v
	}
}

// TestStructuredOutput has texts, keys and numbers of JSON that a parser of YAML refuses or changes.
func TestStructuredOutput(t *testing.T) {
	long := strings.Repeat("k", 2000)
	var out bytes.Buffer
	if err := printStructured(&out, "yaml", map[string]any{"a": "\x7f\ufeff", "n": 9007199254740993, long: 1}); err != nil {
		t.Fatal(err)
	}
	if want := "a: \"\\x7F\\uFEFF\"\n? " + long + "\n: 1\n\"n\": 9007199254740993\n"; out.String() != want {
		t.Errorf("got %s", out.String())
	}
}

// TestAgesOfLaterRows: a row that follows later, as those of get --watch, has its age of then.
func TestAgesOfLaterRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p, err := newObjectPrinter(&out, formatTable)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			created := time.Now().UTC().Format(time.RFC3339)
			time.Sleep(time.Minute)
			object := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"creationTimestamp":%q}}`, name, created)
			if err := errors.Join(p.add([]byte(object)), p.flush()); err != nil {
				t.Fatal(err)
			}
		}
		if want := "NAME   DATA   AGE\na      0      60s\nb      0      60s\n"; out.String() != want {
			t.Errorf("got\n%swant\n%s", &out, want)
		}
	})
}

// TestTableOverFlushes: rows that follow later, as those of get --watch, stand below the columns.
func TestTableOverFlushes(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out, "NAMESPACE", "NAME", "NOTE")
	for _, row := range [][]string{{"shop", "a-long-name", "x"}, {"shop", "b", ""}, {"ü", "c", "y"}} {
		table.row(row...)
		if err := table.flush(); err != nil {
			t.Fatal(err)
		}
	}
	const want = "NAMESPACE   NAME          NOTE\nshop        a-long-name   x\nshop        b\nü           c             y\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}
