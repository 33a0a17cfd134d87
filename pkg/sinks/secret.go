package sinks

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Secret names where a secret value is to be found: never the value itself. In
// the configuration it is {env: NAME} or {file: PATH}.
//
// It holds no value, so printing it is safe. A file is read at each call of
// Value, so that a rotated one takes effect by itself.
type Secret struct {
	Env  string `json:"env,omitempty"`  // name of an environment variable
	File string `json:"file,omitempty"` // path of a file; one trailing newline is not part of the value
}

// IsZero reports whether no source is named.
func (s Secret) IsZero() bool { return s == Secret{} }

// Validate reports a *[FieldError] below path unless exactly one source is named, a variable by its
// name alone.
func (s Secret) Validate(path string) error {
	if (s.Env == "") == (s.File == "") {
		return &FieldError{Path: path, Msg: "name exactly one source: {env: NAME} or {file: PATH}"}
	}
	if strings.HasPrefix(s.Env, "$") {
		return &FieldError{Path: path + ".env", Msg: "name the variable without $: the file is not expanded"}
	}
	return nil
}

// In returns the secret with a relative file taken from dir ([Options.Dir]).
func (s Secret) In(dir string) Secret {
	s.File = InDir(dir, s.File)
	return s
}

// InDir returns path as it is when it is empty or absolute, and below dir
// otherwise.
func InDir(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// Value reads the secret. The error names the source, never the value.
func (s Secret) Value() (string, error) {
	if s.Env != "" {
		v, ok := os.LookupEnv(s.Env)
		if !ok || strings.TrimSpace(v) == "" {
			return "", fmt.Errorf("environment variable %s is not set or empty: set it and restart watcherd", s.Env)
		}
		return v, nil
	}
	b, err := readFile(s.File)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	v := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if strings.TrimSpace(v) == "" {
		return "", fmt.Errorf("secret file %s is empty", s.File)
	}
	return v, nil
}

// maxFile bounds a file with a secret, a key or certificates, in bytes: those of a Secret or ConfigMap have no more.
const maxFile = 1 << 20

// readFile reads such a file. A configuration may name any: a pipe or a device may have no end, and a file of another kind may
// not fit into memory.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return b, err
}

// LogValue shows where the secret comes from.
func (s Secret) LogValue() slog.Value {
	if s.Env != "" {
		return slog.StringValue("env:" + s.Env)
	}
	return slog.StringValue("file:" + s.File)
}

// Header is the value of a header of HTTP, or a URL: text, or a secret.
type Header struct {
	Text   string
	Secret Secret
}

// UnmarshalJSON reads a string, or {"env": ...} or {"file": ...}.
func (h *Header) UnmarshalJSON(b []byte) error {
	*h = Header{}
	switch {
	case bytes.HasPrefix(b, []byte(`"`)):
		return json.Unmarshal(b, &h.Text)
	case !bytes.HasPrefix(b, []byte("{")):
		return errors.New("must be text, {env: NAME} or {file: PATH}; put quotes around a number, true or false")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&h.Secret); err != nil || h.Secret.IsZero() {
		return errors.New("must be text, {env: NAME} or {file: PATH}")
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (h Header) MarshalJSON() ([]byte, error) {
	if h.Secret.IsZero() {
		return json.Marshal(h.Text)
	}
	return json.Marshal(h.Secret)
}

// Validate reports a *[FieldError] at path for a header that HTTP cannot carry, or whose value
// must not be part of the configuration unless insecure is set.
func (h Header) Validate(path, name string, insecure bool) error {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return &FieldError{Path: path, Msg: "is not the name of a header"}
	case !h.Secret.IsZero():
		return h.Secret.Validate(path)
	case confidential(name) && !insecure:
		return &FieldError{Path: path, Msg: "is a secret: name where it is to be found, {env: NAME} or {file: PATH}"}
	case !httpguts.ValidHeaderFieldValue(h.Text):
		return &FieldError{Path: path, Msg: "holds a character that no header can carry"}
	}
	return nil
}

// Value is the text, or the secret's value, read at each call. A relative file is taken from dir.
func (h Header) Value(dir string) (string, error) {
	if h.Secret.IsZero() {
		return h.Text, nil
	}
	v, err := h.Secret.In(dir).Value()
	if err == nil && !httpguts.ValidHeaderFieldValue(v) {
		err = errors.New("the secret holds a character that no header can carry")
	}
	return v, err
}

// BasicAuth is the `basicAuth` block of kinds that speak HTTP: a user and a password.
type BasicAuth struct {
	Username string `json:"username"` // Name of the user, without a colon.
	Password Secret `json:"password"` // Password of the user.
}

// Validate reports every problem of the block, which is at path.
func (b *BasicAuth) Validate(path string) error {
	err := b.Password.Validate(path + ".password")
	if b.Username == "" || strings.ContainsRune(b.Username, ':') {
		err = errors.Join(err, &FieldError{Path: path + ".username", Msg: "required, and without a colon"})
	}
	return err
}

// Header is the value of the header Authorization.
func (b *BasicAuth) Header(password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(b.Username+":"+password))
}

