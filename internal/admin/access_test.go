package admin

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// logged takes the log of a server under test.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// lines are those that hold all the texts.
func (l *logged) lines(texts ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
lines:
	for line := range strings.Lines(l.text.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// TestTokens has a token for reading and one for commands, and changes both while the
// server runs.
func TestTokens(t *testing.T) {
	f, log := newFixture(t), &logged{}
	f.cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	dir := t.TempDir()
	f.cfg.Access = Access{ReadTokenFile: filepath.Join(dir, "read"), CommandTokenFile: filepath.Join(dir, "command")}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(f.cfg.Access.ReadTokenFile, "reader\n")
	write(f.cfg.Access.CommandTokenFile, "operator\n")
	f.serve()
	read := func(header string) int {
		t.Helper()
		code, _ := f.get("/api/v1/status", "Authorization", header)
		return code
	}
	command := func(header string) int {
		t.Helper()
		code, _ := f.ask(http.MethodPost, f.base+"/api/v1/sinks/ops/skip", `{"sequence":41}`, "Authorization", header, "Content-Type", "application/json")
		return code
	}
	past := func(header string) int {
		t.Helper()
		code, _ := f.ask(http.MethodDelete, f.base+"/at/-5m/api/v1/nodes/n", "", "Authorization", header)
		return code
	}
	if got := [2]int{past("Bearer reader"), past("")}; got != [2]int{405, 401} {
		t.Errorf("status %v of what would change the past, want 405 and 401", got)
	}
	for header, want := range map[string][2]int{
		"Bearer reader": {200, 403}, "bearer reader": {200, 403}, "Bearer operator": {200, 200},
		"Bearer stranger": {401, 401}, "Bearer reade": {401, 401}, "Bearer ": {401, 401}, "Basic reader": {401, 401}, "": {401, 401},
	} {
		if got := [2]int{read(header), command(header)}; got != want {
			t.Errorf("%q: status %v of a read and a command, want %v", header, got, want)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/", "/nothing"} {
		if code, _ := f.get(path); code != http.StatusUnauthorized {
			t.Errorf("%s without a token: status %d", path, code)
		}
	}
	write(f.cfg.Access.CommandTokenFile, "second")
	if a, b := command("Bearer operator"), command("Bearer second"); a != 401 || b != 200 {
		t.Errorf("after the rotation: %d for the old token, %d for the new", a, b)
	}
	write(f.cfg.Access.CommandTokenFile, "")
	if code := command("Bearer "); code != 401 {
		t.Errorf("an empty file lets an empty token through: %d", code)
	}
	if err := os.Remove(f.cfg.Access.CommandTokenFile); err != nil {
		t.Fatal(err)
	}
	if a, b := command("Bearer second"), read("Bearer reader"); a != 401 || b != 200 {
		t.Errorf("without the file of the command token: %d for a command, %d for a read", a, b)
	}
	write(f.cfg.Access.CommandTokenFile, "third")
	read("Bearer third")
	if found := log.lines("token file not readable"); len(found) != 1 { // of two requests
		t.Errorf("log of what is not readable: %q", found)
	}
	if found := log.lines("token file readable again"); len(found) != 1 {
		t.Errorf("log of what is readable again: %q", found)
	}
	for _, secret := range []string{"reader", "operator", "stranger", "second"} {
		if found := log.lines("Bearer " + secret); found != nil {
			t.Errorf("the log has a token: %s", found)
		}
	}
}

// TestCommandsAreLogged asks for every kind of command and reads in the log who did.
func TestCommandsAreLogged(t *testing.T) {
	f, log := newFixture(t), &logged{}
	f.cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	f.cfg.Access.CommandTokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(f.cfg.Access.CommandTokenFile, []byte("c0mmand"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.letters = []DeadLetter{{Position: 7}}
	f.run = func(context.Context, func(int)) (int, error) { return 3, errors.New("the log ends") }
	f.serve()
	for path, body := range map[string]string{
		"/api/v1/reload": "", "/api/v1/deadletters/ops/drop": `{"all":true}`, "/api/v1/deadletters/ops/retry": `{"positions":[7]}`,
		"/api/v1/sinks/ops/resume": "", "/api/v1/sinks/ops/skip": `{"sequence":41}`, "/api/v1/sinks/ops/purge": "",
		"/api/v1/replay": `{"sink":"archive","fromSequence":3}`, "/api/v1/snapshot": strings.Repeat("x", 4*maxLogged),
	} {
		f.ask(http.MethodPost, f.base+path, body, "Content-Type", "application/json", "Authorization", "Bearer c0mmand")
		who := []string{"POST " + path, `client="command token"`, "remote=127.0.0.1:"}
		accepted, ended := log.lines(append(who, "command accepted")...), log.lines(append(who, "command ended", "status=")...)
		if len(accepted) != 1 || len(ended) != 1 {
			t.Errorf("%s: accepted %q, ended %q", path, accepted, ended)
			continue
		}
		begin := strings.ReplaceAll(body, `"`, `\"`)
		if !strings.Contains(accepted[0], begin[:min(len(begin), maxLogged)]) || len(accepted[0]) > 2*maxLogged {
			t.Errorf("the request is not in the log, or all of a long one is: %s", accepted[0])
		}
	}
	if log.lines("command failed", "POST /api/v1/replay", "count=3", `error="the log ends"`) == nil {
		t.Error("the log does not have the outcome of a replay")
	}
	f.ask(http.MethodPost, f.base+"/api/v1/backtest", `{"from":"-1h","bodies":[{"sink":"pager","body":"{\"routing_key\":\"pager-k3y\"}"}]}`, "Content-Type", "application/json", "Authorization", "Bearer c0mmand")
	if log.lines("command accepted", "POST /api/v1/backtest") == nil || log.lines("pager-k3y") != nil {
		t.Errorf("a backtest is not in the log, or its configuration is: %q", log.lines("backtest"))
	}
	for _, path := range []string{"/api/v1/plan", "/api/v1/plan/", "/api/v1/plans", "/api/v1/backtest/plan/x", "/api/v1/reload", "/Plan"} {
		f.ask(http.MethodPost, f.base+path, `{"configuration":"sinks: [{name: pager-k3y}]"}`, "Content-Type", "application/json", "Authorization", "Bearer c0mmand")
		if log.lines("command accepted", "POST "+path) == nil || log.lines("pager-k3y") != nil {
			t.Errorf("%s: a plan is not in the log, or its configuration is: %q", path, log.lines("plan"))
		}
	}
	f.ask(http.MethodPost, f.base+"/api/v1/reload", `sinks: [{name: pager-k3y}]`, "Content-Type", "application/yaml", "Authorization", "Bearer c0mmand")
	if log.lines("pager-k3y") != nil {
		t.Errorf("a configuration that was sent by mistake is in the log: %q", log.lines("reload"))
	}
	f.get("/api/v1/status", "Authorization", "Bearer c0mmand")
	if found := append(log.lines("GET"), log.lines("c0mmand")...); found != nil {
		t.Errorf("the log has reads, or the token: %q", found)
	}
}

func TestTokenFilesMustBeUsable(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for key, access := range map[string]Access{
		"admin.auth.readTokenFile": {ReadTokenFile: missing}, "admin.auth.commandTokenFile": {CommandTokenFile: missing},
	} {
		f := newFixture(t)
		f.cfg.Access = access
		if _, err := Listen(t.Context(), f.cfg); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("Listen: %v", err)
		}
	}
}

// TestNamesOfCertificates lets an authority's clients in by name, some of them for commands.
func TestNamesOfCertificates(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	ca := newAuthority(t)
	ca.write(in("server.crt"), in("server.key"), "server")
	if err := os.WriteFile(in("ca.crt"), ca.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	f, log := newFixture(t), &logged{}
	f.cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	f.cfg.CertFile, f.cfg.KeyFile, f.cfg.ClientCAFile = in("server.crt"), in("server.key"), in("ca.crt")
	f.cfg.Access = Access{ReadNames: []string{"prometheus"}, CommandNames: []string{"ops", "CN=dev, ops"}}
	f.serve()
	for name, want := range map[string][2]int{"prometheus": {200, 403}, "ops": {200, 200}, "dev, ops": {200, 200}, "somebody": {403, 403}} {
		ca.write(in("client.crt"), in("client.key"), name)
		client := ca.client(in("client.crt"), in("client.key"))
		ask := func(method, path string) int {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), method, f.base+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Error(err)
			}
			return resp.StatusCode
		}
		if got := [2]int{ask(http.MethodGet, "/api/v1/status"), ask(http.MethodPost, "/api/v1/reload")}; got != want {
			t.Errorf("%s: status %v of a read and a command, want %v", name, got, want)
		}
	}
	for name, what := range map[string]string{"ops": "command accepted", "dev, ops": "command accepted", "prometheus": "command refused"} {
		if log.lines(what, "client=certificate ", fmt.Sprintf(`names="[\"CN=%[1]s\" \"%[1]s\"]"`, name)) == nil {
			t.Errorf("the log does not have %s of %s: %q", what, name, log.lines("command"))
		}
	}
}

// TestKindsOfNames: a name of one kind in a certificate does not pass for the same text as a name of another kind, which the
// authority may not have verified.
func TestKindsOfNames(t *testing.T) {
	spiffe := &url.URL{Scheme: "spiffe", Host: "prod", Path: "/ops"}
	for _, c := range []struct {
		certificate x509.Certificate
		names       []string
	}{
		{x509.Certificate{Subject: pkix.Name{CommonName: "ops.example.com"}}, []string{"CN=ops.example.com"}},
		{x509.Certificate{Subject: pkix.Name{CommonName: "ops@example.com"}, DNSNames: []string{"a"}}, []string{"CN=ops@example.com", "a"}},
		{x509.Certificate{Subject: pkix.Name{CommonName: "spiffe://prod/ops"}, URIs: []*url.URL{spiffe}}, []string{"CN=spiffe://prod/ops", "spiffe://prod/ops"}},
		{x509.Certificate{DNSNames: []string{"CN=ops", "ops@example.com", "spiffe://prod/ops", "ops.example.com"}}, []string{"ops.example.com"}},
		{x509.Certificate{EmailAddresses: []string{"CN=ops", "ops.example.com", "spiffe://ops@prod", "ops@example.com"}}, []string{"ops@example.com"}},
		{x509.Certificate{URIs: []*url.URL{{Path: "ops.example.com"}, {Path: "CN=ops"}, {Path: "ops@example.com"}}}, nil},
	} {
		if names := namesOf(&c.certificate); !slices.Equal(names, c.names) {
			t.Errorf("names %q, want %q", names, c.names)
		}
	}
}
