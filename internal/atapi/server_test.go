package atapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// past is a history with pods.
type past struct {
	states []history.State
	worth  history.Worth
	as     history.As // of a list at its end
	served error
	crd    func(at time.Time) string // the columns of widgets

	definition func(at time.Time) string // of widgets; empty: it is not known
}

func (p *past) At(_ context.Context, o history.Object, at time.Time) (history.State, error) {
	if o.Name == "widgets.example.com" && p.crd != nil {
		return history.State{As: history.Exact, Exists: true, Object: fmt.Appendf(nil, `{"spec":{"versions":[{"name":"v1","additionalPrinterColumns":[%s]}]}}`, p.crd(at))}, nil
	}
	if o.Name == "widgets.example.com" && p.definition != nil {
		if raw := p.definition(at); raw != "" {
			return history.State{As: history.Exact, Exists: true, Object: []byte(raw)}, nil
		}
		return history.State{As: history.UnknownBefore}, nil
	}
	for _, s := range p.states {
		if s.Name == o.Name && s.Namespace == o.Namespace {
			return s, nil
		}
	}
	return history.State{As: p.worth.As}, nil
}

func (p *past) EachAt(_ context.Context, all history.Objects, _ time.Time, after string, limit int, f func(*history.State) bool) (history.As, string, error) {
	n := 0
	for i := range p.states {
		s := &p.states[i]
		if key := s.Namespace + "/" + s.Name; key <= after || all.Named != nil && !all.Named(s.Namespace, s.Name) {
			continue
		}
		if n++; !f(s) || n == limit {
			return p.as, s.Namespace + "/" + s.Name, nil
		}
	}
	return p.as, "", nil
}

func (p *past) WorthAt(event.Resource, string, time.Time) (history.Worth, error) { return p.worth, nil }

func (p *past) resources() ([]query.Recorded, error) {
	reads := func(ns string) bool { return ns != "elsewhere" }
	hides := func(path rawjson.Path) bool { return strings.HasPrefix(path.String(), "metadata.labels.hidden") }
	return []query.Recorded{
		{
			Resource: dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true, Singular: "pod", ShortNames: []string{"po"}},
			Watches:  []query.RecordedBy{{Watch: "w", Reads: reads, Hides: hides}},
		},
		{
			Resource: dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, Kind: "Secret", Namespaced: true},
			Watches:  []query.RecordedBy{{Watch: "w", Reads: reads, Hides: hides}},
		},
		{
			Resource: dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, Kind: "Deployment", Namespaced: true},
			Watches:  []query.RecordedBy{{Watch: "w", Reads: reads, Hides: hides, Selects: "labels a=b"}},
		},
		{
			Resource: dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}, Kind: "Widget", Namespaced: true},
			Watches:  []query.RecordedBy{{Watch: "w", Reads: reads, Hides: hides}, {Watch: "m", Reads: reads, Hides: hides, MetadataOnly: true}},
		},
		{
			Resource: dynamicfactory.Resource{GVR: schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}, Kind: "Event", Namespaced: true},
			Watches:  []query.RecordedBy{{Watch: "w", Reads: reads, Hides: hides}},
		},
	}, p.served
}

