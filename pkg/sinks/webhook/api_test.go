package webhook_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// TestSecretURLInPlainText: a URL that is a secret is not sent unencrypted.
func TestSecretURLInPlainText(t *testing.T) {
	t.Setenv("HOOK", "http://hooks.invalid/services/canary")
	c := webhook.NewConfig()
	c.URL = sinks.Header{Secret: sinks.Secret{Env: "HOOK"}}
	c.Timeout = sinks.Duration(time.Second)
	for insecure, want := range map[bool]string{false: "goes out unencrypted", true: "post to hooks.invalid"} {
		c.Insecure = insecure
		err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
		class, _ := sinks.Classify(err)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") || !insecure && class != sinks.ClassPause {
			t.Errorf("insecure %t: %s, %v", insecure, class, err)
		}
	}
}

// TestSecretURLByProxy: nor is one of this machine by way of a proxy elsewhere.
func TestSecretURLByProxy(t *testing.T) {
	t.Setenv("HOOK", "http://localhost/services/canary")
	c := webhook.NewConfig()
	c.URL = sinks.Header{Secret: sinks.Secret{Env: "HOOK"}}
	c.ProxyURL = "http://proxy.invalid"
	sinktest.WantClass(t, sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "by way of proxyURL")
}

// TestSecretURL: no part of a URL that is a secret gets out, whatever the endpoint echoes,
// and a new one is used soon.
func TestSecretURL(t *testing.T) {
	const path = "/services/T0canary/B0canary%2Fx/x0Canary?key=q0canary"
	canaries := []string{"T0canary", "B0canary", "x0Canary", "q0canary", "/services"}
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.URL.RequestURI())
		if strings.HasPrefix(r.URL.Path, "/services") {
			http.Error(w, "no "+r.URL.String()+" of "+r.URL.Path+", "+r.URL.EscapedPath()+": "+strings.Join(strings.Split(r.URL.Path, "/"), " and "), http.StatusBadRequest)
		}
	}))
	defer server.Close()
	var log strings.Builder
	c := webhook.NewConfig()
	file := secretFile(t, server.URL+path)
	c.URL.Secret = file
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	err := s.Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPoison || !strings.Contains(err.Error(), "***") {
		t.Errorf("error %v of class %s", err, class)
	}
	for _, canary := range canaries {
		if strings.Contains(fmt.Sprint(err)+log.String(), canary) {
			t.Errorf("%s got out: %v; %s", canary, err, log.String())
		}
	}
	replaceFile(t, file.File, server.URL+"/other")
	eventually(t, "the new URL is used", func() bool { return s.Write(t.Context(), sinktest.Events(1, 1)) == nil })
	mu.Lock()
	if asked[0] != path || asked[len(asked)-1] != "/other" {
		t.Errorf("asked were %q", asked)
	}
	mu.Unlock()

	for _, bad := range []string{"canary", "ftp://canary/x", "http://me:canary@h/", "http://h/%zzcanary", "http://h/#canary"} {
		c.URL.Secret = secretFile(t, bad)
		err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
		if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "url: the secret ") {
			t.Errorf("%s: error %v of class %s", bad, err, class)
		}
	}
	server.Close()
	c.URL.Secret = secretFile(t, server.URL+path)
	err = sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
	for _, canary := range canaries {
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("without an endpoint: %v", err)
		}
	}
}

// TestTokenInPath: a part of a path that looks like a token is masked in any URL.
func TestTokenInPath(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		http.Error(w, "hooks: no such token "+parts[len(parts)-1], http.StatusBadRequest)
	}))
	defer server.Close()
	c := webhook.NewConfig()
	c.URL.Text = server.URL + "/hooks/canary0123456789abcdef"
	err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
	if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "hooks: no such token ***") {
		t.Errorf("error %v", err)
	}
}

func TestMethod(t *testing.T) {
	for _, method := range []string{"", "POST", "PUT", "PATCH"} {
		got := make(chan string, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Method }))
		c := webhook.NewConfig()
		c.URL.Text, c.Method = server.URL, method
		if err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatal(err)
		}
		if m := <-got; m != method && (method != "" || m != "POST") {
			t.Errorf("method %q: %s was sent", method, m)
		}
		server.Close()
	}
}

func TestAccept(t *testing.T) {
	for _, test := range []struct {
		accept string
		status int
		body   string
		want   string // class of the error and a part of it; empty: accepted
	}{
		{`body.ok`, 200, `{"ok":true}`, ""},
		{`body.ok`, 200, `{"ok":false,"error":"invalid_blocks"}`, `poison status 200: {"ok":false,"error":"invalid_blocks"} (accept: poison)`},
		{`body.ok`, 500, `{"ok":false}`, `retry status 500`},
		{`status == 200 && body.ok`, 404, `gone`, `retry status 404: gone`},
		{`body.code == 0`, 200, `{"text":"Success","code":0}`, ""},
		{`body.code == 0`, 200, `{"text":"No data","code":5}`, "poison"},
		{`body == "ok"`, 200, `ok`, ""},
		{`body == "ok"`, 200, `no_service`, "poison status 200: no_service"},
		{`status == 409`, 409, ``, ""},
		{`headers["x-result"] == "fine"`, 200, ``, ""},
		{`body.?ok.orValue(false) ? "accepted" : body.?error.orValue("") == "ratelimited" ? "retry" : "poison"`, 200, `{"error":"ratelimited"}`, "retry status 200: {\"error\":\"ratelimited\"} (accept: retry)"},
		{`body.?ok.orValue(false) ? "accepted" : "pause"`, 200, `{"error":"revoked"}`, "pause"},
		{`body.ok`, 200, `{"canary":1}`, `retry status 200: {"canary":1}; accept: line 1, column 5: no such key: ok`},
		{`body.ok`, 200, `{"ok":"yes"}`, `retry status 200: {"ok":"yes"}; accept: the value is neither`},
		{`[0].all(a, [body + body].all(b, [b + b].all(c, [c + c].all(d, [d + d].all(e, [e + e].all(f, [f + f].all(g, g + g != ""))))))) && body == ""`, 200, strings.Repeat("x", 60<<10), "retry status 200"},
		{`body.matches("(?:a?){200}a{200}$")`, 200, strings.Repeat("a", 60<<10), "retry status 200"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Result", "fine")
			w.WriteHeader(test.status)
			fmt.Fprint(w, test.body)
		}))
		c := webhook.NewConfig()
		c.URL.Text, c.Accept = server.URL, test.accept
		err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
		class, _ := sinks.Classify(err)
		if want, part, _ := strings.Cut(test.want, " "); test.want == "" && err != nil || test.want != "" && (err == nil || class.String() != want || !strings.Contains(err.Error(), part)) {
			t.Errorf("%s of %d %.40s: error %v of class %s; %q is wanted", test.accept, test.status, test.body, err, class, test.want)
		}
		server.Close()
	}
}

