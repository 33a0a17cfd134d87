package admin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestTheFirstTime: no time that is given counts as left out.
func TestTheFirstTime(t *testing.T) {
	for _, text := range []string{"0001-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"} {
		if at, err := ParseSince(text, time.Now()); err != nil || at.IsZero() {
			t.Errorf("%s is %v, error %v", text, at, err)
		}
	}
}

// TestHistory asks the doors to the history of a log that has none.
func TestHistory(t *testing.T) {
	f := newFixture(t)
	dicts := compact.NewDictionaries(nil)
	f.cfg.History = history.New(f.store, ledger.New(f.store, dicts), &record.Inflater{Dictionaries: dicts})
	f.serve()
	for path, want := range map[string]struct {
		code int
		says string
	}{
		"history":                                             {200, `"items":[]`},
		"history?resource=po&type=added,deleted":              {200, `"complete":false`},
		"history?type=odd":                                    {400, "unknown type"},
		"history?resource=nodes":                              {404, "no watch reads it"},
		"history?limit=0":                                     {400, "limit must be"},
		"history?order=up":                                    {400, "order must be"},
		"history?nmaespace=prod":                              {400, `unknown parameter \"nmaespace\"; known are resource, namespace, name,`},
		"history?when=event.subject!=\"a;b\"":                 {400, "the query is not understood: invalid semicolon"},
		"history?name=%zz":                                    {400, "the query is not understood"},
		"history?resource=pods&resource=nodes":                {400, "resource is given 2 times"},
		"history?type=added&type=deleted,sync":                {200, `"items":[]`},
		"history/histogram?when=true":                         {400, `unknown parameter \"when\"`},
		"changes?from=-5m&manager=helm":                       {400, `unknown parameter \"manager\"`},
		"events?follow=false&resource=pods&resource=po&name=": {200, "id: "},
		"events?follow=false&resources=pods":                  {400, `unknown parameter \"resources\"`},
		"status?verbose":                                      {400, `unknown parameter \"verbose\"; known are none`},
		"history?before=99":                                   {200, `"items":[]`},
		"history?before=x":                                    {400, "before must be the sequence"},
		"history?continue=!":                                  {400, "continue is not"},
		"objects/pods?at=-5m&continue=ns/a":                   {400, "continue is not"},
		"history?path=spec[":                                  {400, "path"},
		"history?path=**.image":                               {400, "** is for drop and redact"},
		"history?from=soon":                                   {400, "from"},
		"history/histogram?buckets=3&from=1h":                 {200, `"buckets":[`},
		"history?noise=false":                                 {200, `"items":[]`},
		"history?noise=some":                                  {400, "true or false"},
		"history/histogram?noise=false":                       {200, `"noise":0`},
		"history/histogram?buckets=201":                       {400, "from 1 to 200"},
		"changes?from=-5m":                                    {200, `"churned":0`},
		"changes":                                             {400, "from is required"},
		"objects/pods/a/b/versions":                           {200, `"before":"unknown-before"`},
		"objects/pods/a/b/diff":                               {404, "no change of"},
		"objects/pods/a/b/diff?from=2h&to=1h":                 {200, `"diff":""`},
		"objects/pods/a/b/diff?from=1h&to=2h":                 {200, `"diff":""`},
		"changes?from=5m&group=owner":                         {200, `"items":[]`},
		"changes?from=5m&group=team":                          {400, "group must be"},
		"objects/pods/a/b/blame":                              {200, `"fields":[]`},
		"objects/pods/a/b/owned":                              {200, `"items":[]`},
		"objects/pods/a/b/owned?at=-5m&limit=0":               {400, "limit must be"},
		"objects/pods/a/b?at=-5m":                             {200, `"as":"unknown-before"`},
		"objects/pods?at=2026-01-31T12:00:00Z":                {200, `"items":[]`},
		"objects/pods/a/b?at=0001-01-01T00:00:00Z":            {200, `"as":"unknown-before"`},
		"objects/pods?at=0001-01-01T00:00:00Z":                {200, `"as":"unknown-before"`},
		"changes?from=0001-01-01T00:00:00Z":                   {200, `"complete":false`},
		"history?order=asc&continue=3w5e11264sgsf":            {400, "continue is not"},
		"objects/pods?at=noon":                                {400, "at"},
		"objects/pods?at=1h&limit=x":                          {400, "limit must be"},
		"objects/pods?at=-3d":                                 {200, `"items":[]`},
		"objects/pods/a/b?at=2099-01-31T12:00:00Z":            {400, "in the future"},
		"objects/pods/a/b/diff?from=2099-01-31T12:00:00Z":     {400, "in the future"},
		"objects/pods/a/b/versions?continue=-":                {400, "continue is not what an earlier page gave"},
		"objects/pods/a/b/versions?from=1h&to=2h":             {400, "after its end"},
		"objects/pods/a/b?version=99":                         {200, `"as":"unknown-before"`},
		"objects/pods/a/b?version=18446744073709551615":       {404, "no version of the object has this sequence"},
		"objects/pods/a/b?version=0":                          {400, "version must be the sequence of a version"},
		"objects/pods/a/b?version=9&at=-5m":                   {400, "without a time"},
		"objects/pods/a?version=9":                            {400, "name the object"},
		"objects/pods/a/b/owned?version=99":                   {200, `"as":"unknown-before"`},
		"objects/pods/a/b/owned?version=18446744073709551615": {404, "no version of the object has this sequence"},
		"objects/pods/a/b/owned?version=9&at=-5m":             {400, "use either"},
		"objects/pods/a/b/diff?version=99":                    {200, `"diff":""`},
		"objects/pods/a/b/diff?version=18446744073709551615":  {404, "no version of the object has this sequence"},
		"objects/pods/a/b/diff?version=9&to=-5m":              {400, "use either"},
		"objects/pods/a/b/diff?base=9":                        {400, "version is required"},
		"objects/pods/a/b/diff?version=9&base=x":              {400, "base must be the sequence"},
		"history?from=1h&to=2h":                               {400, "after its end"},
		"history/histogram?from=1h&to=2h":                     {400, "after its end"},
		"changes?from=1h&to=2h":                               {400, "after its end"},
		"history?from=2099-01-31T12:00:00Z":                   {400, "after its end"},
		"history?to=2026-01-31T12:00:00+02:00":                {200, `"to":"2026-01-31T10:00:00Z"`},
		"history?to=2026-01-31T12:00:00%2B24:00":              {200, `"to":"2026-01-30T12:00:00Z"`},
		"history?to=0000-01-01T00:00:00%2B14:00":              {200, `"to":"0001-01-01T00:00:00.000000001Z"`},
		"history?to=2026-01-31%2012:00:00Z":                   {400, "neither how long ago"},
		"history?namespace=a,b":                               {400, "name one"},
	} {
		code, body := f.get("/api/v1/" + path)
		f.expect(code, body, want.code, want.says)
	}
}