func pod(name, more string) history.State {
	return history.State{As: history.Exact, Exists: true, Namespace: "ns", Name: name, Object: fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"ns","creationTimestamp":"2026-01-31T11:00:00Z"},"spec":{"nodeName":"n"%s}}`, name, more)}
}

// reply is the head of an answer.
type reply struct {
	code    int
	warning string
}

// serve starts a server of the history of pods, and returns what asks it.
func (p *past) serve(t *testing.T) func(path string, headers ...string) (reply, string, error) {
	s := &Server{History: p, Resources: p.resources, Parse: func(text string, _ time.Time) (time.Time, error) { return time.Parse(time.RFC3339, text) }}
	srv := httptest.NewServer(http.StripPrefix("/", s))
	t.Cleanup(srv.Close)
	return func(path string, headers ...string) (reply, string, error) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/2026-01-31T12:00:00Z"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return reply{resp.StatusCode, resp.Header.Get("Warning")}, string(body), err
	}
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// TestSlowList: a client that reads each part of a long list just in time does not have hours for it.
func TestSlowList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &past{worth: history.Worth{As: history.Exact}, as: history.Exact, states: slices.Repeat([]history.State{pod("a", `,"text":"`+strings.Repeat("a", 256<<10)+`"`)}, 200)}
		for i := range p.states {
			p.states[i].Name = fmt.Sprintf("a%03d", i)
		}
		s := &Server{History: p, Resources: p.resources, Parse: func(text string, _ time.Time) (time.Time, error) { return time.Parse(time.RFC3339, text) }}
		ended := make(chan time.Duration, 1)
		began := time.Now()
		listener := make(pipes, 1)
		srv := &http.Server{Handler: http.StripPrefix("/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { ended <- time.Since(began) }()
			s.ServeHTTP(w, r)
		}))}
		client, conn := net.Pipe()
		listener <- conn
		served := make(chan error, 1)
		go func() { served <- srv.Serve(listener) }()
		if _, err := io.WriteString(client, "GET /1999-01-01T00:00:00Z/api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		var reading sync.WaitGroup
		defer reading.Wait()
		reading.Go(func() {
			part := make([]byte, held/20)
			for err := error(nil); err == nil; time.Sleep(writeTimeout / 30) {
				_, err = io.ReadFull(client, part)
			}
		})
		if took := <-ended; took < writeTimeout || took > listTimeout+writeTimeout {
			t.Errorf("the list took %v", took)
		}
		close(listener)
		if err := errors.Join(<-served, client.Close(), srv.Close()); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

const tables = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

func TestAnswers(t *testing.T) {
	p := &past{states: []history.State{pod("a", ""), pod("b", `},"regarding":{"name":"a"`), pod("c", "")}, worth: history.Worth{As: history.Exact}, as: history.Exact}
	ask := p.serve(t)
	for path, want := range map[string][]string{
		"":                                      {`"/apis"`},
		"/api":                                  {`"kind":"APIVersions"`, `"v1"`},
		"/apis":                                 {`"name":"apps"`, `"preferredVersion":{"groupVersion":"apps/v1"`},
		"/api/v1":                               {`"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list"],"shortNames":["po"]`},
		"/apis/apps":                            {`"kind":"APIGroup"`},
		"/apis/apps/v1":                         {`"name":"deployments"`},
		"/apis/batch":                           {`"code":404`},
		"/openapi/v2":                           {`"code":404`},
		"/api/v1/namespaces/ns/pods":            {`{"kind":"PodList","apiVersion":"v1","items":[{"apiVersion":"v1"`, `],"metadata":{}}`},
		"/api/v1/namespaces/ns/pods?limit=0":    {`"name":"c"`},
		"/api/v1/namespaces/ns/pods?limit=-1":   {`"code":400`},
		"/api/v1/namespaces/ns/pods?continue=x": {`"code":400`},
		"/api/v1/namespaces/ns/pods?continue=" + history.ListPlace{After: "a"}.Token():   {`"code":400`},
		"/api/v1/namespaces/ns/pods?labelSelector=a=(":                                   {`"code":400`},
		"/api/v1/namespaces/ns/pods?labelSelector=" + strings.Repeat("!a,", 5000) + "!a": {`"code":400`, "100 terms"},
		"/api/v1/pods?fieldSelector=" + strings.Repeat("metadata.name!=a,", 500):         {`"code":400`, "100 terms"},
		"/api/v1/namespaces/ns/pods?fieldSelector=spec.nodeName%3Dn,metadata.name%3Db":   {`"items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"`, `}],"metadata"`},
		"/api/v1/namespaces/ns/pods?labelSelector=hidden%3Dx":                            {`"code":400`, "watch w does not record metadata.labels.hidden of the pods"},
		"/apis/events.k8s.io/v1/events?fieldSelector=involvedObject.name%3Da":            {`"code":400`, "those of events.k8s.io by regarding"},
		"/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Da":                 {`"name":"b"`},
		"/api/v1/namespaces/ns/pods?fieldSelector=spec.nodeName%21%3Dn":                  {`"items":[],`},
		"/api/v1/namespaces/ns/pods?watch=true":                                          {`"code":405`, `nothing to watch`},
		"/api/v1/namespaces/ns/pods?watch=True":                                          {`"code":405`}, // of Python's client
		"/api/v1/namespaces/ns/pods?watch":                                               {`"code":405`},
		"/api/v1/namespaces/ns/pods?watch=False":                                         {`"name":"c"`},
		"/api/v1/watch/pods":                                                             {`"code":405`},
		"/api/v1/namespaces/ns/pods/a/log":                                               {`"code":404`, "subresources"},
		"/api/v1/pods/a":                                                                 {`"code":404`},
		"/api/v1/namespaces/elsewhere/pods":                                              {`"code":404`, "in namespace elsewhere"},
		"/api/v1/namespaces/ns/pods/a":                                                   {`"name":"a"`},
		"/api/v1/namespaces/ns/pods/z":                                                   {`"code":404`, `pods \"z\" not found`},
		"/api/v1/namespaces/ns":                                                          {`"code":410`, "no watch with a history reads namespaces"},
		"/api/v1/namespaces":                                                             {`"code":404`, "no watch with a history reads namespaces"},
		"/apis/apps/v2/deployments":                                                      {`"code":404`, "in version v1"},
	} {
		resp, body, err := ask(path)
		if err != nil {
			t.Error(path, err)
		}
		var status struct{ Code int }
		if err := json.Unmarshal([]byte(body), &status); err != nil || status.Code != 0 && status.Code != resp.code {
			t.Errorf("%s: %d %s %v", path, resp.code, body, err)
		}
		for _, text := range want {
			if !strings.Contains(body, text) {
				t.Errorf("%s: no %s in %s", path, text, body)
			}
		}
	}
	if _, body, _ := ask("/api/v1/pods", "Accept", tables); !strings.Contains(body, `"rows":[{"cells":["a","0/0","","0","60m","\u003cnone\u003e","n"],"object":{"kind":"PartialObjectMetadata"`) {
		t.Error(body)
	}
	if _, body, _ := ask("/api/v1/pods?includeObject=None", "Accept", tables); !strings.Contains(body, `{"cells":["a","0/0","","0","60m","\u003cnone\u003e","n"],"object":null}`) {
		t.Error(body)
	}
	if resp, _, _ := ask("/api/v1/pods", "Accept", "application/vnd.kubernetes.protobuf"); resp.code != http.StatusNotAcceptable {
		t.Error(resp.code)
	}
	if _, body, _ := ask("/apis", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"); !strings.Contains(body, `"resource":"deployments"`) || strings.Contains(body, "pods") {
		t.Error(body)
	}
	if resp, _, _ := ask("/apis/apps/v1/deployments"); !strings.Contains(resp.warning, "labels a=b") {
		t.Error(resp.warning)
	}
	p.served = dynamicfactory.ErrNotReady
	if resp, _, _ := ask("/api"); resp.code != http.StatusServiceUnavailable {
		t.Error(resp.code)
	}
}

