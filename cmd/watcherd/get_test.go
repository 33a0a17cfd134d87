package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/route"
)

// TestListObjects reads a list of several pages, with the same query for each.
func TestListObjects(t *testing.T) {
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
	list, err := listObjects(t.Context(), client, "pods", url.Values{"labelSelector": {"tier=web"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(list.Items)
	if want := `[{"name":"a"},{"name":"b"},{"name":"c"}]`; err != nil || string(got) != want || list.Metadata.Continue != "" {
		t.Errorf("%v, %s, continue %q; want %s", err, got, list.Metadata.Continue, want)
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
