package rawwatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	acceptObjects      = "application/json"
	acceptMetadata     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

	// acceptAnyList is for lists of which only the version counts.
	acceptAnyList = acceptMetadataList + "," + acceptObjects

	// maxErrorBody is how much of an error response is read.
	maxErrorBody = 64 << 10
)

// Client sends list and watch requests to one API server. It is safe for
// concurrent use and shares the connections of client-go clients made from the
// same rest.Config.
type Client struct {
	http    *http.Client
	base    *url.URL
	limiter flowcontrol.RateLimiter // nil: none
	lists   chan struct{}           // a token for each page being read
	streams atomic.Int64            // watches that the client's sources keep up

	typer    *rawjson.Editor // changes nothing
	kindPath rawjson.Path

	namespacePath, namePath, uidPath, versionPath rawjson.Path
}

// NewClient makes a client for what cfg names, with its TLS, authentication,
// impersonation, user agent, proxy, wrappers and, for lists, its rate limit.
// cfg.Timeout is not used: it would end watches. At most concurrentLists pages are
// read at the same time.
func NewClient(cfg *rest.Config, concurrentLists int) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	if cfg.UserAgent == "" {
		cfg.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("server address: %w", err)
	}
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("http client: %w", err)
	}
	typer, err := rawjson.NewEditor()
	if err != nil {
		return nil, err
	}
	c := &Client{http: h, base: base, limiter: limiterFor(cfg), lists: make(chan struct{}, max(1, concurrentLists)), typer: typer}
	for text, path := range map[string]*rawjson.Path{
		"kind": &c.kindPath, "metadata.namespace": &c.namespacePath, "metadata.name": &c.namePath,
		"metadata.uid": &c.uidPath, "metadata.resourceVersion": &c.versionPath,
	} {
		if *path, err = rawjson.ParsePath(text); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// limiterFor follows rest.RESTClientFor.
func limiterFor(cfg *rest.Config) flowcontrol.RateLimiter {
	if cfg.RateLimiter != nil {
		return cfg.RateLimiter
	}
	qps, burst := cfg.QPS, cfg.Burst
	if qps == 0 {
		qps = rest.DefaultQPS
	}
	if burst == 0 {
		burst = rest.DefaultBurst
	}
	if qps < 0 {
		return nil
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// resourcePath is where a resource's collection is served. An empty namespace
// means all of them, or a cluster-scoped resource.
func resourcePath(gvr schema.GroupVersionResource, namespace string) string {
	var b strings.Builder
	if gvr.Group == "" {
		b.WriteString("/api/")
	} else {
		b.WriteString("/apis/" + url.PathEscape(gvr.Group) + "/")
	}
	b.WriteString(url.PathEscape(gvr.Version))
	if namespace != "" {
		b.WriteString("/namespaces/" + url.PathEscape(namespace))
	}
	b.WriteString("/" + url.PathEscape(gvr.Resource))
	return b.String()
}

// wait waits for the rate limit, which watches are exempt from.
func (c *Client) wait(ctx context.Context) error {
	if c.limiter == nil {
		return nil
	}
	return c.limiter.Wait(ctx)
}

// acquireList waits for a place among the lists; release gives it back.
func (c *Client) acquireList(ctx context.Context) (release func(), err error) {
	select {
	case c.lists <- struct{}{}:
		return func() { <-c.lists }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// get sends a request and returns a response with status 200, whose body the
// caller closes. Any other status is an *apierrors.StatusError.
func (c *Client) get(ctx context.Context, path string, query url.Values, accept string) (*http.Response, error) {
	u := *c.base
	u.Path = strings.TrimSuffix(u.Path, "/") + path
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, responseError(resp)
	}
	return resp, nil
}

// responseError reads the error that a response other than 200 stands for.
func responseError(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		body = nil // the status line alone says enough
	}
	retryAfter, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date, or none, counts as none
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status != metav1.StatusSuccess {
		if status.Code == 0 {
			status.Code = int32(resp.StatusCode)
		}
		if retryAfter > 0 && (status.Details == nil || status.Details.RetryAfterSeconds == 0) {
			details := metav1.StatusDetails{}
			if status.Details != nil {
				details = *status.Details
			}
			details.RetryAfterSeconds = int32(min(retryAfter, 3600))
			status.Details = &details
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, "get", schema.GroupResource{}, "", strings.TrimSpace(string(body)), retryAfter, true)
}

// isExpired tells whether history was lost: 410 in either of its spellings.
func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// permanent tells whether the same request is going to fail again: the server
// understood it and refuses it.
func permanent(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return errors.As(err, new(*unreadable)) || errors.As(err, new(*itemError))
	}
	switch code := status.Status().Code; code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// retryAfter is how long the server asks to wait, 0 if it does not.
func retryAfter(err error) time.Duration {
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(s) * time.Second
	}
	return 0
}
