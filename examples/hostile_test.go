package examples

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	events "github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/event/summary"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// odd are texts that a tenant can write into an object: into labels and messages by its
// content, into the name of a manager as far as that is printable.
var odd = []string{
	"", " ", "\x00\x01\x1f\x7f", "\u202e\u2066\u200b\ufeff", "a\nb\r\nc\td", `"\/'<>&`, "{{DATE(2017-02-14T06:00:00Z)}}", "${x}",
	"@everyone <!channel> <@U0123>", "[all is fine](https://phish.example.com) **b** _c_", "\U0001F600é", strings.Repeat("𝔵", 40_000), strings.Repeat(`"`, 40_000),
}

// hostile are events of every type about an object with odd values.
func hostile(resource events.Resource, object func(text string) string) (list []*events.Event) {
	name := strings.Repeat("long-name.", 25) + "end" // 253 characters
	for i, text := range odd {
		quoted, err := json.Marshal(text)
		if err != nil {
			panic(err)
		}
		manager := strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return '.'
			}
			return r
		}, text)
		for _, kind := range []events.Type{events.Added, events.Updated, events.Deleted, events.Sync} {
			e := &events.Event{
				ID: fmt.Sprint(i, kind), Type: kind, Sequence: 1<<53 - 1, Time: time.Date(2026, 3, 1, 12, 0, 0, i, time.UTC), Cluster: "demo",
				Resource: resource, Namespace: strings.Repeat("n", 63), Name: name, UID: "0d6d5c1e-4a57-4f0e-9a4e-2f1c7b1f5a10", ResourceVersion: "1",
				Object: json.RawMessage(object(string(quoted))),
			}
			if kind == events.Updated {
				e.OldObject = json.RawMessage(object(`"before"`))
				e.ChangedBy = &events.ChangedBy{Manager: string([]rune(manager)[:min(len([]rune(manager)), 128)]), Operation: "Update"}
			}
			e.Summary = summary.Of(e)
			list = append(list, e)
		}
	}
	return append(list, &events.Event{ID: "gap", Type: events.Gap, Sequence: 1, Time: time.Unix(1_700_000_000, 0), Cluster: "demo", Resource: resource, Gap: &events.GapData{Watch: "w", Cause: "expired"}})
}

// workload has texts where the fields of a Deployment are free text, and values of other types
// and depths in its labels and annotations, as a custom resource may have.
func workload(text string) string {
	return `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"labels":{"a.b/c":` + text + `,"":null,"n":1e308,"l":[1,"a",null,{"x":[]}]},` +
		`"annotations":{"x":` + text + `,"x":` + text + `,"deep":` + strings.Repeat("[", 500) + text + strings.Repeat("]", 500) + `}},` +
		`"spec":{"replicas":9223372036854775807,"template":{"spec":{"containers":[{"name":"web","image":` + text + `,"env":[{"name":"MY_ENV_VAR","value":` + text + `}]}]}}},` +
		`"status":{"conditions":[{"type":"Available","status":"False","reason":` + text + `,"message":` + text + `}]}}`
}

// markdown finds the elements of an adaptive card that render Markdown and macros.
var markdown = regexp.MustCompile(`.*"(TextBlock|FactSet)".*`)

