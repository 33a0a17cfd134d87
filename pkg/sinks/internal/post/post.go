// Package post makes requests to one destination over HTTP, for kinds whose destination has an API of its own.
//
// One attempt a request, no redirect is followed, no proxy of the environment used. Secrets are read at each
// request, TLS files at each connection. Errors name the host and the status, and quote at most 256
// characters of an answer, with secrets masked; their class follows the status:
//
//	400, 422                        poison
//	413                             too large
//	408, 429, 5xx, no answer        retry, with the destination's Retry-After
//	2xx with a page of HTML         retry
//	3xx, 401, 403, 404, all others  pause
package post

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// Options are what a Client is made of.
type Options struct {
	Key       string // the key of the address in the block, which errors name
	Host      string // the destination's, to verify and to name
	Socket    string // path of a Unix socket that is used instead of the host
	Headers   map[string]sinks.Header
	APIKey    *sinks.Secret // sent as `Authorization: ApiKey`
	BasicAuth *sinks.BasicAuth
	Dir       string // of relative files
	TLS       sinks.TLS
	Timeout   time.Duration // from dialling to the end of the answer
	Gzip      bool          // compress what is sent
	MaxAnswer int64         // bytes of an answer that are read
	MaySend   func() error  // see sinks.Options

	// Sign, if it is set, adds the credentials to a request that is complete otherwise. It returns what must not
	// show anywhere.
	Sign func(req *http.Request, body []byte) (hidden []string, err error)

	Responses *prometheus.CounterVec
}

// Client makes requests from any goroutine.
type Client struct {
	Options

	transport *http.Transport
	sent      *Sent
}

const (
	maxIdle   = 8                // connections
	idle      = 90 * time.Second // how long they live
	maxHeader = 64 << 10         // bytes of the status and the headers of an answer
	maxReason = 1 << 10          // characters of an error that may quote an answer
)

// New makes a client. It starts nothing.
func New(o Options) *Client {
	c := &Client{Options: o, sent: &Sent{}}
	c.Headers, c.TLS = maps.Clone(o.Headers), o.TLS.In(o.Dir)
	c.transport = &http.Transport{
		DialContext: c.dial, DialTLSContext: c.dialTLS, TLSHandshakeTimeout: o.Timeout,
		MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idle, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeader,
	}
	return c
}

// Close closes the connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Limit returns a client that shares the connections and reads that many bytes of an answer.
func (c *Client) Limit(bytes int) *Client {
	limited := *c
	limited.MaxAnswer = int64(bytes)
	return &limited
}

// Address reads the destination's URL of a block, in which no secret may be.
func Address(key, text, example string) (*url.URL, error) {
	bad := func(msg string) error { return &sinks.FieldError{Path: key, Msg: msg} }
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil, bad("required, for example " + example)
	case err != nil && strings.Contains(text, "://"):
		return nil, bad("is not a URL")
	case err != nil || u.Scheme != "http" && u.Scheme != "https":
		return nil, bad("must begin with http:// or https://")
	case u.Hostname() == "":
		return nil, bad("names no host")
	case u.User != nil:
		return nil, bad("must not hold a user or password: name them as secrets")
	case u.Fragment != "" || u.RawQuery != "":
		return nil, bad("must not hold a query or a #fragment")
	}
	return u, nil
}

// ValidateHeaders checks the headers of a block that go to the address under the key. With insecure set they may hold
// credentials in plain text.
func ValidateHeaders(key, address string, headers map[string]sinks.Header, insecure bool) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		switch http.CanonicalHeaderKey(name) {
		case "Content-Type", "Content-Length", "Content-Encoding", "Transfer-Encoding", "Connection", "Host", "Trailer", "Te", "Upgrade":
			errs = append(errs, &sinks.FieldError{Path: "headers." + name, Msg: "is set by watcherd"})
		default:
			errs = append(errs, headers[name].Validate("headers."+name, name, insecure))
			if !headers[name].Secret.IsZero() && !insecure && sinks.PlainText(address) {
				errs = append(errs, &sinks.FieldError{
					Path: "headers." + name, Msg: "goes out unencrypted, as " + key + " is http:// and beyond loopback: use https://, or set insecure: true",
				})
			}
		}
	}
	return errors.Join(errs...)
}

// Gzip is the value of `compress` with which requests are compressed; the other is none.
const Gzip = "gzip"

// ValidateTransfer checks the keys compress and timeout of a block.
func ValidateTransfer(compress string, timeout sinks.Duration) error {
	var errs []error
	if compress != Gzip && compress != "none" {
		errs = append(errs, &sinks.FieldError{Path: "compress", Msg: "must be gzip or none"})
	}
	if timeout <= 0 {
		errs = append(errs, &sinks.FieldError{Path: "timeout", Msg: "must be above 0"})
	}
	return errors.Join(errs...)
}

// errTimeout is the cause of a context that ended by the client's own timeout.
var errTimeout = errors.New("timed out")

// Do makes one attempt at one request and reads the answer, which may be of any status. It is nil if the error is not.
func (c *Client) Do(ctx context.Context, method string, to *url.URL, contentType string, body []byte) (*Answer, error) {
	header := http.Header{}
	if len(body) > 0 {
		header.Set("Content-Type", contentType)
	}
	return c.Send(ctx, method, to, header, body)
}

