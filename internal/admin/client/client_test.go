package client

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestTokens reads the token that a request needs, and no other, as it is then.
func TestTokens(t *testing.T) {
	read, command := filepath.Join(t.TempDir(), "read"), filepath.Join(t.TempDir(), "command")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(s.Close)
	c := New(s.URL, Tokens{ReadFile: read, CommandFile: command}, nil)
	t.Cleanup(c.http.CloseIdleConnections)
	expect := func(want string, err error) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("sent %q, %v; want %q", got, err, want)
		}
	}
	var out struct{}
	write(read, "one\n")
	expect("Bearer one", c.Get(t.Context(), "/", nil, &out))
	write(read, "two\n")
	expect("Bearer two", c.Get(t.Context(), "/", nil, &out))
	if err := c.Post(t.Context(), "/", out, &out); err == nil {
		t.Error("a command was sent without its token")
	}
	write(command, "three")
	expect("Bearer three", c.Post(t.Context(), "/", out, &out))
}

// TestNoProxyOverPlainHTTP keeps the token from a proxy that could read it.
func TestNoProxyOverPlainHTTP(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://proxy.example.com:3128")
	t.Setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
	for base, want := range map[string]bool{"http://watcherd.example.com:8080": false, "https://watcherd.example.com:8080": true} {
		r := httptest.NewRequest(http.MethodGet, base, nil)
		via, err := New(base, Tokens{}, nil).http.Transport.(*http.Transport).Proxy(r)
		if err != nil || (via != nil) != want {
			t.Errorf("%s: proxy %v, %v", base, via, err)
		}
	}
}
