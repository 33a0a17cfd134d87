package webhook_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// verifier checks a request with the package that receivers written in
// JavaScript use. It wants a right signature accepted and a wrong one refused.
const verifier = `
const { Webhook } = require("standardwebhooks");
const { key, body, headers } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const webhook = new Webhook(key);
const events = webhook.verify(body, headers);
let refused = false;
try { webhook.verify(body + " ", headers); } catch { refused = true; }
if (!refused) throw new Error("a changed body was accepted");
console.log(Array.isArray(events) ? events.length : 1);
`

// TestNodeVerifies sends signed requests and has the official npm package verify
// them. It needs node, npm and, the first time, the registry.
func TestNodeVerifies(t *testing.T) {
	if testing.Short() {
		t.Skip("starts node")
	}
	dir := installVerifier(t)
	const key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	previous := secretFile(t, "an older key")
	for _, batch := range []bool{false, true} {
		e := newEndpoint(t)
		c := e.config()
		c.Signing = &webhook.Signing{Secret: secretFile(t, key), PreviousSecret: &previous}
		events := sinktest.Events(1, 1)
		if batch {
			events = sinktest.Events(3, 3)
		}
		s := sinktest.Open(t, c, func(o *sinks.Options) { o.BatchMode = batch })
		if err := s.Write(t.Context(), events); err != nil {
			t.Fatal(err)
		}
		got, _ := e.last()
		e.stop()
		for _, key := range []string{key, base64.StdEncoding.EncodeToString([]byte("an older key"))} {
			out, err := runNode(t, dir, key, got)
			if want := len(events); err != nil || strings.TrimSpace(out) != string(rune('0'+want)) {
				t.Errorf("batch %v: node says %q, %v; %d events are wanted", batch, out, err, want)
			}
		}
	}
}

func runNode(t *testing.T, dir, key string, r request) (string, error) {
	t.Helper()
	headers := map[string]string{}
	for name := range r.header {
		headers[strings.ToLower(name)] = r.header.Get(name)
	}
	input, err := json.Marshal(map[string]any{"key": key, "body": string(r.body), "headers": headers})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "-e", verifier)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(string(input))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = errors.New(stderr.String())
	}
	return string(out), err
}

// installVerifier returns a folder in which node finds the package, kept between
// runs, and skips the test where there can be none.
func installVerifier(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("not installed: ", tool)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip("no cache folder: ", err)
	}
	dir := filepath.Join(cache, "watcherd-test", "standardwebhooks-1.0.0")
	if _, err := os.Stat(filepath.Join(dir, "installed")); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Skip("no cache folder: ", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", "standardwebhooks@1.0.0")
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("the npm registry does not give the package: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "installed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

var _ http.Handler = (*endpoint)(nil)
