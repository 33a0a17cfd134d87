package apiclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// ProbeTimeout bounds a probe, which reads one small object.
const ProbeTimeout = 30 * time.Second

// ErrForeign reports that the API server belongs to another cluster than the recorded
// state.
var ErrForeign = errors.New("the API server belongs to another cluster")

// Prober requests the identity and the version of the cluster for all sources: one
// consistent list of namespaces, narrowed to kube-system, has both at little cost. Sources
// that lose their connections together share one probe, and a source resumes without a
// list of its own resource.
//
// The version is that of the storage, for all resources that share it: every resource,
// except with --etcd-servers-overrides or an aggregated API server. A source therefore
// confirms a suspicion with its own resource.
type Prober struct {
	client *Client
	check  func(ctx context.Context, uid string) error

	mu      sync.Mutex // guards what follows
	uid     string     // of the first contact
	checked bool       // check has accepted uid
	last    *probe
	backs   []back
}

// back is a time at which a source found that the storage was set back, and the version of then, "" if it may not be read.
type back struct {
	version string
	at      time.Time
}

// maxBacks bounds the rollbacks that are remembered one by one.
const maxBacks = 64

// SetBack notes for the other sources that the storage was set back to a version, "" if it may not be read. Of more than
// maxBacks, the earliest become one at the time of the last of them, to an unknown version: sources that have not asked
// since then ask the server.
func (p *Prober) SetBack(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.backs = append(p.backs, back{version, time.Now()}); len(p.backs) > maxBacks {
		p.backs = slices.Delete(p.backs, 0, 1)
		p.backs[0].version = ""
	}
}

// BackSince returns the versions of SetBack since a time.
func (p *Prober) BackSince(t time.Time) (versions []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.backs {
		if b.at.After(t) {
			versions = append(versions, b.version)
		}
	}
	return versions
}

// NewProber makes a Prober. At the first contact it calls check, which may be nil, with the
// cluster's uid, "" if it cannot be read. An error rejects the cluster.
func NewProber(c *Client, check func(ctx context.Context, uid string) error) *Prober {
	return &Prober{client: c, check: check}
}

// probe is one request. done is closed when the other fields are set.
type probe struct {
	started time.Time
	done    chan struct{}
	version string // "" if not allowed
	err     error
	ended   bool // by the context of the source that sent it
}

// Guarded reports whether a probe precedes every list, and follows a list without a known object and
// the response to a watch.
func (p *Prober) Guarded() bool { return p.check != nil }