// authority gives tokens for the client's secret, and protects an API.
type authority struct {
	mu      sync.Mutex
	fetched int
	valid   string // the token that the API takes
	life    int
	form    url.Values
}

func (a *authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.URL.Path == "/token" {
		_ = r.ParseForm()
		id, secret, _ := r.BasicAuth()
		if a.form = r.PostForm; id != "me" || secret != "canary-secret" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client","error_description":"`+secret+`"}`)
			return
		}
		a.fetched++
		a.valid = fmt.Sprintf("canary-token-%d", a.fetched)
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": a.valid, "token_type": "Bearer", "expires_in": a.life})
		return
	}
	if got := r.Header.Get("Authorization"); got != "Bearer "+a.valid {
		http.Error(w, "not "+got, http.StatusUnauthorized)
	}
}

func (a *authority) set(valid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.valid = valid
}

func (a *authority) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fetched
}

func TestOAuth(t *testing.T) {
	a := &authority{life: 3600}
	server := httptest.NewServer(a)
	defer server.Close()
	c := webhook.NewConfig()
	c.URL.Text = server.URL + "/api"
	secret := secretFile(t, "canary-secret")
	c.OAuth = &sinks.OAuth{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: &secret, Scopes: []string{"write", "read"}}
	s := sinktest.Open(t, c)
	write := func() error { return s.Write(t.Context(), sinktest.Events(1, 1)) }

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := write(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := a.count(); n != 1 || a.form.Get("grant_type") != "client_credentials" || a.form.Get("scope") != "write read" {
		t.Errorf("%d tokens were fetched, with %v", n, a.form)
	}
	// A token that worked is refused: another one is fetched.
	a.set("revoked")
	err := write()
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry || strings.Contains(err.Error(), "canary") {
		t.Errorf("with a revoked token: error %v of class %s", err, class)
	}
	if err := write(); err != nil || a.count() != 2 {
		t.Errorf("with another token: %v, after %d", err, a.count())
	}
	// One that never worked: it is the endpoint's fault, or the operator's.
	fresh := sinktest.Open(t, c)
	if err := fresh.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	other := webhook.NewConfig()
	other.URL.Text, other.OAuth = server.URL+"/api", c.OAuth
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			a.ServeHTTP(w, r)
			return
		}
		http.Error(w, "not "+r.Header.Get("Authorization"), http.StatusUnauthorized)
	})
	err = sinktest.Open(t, other).Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause || strings.Contains(err.Error(), "canary") {
		t.Errorf("with a token that is never accepted: error %v of class %s", err, class)
	}
	// A client that is not known.
	wrong := secretFile(t, "canary-wrong")
	other.OAuth = &sinks.OAuth{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: &wrong}
	err = sinktest.Open(t, other).Write(t.Context(), sinktest.Events(1, 1))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "invalid_client") {
		t.Errorf("with a wrong secret: error %v of class %s", err, class)
	}
}

// TestTokenExpires fetches a token when the last one is about to end.
func TestTokenExpires(t *testing.T) {
	a := &authority{life: 1}
	server := httptest.NewServer(a)
	defer server.Close()
	c := webhook.NewConfig()
	secret := secretFile(t, "canary-secret")
	c.URL.Text, c.OAuth = server.URL, &sinks.OAuth{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: &secret}
	s := sinktest.Open(t, c)
	eventually(t, "a second token is fetched", func() bool {
		if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		return a.count() == 2
	})
}

// TestTokenNoHeaderCarries: a token that cannot be sent is not kept, so that the next one is asked for.
func TestTokenNoHeaderCarries(t *testing.T) {
	tokens := []string{`canary\n`, `canary`}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/token" {
			return
		}
		fmt.Fprintf(w, `{"access_token":"%s"}`, tokens[0])
		tokens = tokens[1:]
	}))
	defer server.Close()
	c := webhook.NewConfig()
	secret := secretFile(t, "canary-secret")
	c.URL.Text, c.OAuth = server.URL, &sinks.OAuth{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: &secret}
	s := sinktest.Open(t, c)
	err := s.Write(t.Context(), sinktest.Events(1, 1))
	if sinktest.WantClass(t, err, sinks.ClassRetry); strings.Contains(err.Error(), "canary") {
		t.Error(err)
	}
	if err := s.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Errorf("with another token: %v", err)
	}
}