// TestColumns has the values of a custom resource as its own API server shows them.
func TestColumns(t *testing.T) {
	p := &past{states: []history.State{pod("a", `,"size":10000000,"ratio":0.5,"on":true,"list":[1,9007199254740993]`)}, worth: history.Worth{As: history.Exact}, as: history.Exact}
	p.crd = func(time.Time) string {
		column := func(name, kind string) string {
			return fmt.Sprintf(`{"name":%q,"type":%q,"jsonPath":".spec.%s"}`, name, kind, name)
		}
		return strings.Join([]string{column("size", "string"), column("size", "integer"), column("size", "number"), column("ratio", "number"), column("ratio", "string"), column("on", "boolean"), column("list", "string"), column("none", "string")}, ",")
	}
	resp, body, err := p.serve(t)("/apis/example.com/v1/widgets", "Accept", tables)
	if want := `"cells":["a","10000000",10000000,10000000,0.5,"0.5",true,"[1,9007199254740993]",null]`; err != nil || !strings.Contains(body, want) {
		t.Errorf("no %s in %s %v", want, body, err)
	}
	if !strings.Contains(resp.warning, "metadata") {
		t.Errorf("a watch of metadata only: warning %q", resp.warning)
	}
}

// TestColumnsOfALaterVersion: a definition that had not the version of now has no columns for it; the objects have that version, and
// the columns that it has now.
func TestColumnsOfALaterVersion(t *testing.T) {
	p := &past{states: []history.State{pod("a", `,"size":7`)}, worth: history.Worth{As: history.Exact}, as: history.Exact}
	for name, tc := range map[string]struct{ then, want string }{
		"no such version": {`{"spec":{"versions":[{"name":"v1alpha1","additionalPrinterColumns":[{"name":"Old","type":"string","jsonPath":".spec.old"}]}]}}`, `"cells":["a","7"]`},
		"no columns":      {`{"spec":{"versions":[{"name":"v1"}]}}`, `"cells":["a","60m"]`},
		"not recorded":    {"", `"cells":["a","7"]`},
	} {
		t.Run(name, func(t *testing.T) {
			p.definition = func(at time.Time) string {
				if at.Year() < 2026 || at.Month() < time.February && at.Year() == 2026 {
					return tc.then
				}
				return `{"spec":{"versions":[{"name":"v1","additionalPrinterColumns":[{"name":"Size","type":"string","jsonPath":".spec.size"}]}]}}`
			}
			if _, body, err := p.serve(t)("/apis/example.com/v1/widgets", "Accept", tables); err != nil || !strings.Contains(body, tc.want) {
				t.Errorf("no %s in %s %v", tc.want, body, err)
			}
		})
	}
}

