package rawwatch

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

// Notifier tells that something of a resource has changed, without knowing what: it
// neither lists the resource nor keeps anything of it.
type Notifier struct {
	client  *Client
	prober  *Prober
	path    string
	changed func()
	live    atomic.Bool
}

// NewNotifier makes a Notifier that calls changed for every change, and whenever
// changes may have been missed.
func NewNotifier(c *Client, p *Prober, gvr schema.GroupVersionResource, changed func()) *Notifier {
	return &Notifier{client: c, prober: p, path: resourcePath(gvr, ""), changed: changed}
}

// Live tells whether the watch is established.
func (n *Notifier) Live() bool { return n.live.Load() }

// Run watches until ctx is done. A watch that ends soon counts as a failure, however
// it ended.
func (n *Notifier) Run(ctx context.Context) {
	var b backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := n.request(ctx)
		n.live.Store(false)
		if time.Since(began) >= backoffReset {
			b.reset()
			if err == nil {
				continue
			}
		}
		if b.wait(ctx, retryAfter(err), backoffMax) != nil {
			return
		}
	}
}

// request watches from now on until the stream ends, as it should if err is nil.
func (n *Notifier) request(ctx context.Context) error {
	timeout := watchTimeout
	ctx, cancel := context.WithTimeout(ctx, timeout+timeoutGrace)
	defer cancel()
	version, err := n.prober.version(ctx, time.Now())
	if err != nil {
		return err
	}
	query := url.Values{"watch": {"true"}, "timeoutSeconds": {strconv.Itoa(int(timeout / time.Second))}}
	if version != "" {
		query.Set("resourceVersion", version) // or else everything would be sent first
	}
	resp, err := n.client.get(ctx, n.path, query, acceptMetadata)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n.live.Store(true)
	n.changed()
	l := newLines(resp.Body)
	for {
		line, err := l.next()
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
			return statusError(raw)
		}
		n.changed()
	}
}
