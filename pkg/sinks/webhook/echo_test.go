package webhook_test

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/elasticsearch"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// rawServer answers one request and returns its address.
func rawServer(t *testing.T, answer func(request string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		var request strings.Builder
		for r := bufio.NewReader(c); ; {
			line, err := r.ReadString('\n')
			request.WriteString(line)
			if err != nil || line == "\r\n" {
				break
			}
		}
		_, _ = io.WriteString(c, answer(request.String()))
	}()
	return l.Addr().String()
}

// TestEchoedSecretsOfNoAnswer: what is no answer holds no secret either.
func TestEchoedSecretsOfNoAnswer(t *testing.T) {
	authorization := func(request string) string {
		_, value, _ := strings.Cut(request, "Authorization: ")
		value, _, _ = strings.Cut(value, "\r\n")
		return value
	}
	headerLine := func(request string) string { return "HTTP/1.1 200 OK\r\n" + authorization(request) + "\r\n\r\n" }
	for name, answer := range map[string]func(request string) string{
		"status line":        func(request string) string { return request },
		"header line":        headerLine,
		"token, status line": func(request string) string { return request },
		"token, header line": headerLine,
		"cut off": func(request string) string {
			return "HTTP/1.1 400 Bad\r\nContent-Length: 100\r\n\r\n" + authorization(request)[:14]
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := rawServer(t, answer)
			c := webhook.NewConfig()
			c.URL.Secret = secretFile(t, "http://"+address+"/services/canary1")
			token := secretFile(t, "canary2-token")
			if c.BearerToken = &token; strings.HasPrefix(name, "token") {
				c.BearerToken, c.OAuth = nil, &sinks.OAuth{TokenURL: "http://" + address + "/canary3?key=canary4", ClientID: "me", ClientSecret: &token}
			}
			err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
			if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), base64.StdEncoding.EncodeToString([]byte("me:canary2-token"))) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// TestEchoedSecretsInOtherForms: quoted as JSON, in part, and in a document that is refused.
func TestEchoedSecretsInOtherForms(t *testing.T) {
	long := strings.Repeat("canary", 20)
	for name, test := range map[string]struct {
		secret  string
		results bool
		answer  func(secret string) (status int, body string)
	}{
		"as JSON": {`canary<"1">`, false, func(secret string) (int, string) {
			quoted, _ := json.Marshal(map[string]string{"header": secret})
			return http.StatusBadRequest, string(quoted)
		}},
		"as JSON of PHP": {"canary/1+2==", false, func(secret string) (int, string) {
			return http.StatusBadRequest, strings.ReplaceAll(secret, "/", `\/`)
		}},
		"as JSON of .NET": {"canary/1+2==", false, func(secret string) (int, string) {
			return http.StatusBadRequest, strings.ReplaceAll(secret, "+", `\u002B`)
		}},
		"as JSON of Gson": {"canary/1+2==", false, func(secret string) (int, string) {
			return http.StatusBadRequest, strings.ReplaceAll(secret, "=", `\u003d`)
		}},
		"without the scheme": {"GenieKey canary-token", false, func(secret string) (int, string) {
			return http.StatusUnauthorized, "no: " + strings.Fields(secret)[1]
		}},
		"in the host of a redirect, cut": {"canary-token", false, func(secret string) (int, string) {
			return http.StatusFound, strings.Repeat("x", 250) + secret
		}},
		"as a result's status": {"canary-token", true, func(secret string) (int, string) {
			return http.StatusOK, `{"results":[{"status":"` + secret + `"}]}`
		}},
		"as a result's status, cut": {long, true, func(secret string) (int, string) {
			return http.StatusOK, `{"results":[{"status":"` + secret + `"}]}`
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status, body := test.answer(r.Header.Get("X-Key"))
				if status == http.StatusFound {
					w.Header().Set("Location", "//"+body)
				}
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			}))
			defer server.Close()
			c := webhook.NewConfig()
			c.URL.Text, c.Results = server.URL, test.results
			c.Headers = map[string]sinks.Header{"X-Key": {Secret: secretFile(t, test.secret)}}
			err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
			if err == nil || !strings.Contains(err.Error(), "***") || strings.Contains(err.Error(), "canar") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// TestEchoedSecretOfBefore: an answer may quote a secret that another has replaced since.
func TestEchoedSecretOfBefore(t *testing.T) {
	for name, config := range map[string]func(url string, token sinks.Secret) sinks.Config{
		"webhook": func(url string, token sinks.Secret) sinks.Config {
			c := webhook.NewConfig()
			c.URL.Text, c.BearerToken = url, &token
			return c
		},
		"other kinds": func(url string, token sinks.Secret) sinks.Config {
			c := elasticsearch.NewConfig()
			c.URL, c.APIKey = url, &token
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			var first, last string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				last = r.Header.Get("Authorization")
				first = cmp.Or(first, last)
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, "no: "+first)
			}))
			defer server.Close()
			token := secretFile(t, "canary-token")
			s := sinktest.Open(t, config(server.URL, token))
			err := s.Write(t.Context(), sinktest.Events(1, 1))
			testkit.Write(t, token.File, []byte("another-token"))
			for last == first { // the file is read again after a while
				err = s.Write(t.Context(), sinktest.Events(1, 1))
			}
			if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "no: ") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// TestEchoedSecretBesideTokens: an answer may quote a header that all requests have, whatever number of tokens they had beside it.
func TestEchoedSecretBesideTokens(t *testing.T) {
	tokens := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			tokens++
			_, _ = fmt.Fprintf(w, `{"access_token":"token-%d"}`, tokens)
			return
		}
		w.WriteHeader(http.StatusUnauthorized) // another token is fetched
		_, _ = io.WriteString(w, "no: "+r.Header.Get("X-Tenant-Key"))
	}))
	defer server.Close()
	c := webhook.NewConfig()
	key, secret := secretFile(t, "canary-key"), secretFile(t, "secret")
	c.URL.Text, c.Headers = server.URL, map[string]sinks.Header{"X-Tenant-Key": {Secret: key}}
	c.OAuth = &sinks.OAuth{TokenURL: server.URL + "/token", ClientID: "me", ClientSecret: &secret}
	s := sinktest.Open(t, c)
	for range 300 {
		if err := s.Write(t.Context(), sinktest.Events(1, 1)); err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "no: ***") {
			t.Fatalf("with token %d: %v", tokens, err)
		}
	}
}