// Version returns the server's version at some time after notBefore, "" if the request is
// rejected. An error that wraps ErrForeign is final for the attempt; other errors are
// failures to reach the server.
func (p *Prober) Version(ctx context.Context, notBefore time.Time) (string, error) {
	for {
		q, mine := p.join(notBefore)
		if mine {
			p.ask(ctx, q)
		}
		select {
		case <-q.done:
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if !mine && q.ended && ctx.Err() == nil {
			notBefore = time.Now() // the request of the source that probed has ended; this one's has not
			continue
		}
		return q.version, q.err
	}
}

// join returns the probe to wait for. mine reports that the caller must send it.
func (p *Prober) join(notBefore time.Time) (q *probe, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && p.last.started.After(notBefore) {
		return p.last, false
	}
	p.last = &probe{started: time.Now(), done: make(chan struct{})}
	return p.last, true
}

// ask sends a probe. Later callers do not share its failure.
func (p *Prober) ask(ctx context.Context, q *probe) {
	var uid string
	q.version, uid, q.err = p.request(ctx)
	if q.err == nil {
		q.err = p.accept(ctx, uid, q.version != "")
	}
	if q.err != nil {
		q.ended = ctx.Err() != nil
		p.mu.Lock()
		if p.last == q {
			p.last = nil
		}
		p.mu.Unlock()
	}
	close(q.done)
}

func (p *Prober) request(ctx context.Context) (version, uid string, err error) {
	query := url.Values{"limit": {"1"}, "fieldSelector": {"metadata.name=kube-system"}}
	list, err := p.client.Page(ctx, PageRequest{
		Path:  ResourcePath(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, ""),
		Query: query, Accept: AcceptMetadataList, Timeout: ProbeTimeout,
		Item: func(raw []byte) error {
			m, err := rawjson.Scan(raw)
			if err == nil && string(m.Name) == "kube-system" {
				uid = string(m.UID)
			}
			return err
		},
	})
	switch {
	case errors.As(err, new(apierrors.APIStatus)) && IsPermanent(err):
		return "", "", nil // not allowed, or not served in this way; requests for a resource report their own failures
	case errors.As(err, new(*UnansweredError)):
		return "", "", err
	case err != nil:
		return "", "", fmt.Errorf("probe of the API server: %w", err)
	}
	return list.ResourceVersion, uid, nil
}

// accept compares the cluster with the one of the first contact. answered reports that uid is "" only
// if there is no kube-system, which an API server with a new storage has not made yet.
func (p *Prober) accept(ctx context.Context, uid string, answered bool) error {
	p.mu.Lock()
	known, checked := p.uid, p.checked
	p.mu.Unlock()
	switch {
	case known != "" && uid == "" && answered:
		return fmt.Errorf("%w: it has no kube-system, which had uid %s", ErrForeign, known)
	case known != "" && uid != "" && uid != known:
		return fmt.Errorf("%w: kube-system has uid %s, it had %s", ErrForeign, uid, known)
	}
	if p.check != nil && (!checked || known == "" && uid != "") {
		if err := p.check(ctx, uid); err != nil {
			return fmt.Errorf("%w: %w", ErrForeign, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if uid != "" {
		p.uid = uid
	}
	p.checked = true
	return nil
}

// Notifier reports that any object of a resource has changed. It neither lists the
// resource nor caches it.
type Notifier struct {
	client  *Client
	prober  *Prober
	path    string
	changed func()
	live    atomic.Bool
}

// NewNotifier makes a Notifier that calls changed for every change, and when changes may
// have been missed.
func NewNotifier(c *Client, p *Prober, gvr schema.GroupVersionResource, changed func()) *Notifier {
	return &Notifier{client: c, prober: p, path: ResourcePath(gvr, ""), changed: changed}
}

// Live reports whether the watch is established.
func (n *Notifier) Live() bool { return n.live.Load() }

// Run watches until ctx is done. A short watch counts as a failure, regardless of its end.
func (n *Notifier) Run(ctx context.Context) {
	var b Backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := n.request(ctx)
		n.live.Store(false)
		if time.Since(began) >= BackoffReset {
			b.Reset()
			if err == nil {
				continue
			}
		}
		if b.Wait(ctx, RetryAfter(err), MaxBackoff) != nil {
			return
		}
	}
}

// request watches from the present version until the stream ends. The error is nil for a
// regular end.
func (n *Notifier) request(ctx context.Context) error {
	timeout := WatchTimeout
	ctx, cancel := context.WithTimeout(ctx, timeout+TimeoutGrace)
	defer cancel()
	version, err := n.prober.Version(ctx, time.Now())
	if err != nil {
		return err
	}
	query := url.Values{"watch": {"true"}, "timeoutSeconds": {strconv.Itoa(int(timeout / time.Second))}}
	if version != "" {
		query.Set("resourceVersion", version) // without it, all objects would be sent first
	}
	resp, err := n.client.Get(ctx, n.path, query, AcceptMetadata)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n.live.Store(true)
	n.changed()
	l := NewLines(resp.Body)
	for {
		line, err := l.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		typ, raw, err := rawjson.SplitWatchLine(line)
		if err != nil {
			return err
		}
		if watch.EventType(typ) == watch.Error {
			return StatusError(raw)
		}
		n.changed()
	}
}