// FuzzRequests sends anything that an HTTP client can write: it is answered, and never
// with an error of the daemon's own.
func FuzzRequests(f *testing.F) {
	for _, target := range []string{
		"/", "/livez?exclude=a&verbose", "/readyz/sink/a", "/api/v1/status", "/api/v1/objects/pods?labelSelector=a%20in%20(b,c)&limit=1&continue=eyJ9",
		"/api/v1/objects/pods/ns?metadata=true", "/api/v1/objects/pods/a/b?at=-5m", "/api/v1/objects/pods?at=2026-01-31T12:00:00Z&limit=3&continue=YQ",
		"/api/v1/objects/pods/a/b/versions?from=2h&to=1h&limit=9", "/api/v1/objects/pods/a/b/diff?from=3d", "/api/v1/objects/pods/a/b/blame", "/api/v1/history?continue=AAAA&path=spec.a%5B*%5D&order=asc",
		"/api/v1/history/histogram?buckets=200&from=1h", "/api/v1/changes?from=1h&namespace=a,b&resource=po,*.example.com&type=added", "/api/v1/events?since=3d&route=blue&type=gap&follow=false",
		"/api/v1/events?since=18446744073709551615", "/api/v1/deadletters/ops?limit=5&after=1",
	} {
		f.Add(http.MethodGet, target, "", "")
	}
	for target, body := range map[string]string{
		"/api/v1/replay": `{"sink":"archive","fromTime":"2026-01-31T12:00:00Z"}`, "/api/v1/snapshot": `{"sink":"a","watch":"w"}`, "/api/v1/sinks/ops/skip": `{"sequence":41}`,
		"/api/v1/deadletters/ops/drop": `{"positions":[1,2]}`, "/api/v1/deadletters/ops/retry": `{"all":true}`, "/api/v1/reload": ``,
	} {
		f.Add(http.MethodPost, target, body, "9")
	}
	x := newFixture(f)
	dicts := compact.NewDictionaries(nil)
	x.cfg.History = history.New(x.store, ledger.New(x.store, dicts), &record.Inflater{Dictionaries: dicts})
	x.run = func(context.Context, func(int)) (int, error) { return 1, nil }
	x.add(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","namespace":"a","uid":"u","resourceVersion":"1","labels":{"a":"b"}}}`)
	srv, err := Listen(f.Context(), x.cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(srv.Close)
	close(x.stopping) // streams end at once
	h := srv.adminHandler(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	f.Fuzz(func(t *testing.T, method, target, body, lastID string) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1"+target, strings.NewReader(body))
		if err != nil || r.Host != "127.0.0.1" {
			t.Skip("no client sends it")
		}
		r.Header.Set("Content-Type", "application/json")
		if lastID != "" {
			r.Header.Set("Last-Event-ID", lastID)
		}
		w := httptest.NewRecorder()
		begin := time.Now()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %s: %d %s", method, target, w.Code, w.Body)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s %s took %s", method, target, took)
		}
	})
}

