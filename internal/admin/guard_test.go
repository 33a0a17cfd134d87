package admin

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnlyThisMachine asks a listener on loopback in the ways that a browser can be
// made to.
func TestOnlyThisMachine(t *testing.T) {
	f := newFixture(t).serve()
	for _, tc := range []struct {
		name    string
		headers []string
		code    int
	}{
		{"by address", nil, 200},
		{"as localhost", []string{"Host", "localhost:8080"}, 200},
		{"as IPv6 loopback", []string{"Host", "[::1]:8080"}, 200},
		{"under a name that was made to point here", []string{"Host", "attacker.example.com:8080"}, 403},
		{"under another address", []string{"Host", "10.0.0.1"}, 403},
		{"under a name that looks like ours", []string{"Host", "localhost.attacker.example.com"}, 403},
		{"from a page of another site", []string{"Origin", "https://attacker.example.com"}, 403},
		{"from a page of another port", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"from a sandboxed page", []string{"Origin", "null"}, 403},
		{"by a link", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"from the address bar", []string{"Sec-Fetch-Site", "none"}, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, path := range []string{"/api/v1/status", "/metrics", "/api/v1/objects/pods"} {
				if code, body := f.get(path, tc.headers...); code != tc.code {
					t.Errorf("%s: status %d, want %d: %s", path, code, tc.code, body)
				}
			}
		})
	}
}

// TestPage: the page is there before its reader has a token, by links of other sites too; its data is not.
func TestPage(t *testing.T) {
	f := newFixture(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.cfg.Access.ReadTokenFile = token
	f.serve()
	for _, path := range []string{"/ui/", "/ui/app.js", "/ui/app.css"} {
		if code, body := f.get(path, "Sec-Fetch-Site", "cross-site"); code != http.StatusOK || body == "" {
			t.Errorf("%s: status %d", path, code)
		}
	}
	if code, body := f.get("/ui/absent"); code != http.StatusNotFound {
		t.Errorf("a file that is not of the page: status %d: %s", code, body)
	}
	if code, _ := f.ask(http.MethodPost, f.base+"/ui/", "{}"); code == http.StatusOK {
		t.Error("the page takes a command")
	}
	for _, path := range []string{"/", "/api/v1/status", "/ui/../api/v1/status"} {
		if code, body := f.get(path); code != http.StatusUnauthorized {
			t.Errorf("%s: status %d without a token: %s", path, code, body)
		}
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range []string{"/", "/ui"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "text/html,application/xhtml+xml")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || got != "ui/" {
			t.Errorf("a browser at %s gets status %d, Location %q", path, resp.StatusCode, got)
		}
	}
	client.CloseIdleConnections()
}

func TestPostsNeedAContentTypeThatFormsCannotSend(t *testing.T) {
	f := newFixture(t).serve()
	code, body := f.ask(http.MethodPost, f.base+"/api/v1/replay", `{"sink":"archive","fromSequence":1}`, "Content-Type", "text/plain")
	f.expect(code, body, http.StatusUnsupportedMediaType, "application/json")
}

func TestPortInUse(t *testing.T) {
	f := newFixture(t).serve()
	g := newFixture(t)
	g.cfg.Listen = strings.TrimPrefix(f.base, "http://")
	_, err := Listen(t.Context(), g.cfg)
	if err == nil || !strings.Contains(err.Error(), "in use by another program") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Listen: %v", err)
	}
	g.cfg.Listen, g.cfg.Probes = "127.0.0.1:0", g.cfg.Listen
	if _, err := Listen(t.Context(), g.cfg); err == nil || !strings.Contains(err.Error(), "admin.probes") {
		t.Errorf("Listen: %v", err)
	}
}

// TestNameOfAnotherAddress: a listener that every client may use is for this machine whatever its name leads to: the configuration
// takes localhost for loopback, and a hosts file may have another address for it.
func TestNameOfAnotherAddress(t *testing.T) {
	f := newFixture(t)
	f.cfg.Listen = "0.0.0.0:0"
	if srv, err := Listen(t.Context(), f.cfg); err == nil || !strings.Contains(err.Error(), "others can reach") {
		t.Errorf("Listen: %v", err)
		srv.Close()
	}
	f.cfg.Access.ReadTokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(f.cfg.Access.ReadTokenFile, []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := Listen(t.Context(), f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv.Close()
}

func TestNoListener(t *testing.T) {
	f := newFixture(t)
	f.cfg.Listen = ""
	srv, err := Listen(t.Context(), f.cfg)
	if err != nil || len(srv.Addresses()) != 0 {
		t.Fatalf("Listen: %v", err)
	}
	srv.Close()
}
