package apiclient

import (
	"bufio"
	"cmp"
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
)

const (
	// AcceptObjects is the Accept header of lists and watches of objects.
	AcceptObjects = "application/json"
	// AcceptMetadata is that of watches of metadata.
	AcceptMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	// AcceptMetadataList is that of lists of metadata.
	AcceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

	// AcceptAnyList is for lists of which only metadata is read. Some aggregated API servers
	// send nothing but whole objects.
	AcceptAnyList = AcceptMetadataList + "," + AcceptObjects

	// WatchTimeout is the minimum of the timeouts that watches request; the maximum is
	// twice that, so that informers do not reconnect at the same time. The server checks
	// the authorization of every request.
	WatchTimeout = 5 * time.Minute

	// TimeoutGrace is the time after the requested timeout at which a watch counts as a
	// broken connection.
	TimeoutGrace = 30 * time.Second

	// maxErrorBody bounds the body of an error response.
	maxErrorBody = 64 << 10

	// maxRetryAfter bounds the wait that a server may request. An API server requests a few
	// seconds; a proxy may request an hour, which is longer than the history of a watch.
	maxRetryAfter = time.Minute

	// maxMessage bounds the message of an error in bytes. It is kept and logged.
	maxMessage = 1 << 10
)

// Client sends list and watch requests to one API server. It is safe for
// concurrent use and shares the connections of client-go clients made from the
// same rest.Config.
type Client struct {
	http    *http.Client
	base    *url.URL
	limiter flowcontrol.RateLimiter // nil: none
	lists   chan struct{}           // a token for each page being read
	Streams atomic.Int64            // watches of the client's informers
}

// NewClient makes a client for the server of cfg, with its TLS, authentication,
// impersonation, user agent, proxy, wrappers and, for lists, its rate limit. It ignores
// cfg.Timeout, which would end watches. It reads at most concurrentLists pages at the same
// time.
func NewClient(cfg *rest.Config, concurrentLists int) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0
	cfg.UserAgent = cmp.Or(cfg.UserAgent, rest.DefaultKubernetesUserAgent())
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("server address: %w", err)
	}
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("http client: %w", err)
	}
	return &Client{http: h, base: base, limiter: limiterFor(cfg), lists: make(chan struct{}, max(1, concurrentLists))}, nil
}

