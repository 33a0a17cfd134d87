package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Config is the `webhook` block.
type Config struct {
	// URL to send to, http or https, without user and password: text, or a secret {env: NAME} or {file: PATH}.
	URL sinks.Header `json:"url"`

	// Method of the requests: POST, PUT or PATCH.
	Method string `json:"method,omitempty" jsonschema:"enum=POST,enum=PUT,enum=PATCH,default=POST"`

	// Headers to add: text, or a secret {env: NAME} or {file: PATH}.
	Headers map[string]sinks.Header `json:"headers,omitempty"`

	// BearerToken is sent as `Authorization: Bearer`.
	BearerToken *sinks.Secret `json:"bearerToken,omitempty"`

	// BasicAuth is sent as `Authorization: Basic`.
	BasicAuth *sinks.BasicAuth `json:"basicAuth,omitempty"`

	// OAuth fetches a token that is sent as `Authorization: Bearer`.
	OAuth *sinks.OAuth `json:"oauth,omitempty"`

	// Signing adds the headers of Standard Webhooks (webhook-id, webhook-timestamp,
	// webhook-signature).
	Signing *Signing `json:"signing,omitempty"`

	// TLS names the files to trust and to present.
	TLS sinks.TLS `json:"tls,omitzero"`

	// Insecure allows credentials in plain text: in a header here, and on the way to an
	// http:// URL beyond loopback, which may be a secret itself.
	Insecure bool `json:"insecure,omitempty"`

	// Timeout of one attempt, from dialling to the end of the answer.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string,default=15s"`

	// DenyPrivate refuses to connect to loopback, private, link-local and other
	// addresses that are not public.
	DenyPrivate bool `json:"denyPrivate,omitempty"`

	// ProxyURL is an HTTP proxy to use; those of the environment are ignored.
	ProxyURL string `json:"proxyURL,omitempty"`

	// Compress is gzip or none.
	Compress string `json:"compress,omitempty" jsonschema:"enum=none,enum=gzip,default=none"`

	// MaxEventBytes is the largest event that the endpoint takes, before compression.
	// A larger one follows the sink's onOversize setting. 0: no limit.
	MaxEventBytes sinks.Bytes `json:"maxEventBytes,omitempty" jsonschema:"oneof_type=string;integer"`

	// Results reads the body of a 2xx answer as a results document, which reports for each
	// event of the request whether it was accepted.
	Results bool `json:"results,omitempty"`

	// Accept is a CEL expression over status, headers and body of an answer that decides whether it accepts
	// the events: true or false, or accepted, retry, poison or pause. Default: any 2xx accepts.
	Accept string `json:"accept,omitempty"`
}

// Signing names the keys: whsec_ and base64, or any other text as it is.
type Signing struct {
	// Secret is the key of the signature: whsec_ and base64, or any other text as it is.
	Secret sinks.Secret `json:"secret"`

	// PreviousSecret signs too while receivers change over to a new Secret.
	PreviousSecret *sinks.Secret `json:"previousSecret,omitempty"`
}

var _ sinks.Config = (*Config)(nil)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{Method: http.MethodPost, Timeout: sinks.Duration(15 * time.Second), Compress: "none"}
}

// minMaxEventBytes leaves room for the identity of an event's object.
const minMaxEventBytes = 4 << 10

// Validate checks the block.
func (c *Config) Validate() error {
	errs := []error{
		c.validateTarget(),
		c.TLS.Validate("tls"),
		c.validateAuth(),
		c.validateSigning(),
		c.validateAccept(),
	}
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if reserved(name) {
			bad("headers."+name, "is set by watcherd")
			continue
		}
		errs = append(errs, c.Headers[name].Validate("headers."+name, name, c.Insecure))
	}
	if credentials := c.credentials(); credentials != "" && !c.Insecure && c.plain(c.URL.Text) {
		bad(credentials, "goes out unencrypted, as url is http:// and "+c.away()+": use https://, or set insecure: true")
	}
	if c.ProxyURL != "" {
		errs = append(errs, validateURL("proxyURL", c.ProxyURL, false))
		if c.OAuth != nil && !c.OAuth.Insecure && c.plain(c.OAuth.TokenURL) && !sinks.PlainText(c.OAuth.TokenURL) {
			bad("oauth.tokenURL", "takes clientSecret unencrypted, as it is http:// and "+c.away()+": use https://, or set insecure: true")
		}
		if c.DenyPrivate {
			bad("denyPrivate", "cannot be kept with proxyURL: the proxy makes the connection")
		}
	}
	if c.Timeout <= 0 {
		bad("timeout", "must be above 0")
	}
	if c.MaxEventBytes != 0 && c.MaxEventBytes < minMaxEventBytes {
		bad("maxEventBytes", "must be at least 4Ki, which an event without its object may take; 0 means no limit")
	}
	switch c.Compress {
	case "", "none", "gzip":
	default:
		bad("compress", "must be gzip or none")
	}
	return errors.Join(errs...)
}

// plain reports whether requests to a URL leave the machine unencrypted, which those for loopback do by way of a proxy.
func (c *Config) plain(text string) bool {
	return sinks.PlainText(text) || strings.HasPrefix(strings.ToLower(text), "http:") && sinks.PlainText(c.ProxyURL)
}

// away is why they leave it.
func (c *Config) away() string {
	if sinks.PlainText(c.ProxyURL) {
		return "by way of proxyURL"
	}
	return "beyond loopback"
}

