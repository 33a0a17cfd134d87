package dynamicfactory

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

// Subscription is one handler's hold on an informer. Its methods are safe for
// concurrent use.
type Subscription struct {
	factory      *Factory
	informer     *informer
	reader       *rawwatch.Reader // nil without NewForConfig
	registration cache.ResourceEventHandlerRegistration
	unbind       func() bool // from the context that it was made with

	closing sync.Once
	closed  chan struct{}
}

// Subscribe gives h everything that happens under a key, from an informer that all
// subscriptions with that key share: first what exists, then every change, as
// cache.ResourceEventHandler describes it. The informer starts with the first
// subscription, if it does not run yet. A key without a namespace is in the
// factory's, if that has one.
//
// The end of ctx closes the subscription, without waiting for anything; whoever has
// to know when the last callback is over calls Close. ctx's values, a logger for
// one, go to the informer that is started.
//
// Errors are ErrShutdown, ErrNoClient, ErrNoHandler, a *KeyError, and ErrNotRaw for
// MetadataOnly and for what WithRaw sets.
func (f *Factory) Subscribe(ctx context.Context, k Key, h cache.ResourceEventHandler) (*Subscription, error) {
	if err := f.admits(ctx, &k, h); err != nil {
		return nil, err
	}
	s := &Subscription{factory: f, closed: make(chan struct{})}
	s.informer = f.informer(k, true, func(i *informer) { i.owners++ })
	if err := s.join(ctx, h); err != nil {
		return nil, err
	}
	bound := make(chan struct{})
	s.unbind = context.AfterFunc(ctx, func() {
		<-bound
		s.Close()
	})
	close(bound)
	if !f.admit(s) {
		s.Close()
		return nil, ErrShutdown
	}
	return s, nil
}

// admit has Shutdown close the subscription, unless it has already begun.
func (f *Factory) admit(s *Subscription) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shuttingDown {
		return false
	}
	f.subs[s] = struct{}{}
	return true
}

// admits returns why there can be no subscription.
func (f *Factory) admits(ctx context.Context, k *Key, h cache.ResourceEventHandler) error {
	switch {
	case f.client == nil:
		return ErrNoClient
	case h == nil:
		return ErrNoHandler
	case f.raw == nil && (k.MetadataOnly || f.opts.raw.needsConfig()):
		return fmt.Errorf("%s: %w", k, ErrNotRaw)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if k.Namespace == "" {
		k.Namespace = f.opts.namespace
	}
	return k.Validate()
}

// join adds the handler and starts the informer if it does not run.
func (s *Subscription) join(ctx context.Context, h cache.ResourceEventHandler) error {
	f, i := s.factory, s.informer
	i.joining.Lock()
	defer i.joining.Unlock()
	f.mu.Lock()
	late := i.cancel != nil
	f.mu.Unlock()
	if i.source != nil {
		s.reader = i.source.NewReader()
		if late && f.opts.compact {
			h = latecomer{h}
		}
	}
	var err error
	if s.registration, err = i.shared.AddEventHandler(h); err != nil {
		err = fmt.Errorf("dynamicfactory: %s: %w", i.key, err)
	} else if err = f.run(ctx, i); err == nil {
		return nil
	}
	if s.registration != nil {
		_ = i.shared.RemoveEventHandler(s.registration) // the registration is this informer's own
	}
	if s.reader != nil {
		s.reader.Close()
	}
	f.leave(s)
	return err
}

// leave gives up the hold on the informer and returns its done channel if that was
// the last one.
func (f *Factory) leave(s *Subscription) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.subs, s)
	i := s.informer
	if f.releaseLocked(i) {
		return i.done
	}
	return nil
}

// Close ends the subscription and returns after the handler's last callback. If it
// was the informer's last one, the informer stops, and Close returns when its
// goroutines have ended and nothing holds its cache any more; a later subscription
// starts it afresh. What had not been handed on is dropped. Nobody else's
// informer is touched. Close may be called again; it must not be called from a
// callback of the handler.
func (s *Subscription) Close() {
	s.closing.Do(func() {
		defer close(s.closed)
		if s.unbind != nil {
			s.unbind()
		}
		// The reader leaves first: a stream that waits for it goes on.
		if s.reader != nil {
			s.reader.Close()
		}
		_ = cache.ShutDownEventHandler(s.informer.shared, s.registration) // the registration is this informer's own
		if done := s.factory.leave(s); done != nil {
			<-done
		}
	})
	<-s.closed
}

// Key is what the subscription is for.
func (s *Subscription) Key() Key { return s.informer.key }

// Informer returns the shared informer. Handlers that are added to it end with it.
func (s *Subscription) Informer() cache.SharedIndexInformer { return s.informer.shared }

// Lister returns a lister over the informer's cache.
func (s *Subscription) Lister() cache.GenericLister { return s.informer.Lister() }

// Synced is closed when the handler has been given all that existed at first; never,
// if the subscription ends before that.
func (s *Subscription) Synced() <-chan struct{} { return s.registration.HasSyncedChecker().Done() }

// Ack says that everything handed on up to a stream position is safe with the
// subscriber, and opens the window (RawOptions.Window). Positions are those of the
// compact objects (compact.Object.Position).
func (s *Subscription) Ack(position uint64) {
	if s.reader != nil {
		s.reader.Ack(position)
	}
}

// Checkpoint returns the newest resourceVersion that is complete if everything
// handed on up to a position is safe: a subscriber that keeps it together with its
// objects can resume there, and misses nothing. It is behind the last event, since
// more events of one version may follow. It is "" if there is none yet.
//
// A list's version is complete with the position of the list's last object, in the
// order of the callbacks; deletions that the list revealed come before it. After a
// list that found nothing any more it takes one more event to move on, or EmptyAfter.
func (s *Subscription) Checkpoint(position uint64) string {
	if s.reader == nil {
		return ""
	}
	return s.reader.Checkpoint(position)
}

// EmptyAfter tells whether all that came after a position is a list without objects;
// its own position is next, which no object carries. A subscriber that keeps a record
// of the objects, and has none in it any more once everything up to the position is
// safe, has what the list says: next is safe too, for Checkpoint and Ack.
func (s *Subscription) EmptyAfter(position uint64) (next uint64, ok bool) {
	if s.reader == nil {
		return 0, false
	}
	return s.reader.EmptyAfter(position)
}

// ListAfter returns the version of the list that is handed on next after a position,
// and the position of its end, which its last object carries. An object without a
// position and a deletion found by comparison belong to that list; of an object, leave
// out lists that have none (objects). A subscriber that has recorded a part of a list
// can begin again with that version (Snapshot.Relist).
func (s *Subscription) ListAfter(position uint64, objects bool) (resourceVersion string, end uint64, ok bool) {
	if s.reader == nil {
		return "", 0, false
	}
	return s.reader.ListAfter(position, objects)
}

// Status tells how the informer is doing.
func (s *Subscription) Status() Status { return s.informer.status() }

// latecomer hands on the objects that a running informer's cache held, which come
// in no order, without their positions: that one of them is safe says nothing of
// the others.
type latecomer struct{ cache.ResourceEventHandler }

func (l latecomer) OnAdd(obj any, initial bool) {
	if o, ok := obj.(*compact.Object); ok && initial {
		obj = o.WithPosition(0)
	}
	l.ResourceEventHandler.OnAdd(obj, initial)
}
