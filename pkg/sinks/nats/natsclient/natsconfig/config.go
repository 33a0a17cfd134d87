// Package natsconfig has where the servers of NATS are, who a client is to them and whom it trusts. It does not link
// the client.
package natsconfig

import (
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Config is where to connect, and as whom. At most one way to authenticate is set.
type Config struct {
	Name string   // of the client, for the servers' operators
	URL  string   // of a server, without user and password
	URLs []string // of several of a cluster, instead of URL

	User            string
	Password, Token sinks.Secret
	CredentialsFile string // a user's JWT and key, as nsc writes them
	NkeySeedFile    string
	TLS             sinks.TLS // if not zero, TLS is demanded

	Timeout time.Duration // of an attempt to connect, and of a round trip
	Dir     string        // relative files are below it
	Log     *slog.Logger
}

// Validate reports every problem as a [sinks.FieldError] with the keys of a config.
func (c *Config) Validate() error {
	var errs []error
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	switch {
	case c.URL != "" && len(c.URLs) > 0:
		bad("urls", "keep one of url and urls")
	case c.URL == "" && len(c.URLs) == 0:
		bad("url", "required, for example nats://127.0.0.1:4222")
	case c.URL != "":
		errs = append(errs, validateURL("url", c.URL))
	}
	for i, u := range c.URLs {
		errs = append(errs, validateURL("urls["+strconv.Itoa(i)+"]", u))
	}
	if c.Timeout <= 0 {
		bad("timeout", "must be above 0")
	}
	var ways []string
	for _, w := range [...]struct {
		key string
		set bool
	}{
		{"user", c.User != "" || !c.Password.IsZero()},
		{"token", !c.Token.IsZero()},
		{"credentialsFile", c.CredentialsFile != ""},
		{"nkeySeedFile", c.NkeySeedFile != ""},
	} {
		if w.set {
			ways = append(ways, w.key)
		}
	}
	if (c.User == "") != c.Password.IsZero() {
		bad("user", "user and password belong together")
	}
	if len(ways) > 1 {
		bad(ways[1], "keep one way to authenticate: "+ways[0]+" is set too")
	}
	return errors.Join(append(errs, c.TLS.Validate("tls"))...)
}

// validateURL never repeats the URL: it may hold a password.
func validateURL(path, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return &sinks.FieldError{Path: path, Msg: "is not a URL such as nats://127.0.0.1:4222"}
	}
	switch u.Scheme {
	case "nats", "tls", "ws", "wss":
	default:
		return &sinks.FieldError{Path: path, Msg: "must begin with nats://, tls://, ws:// or wss://"}
	}
	if u.User != nil {
		return &sinks.FieldError{Path: path, Msg: "must not hold a user, password or token: use user and password or token, which are read from {env: NAME} or {file: PATH}"}
	}
	return nil
}
