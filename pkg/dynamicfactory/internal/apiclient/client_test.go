package apiclient

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

func TestResourcePath(t *testing.T) {
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	for _, tc := range []struct {
		gvr             schema.GroupVersionResource
		namespace, want string
	}{
		{pods, "", "/api/v1/pods"},
		{pods, "a", "/api/v1/namespaces/a/pods"},
		{deployments, "", "/apis/apps/v1/deployments"},
		{deployments, "a", "/apis/apps/v1/namespaces/a/deployments"},
	} {
		if got := ResourcePath(tc.gvr, tc.namespace); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
}

// A user and a password in the URL of the server reach it, and are not part of its name, which is shown.
func TestUserInTheURL(t *testing.T) {
	for _, tc := range []struct{ host, token, shown, user, password string }{
		{"https://u:p4ss@api/k8s", "", "https://api/k8s", "u", "p4ss"},
		{"u:p4ss@api:6443", "", "api:6443", "u", "p4ss"},
		{"https://u:p4ss@api", "token", "https://api", "", ""},
		{"https://api:6443", "", "https://api:6443", "", ""},
		{"api:6443", "", "api:6443", "", ""},
		{"%", "", "%", "", ""},
	} {
		cfg := &rest.Config{Host: tc.host, BearerToken: tc.token}
		got := Guarded(cfg)
		if got.Host != tc.shown || got.Username != tc.user || got.Password != tc.password || cfg.Host != tc.host {
			t.Errorf("%s: %s, user %q, password %q", tc.host, got.Host, got.Username, got.Password)
		}
	}
}

// What the config says of TLS, authentication, impersonation, user agent and the
// path of the server goes with every request; its timeout does not.
func TestClientHonoursTheConfig(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/prefix/api/v1/pods" || r.ProtoMajor != 2 {
			t.Errorf("%s %s", r.Proto, r.URL.Path)
		}
		for header, want := range map[string]string{
			"Authorization": "Bearer token", "Impersonate-User": "eve", "User-Agent": "test", "Accept": AcceptObjects,
		} {
			if got := r.Header.Get(header); got != want {
				t.Errorf("%s: %q, want %q", header, got, want)
			}
		}
		time.Sleep(20 * time.Millisecond) // longer than the config's timeout
		_, _ = w.Write([]byte("{}"))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	cfg := &rest.Config{
		Host: server.URL + "/prefix/", BearerToken: "token", UserAgent: "test", Timeout: time.Millisecond,
		Impersonate:     rest.ImpersonationConfig{UserName: "eve"},
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	c, err := NewClient(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get(t.Context(), "/api/v1/pods", url.Values{}, AcceptObjects)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	c.http.CloseIdleConnections()
}

func TestResponseError(t *testing.T) {
	for name, tc := range map[string]struct {
		code         int
		header, body string
		is           func(error) bool
		delay        time.Duration
	}{
		"a status":               {410, "", `{"kind":"Status","status":"Failure","reason":"Expired","code":410}`, IsExpired, 0},
		"a status with a delay":  {429, "", `{"kind":"Status","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}`, apierrors.IsTooManyRequests, 7 * time.Second},
		"a status and a header":  {429, "9", `{"kind":"Status","status":"Failure","reason":"TooManyRequests","code":429}`, apierrors.IsTooManyRequests, 9 * time.Second},
		"no status but a header": {503, "3", "busy", apierrors.IsServiceUnavailable, 3 * time.Second},
		"a status with ages":     {429, "", `{"kind":"Status","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":2147483647}}`, apierrors.IsTooManyRequests, time.Minute},
		"a header with ages":     {503, "99999999999", "busy", apierrors.IsServiceUnavailable, time.Minute},
		"a proxy's page":         {403, "", "<html>", apierrors.IsForbidden, 0},
		"nothing":                {404, "", "", apierrors.IsNotFound, 0},
		"gone without a word":    {410, "", "", IsExpired, 0},
	} {
		w := httptest.NewRecorder()
		if tc.header != "" {
			w.Header().Set("Retry-After", tc.header)
		}
		w.WriteHeader(tc.code)
		_, _ = w.WriteString(tc.body)
		err := responseError(w.Result())
		if !tc.is(err) || RetryAfter(err) != tc.delay {
			t.Errorf("%s: got %v (%v), delay %v", name, err, apierrors.ReasonForError(err), RetryAfter(err))
		}
	}
}

// The message of an error is cut: it is in the log and in the status.
func TestLongMessages(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	for name, body := range map[string]string{
		"a status":       `{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"` + long + `"}`,
		"a proxy's page": long,
	} {
		w := httptest.NewRecorder()
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.WriteString(body)
		if err := responseError(w.Result()); !apierrors.IsForbidden(err) || len(err.Error()) > 2*maxMessage {
			t.Errorf("%s: %d bytes", name, len(err.Error()))
		}
	}
	err := StatusError([]byte(`{"kind":"Status","status":"Failure","reason":"Expired","code":410,"message":"` + strings.Repeat("é", 5<<20) + `"}`))
	if !IsExpired(err) || len(err.Error()) > 2*maxMessage || !utf8.ValidString(err.Error()) {
		t.Errorf("an ERROR event: %d bytes", len(err.Error()))
	}
}

func TestLimiter(t *testing.T) {
	own := flowcontrol.NewFakeAlwaysRateLimiter()
	for name, tc := range map[string]struct {
		cfg  rest.Config
		want func(flowcontrol.RateLimiter) bool
	}{
		"default": {rest.Config{}, func(l flowcontrol.RateLimiter) bool { return l.QPS() == rest.DefaultQPS }},
		"none":    {rest.Config{QPS: -1}, func(l flowcontrol.RateLimiter) bool { return l == nil }},
		"set":     {rest.Config{QPS: 50, Burst: 100}, func(l flowcontrol.RateLimiter) bool { return l.QPS() == 50 }},
		"given":   {rest.Config{QPS: 50, RateLimiter: own}, func(l flowcontrol.RateLimiter) bool { return l == own }},
	} {
		if !tc.want(limiterFor(&tc.cfg)) {
			t.Errorf("%s: the wrong limiter", name)
		}
	}
}

func TestClientOfABadConfig(t *testing.T) {
	for _, cfg := range []*rest.Config{
		{Host: "http://[::1"},
		{Host: "https://example.com", TLSClientConfig: rest.TLSClientConfig{CAFile: "/nowhere"}},
		{Host: "https://example.com", BearerToken: "x", Username: "y"},
	} {
		if _, err := NewClient(cfg, 1); err == nil {
			t.Errorf("%v: no error", cfg.Host)
		}
	}
}