// TestHostile: what a tenant writes into objects leaves the messages of the recipes valid for
// their targets.
func TestHostile(t *testing.T) {
	deployments := events.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
	core := func(kind string) events.Resource {
		return events.Resource{Version: "v1", Resource: strings.ToLower(kind) + "s", Kind: kind}
	}
	failed := func(text string) string {
		return `{"metadata":{},"status":{"phase":"Failed","reason":` + text + `,"message":` + text + `}}`
	}
	notice := func(text string) string {
		return `{"metadata":{},"type":` + text + `,"reason":` + text + `,"message":` + text + `,"count":2147483647,"involvedObject":{"kind":` + text + `,"name":` + text + `}}`
	}
	rule := func(text string) string {
		return `{"metadata":{"annotations":{"x":` + text + `}},"rules":[{"verbs":[` + text + `],"resources":null,"apiGroups":[]}]}`
	}
	for _, test := range []struct {
		file, path, header string
		answer             api
		list               []*events.Event
	}{
		{"slack.yaml", "/services/T0/B0/abcdefghijklmnopqrstuvwx", "", slack, hostile(deployments, workload)},
		{"teams.yaml", "/w?sig=x", "", teams, hostile(deployments, workload)},
		{"discord.yaml", "/api/webhooks/1/a", "", discord, hostile(deployments, workload)},
		{"pagerduty.yaml", "/v2/enqueue", "", pagerDuty, hostile(deployments, workload)},
		{"grafana.yaml", "/api/annotations", "Authorization: Bearer glsa_test", grafana, hostile(deployments, workload)},
		{"github.yaml", "/repos/acme/releases/dispatches", "Authorization: Bearer ghp_test", github, hostile(deployments, workload)},
		{"alertmanager.yaml", "/api/v2/alerts", "", alertmanager, hostile(core("Pod"), failed)},
		{"loki.yaml", "/loki/api/v1/push", "X-Scope-OrgID: a", loki, hostile(core("Event"), notice)},
		{"splunk.yaml", "/services/collector/event", "Authorization: Splunk 00000000-0000-0000-0000-000000000001", splunk, hostile(events.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles", Kind: "Role"}, rule)},
	} {
		t.Run(test.file, func(t *testing.T) {
			t.Parallel()
			st, err := watcherd.Load(test.file, kinds.Builtin())
			if err != nil {
				t.Fatal(err)
			}
			made := st.Sinks[0].Body
			messages := slices.Collect(slices.Chunk(test.list, 1))
			if made.ReadsList() {
				messages = append(messages, test.list)
			}
			for _, m := range messages {
				what := fmt.Sprintf("%s %.40q", m[0].Type, m[0].Summary)
				body, contentType, err := made.Join(m)
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				if body == nil {
					continue
				}
				r := httptest.NewRequest(http.MethodPost, test.path, nil)
				r.Header.Set("Content-Type", contentType)
				r.Header.Set("User-Agent", "test")
				if name, value, ok := strings.Cut(test.header, ": "); ok {
					r.Header.Set(name, value)
				}
				if most := st.Sinks[0].Config.(*webhook.Config).MaxEventBytes; most > 0 && len(body) > int(most) {
					continue // a dead letter before it is sent
				}
				if marked := markdown.Find(body); marked != nil {
					t.Errorf("%s: the card renders Markdown in %.300s", what, marked)
				}
				if status, text := test.answer(r, body); status/100 != 2 {
					t.Errorf("%s: %d %s: %.300s", what, status, text, body)
				}
			}
		})
	}
}

// TestRateLimits: an answer about a limit of GitHub's, which may be a 403 as that of a wrong
// token, is waited for and does not pause the sink.
func TestRateLimits(t *testing.T) {
	t.Setenv("GITHUB_TOKEN", "ghp_test")
	for _, test := range []struct {
		answer string
		want   sinks.Class
		wait   time.Duration
	}{
		{`{"message":"API rate limit exceeded for user ID 1."}`, sinks.ClassRetry, 0},
		{`{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`, sinks.ClassRetry, time.Minute},
		{`{"message":"Resource not accessible by personal access token"}`, sinks.ClassPause, 0},
		{`{}`, sinks.ClassPause, 0},
	} {
		st, err := watcherd.Load("github.yaml", kinds.Builtin())
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if test.wait > 0 {
				w.Header().Set("Retry-After", fmt.Sprint(int(test.wait.Seconds())))
			}
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(test.answer))
		}))
		c, _ := st.Sinks[0].Config.(*webhook.Config)
		c.URL.Text = server.URL
		s, err := c.Open(t.Context(), sinks.Options{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Write(t.Context(), []*events.Event{{ID: "1", Body: []byte("{}"), ContentType: "application/json"}})
		if class, wait := sinks.Classify(err); class != test.want || wait != test.wait {
			t.Errorf("%s: class %s after %s, %v", test.answer, class, wait, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		server.Close()
	}
}
