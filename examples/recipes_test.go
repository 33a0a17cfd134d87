package examples

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// recipe runs an example against a mock of its target's API, in the place of the address
// that the file or the variable has.
func recipe(t *testing.T, file string, answer api, address string, env ...string) (*run, *mock) {
	t.Helper()
	m := newMock(t, answer)
	replace := map[string]string{}
	if address != "" {
		replace[address] = m.URL
	}
	r := newRun(t, file, replace)
	for _, e := range env {
		r.env = append(r.env, strings.ReplaceAll(e, "{}", m.URL))
	}
	return r, m
}

// sent waits until the mock has accepted n bodies that have the text, and returns them.
func (m *mock) sent(r *run, text string, n int) []string {
	r.Helper()
	var got []string
	r.eventually(func() (bool, string) {
		got = m.bodies(text)
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(got) >= n || len(m.refused) > 0, fmt.Sprintf("%d of %d bodies with %s; refused are %q", len(got), n, text, m.refused)
	})
	if len(got) != n {
		r.Fatalf("got %d bodies with %s, not %d: %q; refused are %q", len(got), text, n, got, m.refused)
	}
	return got
}

const newImage = `{"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"main","image":"registry.example.com/web:2.0"}]}}}}`

// edited runs a recipe about an edit of a Deployment and returns the one body of it.
func edited(t *testing.T, file string, answer api, address string, env ...string) (r *run, body string) {
	t.Helper()
	r, m := recipe(t, file, answer, address, env...)
	r.apply(deployment)
	r.start("deployments.v1.apps", "statefulsets.v1.apps", "daemonsets.v1.apps")
	r.patch("deployments.v1.apps", "web", `{"status":{"replicas":3}}`, "status")
	r.patch("deployments.v1.apps", "web", newImage)
	return r, m.sent(r, r.namespace, 1)[0]
}

// contains checks the parts of a body.
func contains(t *testing.T, body string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(body, part) {
			t.Errorf("the body %s does not have %s", body, part)
		}
	}
}

func toSlack(t *testing.T) {
	const path = "/services/T0123/B0123/abcdefghijklmnopqrstuvwx"
	r, body := edited(t, "slack.yaml", slack, "", "SLACK_URL={}"+path)
	contains(t, body, ": Deployment "+r.namespace+"/web: image of container main 1.0 -&gt; 2.0")
	if log := r.log.String(); strings.Contains(log, "abcdefghijkl") {
		t.Error("the URL is in the log")
	}
}

func toTeams(t *testing.T) {
	r, body := edited(t, "teams.yaml", teams, "", "TEAMS_URL={}/workflows/1/triggers/manual/paths/invoke?api-version=1&sig=x")
	contains(t, body, `"Deployment `+r.namespace+`/web"`, `"image of container main 1.0 -> 2.0`)
}

func toDiscord(t *testing.T) {
	r, m := recipe(t, "discord.yaml", discord, "", "DISCORD_URL={}/api/webhooks/123/abc-def")
	r.start("deployments.v1.apps", "statefulsets.v1.apps", "daemonsets.v1.apps")
	r.apply(deployment)
	r.remove("deployments.v1.apps", "web")
	got := m.sent(r, r.namespace, 2)
	contains(t, got[0], `"title":"Deployment added"`, `"description":"`+r.namespace+`/web"`)
	contains(t, got[1], `"title":"Deployment deleted"`)
}

func toPagerDuty(t *testing.T) {
	r, m := recipe(t, "pagerduty.yaml", pagerDuty, "https://events.pagerduty.com")
	r.apply(deployment)
	r.start("deployments.v1.apps")
	for _, status := range []string{"False", "True"} {
		r.patch("deployments.v1.apps", "web", `{"status":{"conditions":[{"type":"Available","status":"`+status+`","lastUpdateTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "status")
	}
	got := m.sent(r, r.namespace, 2)
	key := regexp.MustCompile(`"dedup_key":"[0-9a-f-]{36}"`).FindString(got[0]) // the uid: a name may be too long, or be in two clusters
	contains(t, got[0], `"event_action":"trigger"`, `"summary":"`+r.namespace+`/web is not available"`)
	if contains(t, got[1], `"event_action":"resolve"`, key); key == "" {
		t.Errorf("the alert has no uid: %s", got[0])
	}
}

func toGrafana(t *testing.T) {
	r, body := edited(t, "grafana.yaml", grafana, "https://grafana.example.com", "GRAFANA_TOKEN=glsa_test")
	contains(t, body, `"namespace:`+r.namespace+`"`, `"text":"web: image of container main 1.0 -> 2.0`)
}

func toLoki(t *testing.T) {
	r, m := recipe(t, "loki.yaml", loki, "http://loki.example.com:3100")
	r.start("events.v1")
	r.apply(`
apiVersion: v1
kind: Event
metadata: {name: worker.1, namespace: NAMESPACE}
involvedObject: {kind: Pod, name: worker, namespace: NAMESPACE}
type: Warning
reason: BackOff
message: "it said \"no\""
`)
	body := m.sent(r, r.namespace, 1)[0]
	var push struct {
		Streams []struct {
			Stream map[string]string
			Values [][2]string
		}
	}
	if err := json.Unmarshal([]byte(body), &push); err != nil {
		t.Fatal(err)
	}
	for _, s := range push.Streams {
		if s.Stream["namespace"] == r.namespace {
			contains(t, s.Stream["type"]+s.Values[0][1], `Warning{`, `"message":"it said \"no\""`, `"reason":"BackOff"`, `"kind":"Pod"`)
		}
	}
}

func toSplunk(t *testing.T) {
	r, m := recipe(t, "splunk.yaml", splunk, "https://splunk.example.com:8088", "SPLUNK_AUTH=Splunk 00000000-0000-0000-0000-000000000001")
	r.start("roles.v1.rbac.authorization.k8s.io", "rolebindings.v1.rbac.authorization.k8s.io")
	r.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: NAMESPACE}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get]}]
