package kafka

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

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
	o := c.OAuth
	secret, err := read("sasl.oauth.clientSecret", o.ClientSecret, s.dir)
	if err != nil {
		return "", err
	}
	trust, err := o.TLS.In(s.dir).Load()
	if err != nil {
		return "", sinks.Pause(fmt.Errorf("sasl.oauth.tls: %w", err))
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(o.Scopes) > 0 {
		form.Set("scope", strings.Join(o.Scopes, " "))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", errors.New("sasl.oauth.tokenURL is not a URL") // the error may hold its query
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(url.QueryEscape(o.ClientID), url.QueryEscape(secret))
	body, err := s.fetch(req, trust)
	if err != nil {
		return "", fmt.Errorf("fetch the token of sasl.oauth: %w", err)
	}
	var answer struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Token == "" {
		return "", errors.New("fetch the token of sasl.oauth: the answer holds no access_token")
	}
	return answer.Token, nil
}

// maxAnswer bounds the answer of a server that gives credentials.
const maxAnswer = 1 << 20

// errorCode is what an OAuth 2.0 server may call an error.
var errorCode = regexp.MustCompile(`^[a-z_]{1,64}$`)

// fetch sends a request for credentials and returns the body of the answer. It follows no
// redirect, and its errors hold neither the URL nor the body.
func (s *sink) fetch(req *http.Request, trust *tls.Config) ([]byte, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: trust, DisableKeepAlives: true}
	client := &http.Client{
		Transport: transport, Timeout: s.config.Timeout.Std(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req) //nolint:gosec // the addresses are the operator's
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return body, nil
	}
	err = fmt.Errorf("%s answered %d", req.URL.Host, resp.StatusCode)
	var answer struct{ Error string }
	if json.Unmarshal(body, &answer) == nil && errorCode.MatchString(answer.Error) {
		err = fmt.Errorf("%w: %s", err, answer.Error)
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError {
		return nil, err
	}
	return nil, sinks.Pause(err)
}
