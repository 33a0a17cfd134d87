package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/net/http/httpguts"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// credentials turns the configured headers and secrets into headers of a
// request. It is used from several goroutines.
type credentials struct {
	headers []credential
	signing []*cached // the current secret first
}

type credential struct {
	name   string
	text   string                     // the value, unless it is secret
	secret *cached                    // nil: text
	render func(secret string) string // the header's value
}

func newCredentials(c *Config, dir string) *credentials {
	out := &credentials{}
	for name, h := range c.Headers {
		cr := credential{name: name, text: h.Text, render: func(s string) string { return s }}
		if !h.Secret.IsZero() {
			cr.secret = &cached{source: h.Secret.In(dir)}
		}
		out.headers = append(out.headers, cr)
	}
	if c.BearerToken != nil {
		out.headers = append(out.headers, credential{
			name: "Authorization", secret: &cached{source: c.BearerToken.In(dir)},
			render: func(s string) string { return "Bearer " + s },
		})
	}
	if c.BasicAuth != nil {
		out.headers = append(out.headers, credential{
			name: "Authorization", secret: &cached{source: c.BasicAuth.Password.In(dir)},
			render: c.BasicAuth.Header,
		})
	}
	if c.Signing != nil {
		out.signing = append(out.signing, &cached{source: c.Signing.Secret.In(dir)})
		if p := c.Signing.PreviousSecret; p != nil {
			out.signing = append(out.signing, &cached{source: p.In(dir)})
		}
	}
	return out
}

// apply sets the headers and signs the body. It returns the values that must not
// show up anywhere.
func (c *credentials) apply(h http.Header, id string, body []byte) (hidden []string, err error) {
	for _, cr := range c.headers {
		value := cr.text
		if cr.secret != nil {
			secret, err := cr.secret.value()
			if err != nil {
				return nil, fmt.Errorf("header %s: %w", cr.name, err)
			}
			value = cr.render(secret)
			if !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("header %s: the secret holds a character that no header can carry, such as a line break", cr.name)
			}
			_, bare, _ := strings.Cut(value, " ") // behind a scheme
			hidden = append(hidden, value, secret, bare)
		}
		h.Set(cr.name, value)
	}
	if len(c.signing) == 0 {
		return hidden, nil
	}
	now := time.Now()
	signatures := make([]string, 0, len(c.signing))
	for _, s := range c.signing {
		secret, err := s.value()
		if err != nil {
			return nil, fmt.Errorf("signing: %w", err)
		}
		hidden = append(hidden, secret)
		signature, err := sign(secret, id, now, body)
		if err != nil {
			return nil, err
		}
		signatures = append(signatures, signature)
	}
	h.Set(standardwebhooks.HeaderWebhookID, id)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return hidden, nil
}

// sign never lets the library's error through: it may quote the secret.
func sign(secret, id string, now time.Time, body []byte) (string, error) {
	const prefix = "whsec_"
	key, err := standardwebhooks.NewWebhookRaw([]byte(secret))
	if strings.HasPrefix(secret, prefix) {
		if key, err = standardwebhooks.NewWebhook(secret); err != nil {
			return "", errors.New("signing: the secret begins with whsec_ and is not base64 after it")
		}
	}
	if err != nil {
		return "", errors.New("signing: the secret cannot be used as a key")
	}
	signature, err := key.Sign(id, now, body)
	if err != nil {
		return "", errors.New("signing failed")
	}
	return signature, nil
}

// cached is a secret that is read again at most once a second, and that keeps its
// last value while it cannot be read: files are not there for a moment when they
// are rotated.
type cached struct {
	source sinks.Secret

	mu   sync.Mutex // guards what follows; held over the read of a local file
	last string
	read time.Time
}

func (c *cached) value() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != "" && time.Since(c.read) < time.Second {
		return c.last, nil
	}
	v, err := c.source.Value()
	switch {
	case err == nil:
		c.last = v
	case c.last == "":
		return "", err
	}
	c.read = time.Now()
	return c.last, nil
}

// tokens fetches the token of OAuth and keeps it while it is valid. It is used from
// several goroutines.
type tokens struct {
	config *sinks.OAuth
	dir    string
	base   func() *http.Transport

	turn chan struct{} // holds one value: the turn to fetch

	mu   sync.Mutex // guards what follows
	last token
}