// listed has a list of a time.
type listed struct {
	History
	list history.List
}

func (l listed) ListAt(context.Context, history.Objects, time.Time, string, int) (history.List, error) {
	return l.list, nil
}

// dropping is a cluster of which no labels are recorded.
type dropping struct{ Objects }

func (dropping) Selectable(_ event.Resource, _ string, byLabel labels.Selector) error {
	return Refuse(http.StatusBadRequest, fmt.Errorf("no watch records %s", byLabel))
}

// TestLabelsThatAreNotRecorded: what is not recorded selects nothing, and the list of it would seem to be empty.
func TestLabelsThatAreNotRecorded(t *testing.T) {
	f := newFixture(t)
	f.cfg.History, f.cfg.Objects = listed{list: history.List{As: history.Exact}}, dropping{f}
	f.serve()
	if code, body := f.get("/api/v1/objects/pods?at=1m&labelSelector=team%3Dweb"); code != 400 || !strings.Contains(body, "no watch records team=web") {
		t.Errorf("got %d %s", code, body)
	}
	if code, body := f.get("/api/v1/objects/pods?at=1m"); code != 200 {
		t.Errorf("without labels: got %d %s", code, body)
	}
}

// TestLabelsOfUncertainStates selects by labels what certainly has others, and nothing else: the last known state of an object
// may not be that of the time.
func TestLabelsOfUncertainStates(t *testing.T) {
	f := newFixture(t)
	state := func(name string, as history.As, team string) history.State {
		return history.State{As: as, Name: name, Exists: true, Object: []byte(`{"metadata":{"name":"` + name + `","labels":{"team":"` + team + `"}}}`)}
	}
	f.cfg.History = listed{list: history.List{As: history.Exact, Items: []history.State{
		state("is", history.Exact, "web"), state("other", history.Exact, "db"), state("may-be", history.Gap, "db"), {As: history.UnknownBefore, Name: "unknown"},
	}}}
	f.serve()
	code, body := f.get("/api/v1/objects/pods?at=1m&labelSelector=team%3Dweb")
	for name, want := range map[string]bool{"is": true, "other": false, "may-be": true, "unknown": true} {
		if got := strings.Contains(body, `"name":"`+name+`"`); code != 200 || got != want {
			t.Errorf("%s: %t in %d %s", name, got, code, body)
		}
	}
}
