package rawwatch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/spool"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Config specifies what a Source watches, and how it makes objects.
type Config struct {
	Client *apiclient.Client
	Prober *apiclient.Prober
	// Outages are those of the server; nil: of this source alone.
	Outages *Outages

	GVR            schema.GroupVersionResource
	Namespace      string // "" for all, or for a cluster-scoped resource
	LabelSelector  string
	FieldSelector  string
	TimeoutSeconds int64 // of a watch request; 0: between 5 and 10 minutes
	MetadataOnly   bool

	// Edit changes an object's JSON before Make; it may be nil. Its result is not checked.
	Edit func(dst, raw []byte, by *rawjson.Change) ([]byte, error)
	// Make makes an object of its JSON and metadata, and retains neither. One goroutine
	// at a time calls it. Its errors are those of the object, which is skipped, unless they
	// wrap ErrMaker.
	Make func(raw []byte, m *rawjson.Meta, position uint64) (runtime.Object, error)
	// Bookmark makes an object of Make's type with a resourceVersion alone.
	Bookmark func(resourceVersion string) (runtime.Object, error)
	// Known returns the cached object of a name, nil if there is none, Count the number of
	// cached objects, and At an object at a position. They serve unreadable objects and
	// watches without bookmarks. All may be nil. WarmStart.Known replaces Known until the
	// first list is complete.
	Known func(namespace, name string) runtime.Object
	Count func() int
	At    func(o runtime.Object, position uint64) runtime.Object
	// WarmStart returns the first list, nil for a list from the server. It may be nil.
	WarmStart func(ctx context.Context) (*WarmStart, error)
	// OnGap reports lost history once its end is known. It may be nil.
	OnGap func(Gap)
	// OnRollback reports a rollback that a watch has found, with the version of then, before the list that makes up for it. It may be nil.
	OnRollback func(Gap)
	// Spool buffers the events of watches while their lists are read; nil: a new one.
	Spool *spool.Pool
	// Window bounds the events forwarded and not acknowledged; 0: no bound.
	Window int
}

// WarmStart is a list that was complete at a version.
type WarmStart struct {
	ResourceVersion string
	Time            time.Time // of the version; may be zero
	Quiet           string    // a later version; see Source.Quiet
	Recorded        string    // a later version that the server has had; may be empty
	Apart           bool      // Status.Apart of an earlier source
	// Relist requests a list at ResourceVersion from the server, in place of Objects; at
	// the present version, if ResourceVersion is "".
	Relist bool
	// Known returns the recorded state of an object that this list cannot read, nil if
	// there is none. It may be nil.
	Known func(namespace, name string) runtime.Object
	// Objects returns the list's objects. The last one carries the position.
	Objects func(position uint64) []runtime.Object
}

// Gap is a period of lost history: only the result of the changes in it is known.
type Gap struct {
	Cause string // one of the Cause constants, or that of a Relist
	// Namespace and Name are of the one object that the gap concerns, if it was skipped as
	// unreadable. From is then its version in the cache, "" if there is none, and To the
	// skipped version. Of a name of about 64 KiB or more Name is the begin, a slash and a hash. Name is "" in all other gaps.
	Namespace, Name string
	From, To        string // resourceVersions: the last one known to be complete, and that of the list
	// FromTime is the time up to which nothing was missed, zero if unknown. ToTime is the
	// time at which the list was complete.
	FromTime, ToTime time.Time
	// Position is that of the list that makes up for the loss: of its last object, or of
	// the notification before it if the list is empty. Notifications from before the list
	// may come after OnGap.
	Position uint64
	// Apart is true of a rollback of a resource with a storage of its own: the others were not set back.
	Apart bool `json:",omitempty"`
}

// The causes of gaps.
const (
	CauseExpired    = "expired"    // the server no longer had the history
	CauseRollback   = "rollback"   // the server's versions went backwards
	CauseUnreadable = "unreadable" // an event or an object repeatedly could not be read
)

// ErrMaker marks an error of Config.Make that is not the object's.
var ErrMaker = errors.New("objects cannot be made")

// errWarmStart marks an error of Config.WarmStart.
var errWarmStart = errors.New("warm start")

// ErrStopped reports the use of a Source after its end.
var ErrStopped = errors.New("the informer has stopped")

