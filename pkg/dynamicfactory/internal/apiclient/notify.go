package apiclient

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

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
