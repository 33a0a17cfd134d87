package dynamicfactory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

// Key selects the objects of an informer.
type Key struct {
	GVR           schema.GroupVersionResource
	Namespace     string // "": all namespaces, or a cluster-scoped resource
	LabelSelector string // evaluated by the API server
	FieldSelector string // evaluated by the API server
}

// String returns the key for logs: pods.v1. namespace=a labels=l=x
func (k Key) String() string {
	var b strings.Builder
	b.WriteString(k.GVR.Resource + "." + k.GVR.Version + "." + k.GVR.Group)
	for _, part := range [...]struct{ name, value string }{
		{"namespace", k.Namespace}, {"labels", k.LabelSelector}, {"fields", k.FieldSelector},
	} {
		if part.value != "" {
			b.WriteString(" " + part.name + "=" + part.value)
		}
	}
	return b.String()
}

// Validate returns a *KeyError for an invalid key.
func (k Key) Validate() error {
	var errs []error
	if k.GVR.Resource == "" || k.GVR.Version == "" {
		errs = append(errs, errors.New("resource and version are required"))
	}
	for _, part := range []string{k.GVR.Group, k.GVR.Version, k.GVR.Resource, k.Namespace} {
		if strings.ContainsAny(part, "/%?#") || part == "." || part == ".." {
			errs = append(errs, fmt.Errorf("%q is not a valid name", part))
		}
	}
	if _, err := labels.Parse(k.LabelSelector); err != nil {
		errs = append(errs, fmt.Errorf("label selector %q: %w", k.LabelSelector, err))
	}
	if _, err := fields.ParseSelector(k.FieldSelector); err != nil {
		errs = append(errs, fmt.Errorf("field selector %q: %w", k.FieldSelector, err))
	}
	if len(errs) > 0 {
		return &KeyError{Key: k, Err: errors.Join(errs...)}
	}
	return nil
}

// KeyError reports an invalid key.
type KeyError struct {
	Key Key
	Err error
}

func (e *KeyError) Error() string { return "dynamicfactory: " + e.Key.String() + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// Subscription connects one handler to an informer. Its methods are safe for concurrent
// use.
type Subscription struct {
	factory      *Factory
	informer     *informer
	registration cache.ResourceEventHandlerRegistration
	unbind       func() bool // detaches the subscription from its context

	closing sync.Once
	closed  chan struct{}
}

// Subscribe calls h for the objects of a key: first for those that exist, then for every
// change, as cache.ResourceEventHandler describes it. Subscriptions with equal keys share
// an informer, which the first one starts. A key without a namespace is in the
// factory's, if that has one.
//
// The end of ctx closes the subscription without waiting; Close waits for the last
// callback. The values of ctx, such as a logger, go to the informer that is started.
//
// Errors are ErrShutdown, ErrNoClient, ErrNoHandler, a *KeyError, and the cause of a ctx
// that has ended.
func (f *Factory) Subscribe(ctx context.Context, k Key, h cache.ResourceEventHandler) (*Subscription, error) {
	if err := f.admits(ctx, &k, h); err != nil {
		return nil, err
	}
	i := f.informer(k, true, func(i *informer) { i.owners++ })
	s := &Subscription{factory: f, informer: i, closed: make(chan struct{})}
	if err := s.open(ctx, h); err != nil {
		return nil, err
	}
	return s, nil
}

// admits returns the reason why a subscription is impossible, and completes the key.
func (f *Factory) admits(ctx context.Context, k *Key, h cache.ResourceEventHandler) error {
	switch {
	case f.client == nil:
		return ErrNoClient
	case h == nil:
		return ErrNoHandler
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	k.Namespace = cmp.Or(k.Namespace, f.opts.namespace)
	return k.Validate()
}

// open adds the handler, starts the informer if it does not run, and binds the
// subscription to ctx.
func (s *Subscription) open(ctx context.Context, h cache.ResourceEventHandler) error {
	if err := s.join(ctx, h); err != nil {
		return err
	}
	if !s.factory.register(ctx, s) {
		s.Close()
		return ErrShutdown
	}
	return nil
}

// register makes Shutdown and the end of ctx close the subscription. It reports false once
// Shutdown has begun.
func (f *Factory) register(ctx context.Context, s *Subscription) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shuttingDown {
		return false
	}
	f.subs[s] = struct{}{}
	s.informer.subscriptions++
	bound := make(chan struct{})
	s.unbind = context.AfterFunc(ctx, func() {
		<-bound
		s.Close()
	})
	close(bound)
	return true
}

// join adds the handler and starts the informer if it does not run.
func (s *Subscription) join(ctx context.Context, h cache.ResourceEventHandler) error {
	f, i := s.factory, s.informer
	var err error
	if s.registration, err = i.shared.AddEventHandler(h); err != nil {
		err = fmt.Errorf("dynamicfactory: %s: %w", i.key, err)
	} else if err = f.run(ctx, i); err == nil {
		return nil
	}
	if s.registration != nil {
		_ = i.shared.RemoveEventHandler(s.registration) // the registration is this informer's own
	}
	f.leave(s)
	return err
}

// leave releases the informer and returns its done channel if that was the last
// subscription.
func (f *Factory) leave(s *Subscription) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.subs[s]; ok {
		delete(f.subs, s)
		s.informer.subscriptions--
	}
	if f.releaseLocked(s.informer) {
		return s.informer.done
	}
	return nil
}

