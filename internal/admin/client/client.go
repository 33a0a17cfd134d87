// Package client talks to the admin listener of a daemon, for the commands.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/watcherd/watcherd/internal/admin"
)

// Client is safe for concurrent use. Its errors are for the user to read: what a daemon
// refuses is an *admin.Problem.
type Client struct {
	base   string
	tokens Tokens
	http   *http.Client
}

// Tokens are files with bearer tokens, "" for none. Each is read for each request that
// needs it: who only reads needs no access to the token for commands.
type Tokens struct {
	ReadFile    string // for GET and HEAD
	CommandFile string // for everything else
}

// New returns a client of the admin listener at base, a URL with scheme and host.
// Nothing is connected yet.
func New(base string, tokens Tokens, tlsConfig *tls.Config) *Client {
	return &Client{base: strings.TrimSuffix(base, "/"), tokens: tokens, http: &http.Client{
		Transport: &http.Transport{
			Proxy: proxy, TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true,
			DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second,
		},
		// A token goes to the daemon alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// NewLocal returns a client of the server at the other end of t.
func NewLocal(t http.RoundTripper) *Client {
	return &Client{base: "http://localhost", http: &http.Client{Transport: t}}
}

// proxy is the environment's for HTTPS. Over plain HTTP it would see the token.
func proxy(r *http.Request) (*url.URL, error) {
	if r.URL.Scheme != "https" {
		return nil, nil //nolint:nilnil // nil is no proxy
	}
	return http.ProxyFromEnvironment(r)
}

// Page is the address of the page for a browser, with the token in its fragment, which no
// server sees: that for commands, or that for reading.
func (c *Client) Page(commands bool) (string, error) {
	page, file := c.base+"/ui/", c.tokens.ReadFile
	if commands {
		file = c.tokens.CommandFile
	}
	if file == "" {
		return page, nil
	}
	token, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return page + "#token=" + url.PathEscape(strings.TrimSpace(string(token))), nil
}

// Now returns the time by the daemon's clock, to the second, or by that of this machine where they agree to the second.
func (c *Client) Now(ctx context.Context) (time.Time, error) {
	began := time.Now()
	resp, err := c.Do(ctx, http.MethodHead, "/api/openapi.json", nil, nil, nil)
	if err != nil {
		return began, err
	}
	defer resp.Body.Close()
	now := time.Now()
	daemon, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil || !daemon.After(now) && began.Before(daemon.Add(time.Second)) {
		return now, nil // the header is optional
	}
	return daemon, nil
}

// Get decodes the answer to a GET into out.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	resp, err := c.Do(ctx, http.MethodGet, path, query, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return decodeAnswer(resp, out)
}

// Post sends in as JSON and decodes the answer into out.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	resp, err := c.Do(ctx, http.MethodPost, path, nil, in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return decodeAnswer(resp, out)
}

func decodeAnswer(resp *http.Response, out any) error {
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("the answer of the daemon is not understood: %w", err)
	}
	return nil
}

// Run posts a command, calls progress on the way, and returns the last line.
func (c *Client) Run(ctx context.Context, path string, in any, progress func(int)) (p admin.Progress, err error) {
	resp, err := c.Do(ctx, http.MethodPost, path, nil, in, http.Header{"Accept": {admin.ContentTypeProgress}})
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; {
		if err := d.Decode(&p); err != nil {
			return p, fmt.Errorf("the connection to the daemon was lost after %d events: %w", p.Count, err)
		}
		switch {
		case p.Error != "":
			return p, errors.New(p.Error)
		case p.Done:
			return p, nil
		}
		progress(p.Count)
	}
}

// Do returns a response with status 200, whose body the caller closes.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, in any, header http.Header) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	file := c.tokens.CommandFile
	if method == http.MethodGet || method == http.MethodHead {
		file = c.tokens.ReadFile
	}
	if file != "" {
		token, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.refused(resp)
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no daemon answers at %s: is 'watcherd run' running, and is this its admin listener (--admin, --config)?", c.base)
	}
	// The url.Error around it repeats the method and the URL.
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return fmt.Errorf("the daemon at %s cannot be reached: %w", c.base, err)
}

// refused reads the daemon's error message.
func (c *Client) refused(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	p := &admin.Problem{}
	if err != nil || json.Unmarshal(b, p) != nil || p.Status == 0 {
		return fmt.Errorf("%s does not answer like watcherd (%s): is it its admin listener?", c.base, resp.Status)
	}
	return p
}
