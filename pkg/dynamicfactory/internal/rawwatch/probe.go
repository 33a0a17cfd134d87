package rawwatch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// probeTimeout is how long a probe may take. It reads one small object.
const probeTimeout = 30 * time.Second

// ErrForeign says that the API server belongs to another cluster than the state
// that is to be resumed.
var ErrForeign = errors.New("the API server belongs to another cluster")

// Prober asks the server, on behalf of all sources, which cluster it is and at
// which version: one consistent list of namespaces, narrowed to kube-system, tells
// both, and costs the server next to nothing. Sources that lose their connections
// together share one probe, and no source has to list its own resource to find out
// that it may resume.
//
// The version is that of the storage as a whole, for all resources that share it,
// which is all of them unless --etcd-servers-overrides or an aggregated API server
// keep some elsewhere: for what looks wrong, a source asks about its own resource.
type Prober struct {
	client *Client
	check  func(ctx context.Context, uid string) error

	mu      sync.Mutex
	uid     string // of the first contact
	checked bool   // check has accepted uid
	last    *probe
}

// NewProber makes a Prober. check, which may be nil, is asked at the first contact
// whether the cluster with this uid is the right one; "" if nobody may know.
func NewProber(c *Client, check func(ctx context.Context, uid string) error) *Prober {
	return &Prober{client: c, check: check}
}

// probe is one question to the server. done is closed when the rest is set.
type probe struct {
	started time.Time
	done    chan struct{}
	version string // "" if it may not be asked
	err     error
}

// guarded tells whether the first contact has to be a probe.
func (p *Prober) guarded() bool { return p.check != nil }

// version returns what the server's version is, or was at some time after notBefore.
// It is "" if the question is refused. An error that wraps ErrForeign is final for
// the attempt; others are failures to reach the server.
func (p *Prober) version(ctx context.Context, notBefore time.Time) (string, error) {
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
		if !mine && errors.Is(q.err, context.Canceled) && ctx.Err() == nil {
			notBefore = time.Now() // whoever asked has stopped; this source has not
			continue
		}
		return q.version, q.err
	}
}

// join returns the probe to wait for; mine tells that the caller has to ask.
func (p *Prober) join(notBefore time.Time) (q *probe, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && p.last.started.After(notBefore) {
		return p.last, false
	}
	p.last = &probe{started: time.Now(), done: make(chan struct{})}
	return p.last, true
}

// ask sends the question. A failure is not shared with those who come later.
func (p *Prober) ask(ctx context.Context, q *probe) {
	var uid string
	q.version, uid, q.err = p.request(ctx)
	if q.err == nil {
		q.err = p.accept(ctx, uid)
	}
	if q.err != nil {
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
	list, err := p.client.page(ctx, pageRequest{
		path:  resourcePath(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, ""),
		query: query, accept: acceptMetadataList, timeout: probeTimeout,
		item: func(raw []byte) error {
			m, err := rawjson.Scan(raw)
			if err == nil && string(m.Name) == "kube-system" {
				uid = string(m.UID)
			}
			return err
		},
	})
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotAcceptable(err):
		return "", "", nil // nobody may know; what the answer means for a resource shows there
	case err != nil:
		return "", "", fmt.Errorf("probe of the API server: %w", err)
	}
	return list.ResourceVersion, uid, nil
}

// accept compares the cluster with the one of the first contact.
func (p *Prober) accept(ctx context.Context, uid string) error {
	p.mu.Lock()
	known, checked := p.uid, p.checked
	p.mu.Unlock()
	if known != "" && uid != "" && uid != known {
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