type token struct {
	text     string
	expires  time.Time // zero: not known
	accepted bool      // the endpoint has accepted a request with it
}

// margin is how long before its end a token is not used any more.
const margin = 10 * time.Second

func newTokens(c *Config, dir string, base func() *http.Transport) *tokens {
	if c.OAuth == nil {
		return nil
	}
	own := *c.OAuth
	t := &tokens{config: &own, dir: dir, base: base, turn: make(chan struct{}, 1)}
	t.turn <- struct{}{}
	return t
}

// value returns a token, which one caller at a time fetches if it has to.
func (t *tokens) value(ctx context.Context) (string, error) {
	if last := t.current(); last != "" {
		return last, nil
	}
	select {
	case <-t.turn:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	defer func() { t.turn <- struct{}{} }()
	if last := t.current(); last != "" {
		return last, nil
	}
	text, life, err := t.config.Fetch(ctx, t.dir, t.base())
	if err != nil {
		return "", err
	}
	next := token{text: text}
	if life > 0 {
		next.expires = time.Now().Add(max(life-margin, life/2))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = next
	return text, nil
}

// current returns the last token, empty if it is not valid any more.
func (t *tokens) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.last.expires.IsZero() && time.Now().After(t.last.expires) {
		return ""
	}
	return t.last.text
}

// judge takes in the status of a request with a token. It reports whether a 401 is worth
// a retry with another token: this one worked before.
func (t *tokens) judge(text string, status int) (retry bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.text != text {
		return status == http.StatusUnauthorized // another one took its place
	}
	if status != http.StatusUnauthorized {
		t.last.accepted = t.last.accepted || status/100 == 2
		return false
	}
	retry = t.last.accepted
	t.last = token{}
	return retry
}

// target is the address of the requests. It is used from several goroutines.
type target struct {
	config *Config
	text   string
	secret *cached // nil: the address is text

	mu      sync.Mutex // guards what follows
	made    string     // what address was made of
	address *address
}

// address is a URL with what of it must not show up anywhere.
type address struct {
	url    *url.URL
	hidden []string
}

func newTarget(c *Config, dir string) *target {
	own := *c
	t := &target{config: &own, text: c.URL.Text}
	if !c.URL.Secret.IsZero() {
		t.secret = &cached{source: c.URL.Secret.In(dir)}
	}
	return t
}

// current returns the address, which a secret may have changed.
func (t *target) current() (*address, error) {
	text := t.text
	if t.secret != nil {
		var err error
		if text, err = t.secret.value(); err != nil {
			return nil, fmt.Errorf("url: %w", err)
		}
		if !t.config.Insecure && t.config.plain(text) {
			return nil, fmt.Errorf("url: the secret goes out unencrypted, as it is http:// and %s: use https://, or set insecure: true", t.config.away())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.address != nil && t.made == text {
		return t.address, nil
	}
	a, err := newAddress(text, t.secret != nil)
	if err != nil {
		return nil, err
	}
	t.made, t.address = text, a
	return a, nil
}

// minToken is the length from which a part of a path that is text in the configuration
// may be a token. Shorter ones are words, which occur in answers.
const minToken = 16

func newAddress(text string, secret bool) (*address, error) {
	if err := validateURL("url", text, true); err != nil {
		if f, ok := errors.AsType[*sinks.FieldError](err); ok && secret {
			err = fmt.Errorf("url: the secret %s", f.Msg)
		}
		return nil, err
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("url: is not a URL") // the error quotes it
	}
	a := &address{url: u, hidden: []string{text, u.RawQuery, u.RequestURI()}}
	if secret {
		a.hidden = append(a.hidden, u.Path, u.EscapedPath())
	}
	for _, values := range u.Query() {
		for _, v := range values {
			a.hidden = append(a.hidden, v, url.QueryEscape(v))
		}
	}
	for _, path := range []string{u.Path, u.EscapedPath()} {
		for part := range strings.SplitSeq(path, "/") {
			if secret || len(part) >= minToken {
				a.hidden = append(a.hidden, part)
			}
		}
	}
	return a, nil
}