// Source lists and watches one resource for one reflector. The package's comment has its
// guarantees.
type Source struct {
	cfg      Config
	path     string
	progress *progress.Progress
	window   *progress.Window
	stats    *stats
	outage   *Member

	mu       sync.Mutex // guards what is below
	closed   bool
	running  sync.WaitGroup
	begun    bool      // a list has succeeded
	loss     *Gap      // lost history before the list that makes up for it
	back     *Gap      // the version to which the server was set back, as a probe has found; nil: it has not
	suspect  time.Time // the server may differ from the one before this time; zero: it is the same
	doubted  bool      // since the last list, a bookmark was older than what came before: the storage's version proves nothing
	apart    bool      // the resource has a storage of its own, with later versions than that of the others
	unjudged bool      // the storage's version was older, and the resource could not be read: it may be later again by now
	proven   time.Time // the server was not set back before this time, or is followed since

	relistCause string                       // of a requested relist; "": none
	interrupt   context.CancelCauseFunc      // ends the watch request that runs
	held        *held                        // a watch from the last list's version on; nil: none
	skipped     map[[sha256.Size]byte]string // skippedKey → version of unreadable objects

	// Scratch of the goroutine that lists or watches; there is one at a time.
	invalid int // successive lists after watches rejected as invalid
	edited  []byte
	known   func(namespace, name string) runtime.Object // replaces cfg.Known until the first list is complete; may be nil
	meta    rawjson.Meta
	change  rawjson.Change
}

var (
	_ cache.ListerWatcherWithContext = (*Source)(nil)
	_ cache.ListerWatcher            = (*Source)(nil)
)

// NewSource makes a Source. It starts nothing.
func NewSource(cfg Config) *Source {
	cfg.Spool, cfg.Outages = cmp.Or(cfg.Spool, spool.NewPool("")), cmp.Or(cfg.Outages, NewOutages())
	return &Source{
		cfg: cfg, path: apiclient.ResourcePath(cfg.GVR, cfg.Namespace),
		progress: progress.New(), window: progress.NewWindow(cfg.Window), stats: &stats{s: Status{State: Waiting, Since: time.Now()}},
		outage: cfg.Outages.NewMember(resourceName(cfg.GVR)),
	}
}

// IsWatchListSemanticsUnSupported prevents streaming lists: a list here has pages,
// resumes from a warm start, and is raw JSON.
func (s *Source) IsWatchListSemanticsUnSupported() bool { return true }

// Status returns the status of the source.
func (s *Source) Status() Status {
	t, known := s.stats.get()
	if t.State == Watching && s.unproven() {
		t.State, t.UnreadSince = Listing, known
	}
	t.ResourceVersion, t.Quiet, t.Seen, t.InFlight = s.progress.Resume(), s.progress.QuietAt(s.progress.Position()), s.progress.Seen(), s.window.InFlight()
	listable, _ := s.window.Listable()
	t.ListInFlight = !listable
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Apart = s.apart
	return t
}

// Ack acknowledges everything up to a position, and opens the window.
func (s *Source) Ack(position uint64) {
	if s.window.Ack(position) {
		s.progress.Acknowledged(position)
	}
}

// Checkpoint returns the newest version that is complete once everything up to a
// position is durable; "" if there is none.
func (s *Source) Checkpoint(position uint64) string { return s.progress.Checkpoint(position) }

// Known returns the time up to which nothing is missing, by the version of Quiet or else of Checkpoint, once
// everything up to a position is durable; zero if it is not known.
func (s *Source) Known(position uint64) time.Time { return s.progress.KnownAt(position) }

// Quiet returns a version later than the complete one if its list had exactly the objects
// that were received up to a position, and the watch has been quiet; "" otherwise. Where the
// complete version has expired, a watch resumes from it: only events of objects that came and
// went before it can be missing.
func (s *Source) Quiet(position uint64) string { return s.progress.QuietAt(position) }

// NextList returns the first list that ends after a position. withObjects skips empty
// lists.
func (s *Source) NextList(position uint64, withObjects bool) (progress.List, bool) {
	return s.progress.NextList(position, withObjects)
}

// Wait stops the source and returns when its goroutines have ended. The reflector must
// have been stopped; a new list or watch fails with ErrStopped.
func (s *Source) Wait() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.keepHeld(nil)
	s.running.Wait()
	s.outage.Close()
	s.stats.healthy(Stopped)
}

// keepHeld keeps a watch for the next stream and closes the previous one.
func (s *Source) keepHeld(h *held) {
	s.mu.Lock()
	if !s.closed || h == nil {
		s.held, h = h, s.held
	}
	s.mu.Unlock()
	h.close()
}

