package dynamicfactory

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

const (
	// resolverPoll is the interval of discovery without a watch of the definitions.
	resolverPoll = 30 * time.Second

	// resolverPollWatched is the interval with such a watch: the built-in resources change
	// with an upgrade of the API server.
	resolverPollWatched = 5 * time.Minute

	// resolverRetry is the wait after a complete failure of discovery; it doubles up to
	// resolverRetryMax.
	resolverRetry    = time.Second
	resolverRetryMax = 10 * time.Second

	// maxDiscovery bounds a response of discovery in bytes. It has room for about 100,000
	// resources.
	maxDiscovery = 64 << 20

	// settleMost bounds the wait for definitions to stop changing.
	settleMost = 5 * time.Second
)

// Resource is a resource that can be listed and watched.
type Resource struct {
	GVR        schema.GroupVersionResource
	Kind       string
	Namespaced bool
	Singular   string // in lower case, as the other names
	ShortNames []string
	Categories []string

	// Also has the resources of later groups with the same name, if the name was resolved
	// without a group. Only Resolve sets it.
	Also []schema.GroupResource
}

// Resolver resolves the names that kubectl accepts to the resources that a cluster serves.
// It follows changes within seconds: it watches the CustomResourceDefinitions and
// APIServices, and reads discovery periodically for clients without that permission. A
// group whose discovery fails keeps its last resources.
//
// Resolve, Changed and Refresh are safe for concurrent use.
type Resolver struct {
	host      string
	client    discovery.DiscoveryInterfaceWithContext
	notifiers []*apiclient.Notifier // of CustomResourceDefinitions and APIServices
	trigger   chan struct{}         // receives a value when one of those changes
	changed   chan struct{}
	tried     chan struct{} // closed after Run's first reading
	outages   *rawwatch.Outages
	outage    *rawwatch.Member
	reading   chan struct{} // full while discovery is read: a result does not replace one of a later reading

	mu    sync.RWMutex // guards the fields below
	table *table       // nil: discovery has not succeeded yet
	err   error        // of the last reading
}

// NewResolver makes a Resolver for the cluster of cfg. It sends nothing before Run or
// Refresh.
func NewResolver(cfg *rest.Config) (*Resolver, error) {
	if cfg == nil {
		return nil, ErrNoClient
	}
	cfg = Guarded(cfg)
	client, err := discovery.NewDiscoveryClientForConfig(apiclient.Limited(cfg, maxDiscovery))
	if err != nil {
		return nil, fmt.Errorf("dynamicfactory: %w", err)
	}
	raw, err := apiclient.NewClient(cfg, defaultConcurrentLists)
	if err != nil {
		return nil, fmt.Errorf("dynamicfactory: %w", err)
	}
	outages := rawwatch.NewOutages()
	r := &Resolver{
		host: cfg.Host, client: client, outages: outages, outage: outages.NewMember(""),
		trigger: make(chan struct{}, 1), changed: make(chan struct{}, 1), tried: make(chan struct{}),
		reading: make(chan struct{}, 1),
	}
	prober := apiclient.NewProber(raw, nil)
	for _, gvr := range []schema.GroupVersionResource{
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	} {
		r.notifiers = append(r.notifiers, apiclient.NewNotifier(raw, prober, gvr, func() { notify(r.trigger) }))
	}
	return r, nil
}

// notify sends to a channel of capacity one, unless it is full.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Changed receives a value when the results of Resolve may have changed, the first time
// after the first discovery. Pending changes are coalesced. There is one receiver.
func (r *Resolver) Changed() <-chan struct{} { return r.changed }

// Tried is closed after Run's first attempt to read discovery.
func (r *Resolver) Tried() <-chan struct{} { return r.tried }

// Ready reports whether discovery has succeeded.
func (r *Resolver) Ready() bool { return r.current() != nil }

// Err returns the error of the last attempt to read discovery, nil before the first.
func (r *Resolver) Err() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.err
}

// Run keeps the Resolver up to date until ctx is done. It returns nil when its goroutines
// have ended. Call it once.
func (r *Resolver) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer func() {
		watching.Wait()
		r.outage.Close()
	}()
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
		if r.shared(ctx, err, &watching) {
			failing = false
		} else {
			switch {
			case err != nil && !failing:
				logger.Error(err, "discovery failed; retrying")
			case err == nil && failing:
				logger.Info("discovery recovered")
			}
			failing = err != nil
		}
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

// shared reports whether the result of a reading is that of an outage, or of its end, which
// the outage logs, in a goroutine of running.
func (r *Resolver) shared(ctx context.Context, err error, running *sync.WaitGroup) bool {
	if err == nil {
		return r.outage.Recovered(ctx)
	}
	shared, announce := r.outage.Failed(ctx, err, 0)
	if announce != nil {
		running.Go(announce)
	}
	return shared
}

// pause is the maximum wait for a trigger.
func (r *Resolver) pause() time.Duration {
	if slices.ContainsFunc(r.notifiers, func(n *apiclient.Notifier) bool { return !n.Live() }) {
		return resolverPoll
	}
	return resolverPollWatched
}

// settle returns the waits before each of the readings after a change of a definition,
// which the API server publishes with a delay.
func settle() []time.Duration {
	return []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second}
}

// await waits until discovery is due: after the first wait of further, or after pause. A
// trigger restarts the waits of settle, but settleMost bounds the delay of the next
// reading. It returns the waits of the readings after that.
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

// Refresh reads discovery, after a reading that is in progress. A group that fails keeps its
// last resources. An error reports a complete failure.
func (r *Resolver) Refresh(ctx context.Context) error {
	select {
	case r.reading <- struct{}{}:
		defer func() { <-r.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
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
		return fmt.Errorf("the API server at %s serves no groups", r.host)
	}
	r.mu.Lock()
	before := r.table
	r.table = newTable(groups, lists, failed, before)
	differs := before == nil || !reflect.DeepEqual(r.table.groups, before.groups)
	r.mu.Unlock()
	if differs {
		notify(r.changed)
	}
	return nil
}

// contactError adds the server and the kind of the failure.
func (r *Resolver) contactError(err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err // without the address of the request
	}
	what := "cannot be reached"
	switch {
	case apierrors.IsUnauthorized(err):
		what = "rejected the credentials (401)"
	case apierrors.IsForbidden(err):
		what = "rejected discovery (403)"
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

// watchable reports whether a resource can be listed and watched.
func watchable(r *metav1.APIResource) bool {
	return slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch")
}
