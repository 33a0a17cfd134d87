package apiclient

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// SameServer returns a copy of cfg whose clients refuse redirects to another server. The
// transports of client-go add the credentials to every request, that of a redirect
// included.
func SameServer(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if by := req.Response; by != nil && by.Request != nil {
				if from, to := by.Request.URL, req.URL; from.Scheme != to.Scheme || from.Host != to.Host {
					return nil, fmt.Errorf("redirected to %s://%s, another server, which is not followed", to.Scheme, to.Host)
				}
			}
			return next.RoundTrip(req)
		})
	})
	return cfg
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
