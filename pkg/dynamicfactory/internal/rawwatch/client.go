package rawwatch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

	"github.com/watcherd/watcherd/pkg/compact"
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

const (
	backoffFirst = 500 * time.Millisecond
	backoffMax   = 30 * time.Second

	// backoffAbsent is the longest wait for a resource that is not served, or may
	// not be read: a CRD that comes back, or a grant, shows soon.
	backoffAbsent = 10 * time.Second

	// spreadLeast, spreadEach and spreadMost bound the time over which streams that
	// fail together begin again: spreadEach for each of them.
	spreadLeast = 250 * time.Millisecond
	spreadEach  = 2 * time.Millisecond
	spreadMost  = 10 * time.Second

	// backoffReset is how long a stream must have lived for the next failure to
	// count as the first.
	backoffReset = 10 * time.Second
)

// backoff is the wait before the next attempt: it doubles from attempt to attempt
// and has a jitter of half of it. The first wait is short for one stream, and random
// over a time that grows with the number of streams: they lose their connections
// together, and keep the distance that the first wait gives them. It is used by one
// goroutine.
type backoff struct {
	next    time.Duration
	streams *atomic.Int64 // how many there are; nil: one
}

func (b *backoff) reset() { b.next = 0 }

// wait waits for the next attempt: at least atLeast, and as long as the doubling
// has come to, but no longer than most. It returns ctx's error if ctx ends first.
func (b *backoff) wait(ctx context.Context, atLeast, most time.Duration) error {
	var d time.Duration
	if b.next == 0 {
		b.next = min(backoffFirst, most)
		d = atLeast + rand.N(b.spread())
	} else {
		b.next = min(b.next*2, most)
		d = max(b.next/2+rand.N(b.next/2+1), atLeast)
	}
	return sleep(ctx, d)
}

func (b *backoff) spread() time.Duration {
	n := int64(1)
	if b.streams != nil {
		n = b.streams.Load()
	}
	return min(max(time.Duration(n*int64(spreadEach)), spreadLeast), spreadMost)
}

// sleep waits for d. It returns ctx's error if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	// readBuffer holds most lines whole, so that they need no copy.
	readBuffer = 32 << 10

	// keepBuffer is the largest buffer kept from one long line to the next.
	keepBuffer = 1 << 20

	// maxLine bounds a line: an object and what a watch event puts around it.
	maxLine = compact.MaxRawLen + 1<<10
)

// lines splits a watch stream into lines.
type lines struct {
	r    *bufio.Reader
	long []byte // a line that did not fit in r's buffer
	max  int    // the longest line
}

func newLines(r io.Reader) *lines {
	return &lines{r: bufio.NewReaderSize(r, readBuffer), max: maxLine}
}

// next returns the next line that is not empty, without its end, valid until the
// following call. A last line without an end counts as a line; then comes io.EOF.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.line()
		if err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)) {
			return nil, err
		}
		if line = trim(line); len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (l *lines) line() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	if cap(l.long) > keepBuffer {
		l.long = nil
	}
	l.long = append(l.long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(l.long) > l.max {
			return nil, &unreadable{fmt.Errorf("a watch event of more than %d bytes", l.max)}
		}
		line, err = l.r.ReadSlice('\n')
		l.long = append(l.long, line...)
	}
	return l.long, err
}

func trim(line []byte) []byte {
	for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n = len(line) {
		line = line[:n-1]
	}
	return line
}