// TestRedactedSecret is read by a client that has the type of Secrets, as kubectl describe does: the hashes are where it decodes bytes.
func TestRedactedSecret(t *testing.T) {
	hash := event.RedactedPrefix + strings.Repeat("0", event.RedactedDigits)
	raw := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"ns","annotations":{"copy":%q}},"data":{"hidden":%q,"shown":"cGxhaW4="}}`, hash, hash)
	p := &past{states: []history.State{{As: history.Exact, Exists: true, Namespace: "ns", Name: "s", Object: raw}}, worth: history.Worth{As: history.Exact}, as: history.Exact}
	ask := p.serve(t)
	_, body, _ := ask("/api/v1/namespaces/ns/secrets/s")
	var one core.Secret
	if err := json.Unmarshal([]byte(body), &one); err != nil {
		t.Fatal(err)
	}
	if string(one.Data["hidden"]) != hash || string(one.Data["shown"]) != "plain" || one.Annotations["copy"] != hash {
		t.Errorf("%s", body)
	}
	_, body, _ = ask("/api/v1/secrets")
	var all core.SecretList
	if err := json.Unmarshal([]byte(body), &all); err != nil || len(all.Items) != 1 {
		t.Errorf("%v %s", err, body)
	}
}

// TestPagesHaveOneTime continues a list in the state of its first page.
func TestPagesHaveOneTime(t *testing.T) {
	p := &past{states: []history.State{pod("a", ""), pod("b", ""), pod("c", "")}, worth: history.Worth{As: history.Exact}, as: history.Exact}
	p.crd = func(at time.Time) string {
		return fmt.Sprintf(`{"name":%q,"type":"string","jsonPath":".spec.x"}`, at.Format(time.RFC3339Nano))
	}
	s := &Server{History: p, Resources: p.resources, Parse: func(_ string, now time.Time) (time.Time, error) { return now, nil }}
	srv := httptest.NewServer(http.StripPrefix("/", s))
	defer srv.Close()
	names, next, tokens, columns := "", "", map[string]bool{}, map[string]bool{}
	for {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/-0s/apis/example.com/v1/namespaces/ns/widgets?limit=1&continue="+next, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", tables)
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			ColumnDefinitions []struct{ Name string }
			Rows              []struct{ Cells []any }
			Metadata          struct{ Continue string }
		}
		err = json.NewDecoder(resp.Body).Decode(&list)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range list.Rows {
			names += row.Cells[0].(string)
		}
		columns[fmt.Sprint(list.ColumnDefinitions)] = true
		if next = list.Metadata.Continue; next == "" {
			break
		}
		var at history.ListPlace
		if raw, err := base64.RawURLEncoding.DecodeString(next); err != nil || json.Unmarshal(raw, &at) != nil {
			t.Fatal(next, err)
		}
		tokens[at.At.String()] = true
	}
	if len(tokens) != 1 || len(columns) != 1 {
		t.Errorf("the pages are of the times %v, with the columns %v", tokens, columns)
	}
	if names != "abc" {
		t.Errorf("the pages have %q", names)
	}
}

// TestUnknownStates has no state that is not certain in an answer.
func TestUnknownStates(t *testing.T) {
	gap := event.GapData{Cause: "expired", From: time.Unix(1_769_860_000, 0), To: time.Unix(1_769_860_100, 0)}
	long := fmt.Sprintf(`,"x":%q`, strings.Repeat("x", held))
	unsure := pod("b", "")
	unsure.As = history.UnknownBefore
	for name, tc := range map[string]struct {
		past
		path, want string
		code       int // 0: the answer is cut off
	}{
		"too early":      {past{worth: history.Worth{As: history.UnknownBefore, Since: time.Date(2026, 1, 31, 13, 0, 0, 0, time.UTC)}}, "pods", "its history begins at 2026-01-31T13:00:00Z", 410},
		"amid a second":  {past{worth: history.Worth{As: history.UnknownBefore, Since: time.Date(2026, 1, 31, 12, 59, 59, 1, time.UTC)}}, "pods", "its history begins at 2026-01-31T13:00:00Z", 410},
		"amid two":       {past{worth: history.Worth{As: history.Gap, Near: []event.GapData{{Cause: "expired", From: time.Unix(1_769_860_000, 999), To: time.Unix(1_769_860_100, 1)}}}}, "pods", "from 2026-01-31T11:46:40Z to 2026-01-31T11:48:21Z", 410},
		"not begun":      {past{worth: history.Worth{As: history.UnknownBefore}}, "pods", "its history has not begun", 410},
		"in a gap":       {past{worth: history.Worth{As: history.Gap, Near: []event.GapData{gap}}}, "pods", "(expired)", 410},
		"an object":      {past{worth: history.Worth{As: history.Gap, Near: []event.GapData{gap}}}, "pods/a", "(expired)", 410},
		"one of them":    {past{states: []history.State{pod("a", ""), unsure}, worth: history.Worth{As: history.Exact}, as: history.Exact}, "pods", `the state of pods \"b\" in namespace ns`, 410},
		"near a gap":     {past{states: []history.State{pod("a", "")}, worth: history.Worth{As: history.Exact, Near: []event.GapData{gap}}, as: history.Exact}, "pods", `"name":"a"`, 200},
		"trimmed amid":   {past{states: []history.State{pod("a", "")}, worth: history.Worth{As: history.Exact}, as: history.UnknownBefore}, "pods", `is unknown`, 410},
		"after the half": {past{states: []history.State{pod("a", long), unsure}, worth: history.Worth{As: history.Exact}, as: history.Exact}, "pods", "", 0},
		"at the end":     {past{states: []history.State{pod("a", long)}, worth: history.Worth{As: history.Exact}, as: history.Gap}, "pods", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			resp, body, err := tc.serve(t)("/api/v1/namespaces/ns/" + tc.path)
			if tc.code == 0 {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("the list is complete: %v", err)
				}
				return
			}
			if err != nil || resp.code != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s %v", resp.code, body, err)
			}
			if warned := resp.warning != ""; warned != (name == "near a gap") {
				t.Errorf("warning %q", resp.warning)
			}
		})
	}
}

