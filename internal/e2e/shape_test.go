package e2e

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// tracker is an API that takes lists of issues with PUT, wants a token of its own authority and
// answers 200 whatever it thinks of a request. Its tokens end after a number of requests.
type tracker struct {
	mu      sync.Mutex
	token   int      // the number of the last one; guarded by mu, as all that follows
	left    int      // requests for which it is valid
	waiting int      // requests that are answered "later"
	issues  []string // taken
	refused []string // answered "malformed"
	odd     []string // requests that are not as the configuration says
}

const trackerSecret = "tracker-secret"

func (x *tracker) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if req.URL.Path == "/token" {
		id, secret, _ := req.BasicAuth()
		if err := req.ParseForm(); err != nil || id != "watcherd" || secret != trackerSecret || req.Form.Get("grant_type") != "client_credentials" || req.Form.Get("scope") != "issues" {
			x.odd = append(x.odd, fmt.Sprintf("token: %s %v", id, req.Form))
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		x.token, x.left = x.token+1, 3
		fmt.Fprintf(w, `{"access_token":"t%d","token_type":"Bearer","expires_in":3600}`, x.token)
		return
	}
	if req.Header.Get("Authorization") != fmt.Sprintf("Bearer t%d", x.token) || x.left == 0 {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	x.left--
	var in struct {
		Issues []struct{ Title, Who string }
	}
	err := json.NewDecoder(req.Body).Decode(&in)
	if err != nil || req.Method != http.MethodPut || req.URL.Path != "/issues/key-of-the-url" || req.Header.Get("X-Team") != "of-the-file" || req.Header.Get("Content-Type") != "application/vnd.issues+json" {
		x.odd = append(x.odd, fmt.Sprintf("%s %s %v: %v", req.Method, req.URL, req.Header, err))
	}
	answer := "ok"
	switch {
	case x.waiting > 0:
		x.waiting--
		answer = "later"
	case slices.ContainsFunc(in.Issues, func(i struct{ Title, Who string }) bool { return strings.Contains(i.Title, "malformed") }):
		answer = "malformed"
	}
	for _, i := range in.Issues {
		switch answer {
		case "ok":
			x.issues = append(x.issues, i.Title+" by "+i.Who)
		case "malformed":
			x.refused = append(x.refused, i.Title)
		}
	}
	fmt.Fprintf(w, `{"result":%q}`, answer)
}

const shapeConfig = `
apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: "ADMIN"}
watches: [{name: maps, resources: [configmaps], namespaces: {include: [NS]}}]
routes:
- {name: edits, events: [added, updated], when: event.changedBy.manager == "editor", payload: [summary], sinks: [tracker]}
sinks:
- name: tracker
  webhook:
    url: {env: TRACKER_URL}
    method: PUT
    headers: {X-Team: {file: ./team}}
    tls: {caFile: ./ca.pem}
    oauth: {tokenURL: "TOKEN", clientID: watcherd, clientSecret: {file: ./secret}, scopes: [issues], tls: {caFile: ./ca.pem}}
    accept: 'body.result == "ok" ? "accepted" : body.result == "later" ? "retry" : "poison"'
  contentType: application/vnd.issues+json
  body: '{"issues": events.map(e, {"title": e.subject + ": " + e.summary, "who": e.changedBy.manager})}'
  batch: {maxEvents: 5, maxWait: 100ms}
  retry: {initial: 50ms, max: 200ms}
`

// TestReceiversShape sends what one manager edits, in words, as lists, to an API that wants all
// that a body and a webhook can be told.
func TestReceiversShape(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	x := &tracker{waiting: 2}
	server := httptest.NewTLSServer(x)
	t.Cleanup(server.Close)
	t.Setenv("TRACKER_URL", server.URL+"/issues/key-of-the-url")
	admin := testkit.Address(t)
	d := newDaemon(t, c.Kubeconfig, strings.NewReplacer("ADMIN", admin, "NS", ns, "TOKEN", server.URL+"/token").Replace(shapeConfig))
	for name, content := range map[string]string{
		"team": "of-the-file\n", "secret": trackerSecret + "\n",
		"ca.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	} {
		if err := os.WriteFile(d.path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	eventually(t, func() bool { _, ok := httpGet(t, "http://"+admin+"/readyz"); return ok }, d.log.Tail)

	maps := c.Dynamic(t).Resource(kinds[0].gvr).Namespace(ns)
	put := func(name, manager, value string, update bool) {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{"v": value}}}
		var err error
		if update {
			_, err = maps.Update(t.Context(), u, metav1.UpdateOptions{FieldManager: manager})
		} else {
			_, err = maps.Create(t.Context(), u, metav1.CreateOptions{FieldManager: manager})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for i := range 20 {
		name := fmt.Sprintf("m-%02d", i)
		put(name, "editor", "1", false)
		put(name, "controller", "2", true)
		put(name, "editor", "3", true)
		subject := "/api/v1/namespaces/" + ns + "/configmaps/" + name
		want = append(want, subject+": added by editor", subject+": data v 2 -> 3 by editor")
	}
	put("malformed", "editor", "1", false)

	eventually(t, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.issues) >= len(want) && len(x.refused) > 0
	}, func() string {
		x.mu.Lock()
		defer x.mu.Unlock()
		return fmt.Sprintf("%d of %d issues, %q refused, %q odd\n%s", len(x.issues), len(want), x.refused, x.odd, d.log.Tail())
	})
	var listed string
	eventually(t, func() bool {
		var code int
		listed, _, code = command(t, "deadletters", "list", "--admin", "http://"+admin)
		return code == 0 && strings.Contains(listed, "malformed")
	}, func() string { return listed })
	d.stop()

	x.mu.Lock()
	defer x.mu.Unlock()
	got := slices.Sorted(slices.Values(x.issues))
	if !slices.Equal(got, want) {
		t.Errorf("issues are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(x.odd) > 0 || x.token < 4 {
		t.Errorf("%d tokens were fetched; requests that are not as configured: %q", x.token, x.odd)
	}
	if log := d.log.String(); strings.Contains(log, trackerSecret) || strings.Contains(log, "key-of-the-url") || strings.Contains(log, "of-the-file") {
		t.Errorf("the log has a secret:\n%s", log)
	}
}