// Close ends the subscription and returns after the handler's last callback. Pending
// notifications are dropped. If this was the last subscription of the informer, and
// ForResource has not returned that, the informer stops; Close then returns when its
// goroutines have ended and its cache is free, and a later subscription starts a new one.
// Other informers are not affected. Close may be called again. It must not be called from a
// callback of the handler.
func (s *Subscription) Close() {
	s.closing.Do(func() {
		defer close(s.closed)
		if s.unbind != nil {
			s.unbind()
		}
		_ = cache.ShutDownEventHandler(s.informer.shared, s.registration) // the registration is this informer's own
		if done := s.factory.leave(s); done != nil {
			<-done
		}
	})
	<-s.closed
}

// Key returns the key of the subscription.
func (s *Subscription) Key() Key { return s.informer.key }

// Informer returns the informer. Handlers that are added to it end with it.
func (s *Subscription) Informer() cache.SharedIndexInformer { return s.informer.shared }

// Lister returns a lister over the informer's cache.
func (s *Subscription) Lister() cache.GenericLister { return s.informer.Lister() }

// Synced is closed once the handler has received all objects that existed at first. It
// stays open if the subscription ends before that.
func (s *Subscription) Synced() <-chan struct{} { return s.registration.HasSyncedChecker().Done() }

// Status returns the status of the informer.
func (s *Subscription) Status() Status { return s.factory.status(s.informer) }

// State is the activity of an informer.
type State = rawwatch.State

// The states of an informer.
const (
	StateWaiting    = rawwatch.Waiting    // not started, or the resource is not served
	StateListing    = rawwatch.Listing    // the first list, or one after lost history
	StateWatching   = rawwatch.Watching   // live
	StateForbidden  = rawwatch.Forbidden  // rejected with 401 or 403; retried
	StateBackingOff = rawwatch.BackingOff // another failure; retried
	StateForeign    = rawwatch.Foreign    // ErrForeignCluster; retried
	StateStopped    = rawwatch.Stopped
)

// WatchStatus is the status of an informer's lists and watches. An informer of New has
// State (waiting, listing, watching or stopped) and ResourceVersion alone.
type WatchStatus = rawwatch.Status

// Counters count since the start of an informer.
type Counters = rawwatch.Counters

// Status is the status of an informer.
type Status struct {
	Key           Key   `json:"-"`
	Subscriptions int   `json:"-"`
	Objects       int   `json:"objects"` // in the cache; of a large one, some seconds old
	Bytes         int64 `json:"bytes"`   // of compact objects in the cache; 0 for others
	WatchStatus
}

// Statuses returns the status of every informer, in the order of their keys.
func (f *Factory) Statuses() []Status {
	f.mu.Lock()
	all := map[*informer]struct{}{}
	for _, i := range f.informers {
		all[i] = struct{}{}
	}
	for _, i := range f.custom {
		all[i] = struct{}{}
	}
	for s := range f.subs {
		all[s.informer] = struct{}{}
	}
	f.mu.Unlock()
	statuses := make([]Status, 0, len(all))
	for i := range all {
		statuses = append(statuses, f.status(i))
	}
	slices.SortFunc(statuses, func(a, b Status) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return statuses
}

func (f *Factory) status(i *informer) Status {
	f.mu.Lock()
	s := Status{Key: i.key, Subscriptions: i.subscriptions}
	f.mu.Unlock()
	s.Objects, s.Bytes = i.size.of(i.shared.GetStore())
	if i.source == nil {
		s.ResourceVersion = i.shared.LastSyncResourceVersion()
		switch {
		case i.shared.IsStopped():
			s.State = StateStopped
		case i.shared.HasSynced():
			s.State = StateWatching
		case s.ResourceVersion == "":
			s.State = StateWaiting
		default:
			s.State = StateListing
		}
		return s
	}
	s.WatchStatus = i.source.Status()
	return s
}

const (
	// sizeLarge is the size of a cache whose objects are not counted with each Status.
	sizeLarge = 10_000

	// sizeAge bounds the age of a count.
	sizeAge = 15 * time.Second
)

// size is the count of a cache's objects, which visits each of them. That of a large cache
// takes a hundredth of the time at most, however often it is asked for.
type size struct {
	mu      sync.Mutex // guards what follows
	until   time.Time
	objects int
	bytes   int64
}

func (s *size) of(c interface{ List() []any }) (objects int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := time.Now()
	if began.Before(s.until) {
		return s.objects, s.bytes
	}
	s.objects, s.bytes, s.until = 0, 0, began
	for _, obj := range c.List() {
		s.objects++
		if o, ok := obj.(*compact.Object); ok {
			s.bytes += int64(o.Size())
		}
	}
	if now := time.Now(); s.objects >= sizeLarge {
		s.until = now.Add(min(99*now.Sub(began), sizeAge))
	}
	return s.objects, s.bytes
}