// Send is Do with these headers in addition to the configured ones.
func (c *Client) Send(ctx context.Context, method string, to *url.URL, header http.Header, body []byte) (*Answer, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
	defer cancel()
	if c.Gzip && len(body) > 0 {
		var err error
		if body, err = compress(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
	if err != nil {
		return nil, sinks.Pause(errors.New(c.Key + " is not a URL"))
	}
	req.Header = header
	req.Header.Set("User-Agent", "watcherd")
	if c.Gzip && len(body) > 0 {
		req.Header.Set("Content-Encoding", "gzip")
	}
	hidden, err := c.authorize(req.Header)
	if err != nil {
		return nil, sinks.Pause(err)
	}
	hidden = c.sent.Note(hidden...)
	if c.Sign != nil {
		more, err := c.Sign(req, body)
		if err != nil {
			return nil, err
		}
		hidden = append(hidden, more...)
	}
	a := &Answer{client: c, hidden: hidden, what: strings.ToLower(method) + " to " + cmp.Or(c.Socket, to.Host)}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		c.Responses.WithLabelValues("error").Inc()
		return nil, fmt.Errorf("%s: %w", a.what, wire.Caused(ctx, a.fit(err)))
	}
	c.Responses.WithLabelValues(strconv.Itoa(resp.StatusCode)).Inc()
	a.Status, a.Header = resp.StatusCode, resp.Header
	if a.Status != http.StatusSwitchingProtocols { // the body would be the connection, which no timeout ends
		a.Body, err = io.ReadAll(io.LimitReader(resp.Body, c.MaxAnswer))
	}
	if err = errors.Join(err, resp.Body.Close()); err != nil && a.Accepted() {
		// The part that may reject events is not known.
		return nil, fmt.Errorf("%s: status %d, and the answer broke off: %w", a.what, a.Status, wire.Caused(ctx, a.fit(err)))
	}
	if a.Accepted() && len(a.Body) > 0 && strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
		return nil, a.Errorf("a page for people, of a proxy that answers in the place of the destination: %s", a.Excerpt(string(a.Body)))
	}
	return a, nil
}

func compress(body []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(body)
	err = errors.Join(err, z.Close())
	return out.Bytes(), err
}

// authorize sets the configured headers, and returns what must not show anywhere.
func (c *Client) authorize(h http.Header) (hidden []string, err error) {
	for name, header := range c.Headers {
		v, err := header.Value(c.Dir)
		if err != nil {
			return nil, fmt.Errorf("headers.%s: %w", name, err)
		}
		h.Set(name, v)
		if !header.Secret.IsZero() {
			hidden = append(hidden, strings.Fields(v)...)
		}
	}
	set := func(key string, secret sinks.Secret, header func(secret string) string) error {
		v, err := sinks.Header{Secret: secret}.Value(c.Dir)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		h.Set("Authorization", header(v))
		hidden = append(hidden, v, strings.Fields(header(v))[1])
		return nil
	}
	switch {
	case c.APIKey != nil:
		err = set("apiKey", *c.APIKey, func(s string) string { return "ApiKey " + s })
	case c.BasicAuth != nil:
		err = set("basicAuth.password", c.BasicAuth.Password, c.BasicAuth.Header)
	}
	return hidden, err
}

// Answer is what a destination answered.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte

	client *Client
	hidden []string
	what   string
}

// Accepted reports whether the status is one of success.
func (a *Answer) Accepted() bool { return a.Status/100 == 2 }

// Errorf is an error about the answer, without a class. It may quote the answer.
func (a *Answer) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s: status %d: %w", a.what, a.Status, a.fit(fmt.Errorf(format, args...)))
}

// fit makes an error that may quote the answer, which may quote the request, fit for a log line, without what is hidden:
// net/http quotes headers and trailers that it does not understand, and decoders the values.
func (a *Answer) fit(err error) error {
	mask := NewMask(a.hidden)
	return Reword(err, func(text string) string { return Clean(mask.HideCut(text), maxReason) })
}

// Refusal is the error of an answer, or of a part of it with a status of its own, that does not accept what
// was sent. The reason may be the destination's text.
func (a *Answer) Refusal(status int, reason string) error {
	err := fmt.Errorf("%s: status %d: %s", a.what, status, cmp.Or(a.Excerpt(reason), http.StatusText(status)))
	switch {
	case status == http.StatusBadRequest || status == http.StatusUnprocessableEntity:
		return sinks.Poison(err)
	case status == http.StatusRequestEntityTooLarge:
		return sinks.TooLarge(err)
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500:
		if d := RetryAfter(a.Header.Get("Retry-After"), time.Now()); d > 0 {
			return sinks.RetryAfter(err, d)
		}
		return err
	case status/100 == 3:
		return sinks.Pause(fmt.Errorf("%s: status %d: redirects are not followed, set %s to the new address", a.what, status, a.client.Key))
	default:
		return sinks.Pause(err)
	}
}

// Results reads the answer as a results document for that many events.
func (a *Answer) Results(events int) ([]sinks.Result, error) {
	return NewMask(a.hidden).Results(a.Body, events)
}

// Excerpt makes a destination's text fit for an error: a line, without what is hidden.
func (a *Answer) Excerpt(text string) string {
	return Clean(NewMask(a.hidden).HideCut(text), MaxExcerpt)
}

func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.Socket != "" {
		network, address = "unix", c.Socket
	}
	return wire.Held((&net.Dialer{Timeout: c.Timeout}).DialContext, c.MaySend)(ctx, network, address)
}

// dialTLS makes a connection with TLS, whose files are read each time.
func (c *Client) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	trust, err := c.TLS.Load()
	if err != nil {
		return nil, sinks.Pause(fmt.Errorf("tls: %w", err))
	}
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return wire.Secure(ctx, conn, trust, c.Host)
}