`)
	contains(t, m.sent(r, r.namespace, 1)[0], `"sourcetype":"kube:added"`, `"resources":["secrets"]`, `"summary":"added"`)
}

func toGitHub(t *testing.T) {
	r, body := edited(t, "github.yaml", github, "https://api.github.com", "GITHUB_TOKEN=ghp_test")
	contains(t, body, `"event_type":"image-changed"`, `"images":["registry.example.com/web:2.0"]`, `"namespace":"`+r.namespace+`"`)
}

func toAlertmanager(t *testing.T) {
	r, m := recipe(t, "alertmanager.yaml", alertmanager, "http://alertmanager.example.com:9093")
	r.apply(pod)
	r.start("pods.v1")
	r.patch("pods.v1", "worker", `{"status":{"phase":"Failed","reason":"Evicted","message":"low on memory"}}`, "status")
	r.remove("pods.v1", "worker")
	got := m.sent(r, r.namespace, 2)
	contains(t, got[0], `"alertname":"PodFailed"`, `"pod":"worker"`, `"summary":"Evicted: low on memory"`)
	var ended []struct{ StartsAt, EndsAt string }
	if err := json.Unmarshal([]byte(got[1]), &ended); err != nil || ended[0].StartsAt != ended[0].EndsAt {
		t.Errorf("the alert does not end: %s", got[1])
	}
}

// TestMocksRefuse checks that the mocks are not content with anything.
func TestMocksRefuse(t *testing.T) {
	for _, test := range []struct {
		name, path, header, body string
		answer                   api
		status                   int
	}{
		{"slack", "/services/T0/B0/abcdefghijklmnopqrstuvwx", "", `{"specversion":"1.0"}`, slack, 400},
		{"slack, elsewhere", "/hook", "", `{"text":"a"}`, slack, 404},
		{"teams", "/w?sig=x", "", `{"text":"a"}`, teams, 400},
		{"teams without signature", "/w", "", `{}`, teams, 401},
		{"discord", "/api/webhooks/1/a", "", `{"content":""}`, discord, 400},
		{"pagerduty", "/v2/enqueue", "", `{"routing_key":"short"}`, pagerDuty, 400},
		{"pagerduty without summary", "/v2/enqueue", "", `{"routing_key":"0123456789abcdef0123456789abcdef","event_action":"trigger"}`, pagerDuty, 400},
		{"grafana", "/api/annotations", "Authorization: Bearer glsa_test", `{"text":"a","time":1700000000}`, grafana, 400},
		{"loki", "/loki/api/v1/push", "X-Scope-OrgID: a", `{"streams":[{"stream":{"a":"b"},"values":[[1700000000,"line"]]}]}`, loki, 400},
		{"splunk", "/services/collector/event", "Authorization: Splunk 00000000-0000-0000-0000-000000000001", `{"time":1700000000}`, splunk, 400},
		{"splunk without token", "/services/collector/event", "", `{}`, splunk, 401},
		{"github", "/repos/acme/releases/dispatches", "Authorization: Bearer ghp_test", `{"client_payload":{}}`, github, 422},
		{"alertmanager", "/api/v2/alerts", "", `{"labels":{}}`, alertmanager, 400},
		{"alertmanager without labels", "/api/v2/alerts", "", `[{"labels":{}}]`, alertmanager, 400},
	} {
		r := httptest.NewRequest(http.MethodPost, test.path, nil)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("User-Agent", "test")
		if name, value, ok := strings.Cut(test.header, ": "); ok {
			r.Header.Set(name, value)
		}
		if status, text := test.answer(r, []byte(test.body)); status != test.status {
			t.Errorf("%s: %d %s, not %d", test.name, status, text, test.status)
		}
	}
}
