package webhook

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// target is the address of the requests. It is used from several goroutines.
type target struct {
	text     string
	secret   *cached // nil: the address is text
	insecure bool    // a secret address may be one of http beyond loopback

	mu      sync.Mutex // guards what follows
	made    string     // what address was made of
	address *address
}

// address is a URL with what of it must not show up anywhere.
type address struct {
	url    *url.URL
	hidden []string
}

func newTarget(v sinks.Header, dir string, insecure bool) *target {
	t := &target{insecure: insecure}
	if v.Secret.IsZero() {
		t.text = v.Text
	} else {
		t.secret = &cached{source: v.Secret.In(dir)}
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
		if !t.insecure && sinks.PlainText(text) {
			return nil, errors.New("url: the secret goes out unencrypted, as it is http:// and beyond loopback: use https://, or set insecure: true")
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