func (c *Config) validateAuth() error {
	var errs []error
	var ways []string
	for name := range c.Headers {
		if strings.EqualFold(name, "Authorization") {
			ways = append(ways, "headers."+name)
		}
	}
	if c.BearerToken != nil {
		ways = append(ways, "bearerToken")
		errs = append(errs, c.BearerToken.Validate("bearerToken"))
	}
	if c.OAuth != nil {
		ways = append(ways, "oauth")
		errs = append(errs, c.OAuth.Validate("oauth"))
	}
	if c.BasicAuth != nil {
		ways = append(ways, "basicAuth")
		errs = append(errs, c.BasicAuth.Validate("basicAuth"))
	}
	if len(ways) > 1 {
		errs = append(errs, &sinks.FieldError{Path: ways[1], Msg: "sets Authorization, as " + ways[0] + " does: keep one"})
	}
	return errors.Join(errs...)
}

// credentials is the path of a secret that requests carry, "" if there is none.
func (c *Config) credentials() string {
	switch {
	case c.BearerToken != nil:
		return "bearerToken"
	case c.BasicAuth != nil:
		return "basicAuth"
	case c.OAuth != nil:
		return "oauth"
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if !c.Headers[name].Secret.IsZero() {
			return "headers." + name
		}
	}
	return ""
}

func (c *Config) validateTarget() error {
	var errs []error
	switch c.Method {
	case "", http.MethodPost, http.MethodPut, http.MethodPatch:
	default:
		errs = append(errs, &sinks.FieldError{Path: "method", Msg: "must be POST, PUT or PATCH"})
	}
	if !c.URL.Secret.IsZero() {
		errs = append(errs, c.URL.Secret.Validate("url"))
	} else {
		errs = append(errs, validateURL("url", c.URL.Text, true))
	}
	return errors.Join(errs...)
}

// validateAccept checks the expression, with its place in the text.
func (c *Config) validateAccept() error {
	if c.Accept == "" {
		return nil
	}
	if c.Results {
		return &sinks.FieldError{Path: "accept", Msg: "cannot be used with results, which decides for each event"}
	}
	_, err := compileAccept(c.Accept)
	return err
}

func (c *Config) validateSigning() error {
	if c.Signing == nil {
		return nil
	}
	errs := []error{c.Signing.Secret.Validate("signing.secret")}
	if p := c.Signing.PreviousSecret; p != nil {
		errs = append(errs, p.Validate("signing.previousSecret"))
	}
	if c.Compress == "gzip" {
		errs = append(errs, &sinks.FieldError{Path: "compress", Msg: "cannot be used with signing: receivers disagree on whether the signature is of the compressed body"})
	}
	return errors.Join(errs...)
}

// validateURL never repeats the URL: it may hold a token.
func validateURL(path, text string, query bool) error {
	bad := func(msg string) error { return &sinks.FieldError{Path: path, Msg: msg} }
	if text == "" {
		return bad("required, for example https://ops.example.com/k8s")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil && strings.Contains(text, "://"):
		return bad("is not a URL")
	case err != nil || u.Scheme != "http" && u.Scheme != "https":
		return bad("must begin with http:// or https://")
	case u.Hostname() == "":
		return bad("names no host")
	case u.User != nil:
		return bad("must not hold a user or password: use basicAuth, which reads them from {env: NAME} or {file: PATH}")
	case u.Fragment != "":
		return bad("must not hold a #fragment, which is never sent")
	case !query && u.RawQuery != "":
		return bad("must not hold a query")
	}
	return nil
}

// Defaults are the delivery settings for webhooks: an event a request, four
// requests at once.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 1, MaxBytes: 1 << 20, Concurrency: 4}
}

// TakesHeartbeats implements sinks.HeartbeatTaker.
func (*Config) TakesHeartbeats() bool { return true }

// Open makes the sink. Secrets and files are first read by Write, so one that is
// missing pauses this sink and no other.
func (c *Config) Open(ctx context.Context, o sinks.Options) (sinks.Sink, error) {
	if o.BatchMode && o.Format == sinks.CloudEventsBinary {
		return nil, fmt.Errorf("format %s has no batches: remove batch.maxEvents or use format %s", sinks.CloudEventsBinary, sinks.CloudEvents)
	}
	method := cmp.Or(c.Method, http.MethodPost)
	request, err := http.NewRequestWithContext(ctx, method, "", http.NoBody) // the URL is set later
	if err != nil {
		return nil, err
	}
	var verdict *acceptance
	if c.Accept != "" {
		if verdict, err = compileAccept(c.Accept); err != nil {
			return nil, err
		}
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	clients, err := newClients(c, o, m)
	if err != nil {
		return nil, err
	}
	return &sink{
		request: request,
		encoder: newEncoder(o, c.Compress == "gzip"),
		timeout: c.Timeout.Std(),
		limits:  sinks.Limits{MaxEventBytes: int(c.MaxEventBytes)},
		results: c.Results,
		target:  newTarget(c, o.Dir),
		accept:  verdict,
		tokens:  newTokens(c, o.Dir, clients.plain),
		secrets: newCredentials(c, o.Dir),
		clients: clients,
		metrics: m,
	}, nil
}

// reserved are headers that the sink or HTTP itself sets.
func reserved(name string) bool {
	switch n := strings.ToLower(name); n {
	case "content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "host", "trailer", "te", "upgrade", "idempotency-key":
		return true
	default:
		return strings.HasPrefix(n, "ce-") || strings.HasPrefix(n, "webhook-")
	}
}
