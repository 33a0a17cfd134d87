package kafka

import (
	"context"
	"fmt"
	"net/http"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// mechanism returns how a connection authenticates. Every secret is read again at each
// connection, and when a broker asks for it during one.
func (s *sink) mechanism() sasl.Mechanism {
	c := s.config.SASL
	switch c.Mechanism {
	case mechanismPlain:
		return plain.Plain(func(context.Context) (a plain.Auth, err error) {
			a.User = c.User
			a.Pass, err = read("sasl.password", c.Password, s.dir)
			return a, err
		})
	case mechanismOAuth:
		return oauth.Oauth(func(ctx context.Context) (a oauth.Auth, err error) {
			a.Token, err = s.bearer(ctx)
			return a, err
		})
	case mechanismMSK:
		return aws.ManagedStreamingIAM(func(ctx context.Context) (aws.Auth, error) {
			k, err := s.awsKeys(ctx)
			return aws.Auth{AccessKey: k.id, SecretKey: k.secret, SessionToken: k.session, UserAgent: "watcherd"}, err
		})
	default:
		auth := func(context.Context) (a scram.Auth, err error) {
			a.User = c.User
			a.Pass, err = read("sasl.password", c.Password, s.dir)
			return a, err
		}
		if c.Mechanism == mechanismScram256 {
			return scram.Sha256(auth)
		}
		return scram.Sha512(auth)
	}
}

// readable reports the first secret or file that cannot be read, as an error that pauses.
func (s *sink) readable() error {
	if s.config.TLS != nil {
		if _, err := s.config.TLS.In(s.dir).Load(); err != nil {
			return sinks.Pause(fmt.Errorf("tls: %w", err))
		}
	}
	c := s.config.SASL
	if c == nil {
		return nil
	}
	for _, secret := range []struct {
		what  string
		value *sinks.Secret
	}{{"sasl.password", c.Password}, {"sasl.token", c.Token}, {"sasl.secretKey", c.SecretKey}, {"sasl.sessionToken", c.SessionToken}} {
		if secret.value == nil {
			continue
		}
		if _, err := read(secret.what, secret.value, s.dir); err != nil {
			return err
		}
	}
	return nil
}

// bearer returns the token of OAUTHBEARER.
func (s *sink) bearer(ctx context.Context) (string, error) {
	c := s.config.SASL
	if c.OAuth == nil {
		return read("sasl.token", c.Token, s.dir)
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout.Std())
	defer cancel()
	token, _, err := c.OAuth.Fetch(ctx, s.dir, &http.Transport{Proxy: http.ProxyFromEnvironment})
	if err != nil {
		return "", fmt.Errorf("sasl: %w", err)
	}
	return token, nil
}
