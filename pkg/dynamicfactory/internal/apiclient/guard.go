package apiclient

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
)

// Guarded returns a copy of cfg whose clients keep its credentials between them and the server:
// they refuse redirects to another server, to which client-go's transports would send them, and
// replace them in the body of an error response, which is logged. Its Host, which is shown, has none.
func Guarded(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	takeUser(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if by := req.Response; by != nil && by.Request != nil {
				if from, to := by.Request.URL, req.URL; from.Scheme != to.Scheme || from.Host != to.Host {
					return nil, fmt.Errorf("redirected to %s://%s, another server, which is not followed", to.Scheme, to.Host)
				}
			}
			resp, err := next.RoundTrip(req)
			if err == nil && resp.StatusCode >= http.StatusBadRequest {
				hideCredentials(resp, req.Header.Get("Authorization"))
			}
			return resp, err
		})
	})
	return cfg
}

// takeUser moves a user and a password out of the server's URL. They count where nothing else is configured, as net/http
// has it.
func takeUser(cfg *rest.Config) {
	scheme := ""
	if !strings.Contains(cfg.Host, "://") {
		scheme = "https://"
	}
	u, err := url.Parse(scheme + cfg.Host)
	if err != nil || u.User == nil {
		return
	}
	if cfg.Username+cfg.BearerToken+cfg.BearerTokenFile == "" {
		cfg.Username = u.User.Username()
		cfg.Password, _ = u.User.Password()
	}
	u.User = nil
	cfg.Host = strings.TrimPrefix(u.String(), scheme)
}

// hideCredentials replaces the credentials of a request in the body of its response, as a server or
// a proxy may print a request that it rejects.
func hideCredentials(resp *http.Response, authorization string) {
	_, secret, _ := strings.Cut(authorization, " ") // the scheme is first
	if secret == "" {
		return
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		body = nil // the status line is enough
	}
	_ = resp.Body.Close()
	body = bytes.ReplaceAll(body, []byte(secret), []byte("[credentials]"))
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
}

// Limited returns a copy of cfg whose clients read at most that many bytes of a response.
// It is for clients that read a response as a whole.
func Limited(cfg *rest.Config, bytes int64) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil {
				resp.Body = &limitedBody{ReadCloser: resp.Body, left: bytes}
			}
			return resp, err
		})
	})
	return cfg
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

var errLong = errors.New("the response is too long")

// limitedBody fails behind so many bytes.
type limitedBody struct {
	io.ReadCloser
	left int64
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLong
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