// PlainText reports whether requests to a URL leave the machine unencrypted.
func PlainText(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() == "localhost" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return ip == nil || !ip.IsLoopback()
}

// confidential reports whether the value of a header is a secret, by its name.
func confidential(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	joined := strings.ReplaceAll(name, "-", "")
	if slices.ContainsFunc([]string{"authorization", "cookie", "token", "secret", "password", "passwd", "credential", "apikey", "accesskey", "authkey", "routingkey", "honeycombteam"},
		func(word string) bool { return strings.Contains(joined, word) }) {
		return true
	}
	before, last := "", name
	if i := strings.LastIndexByte(name, '-'); i >= 0 {
		before, last = name[:i], name[i+1:]
	}
	public := slices.ContainsFunc([]string{"idempotency", "partition", "ordering", "message", "cache", "surrogate", "sort", "group"},
		func(word string) bool { return strings.HasSuffix(before, word) })
	return last == "auth" || last == "key" && !public
}

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
// Relative files are below dir; base is used for its proxy, and not changed. The errors
// hold no secret.
func (o *OAuth) Fetch(ctx context.Context, dir string, base *http.Transport) (token string, life time.Duration, err error) {
	secret, err := o.ClientSecret.In(dir).Value()
	if err != nil {
		return "", 0, Pause(fmt.Errorf("oauth.clientSecret: %w", err))
	}
	base = base.Clone()
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
	body, err := FetchCredentials(req, base, secret, url.QueryEscape(secret))
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
	if !httpguts.ValidHeaderFieldValue(answer.Token) {
		return "", 0, errors.New("fetch the token of oauth: the access_token holds a character that no header can carry")
	}
	const longest = 24 * time.Hour
	return answer.Token, time.Duration(min(max(answer.Expires, 0), longest.Seconds()) * float64(time.Second)), nil
}

// Bounds of the answer of a server that gives credentials, and of the error for none.
const (
	maxCredentials      = 1 << 20
	maxCredentialHeader = 64 << 10
	maxCause            = 1 << 10
)

// errorCode is what an OAuth 2.0 server may call an error.
var errorCode = regexp.MustCompile(`^[a-z_]{1,64}$`)

// FetchCredentials sends a request for credentials, over a connection of its own that is made
// as transport makes them, and returns the body of the answer. It follows no redirect, and its errors hold neither the
// URL nor the body, nor the secrets that are in the request.
func FetchCredentials(req *http.Request, transport *http.Transport, secrets ...string) ([]byte, error) {
	transport = transport.Clone()
	transport.DisableKeepAlives = true
	transport.MaxResponseHeaderBytes = maxCredentialHeader
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req) //nolint:gosec // the addresses are the operator's
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, unanswered(req, secrets, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxCredentials))
	if err != nil {
		return nil, unanswered(req, secrets, err)
	}
	if resp.StatusCode == http.StatusOK {
		return body, nil
	}
	err = fmt.Errorf("%s answered %d", req.URL.Host, resp.StatusCode)
	var answer struct{ Error string }
	if json.Unmarshal(body, &answer) == nil && errorCode.MatchString(answer.Error) {
		err = fmt.Errorf("%w: %s", err, masked(req, secrets, answer.Error))
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError {
		return nil, err
	}
	return nil, Pause(err)
}

// unanswered returns the error of a request without an answer, or with half of one, as it may quote that.
func unanswered(req *http.Request, secrets []string, err error) error {
	text := masked(req, secrets, err.Error())
	if len(text) > maxCause {
		text = strings.ToValidUTF8(text[:maxCause], "") + "..."
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

// masked returns the text of a server that has got a request without the secrets of that.
func masked(req *http.Request, secrets []string, text string) string {
	hidden := slices.Clone(secrets)
	if uri := req.URL.RequestURI(); uri != "/" {
		hidden = append(hidden, uri)
	}
	for _, values := range req.Header {
		for _, v := range values {
			hidden = append(append(hidden, v), strings.Fields(v)...) // a scheme precedes the credentials
		}
	}
	var pairs []string
	for _, h := range hidden {
		if h != "" {
			quoted := strconv.Quote(h)
			pairs = append(pairs, h, "***", quoted[1:len(quoted)-1], "***")
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
