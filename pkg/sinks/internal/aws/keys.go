// Package aws finds credentials of AWS: those of a block, or else those of the environment in the order of the AWS
// SDKs: keys, a role for the service account (IRSA), EKS Pod Identity.
package aws

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// Keys are credentials. Expires is zero if they do not expire, or if that is unknown.
type Keys struct {
	ID, Secret, Session string
	Expires             time.Time
}

// Source is where the credentials are.
type Source struct {
	AccessKey    string // of the block; if it is empty, the environment has the credentials
	SecretKey    *sinks.Secret
	SessionToken *sinks.Secret
	Path         string        // of the keys accessKey, secretKey and sessionToken, such as "sasl."
	Dir          string        // of relative files
	Timeout      time.Duration // of a request for credentials
}

// Validate reports every problem of the source's keys.
func (s *Source) Validate() error {
	var errs []error
	if (s.AccessKey == "") != (s.SecretKey == nil) || s.SessionToken != nil && s.SecretKey == nil {
		errs = append(errs, &sinks.FieldError{Path: s.Path + "accessKey", Msg: "accessKey and secretKey belong together"})
	}
	if s.SecretKey != nil {
		errs = append(errs, s.SecretKey.Validate(s.Path+"secretKey"))
	}
	if s.SessionToken != nil {
		errs = append(errs, s.SessionToken.Validate(s.Path+"sessionToken"))
	}
	return errors.Join(errs...)
}

// Get returns the credentials. Secrets and files are read at each call. The errors hold no secret.
func (s *Source) Get(ctx context.Context) (k Keys, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	switch token, role := os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"), os.Getenv("AWS_ROLE_ARN"); {
	case s.AccessKey != "":
		k.ID = s.AccessKey
		if k.Secret, err = read(s.Path+"secretKey", s.SecretKey.In(s.Dir)); err == nil && s.SessionToken != nil {
			k.Session, err = read(s.Path+"sessionToken", s.SessionToken.In(s.Dir))
		}
		return k, err
	case os.Getenv("AWS_ACCESS_KEY_ID") != "" && os.Getenv("AWS_SECRET_ACCESS_KEY") != "":
		return Keys{ID: os.Getenv("AWS_ACCESS_KEY_ID"), Secret: os.Getenv("AWS_SECRET_ACCESS_KEY"), Session: os.Getenv("AWS_SESSION_TOKEN")}, nil
	case token != "" && role != "":
		if k, err = assumeRole(ctx, token, role); err != nil {
			err = fmt.Errorf("assume the role of AWS_ROLE_ARN: %w", err)
		}
		return k, err
	case os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		if k, err = podIdentity(ctx); err != nil {
			err = fmt.Errorf("fetch credentials of EKS Pod Identity: %w", err)
		}
		return k, err
	default:
		return k, sinks.Pause(fmt.Errorf("no AWS credentials: set %[1]saccessKey and %[1]ssecretKey, or give the pod's service account a role", s.Path))
	}
}

// Region is that of the environment, or "".
func Region() string { return cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")) }

// Domain is that of a service's hosts in a region.
func Domain(region string) string {
	if strings.HasPrefix(region, "cn-") {
		return "amazonaws.com.cn"
	}
	return "amazonaws.com"
}

func read(key string, s sinks.Secret) (string, error) {
	v, err := s.Value()
	if err != nil {
		return "", sinks.Pause(fmt.Errorf("%s: %w", key, err))
	}
	return v, nil
}

// assumeRole exchanges the service account's token for credentials of a role.
func assumeRole(ctx context.Context, tokenFile, role string) (Keys, error) {
	token, err := read("AWS_WEB_IDENTITY_TOKEN_FILE", sinks.Secret{File: tokenFile})
	if err != nil {
		return Keys{}, err
	}
	endpoint := os.Getenv("AWS_ENDPOINT_URL_STS")
	if endpoint == "" {
		host := "sts.amazonaws.com"
		if region := Region(); region != "" {
			host = "sts." + region + "." + Domain(region)
		}
		endpoint = "https://" + host + "/"
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"},
		"RoleArn": {role}, "RoleSessionName": {"watcherd"}, "WebIdentityToken": {token},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode())) //nolint:gosec // the address is the operator's
	if err != nil {
		return Keys{}, errors.New("AWS_ENDPOINT_URL_STS is not a URL")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	body, err := fetch(req, token)
	if err != nil {
		return Keys{}, err
	}
	var answer struct {
		ID      string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>AccessKeyId"`
		Secret  string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>SecretAccessKey"`
		Session string    `xml:"AssumeRoleWithWebIdentityResult>Credentials>SessionToken"`
		Expires time.Time `xml:"AssumeRoleWithWebIdentityResult>Credentials>Expiration"`
	}
	if err := xml.Unmarshal(body, &answer); err != nil || answer.ID == "" || answer.Secret == "" { //nolint:gosec // four texts of a bounded answer
		return Keys{}, errors.New("the answer holds no credentials")
	}
	return Keys{answer.ID, answer.Secret, answer.Session, answer.Expires}, nil
}

// podIdentity asks the agent on the node.
func podIdentity(ctx context.Context) (Keys, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI"), nil) //nolint:gosec // the address is the operator's
	if err != nil {
		return Keys{}, errors.New("AWS_CONTAINER_CREDENTIALS_FULL_URI is not a URL")
	}
	token := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
	if file := os.Getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
		if token, err = read("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", sinks.Secret{File: file}); err != nil {
			return Keys{}, err
		}
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	body, err := fetch(req)
	if err != nil {
		return Keys{}, err
	}
	var answer struct {
		ID      string    `json:"AccessKeyId"`
		Secret  string    `json:"SecretAccessKey"`
		Session string    `json:"Token"`
		Expires time.Time `json:"Expiration"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.ID == "" || answer.Secret == "" {
		return Keys{}, errors.New("the answer holds no credentials")
	}
	return Keys{answer.ID, answer.Secret, answer.Session, answer.Expires}, nil
}

func fetch(req *http.Request, secrets ...string) ([]byte, error) {
	return sinks.FetchCredentials(req, &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}, secrets...)
}