// TestWarningOfWhatIsNotRead warns also where there is no object: it may have been made since the watch was read last.
func TestWarningOfWhatIsNotRead(t *testing.T) {
	p := &past{states: []history.State{pod("a", "")}, as: history.Exact, worth: history.Worth{
		As: history.Exact, Unread: []history.Unread{{Resource: "pods", Since: time.Unix(1_769_860_000, 0), Cause: "the watch fails"}},
	}}
	ask := p.serve(t)
	for path, code := range map[string]int{"pods/a": http.StatusOK, "pods/b": http.StatusNotFound, "pods": http.StatusOK, "pods?fieldSelector=metadata.name%3Db": http.StatusOK} {
		resp, body, err := ask("/api/v1/namespaces/ns/" + path)
		if err != nil || resp.code != code || !strings.Contains(resp.warning, "the watch fails") {
			t.Errorf("%s: %+v %s %v", path, resp, body, err)
		}
	}
}

// FuzzTable makes rows of objects that tenants write, in columns that a definition has.
func FuzzTable(f *testing.F) {
	f.Add("integer", ".spec.a[0]", `{"kind":"Widget","metadata":{"name":"a","creationTimestamp":"2026-01-31T12:00:00Z"},"spec":{"a":[1e999,null]}}`)
	f.Add("string", ".spec.*", `{"metadata":{"name":"\u0000"},"spec":{"a":{"b":[]},"c":-0.5}}`)
	f.Add("date", ".a", `{"a":"0001-01-01T00:00:00Z","metadata":null}`)
	f.Add("boolean", `.a[?(@.b=="c")].d`, `{"a":[{"b":"c","d":true}]}`)
	f.Fuzz(func(t *testing.T, kind, path, raw string) {
		if strings.Count(path, "..")+strings.Count(path, "*") > 2 {
			return // as slow as the definition's author asks for
		}
		text, err := json.Marshal(map[string]string{"name": "c", "type": kind, "jsonPath": path})
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{History: &past{crd: func(time.Time) string { return string(text) }}}
		own, err := s.printerColumns(t.Context(), time.Now(), schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
		if err != nil {
			t.Fatal(err)
		}
		table := form{kind: asTable, at: time.Now(), apiVersion: "example.com/v1", name: "Widget", include: "Object", table: columns.Of(schema.GroupKind{}, own)}
		if answer, err := table.single(nil, []byte(raw)); err == nil && json.Valid([]byte(raw)) && !json.Valid(answer) {
			t.Errorf("%q is shown as %s", raw, answer)
		}
	})
}
