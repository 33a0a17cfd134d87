package dynamicfactory

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

const (
	// resolverPoll is how often discovery is read when nothing tells of changes.
	resolverPoll = 30 * time.Second

	// resolverPollWatched is how often it is read although something does: the
	// built-in resources change with an upgrade of the API server.
	resolverPollWatched = 5 * time.Minute

	// resolverRetry is the wait after discovery failed altogether; it doubles up to
	// resolverRetryMax.
	resolverRetry    = time.Second
	resolverRetryMax = 10 * time.Second

	// settleMost is the longest wait for definitions to stop changing.
	settleMost = 5 * time.Second
)

// Resource is something that can be listed and watched.
type Resource struct {
	GVR        schema.GroupVersionResource
	Kind       string
	Namespaced bool

	// Also are resources of later groups that go by the same name, if it was resolved
	// without a group. Only Resolve sets it.
	Also []schema.GroupResource
}

// Resolver knows which resources a cluster serves, and finds them by the names that
// kubectl takes. It follows changes within seconds: it watches the
// CustomResourceDefinitions and APIServices, and reads discovery now and then in
// case it may not. A group whose discovery fails keeps the resources it last had.
//
// Resolve and Changed are safe for concurrent use.
type Resolver struct {
	host      string
	client    discovery.DiscoveryInterfaceWithContext
	notifiers []*rawwatch.Notifier // of CustomResourceDefinitions and APIServices
	trigger   chan struct{}        // filled when one of those changes
	changed   chan struct{}

	mu    sync.RWMutex // guards what is below
	table *table       // nil: discovery has not succeeded yet
	err   error        // of the last reading

	tried chan struct{} // closed after Run's first reading
}

// NewResolver makes a Resolver for the cluster that cfg names. It contacts nobody
// before Run or Refresh.
func NewResolver(cfg *rest.Config) (*Resolver, error) {
	if cfg == nil {
		return nil, ErrNoClient
	}
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("dynamicfactory: %w", err)
	}
	raw, err := rawwatch.NewClient(cfg, defaultConcurrentLists)
	if err != nil {
		return nil, fmt.Errorf("dynamicfactory: %w", err)
	}
	r := &Resolver{
		host: cfg.Host, client: client,
		trigger: make(chan struct{}, 1), changed: make(chan struct{}, 1), tried: make(chan struct{}),
	}
	prober := rawwatch.NewProber(raw, nil)
	for _, gvr := range []schema.GroupVersionResource{
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	} {
		r.notifiers = append(r.notifiers, rawwatch.NewNotifier(raw, prober, gvr, func() { notify(r.trigger) }))
	}
	return r, nil
}

// notify fills a channel with room for one value, unless it is full.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Changed delivers a value when the answers of Resolve may have changed, for the
// first time when there are any. Changes that nobody has taken notice of are one.
// There is one receiver.
func (r *Resolver) Changed() <-chan struct{} { return r.changed }

// Tried is closed once Run has read discovery for the first time, or failed to.
func (r *Resolver) Tried() <-chan struct{} { return r.tried }

// Ready reports whether discovery has succeeded, so that Resolve gives answers.
func (r *Resolver) Ready() bool { return r.current() != nil }

// Err is the error of the last reading of discovery; nil if it succeeded, or if there
// was none.
func (r *Resolver) Err() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.err
}

// Run keeps the Resolver up to date until ctx is done, and returns when everything
// it has started has ended. Call it once. It returns nil.
func (r *Resolver) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, n := range r.notifiers {
		watching.Go(func() { n.Run(ctx) })
	}
	logger := klog.FromContext(ctx)
	failing, retry := false, resolverRetry
	var further []time.Duration
	for first := true; ctx.Err() == nil; first = false {
		err := r.Refresh(ctx)
		if ctx.Err() != nil {
			break
		}
		if first {
			close(r.tried)
		}
		switch {
		case err != nil && !failing:
			logger.Error(err, "Discovery of the served resources fails, retrying")
		case err == nil && failing:
			logger.Info("Discovery of the served resources succeeds again")
		}
		failing = err != nil
		pause := r.pause()
		if err != nil {
			pause, retry = retry, min(2*retry, resolverRetryMax)
		} else {
			retry = resolverRetry
		}
		further = r.await(ctx, further, pause)
	}
	return nil
}

// pause is how long to wait for a trigger.
func (r *Resolver) pause() time.Duration {
	for _, n := range r.notifiers {
		if !n.Live() {
			return resolverPoll
		}
	}
	return resolverPollWatched
}

// settle lists the waits before each of the readings that follow a change of a
// definition: the API server takes a moment to publish it.
func settle() []time.Duration {
	return []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second}
}

// await waits until discovery is due: after the first of the waits in further, or
// after pause. A trigger starts the waits of settle over, but never moves the next
// reading beyond settleMost. The result is the waits of the readings after that.
func (r *Resolver) await(ctx context.Context, further []time.Duration, pause time.Duration) []time.Duration {
	if len(further) > 0 {
		pause = min(pause, further[0])
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	var due time.Time // set by the first trigger
	for {
		select {
		case <-r.trigger:
			if due.IsZero() {
				due = time.Now().Add(settleMost)
			}
			further = settle()
			t.Reset(min(further[0], time.Until(due)))
		case <-t.C:
			if len(further) > 0 {
				further = further[1:]
			}
			return further
		case <-ctx.Done():
			return nil
		}
	}
}

// Refresh reads discovery now. Groups that fail keep what they had; an error means
// that nothing could be read.
func (r *Resolver) Refresh(ctx context.Context) error {
	err := r.read(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	return err
}

func (r *Resolver) read(ctx context.Context) error {
	groups, lists, err := discovery.ServerGroupsAndResourcesWithContext(ctx, r.client)
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return r.contactError(err)
	}
	if len(groups) == 0 {
		return fmt.Errorf("the API server at %s names no groups", r.host)
	}
	r.mu.Lock()
	before := r.table
	r.table = newTable(groups, lists, failed, before)
	news := !r.table.equal(before)
	r.mu.Unlock()
	if news {
		notify(r.changed)
	}
	return nil
}

// contactError names the server and the kind of the failure.
func (r *Resolver) contactError(err error) error {
	what := "cannot be reached"
	switch {
	case apierrors.IsUnauthorized(err):
		what = "refused the credentials (401)"
	case apierrors.IsForbidden(err):
		what = "refused discovery (403)"
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		what = "fails at discovery"
	}
	return fmt.Errorf("the API server at %s %s: %w", r.host, what, err)
}

func (r *Resolver) current() *table {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table
}

// watchable tells whether a resource can be listed and watched.
func watchable(r *metav1.APIResource) bool {
	list, watch := false, false
	for _, verb := range r.Verbs {
		list, watch = list || verb == "list", watch || verb == "watch"
	}
	return list && watch
}
