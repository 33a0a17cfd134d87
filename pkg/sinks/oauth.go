package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// OAuth is the `oauth` block of a kind: OAuth 2.0 client credentials.
type OAuth struct {
	// TokenURL is the authorization server's token endpoint.
	TokenURL string `json:"tokenURL"`

	// ClientID of the sink.
	ClientID string `json:"clientID"`

	// ClientSecret of ClientID.
	ClientSecret *Secret `json:"clientSecret"`

	// Scopes to ask for.
	Scopes []string `json:"scopes,omitempty"`

	// TLS names the files to trust and to present at TokenURL.
	TLS TLS `json:"tls,omitzero"`

	// Insecure allows an http:// TokenURL beyond loopback: ClientSecret is sent to it in plain text.
	Insecure bool `json:"insecure,omitempty"`
}

// Validate reports every problem of the block, which is at path.
func (o *OAuth) Validate(path string) error {
	var errs []error
	bad := func(key, msg string) { errs = append(errs, &FieldError{Path: path + "." + key, Msg: msg}) }
	u, err := url.Parse(o.TokenURL)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		bad("tokenURL", "required: a URL such as https://login.example.com/oauth2/token")
	case u.User != nil:
		bad("tokenURL", "must not hold a user or password: use clientID and clientSecret")
	case PlainText(o.TokenURL) && !o.Insecure:
		bad("tokenURL", "takes clientSecret unencrypted, as it is http:// and beyond loopback: use https://, or set insecure: true")
	}
	if o.ClientID == "" || o.ClientSecret == nil {
		bad("clientID", "clientID and clientSecret are required")
	}
	if o.ClientSecret != nil {
		errs = append(errs, o.ClientSecret.Validate(path+".clientSecret"))
	}
	return errors.Join(append(errs, o.TLS.Validate(path+".tls"))...)
}

// Fetch asks for a token. Life is how long it is valid, 0 if the server does not say.
// Relative files are below dir; base is used for its proxy, and not shared. The errors
// hold no secret.
func (o *OAuth) Fetch(ctx context.Context, dir string, base *http.Transport) (token string, life time.Duration, err error) {
	secret, err := o.ClientSecret.In(dir).Value()
	if err != nil {
		return "", 0, Pause(fmt.Errorf("oauth.clientSecret: %w", err))
	}
	if base.TLSClientConfig, err = o.TLS.In(dir).Load(); err != nil {
		return "", 0, Pause(fmt.Errorf("oauth.tls: %w", err))
	}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(o.Scopes) > 0 {
		form.Set("scope", strings.Join(o.Scopes, " "))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, errors.New("oauth.tokenURL is not a URL") // the error may hold its query
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(url.QueryEscape(o.ClientID), url.QueryEscape(secret))
	body, err := FetchCredentials(req, base)
	if err != nil {
		return "", 0, fmt.Errorf("fetch the token of oauth: %w", err)
	}
	var answer struct {
		Token   string  `json:"access_token"`
		Expires float64 `json:"expires_in"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Token == "" {
		return "", 0, errors.New("fetch the token of oauth: the answer holds no access_token")
	}
	const longest = 24 * time.Hour
	return answer.Token, time.Duration(min(max(answer.Expires, 0), longest.Seconds()) * float64(time.Second)), nil
}

// maxCredentials bounds the answer of a server that gives credentials.
const maxCredentials = 1 << 20

// errorCode is what an OAuth 2.0 server may call an error.
var errorCode = regexp.MustCompile(`^[a-z_]{1,64}$`)

// FetchCredentials sends a request for credentials, over a connection of its own, and
// returns the body of the answer. It follows no redirect, and its errors hold neither the
// URL nor the body.
func FetchCredentials(req *http.Request, transport *http.Transport) ([]byte, error) {
	transport.DisableKeepAlives = true
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req) //nolint:gosec // the addresses are the operator's
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		// It may quote the request, where a server sends that back.
		var hidden []string
		if uri := req.URL.RequestURI(); uri != "/" {
			hidden = append(hidden, uri, "***")
		}
		for _, values := range req.Header {
			for _, v := range values {
				hidden = append(hidden, v, "***")
			}
		}
		text := strings.NewReplacer(hidden...).Replace(err.Error())
		if text == err.Error() {
			return nil, err
		}
		return nil, errors.New(text)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxCredentials))
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
	return nil, Pause(err)
}