// limiterFor follows rest.RESTClientFor.
func limiterFor(cfg *rest.Config) flowcontrol.RateLimiter {
	if cfg.RateLimiter != nil {
		return cfg.RateLimiter
	}
	qps, burst := cfg.QPS, cfg.Burst
	qps = cmp.Or(qps, rest.DefaultQPS)
	burst = cmp.Or(burst, rest.DefaultBurst)
	if qps < 0 {
		return nil
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// ResourcePath is the URL path of a resource's collection. An empty namespace stands for
// all namespaces, or a cluster-scoped resource.
func ResourcePath(gvr schema.GroupVersionResource, namespace string) string {
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

// wait waits for the rate limit, from which watches are exempt.
func (c *Client) wait(ctx context.Context) error {
	if c.limiter == nil {
		return nil
	}
	return c.limiter.Wait(ctx)
}

// acquireList waits for one of the places of lists. The caller calls releaseList.
func (c *Client) acquireList(ctx context.Context) error {
	select {
	case c.lists <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Client) releaseList() { <-c.lists }

// UnansweredError reports a request without a response.
type UnansweredError struct{ Err error }

func (e *UnansweredError) Error() string { return "the API server does not answer: " + e.Err.Error() }
func (e *UnansweredError) Unwrap() error { return e.Err }

// errPage reports a page of HTML, such as a proxy's for maintenance or login.
var errPage = errors.New("a proxy sent a page of HTML in place of the response")

// Get sends a request and returns a response with status 200, whose body the
// caller closes. Any other status is an *apierrors.StatusError. A page of HTML counts as no
// response.
func (c *Client) Get(ctx context.Context, path string, query url.Values, accept string) (*http.Response, error) {
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
		if e := (*url.Error)(nil); errors.As(err, &e) {
			err = e.Err // without the address, which is long and that of every failure
		}
		return nil, &UnansweredError{err}
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, responseError(resp)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		_ = resp.Body.Close()
		return nil, &UnansweredError{errPage}
	}
	return resp, nil
}

func responseError(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		body = nil // the status line is enough
	}
	retryAfter, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date counts as 0
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status != metav1.StatusSuccess {
		status.Code, status.Message = cmp.Or(status.Code, int32(resp.StatusCode)), short(status.Message)
		if retryAfter > 0 && (status.Details == nil || status.Details.RetryAfterSeconds == 0) {
			details := metav1.StatusDetails{}
			if status.Details != nil {
				details = *status.Details
			}
			details.RetryAfterSeconds = int32(min(retryAfter, int(maxRetryAfter/time.Second)))
			status.Details = &details
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, "get", schema.GroupResource{}, "", short(strings.TrimSpace(string(body))), retryAfter, true)
}

// short cuts the message of an error.
func short(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "..."
}

// IsExpired reports whether history was lost: 410 in either of its spellings.
func IsExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// IsPermanent reports whether a retry would fail too: the server understood the request and
// rejected it.
func IsPermanent(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return errors.As(err, new(*UnreadableError)) || errors.As(err, new(*itemError))
	}
	switch code := status.Status().Code; code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// RetryAfter is the wait that the server requests, at most a minute, or 0.
func RetryAfter(err error) time.Duration {
	if s, ok := apierrors.SuggestsClientDelay(err); ok {
		return min(time.Duration(s)*time.Second, maxRetryAfter)
	}
	return 0
}

const (
	backoffFirst = 500 * time.Millisecond
	// MaxBackoff bounds the wait between attempts.
	MaxBackoff = 30 * time.Second

	// spreadLeast, spreadEach and spreadMost bound the time over which streams that fail
	// together reconnect: spreadEach for each stream.
	spreadLeast = 250 * time.Millisecond
	spreadEach  = 2 * time.Millisecond
	spreadMost  = 10 * time.Second

	// BackoffReset is the lifetime of a stream after which the next failure counts as the
	// first one.
	BackoffReset = 10 * time.Second
)

// Backoff is the wait before the next attempt. It doubles with each attempt, and half of
// it is jitter. The first wait is random over a time that grows with the number of
// streams: they lose their connections together, and keep the distance that the first wait
// gives them. It belongs to one goroutine.
type Backoff struct {
	next    time.Duration
	Streams *atomic.Int64 // the number of streams; nil: one
}

// Reset makes the next wait the first one again.
func (b *Backoff) Reset() { b.next = 0 }

// Wait waits for the next attempt, at least for atLeast. most bounds the doubled wait. It
// returns ctx's error if ctx ends first.
func (b *Backoff) Wait(ctx context.Context, atLeast, most time.Duration) error {
	var d time.Duration
	if b.next == 0 {
		b.next = min(backoffFirst, most)
		d = atLeast + rand.N(b.spread())
	} else {
		b.next = min(b.next*2, most)
		d = max(b.next/2+rand.N(b.next/2+1), atLeast)
	}
	return Sleep(ctx, d)
}

// Spread is the time over which the streams of the client reconnect.
func (c *Client) Spread() time.Duration { return spread(&c.Streams) }

func (b *Backoff) spread() time.Duration { return spread(b.Streams) }

func spread(streams *atomic.Int64) time.Duration {
	n := int64(1)
	if streams != nil {
		n = streams.Load()
	}
	return min(max(time.Duration(n*int64(spreadEach)), spreadLeast), spreadMost)
}

// Sleep waits for d. It returns ctx's error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
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
	// readBuffer holds most lines as a whole, without a copy.
	readBuffer = 32 << 10

	// KeepBuffer is the maximum size of a buffer that is reused.
	KeepBuffer = 1 << 20

	// maxLine bounds a line: an object within its watch event.
	maxLine = compact.MaxRawLen + 1<<10
)

// Lines splits a watch stream into lines.
type Lines struct {
	r    *bufio.Reader
	long []byte // a line longer than r's buffer
	max  int    // the maximum length of a line
}

// NewLines returns the lines of r.
func NewLines(r io.Reader) *Lines {
	return &Lines{r: bufio.NewReaderSize(r, readBuffer), max: maxLine}
}

// Next returns the next non-empty line without its line break, valid until the following
// call. The last line may lack the line break. io.EOF follows it.
func (l *Lines) Next() ([]byte, error) {
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

func (l *Lines) line() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	if cap(l.long) > KeepBuffer {
		l.long = nil
	}
	l.long = append(l.long[:0], line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(l.long) > l.max {
			return nil, &UnreadableError{Err: fmt.Errorf("watch event of more than %d bytes", l.max)}
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
