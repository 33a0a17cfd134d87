package webhook

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

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