// takeHeld returns the kept watch, nil if there is none. The caller closes it.
func (s *Source) takeHeld() *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held
	s.held = nil
	return h
}

// enter counts an operation that Wait waits for. The caller calls s.running.Done at its
// end.
func (s *Source) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStopped
	}
	s.running.Add(1)
	return nil
}

// List implements cache.ListerWatcher.
func (s *Source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (s *Source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// ListWithContext returns the warm start as the first list, if there is one, and a list from
// the server otherwise. It ignores the options: a list is always consistent and whole.
func (s *Source) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.running.Done()
	list, err := s.listOrResume(ctx)
	if err != nil && ctx.Err() == nil {
		s.failed(ctx, "list", err)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (s *Source) listOrResume(ctx context.Context) (*objects, error) {
	s.mu.Lock()
	first, suspect := !s.begun, s.suspect
	s.mu.Unlock()
	s.stats.attempt(Listing)
	if err := s.awaitList(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	if s.cfg.Prober.Guarded() || !suspect.IsZero() {
		// No object of a foreign cluster may enter the cache, neither by a list nor by a watch. A list may
		// be on another connection than the watch that it follows.
		if _, err := s.cfg.Prober.Version(ctx, time.Now().Add(-probeFresh)); err != nil {
			return nil, err
		}
	}
	if first && s.cfg.WarmStart != nil {
		warmStart, err := s.cfg.WarmStart(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errWarmStart, err)
		}
		if warmStart != nil {
			s.mu.Lock()
			s.apart = warmStart.Apart
			s.mu.Unlock()
		}
		switch {
		case warmStart == nil:
		case !warmStart.Relist:
			return s.resume(warmStart), nil
		default:
			s.saw(warmStart)
			s.known = warmStart.Known
			defer func() { s.known = nil }()
			if warmStart.ResourceVersion != "" {
				return s.relist(ctx, warmStart, began)
			}
		}
	}
	list, back, err := s.freshList(ctx)
	if err != nil {
		return nil, err
	}
	if back {
		s.lost(CauseRollback)
	}
	s.listed(ctx, list, began)
	return list, nil
}

// freshList reads a list that is not older than what the server has sent before. It returns
// an older one with back if the server's versions went backwards. Otherwise one server of
// several is behind for a moment: its list lacks objects that were not deleted. A list of a
// later version with an object that is older than the cached one, or that had been deleted, is of a
// server that was set back, too: a backup is best restored at a higher version, without history. Before
// the first list, the recorded objects stand for the cached ones.
func (s *Source) freshList(ctx context.Context) (_ *objects, back bool, err error) {
	seen := s.progress.Seen()
	var wait apiclient.Backoff
	for {
		began := time.Now()
		list, err := s.list(ctx)
		if err != nil {
			return nil, false, err
		}
		if !progress.Older(list.ResourceVersion, seen) {
			back = s.wasNewer(list)
			if !back {
				back, err = s.hasReturned(ctx, list)
			}
			return list, back, err
		}
		s.doubtProbes()
		if back, err = s.behind(ctx, began, seen); err != nil || back { // which lets the other sources know
			return list, back, err
		}
		s.log(ctx).Info("the list is older than what was received before; relisting", "resourceVersion", list.ResourceVersion, "received", seen)
		if err := wait.Wait(ctx, 0, apiclient.MaxBackoff); err != nil {
			return nil, false, err
		}
	}
}

// wasNewer reports whether a later state of an object of the list is known.
func (s *Source) wasNewer(list *objects) bool {
	return slices.ContainsFunc(list.Items, func(item runtime.Object) bool {
		o, ok := item.(metav1.Object)
		if !ok {
			return false
		}
		known, ok := s.knownObject(o.GetNamespace(), o.GetName()).(metav1.Object)
		return ok && progress.Older(o.GetResourceVersion(), known.GetResourceVersion())
	})
}

// hasReturned reports whether a list that makes up for expired history has an object that is not
// cached although it is older than the version that was complete before.
func (s *Source) hasReturned(ctx context.Context, list *objects) (bool, error) {
	s.mu.Lock()
	expired := s.begun && s.loss != nil && s.loss.Cause == CauseExpired
	s.mu.Unlock()
	if !expired || s.cfg.Known == nil {
		return false, nil
	}
	complete := s.progress.Resume()
	returned := func(item runtime.Object) bool {
		o, ok := item.(metav1.Object)
		if !ok || !progress.Older(o.GetResourceVersion(), complete) {
			return false
		}
		_, skipped := s.Skipped(o.GetNamespace(), o.GetName())
		return !skipped && s.knownObject(o.GetNamespace(), o.GetName()) == nil
	}
	if !slices.ContainsFunc(list.Items, returned) {
		return false, nil
	}
	if err := apiclient.Sleep(ctx, confirmAfter); err != nil { // the cache may be behind what was forwarded
		return false, err
	}
	return slices.ContainsFunc(list.Items, returned), nil
}

// knownObject returns the cached object of a name, before the first list the recorded one; nil
// if there is none.
func (s *Source) knownObject(namespace, name string) runtime.Object {
	lookup := s.known
	if lookup == nil {
		lookup = s.cfg.Known
	}
	if lookup == nil {
		return nil
	}
	return lookup(namespace, name)
}

// awaitList returns when the list before has been taken in: the informer keeps what it
// forwards, and another list would be kept beside it.
func (s *Source) awaitList(ctx context.Context) error {
	free, changed := s.window.Listable()
	if free {
		return nil
	}
	s.stats.setPaused(time.Now())
	defer s.stats.setPaused(time.Time{})
	for !free {
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		free, changed = s.window.Listable()
	}
	return nil
}

// relist reads the first list at the warm start's version. If that version has expired, it
// reads a list at the present version and reports the history in between as lost.
func (s *Source) relist(ctx context.Context, warmStart *WarmStart, began time.Time) (*objects, error) {
	s.mu.Lock()
	back := s.loss != nil // an attempt before has found a rollback, and the server may have passed the version since
	s.mu.Unlock()
	gap := &Gap{Cause: CauseRollback, From: warmStart.ResourceVersion, FromTime: warmStart.Time}
	var list *objects
	var err error
	if !back {
		if back, err = s.behind(ctx, time.Now().Add(-probeFresh), s.progress.Seen()); err != nil {
			return nil, err
		}
		if back {
			s.mu.Lock()
			s.loss = gap
			s.mu.Unlock()
			s.reportRollback(ctx)
		}
	}
	if !back {
		gap.Cause = CauseExpired
		version := warmStart.ResourceVersion
		list, err = s.paged(ctx, version, pageSize)
		if apiclient.IsExpired(err) && warmStart.Quiet != "" {
			version = warmStart.Quiet
			list, err = s.paged(ctx, version, pageSize)
		}
		switch {
		case err == nil && list.ResourceVersion == version:
			gap = nil
		case err == nil:
			list = nil // a server without exact lists; a fresh one is compared with what was recorded
		case apiclient.IsExpired(err) || apierrors.IsBadRequest(err):
			s.stats.contact(func(t *Counters) { t.Expired++ })
		default:
			return nil, err
		}
	}
	if list == nil && back {
		list, err = s.list(ctx)
	} else if list == nil {
		if list, back, err = s.freshList(ctx); back {
			gap.Cause = CauseRollback
		}
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.loss = gap
	s.mu.Unlock()
	if gap == nil {
		list.at = warmStart.Time
	}
	s.listed(ctx, list, began)
	s.stats.delayed()
	return list, nil
}

// saw notes the versions of a warm start as the server's.
func (s *Source) saw(warmStart *WarmStart) {
	now := time.Now()
	age := now.Sub(warmStart.Time)
	s.mu.Lock()
	if s.proven = now.Add(-age); age < 0 {
		s.proven = time.Time{} // the clock was set back
	}
	s.mu.Unlock()
	seen := warmStart.ResourceVersion
	for _, v := range [...]string{warmStart.Quiet, warmStart.Recorded} {
		if seen == "" || progress.Older(seen, v) {
			seen = v
		}
	}
	s.progress.Saw(progress.ParseVersion(seen))
}

func (s *Source) resume(warmStart *WarmStart) *objects {
	list := &objects{Items: warmStart.Objects(s.progress.Next())}
	list.ResourceVersion = warmStart.ResourceVersion
	s.progress.Known(warmStart.Time)
	s.took(list)
	s.progress.Quiet(s.progress.Position(), progress.ParseVersion(warmStart.Quiet), warmStart.Time)
	s.saw(warmStart)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = true
	s.suspect = time.Now().Add(-probeFresh)
	s.stats.delayed()
	if !warmStart.Time.IsZero() {
		s.stats.knownUntil(warmStart.Time)
	}
	return list
}

// took notes a list that is forwarded, and returns its position.
func (s *Source) took(list *objects) uint64 {
	position := s.progress.List(progress.ParseVersion(list.ResourceVersion), len(list.Items))
	if len(list.Items) > 0 {
		s.window.TakeList(position)
	}
	return position
}

// listed notes a list from the server that began at a time, which closes a gap.
func (s *Source) listed(ctx context.Context, list *objects, began time.Time) {
	s.progress.Known(list.at)
	position := s.took(list)
	s.mu.Lock()
	gap, relist, byObject := s.loss, s.begun, s.back == nil
	s.mu.Unlock()
	if gap != nil && gap.Cause == CauseRollback {
		gap.Apart = s.isApart(ctx)
		if byObject && !gap.Apart && s.isShared(ctx) {
			s.cfg.Prober.SetBack("") // the server may have passed any version
			began = time.Now()
		}
	}
	s.mu.Lock()
	s.loss, s.back, s.begun, s.suspect, s.doubted, s.unjudged, s.proven = nil, nil, true, time.Time{}, false, false, began
	s.mu.Unlock()
	if gap != nil && s.cfg.OnGap != nil { // before the status has that the list is read
		gap.To, gap.ToTime, gap.Position = list.ResourceVersion, time.Now(), position
		s.cfg.OnGap(*gap)
	}
	s.stats.listed(list.at, func(t *Counters) {
		if relist {
			t.Relists++
		}
	})
}

// lost notes that the history after the version to resume from is lost.
func (s *Source) lost(cause string) {
	from := s.progress.Resume()
	_, since := s.stats.get()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loss == nil {
		s.loss = &Gap{Cause: cause, From: from, FromTime: since}
	}
	if cause == CauseRollback {
		s.loss.Cause = cause // found by the list that follows another loss
	}
}

// reportRollback reports a rollback before the list that makes up for it, which may take long to come: the server may have passed all versions by
// then, and nothing would show if the program ended meanwhile.
func (s *Source) reportRollback(ctx context.Context) {
	if s.cfg.OnRollback == nil {
		return
	}
	s.mu.Lock()
	gap, back := *s.loss, s.back
	s.mu.Unlock()
	if back == nil { // a list was requested
		version, err := s.ownVersion(ctx)
		if err != nil {
			return
		}
		back = &Gap{To: version, Apart: s.isApart(ctx)}
	}
	gap.To, gap.ToTime, gap.Apart = back.To, time.Now(), back.Apart
	s.cfg.OnRollback(gap)
}

// suspectSince notes a lost connection. Before a watch resumes, the server must prove
// that it is the same one.
func (s *Source) suspectSince(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspect = t
}

// doubtProbes notes that the resource's versions went backwards, also if that of the
// storage did not: the resource may have a storage of its own.
func (s *Source) doubtProbes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubted = true
}

// failed counts a failure, and logs a new one of this resource alone. The caller is within
// enter.
func (s *Source) failed(ctx context.Context, what string, err error) {
	state, reason := BackingOff, string(apierrors.ReasonForError(err))
	var bad *apiclient.UnreadableError
	switch {
	case errors.Is(err, apiclient.ErrForeign):
		state, reason = Foreign, "ForeignCluster"
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		state = Forbidden
		s.stats.contact(func(t *Counters) { t.Forbidden++ })
	case apierrors.IsNotFound(err):
		state = Waiting
		s.stats.contact(func(t *Counters) { t.NotFound++ })
	case errors.As(err, &bad):
		reason = "Unreadable"
		s.stats.contact(func(t *Counters) { t.DecodeErrors++ })
	case reason == "":
		reason = "Unreachable"
		if errors.As(err, new(*disconnected)) {
			reason = reasonDisconnected
		}
		s.suspectSince(time.Now())
	}
	isNew := s.stats.fail(state, reason, err.Error())
	shared, announce := s.outage.Failed(ctx, err, s.cfg.Client.Spread())
	if announce != nil {
		s.running.Go(announce)
	}
	if isNew && !shared {
		s.log(ctx).Error(err, "cannot "+what+" the resource; retrying", "reason", reason)
	}
}

// recovered moves to a state without a failure, and logs the end of one.
func (s *Source) recovered(ctx context.Context, state State) {
	failing := s.stats.healthy(state)
	if shared := s.outage.Recovered(ctx); !shared && failing > 0 {
		s.log(ctx).Info("watching the resource again", "after", failing.Round(time.Millisecond))
	}
}

func (s *Source) log(ctx context.Context) klog.Logger {
	log := klog.FromContext(ctx).WithValues("resource", resourceName(s.cfg.GVR))
	if s.cfg.Namespace != "" {
		log = log.WithValues("namespace", s.cfg.Namespace)
	}
	return log
}

// resourceName is kubectl's name of a resource.
func resourceName(gvr schema.GroupVersionResource) string {
	return strings.TrimSuffix(gvr.Resource+"."+gvr.Version+"."+gvr.Group, ".")
}

// reasonDisconnected is the reason of an established watch whose connection ended, as at
// the restart of a server or a load balancer. A failure of the next request has another
// reason.
const reasonDisconnected = "Disconnected"

// disconnected marks the end of an established watch without a response from the server.
type disconnected struct{ err error }

func (d *disconnected) Error() string { return d.err.Error() }
func (d *disconnected) Unwrap() error { return d.err }

// errRelistRequested ends a watch in favour of a list.
type errRelistRequested struct{ cause string }

func (e errRelistRequested) Error() string { return "relist requested: " + e.cause }

// Relist makes the reflector list the resource again, as after a loss of history with
// that cause. It ends an established watch. A watch that cannot be established is
// followed by the list once a request succeeds, and a list that is under way by another one.
func (s *Source) Relist(cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relistCause = cause
	if s.interrupt != nil {
		s.interrupt(errRelistRequested{cause})
	}
}

// clearRelist is called when a list begins, which is what a Relist before it asked for, unless it makes up for a loss with another cause.
func (s *Source) clearRelist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loss == nil || s.loss.Cause == s.relistCause {
		s.relistCause = ""
	}
}

// interruptible lets Relist end a request by its context; nil ends that. It returns the
// error of a Relist that came before.
func (s *Source) interruptible(cancel context.CancelCauseFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt = cancel
	if cancel != nil && s.relistCause != "" {
		return errRelistRequested{s.relistCause}
	}
	return nil
}

func (s *Source) query() url.Values {
	q := url.Values{}
	if s.cfg.LabelSelector != "" {
		q.Set("labelSelector", s.cfg.LabelSelector)
	}
	if s.cfg.FieldSelector != "" {
		q.Set("fieldSelector", s.cfg.FieldSelector)
	}
	return q
}

func (s *Source) object(raw []byte, position uint64) (runtime.Object, error) {
	m, raw, err := s.scan(raw)
	if err != nil {
		return nil, err
	}
	return s.make(raw, m, position)
}

func (s *Source) make(raw []byte, m *rawjson.Meta, position uint64) (runtime.Object, error) {
	o, err := s.cfg.Make(raw, m, position)
	if err != nil {
		return nil, &apiclient.UnreadableError{Err: fmt.Errorf("%s %s/%s: %w", s.cfg.GVR.Resource, m.Namespace, shown(string(m.Name)), err)}
	}
	return o, nil
}

// scan applies the edit and reads the metadata. The results are valid until the next call.
func (s *Source) scan(raw []byte) (*rawjson.Meta, []byte, error) {
	if bytes.IndexByte(raw, '\n') >= 0 || bytes.IndexByte(raw, '\r') >= 0 { // which texts of JSON do not have
		var line bytes.Buffer
		if err := json.Compact(&line, raw); err != nil {
			return nil, nil, &apiclient.UnreadableError{Err: err}
		}
		raw = line.Bytes()
	}
	read := rawjson.Scan
	if s.cfg.Edit != nil {
		read = rawjson.ScanHead // the editor checks the rest
		s.change = rawjson.Change{Managers: s.change.Managers[:0]}
		edited, err := s.cfg.Edit(s.edited[:0], raw, &s.change)
		if err != nil {
			return nil, nil, &apiclient.UnreadableError{Err: fmt.Errorf("edit: %w", err)}
		}
		if s.edited = edited; cap(edited) > apiclient.KeepBuffer {
			s.edited = nil
		}
		raw = edited
	}
	m := &s.meta
	var err error
	*m, err = read(raw)
	if err == nil && (len(m.Name) == 0 || len(m.ResourceVersion) == 0) {
		err = errors.New("object has no name or no resourceVersion")
	}
	if err == nil && s.cfg.Edit == nil {
		err = rawjson.ReadChange(m.ManagedFields, &s.change)
	}
	if err != nil {
		return nil, nil, &apiclient.UnreadableError{Err: err}
	}
	m.Change = &s.change
	return m, raw, nil
}
