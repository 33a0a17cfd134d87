package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

// channel is an incoming webhook of Slack: it takes an object with a text, nothing else.
type channel struct {
	mu    sync.Mutex
	texts []string // guarded by mu
}

func (c *channel) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	in := json.NewDecoder(req.Body)
	in.DisallowUnknownFields()
	var message struct{ Text string }
	if err := in.Decode(&message); err != nil || message.Text == "" || req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "invalid_payload", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts = append(c.texts, message.Text)
}

func (c *channel) read() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.texts)
}

// TestGettingStarted follows docs/getting-started.md to a message of what kubectl edited: with
// the configuration of the page, and its commands.
func TestGettingStarted(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	kubectl := testcluster.Tool(t, "kubectl")
	content, err := os.ReadFile("../../docs/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	_, config, _ := strings.Cut(page, "```yaml\n")
	config, _, _ = strings.Cut(config, "```")
	if lines := strings.Count(config, "\n"); lines == 0 || lines >= 10 {
		t.Errorf("the configuration has %d lines, want fewer than 10", lines)
	}
	var slack channel
	server := httptest.NewServer(&slack)
	t.Cleanup(server.Close)
	t.Setenv("SLACK_URL", server.URL+"/services/T/B/x")
	admin := testkit.Address(t)
	d := newDaemon(t, c.Kubeconfig, config+"admin: {listen: \""+admin+"\"}\n")
	printed, errs, code := command(t, "body", "--config", d.path("watcherd.yaml"), "--sink", "slack")
	if code != 0 || strings.Contains(errs, "no route") || strings.TrimSpace(printed) != `{"text":"kubectl-set edited web: image of container web 1.4 -> 1.5, replicas 3 -> 5"}` {
		t.Errorf("body prints %s, code %d, and %s", printed, code, errs)
	}
	d.start()
	eventually(t, func() bool { _, ok := httpGet(t, "http://"+admin+"/readyz"); return ok }, d.log.Tail)

	commands := regexp.MustCompile(`(?m)^kubectl (create|set image) deployment.*$`).FindAllString(page, -1)
	if len(commands) != 2 {
		t.Fatalf("the page has the commands %q", commands)
	}
	for _, line := range commands {
		cmd := exec.CommandContext(t.Context(), kubectl, append(strings.Fields(line)[1:], "-n", ns, "--kubeconfig", c.Kubeconfig)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	// The API server records both managers in one second, if it takes them in one.
	want := regexp.MustCompile(`^(kubectl-create,)?kubectl-set edited web: image of container web 1\.4 -> 1\.5$`)
	eventually(t, func() bool { return slices.ContainsFunc(slack.read(), want.MatchString) }, func() string {
		return strings.Join(slack.read(), "\n") + "\n" + d.log.Tail()
	})
	d.stop()
}
