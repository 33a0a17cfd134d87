package rawwatch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Config says what a Source watches and what it makes of it.
type Config struct {
	Client *Client
	Prober *Prober

	GVR            schema.GroupVersionResource
	Namespace      string // "" for all, or for a cluster-scoped resource
	LabelSelector  string
	FieldSelector  string
	TimeoutSeconds int64 // of a watch request; 0: between 5 and 10 minutes
	MetadataOnly   bool

	// Edit changes an object's JSON before anything is made of it; nil for nothing.
	// What it returns without an error is taken for valid JSON.
	Edit func(dst, raw []byte) ([]byte, error)
	// Make makes the object that is handed on of its JSON, which Scan has read m
	// from. It may keep neither. It is called by one goroutine at a time. An object
	// for which it fails is left out, unless the error wraps ErrMaker.
	Make func(raw []byte, m *rawjson.Meta, position uint64) (runtime.Object, error)
	// Bookmark makes an object of the kind that Make makes with nothing but a
	// resourceVersion.
	Bookmark func(resourceVersion string) (runtime.Object, error)
	// Known returns the object that the informer has under a name, nil if it has none,
	// Count the number of its objects, and At an object at a position. They are for
	// objects that cannot be read and for watches without bookmarks; all may be nil. Until
	// the first list is complete, Snapshot.Known is asked in the place of Known.
	Known func(namespace, name string) runtime.Object
	Count func() int
	At    func(o runtime.Object, position uint64) runtime.Object
	// Snapshot, if not nil, is asked for the first list; it returns nil if it has none.
	Snapshot func(ctx context.Context) (*Snapshot, error)
	// OnGap, if not nil, is told of lost history once its end is known.
	OnGap func(Gap)
	// Spool keeps what watches bring while their lists are read; nil for one of its own.
	Spool *Spool
	// Window is how many events may be handed on and not acknowledged; 0: any number.
	Window int
}

// Snapshot is a list that was complete at a version.
type Snapshot struct {
	ResourceVersion string
	Time            time.Time // when that was; may be zero
	// Relist has the server list the resource as it was at ResourceVersion, in place
	// of Objects; as it is now, if that is "".
	Relist bool
	// Known returns what is known of an object that this list cannot read, nil if that
	// is nothing. It may be nil.
	Known func(namespace, name string) runtime.Object
	// Objects makes the list's objects, of which the last one carries the position.
	Objects func(position uint64) []runtime.Object
}

// Gap is a stretch of lost history: only the result of the changes in it is known.
type Gap struct {
	Cause string // one of the Cause constants, or that of a Relist
	// Namespace and Name are of the one object that the gap concerns, if it was skipped as
	// unreadable. From is then its version in the cache, "" if there is none, and To the
	// skipped version. Name is "" in all other gaps.
	Namespace, Name string
	From, To        string // resourceVersions: the last one known to be complete, and that of the list
	// FromTime is the time up to which nothing was missed, zero if unknown. ToTime is the
	// time at which the list was complete.
	FromTime, ToTime time.Time
	// Position is that of the list that makes up for the loss: of its last object, or of
	// the notification before it if the list is empty. Notifications from before the list
	// may come after OnGap.
	Position uint64
}

// The causes of gaps.
const (
	CauseExpired    = "expired"    // the server no longer had the history
	CauseRollback   = "rollback"   // the server's versions went backwards
	CauseUnreadable = "unreadable" // an event or an object could not be read, again and again
)

// ErrMaker marks an error of Config.Make that is not the object's: it is not left out.
var ErrMaker = errors.New("objects cannot be made")

// ErrStopped says that a Source is used after its end.
var ErrStopped = errors.New("the informer has stopped")

// Source lists and watches one resource for one reflector. See the package's
// comment for what it promises.
type Source struct {
	cfg      Config
	path     string
	progress *progress
	window   *window
	stats    *stats

	mu      sync.Mutex // guards what is below
	closed  bool
	running sync.WaitGroup
	begun   bool      // a list has succeeded
	loss    *Gap      // history lost and not yet made up for by a list
	suspect time.Time // the server may be another one than before this time; zero: it is not

	asked     string                  // why to list again; "" if nobody asked
	interrupt context.CancelCauseFunc // ends the watch request that runs
	held      *held                   // a watch from the last list's version on; nil: none

	// Scratch of the goroutine that lists or watches; there is one at a time.
	invalid int // lists in a row after watches refused as invalid
	edited  []byte
	skipped map[[2]string]string                        // namespace and name → version of objects that could not be read
	known   func(namespace, name string) runtime.Object // in place of cfg.Known until the first list is complete; may be nil
	meta    rawjson.Meta
}

var (
	_ cache.ListerWatcherWithContext = (*Source)(nil)
	_ cache.ListerWatcher            = (*Source)(nil)
)

// NewSource makes a Source, which does nothing before it is asked to.
func NewSource(cfg Config) *Source {
	if cfg.Spool == nil {
		cfg.Spool = NewSpool("")
	}
	return &Source{
		cfg: cfg, path: resourcePath(cfg.GVR, cfg.Namespace),
		progress: newProgress(), window: newWindow(cfg.Window), stats: newStats(),
	}
}

// IsWatchListSemanticsUnSupported keeps the reflector from asking for streaming
// lists: a list here is paged, resumed from a snapshot, and made of raw JSON.
func (s *Source) IsWatchListSemanticsUnSupported() bool { return true }

// Status returns the status of the source.
func (s *Source) Status() Status {
	t, _ := s.stats.get()
	t.ResourceVersion, t.InFlight = s.progress.resume(), s.window.inFlight()
	return t
}

// Ack acknowledges everything up to a position, and opens the window.
func (s *Source) Ack(position uint64) {
	if s.window.ack(position) {
		s.progress.forget(position)
	}
}

// Checkpoint returns the newest version that is complete once everything up to a
// position is durable; "" if there is none.
func (s *Source) Checkpoint(position uint64) string { return s.progress.checkpoint(position) }

// NextList returns the first list that ends after a position. withObjects skips empty
// lists.
func (s *Source) NextList(position uint64, withObjects bool) (List, bool) {
	return s.progress.nextList(position, withObjects)
}

// Wait returns when everything that the reflector began has ended. The reflector
// must have been stopped; whatever it still begins fails at once.
func (s *Source) Wait() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.keepHeld(nil)
	s.running.Wait()
	s.stats.healthy(Stopped)
}

// keepHeld keeps a watch for the next stream and closes the one kept before.
func (s *Source) keepHeld(h *held) {
	s.mu.Lock()
	if !s.closed || h == nil {
		s.held, h = h, s.held
	}
	s.mu.Unlock()
	h.close()
}

// takeHeld returns the watch that was kept, which is the caller's to close.
func (s *Source) takeHeld() *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held
	s.held = nil
	return h
}

// enter notes that something runs; the caller calls s.running.Done at its end.
func (s *Source) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStopped
	}
	s.running.Add(1)
	return nil
}

// List is ListWithContext for the older interface.
func (s *Source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch is WatchWithContext for the older interface.
func (s *Source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// ListWithContext returns the snapshot, if it is the first list and there is one,
// and otherwise what the server has. The options do not matter: a list is always
// consistent and whole.
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
	if first && s.cfg.Prober.guarded() || !suspect.IsZero() {
		// Nothing of a foreign cluster may get in, by a list as little as by a watch.
		if _, err := s.cfg.Prober.version(ctx, time.Now().Add(-probeFresh)); err != nil {
			return nil, err
		}
	}
	if first && s.cfg.Snapshot != nil {
		snapshot, err := s.cfg.Snapshot(ctx)
		if err != nil {
			return nil, fmt.Errorf("snapshot: %w", err)
		}
		switch {
		case snapshot == nil:
		case !snapshot.Relist:
			return s.resume(snapshot), nil
		default:
			s.known = snapshot.Known
			defer func() { s.known = nil }()
			if snapshot.ResourceVersion != "" {
				return s.relist(ctx, snapshot)
			}
		}
	}
	list, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	s.listed(list)
	return list, nil
}

// relist reads the first list at the snapshot's version. If the server no longer has
// that version, it reads a list of now and reports the history from there on as lost.
func (s *Source) relist(ctx context.Context, snapshot *Snapshot) (*objects, error) {
	back, err := s.behind(ctx, time.Now().Add(-probeFresh), snapshot.ResourceVersion)
	if err != nil {
		return nil, err
	}
	var list *objects
	gap := &Gap{Cause: CauseRollback, From: snapshot.ResourceVersion, FromTime: snapshot.Time}
	if !back {
		gap.Cause = CauseExpired
		list, err = s.paged(ctx, snapshot.ResourceVersion, pageSize)
		switch {
		case err == nil && list.ResourceVersion == snapshot.ResourceVersion:
			gap = nil
		case err == nil: // a server that knows no exact lists
		case isExpired(err) || apierrors.IsBadRequest(err):
			s.stats.contact(func(t *Counters) { t.Expired++ })
		default:
			return nil, err
		}
	}
	if list == nil {
		if list, err = s.list(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.loss = gap
	s.mu.Unlock()
	s.listed(list)
	return list, nil
}

// resume takes a snapshot for the first list.
func (s *Source) resume(snapshot *Snapshot) *objects {
	list := &objects{Items: snapshot.Objects(s.progress.next())}
	list.ResourceVersion = snapshot.ResourceVersion
	s.progress.list(parseVersion(list.ResourceVersion), len(list.Items))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = true
	s.suspect = time.Now().Add(-probeFresh)
	if !snapshot.Time.IsZero() {
		s.stats.knownUntil(snapshot.Time)
	}
	return list
}

// listed notes a list from the server, which makes up for lost history.
func (s *Source) listed(list *objects) {
	position := s.progress.list(parseVersion(list.ResourceVersion), len(list.Items))
	s.mu.Lock()
	gap, relist := s.loss, s.begun
	s.loss, s.begun, s.suspect, s.asked = nil, true, time.Time{}, ""
	s.mu.Unlock()
	s.stats.current(func(t *Counters) {
		if relist {
			t.Relists++
		}
	})
	if gap != nil && s.cfg.OnGap != nil {
		gap.To, gap.ToTime, gap.Position = list.ResourceVersion, time.Now(), position
		s.cfg.OnGap(*gap)
	}
}

// lost notes that the history from the version to resume from on is lost.
func (s *Source) lost(cause string) {
	from := s.progress.resume()
	_, since := s.stats.get()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loss == nil {
		s.loss = &Gap{Cause: cause, From: from, FromTime: since}
	}
}

// suspectSince notes that the connection was lost: before anything is resumed, the
// server has to show that it is still the one it was.
func (s *Source) suspectSince(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspect = t
}

// failed counts a failure, and logs it if it is a new one.
func (s *Source) failed(ctx context.Context, what string, err error) {
	state, reason := BackingOff, string(apierrors.ReasonForError(err))
	var bad *unreadable
	switch {
	case errors.Is(err, ErrForeign):
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
	if !s.stats.fail(state, reason, err.Error()) {
		return
	}
	log := klog.FromContext(ctx).WithValues("resource", s.cfg.GVR.String(), "namespace", s.cfg.Namespace, "reason", reason)
	if reason == reasonDisconnected {
		log.Info("Informer lost its connection, trying again", "err", err)
		return
	}
	log.Error(err, "Informer cannot "+what+" its resource, trying again until it can")
}

// reasonDisconnected is that of an established watch whose connection ended. It
// happens, at the restart of a server or a balancer for one, and is trouble only if
// the next request fails, which then has another reason.
const reasonDisconnected = "Disconnected"

// disconnected marks the end of an established watch that is not the server's word.
type disconnected struct{ err error }

func (d *disconnected) Error() string { return d.err.Error() }
func (d *disconnected) Unwrap() error { return d.err }

// query is what list and watch requests have in common.
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

// object makes an object of JSON as the server sent it.
func (s *Source) object(raw []byte, position uint64) (runtime.Object, error) {
	m, raw, err := s.scan(raw)
	if err != nil {
		return nil, err
	}
	return s.make(raw, m, position)
}

// make makes an object of JSON that scan has returned.
func (s *Source) make(raw []byte, m *rawjson.Meta, position uint64) (runtime.Object, error) {
	o, err := s.cfg.Make(raw, m, position)
	if err != nil {
		return nil, &unreadable{fmt.Errorf("%s %s/%s: %w", s.cfg.GVR.Resource, m.Namespace, m.Name, err)}
	}
	return o, nil
}

// scan applies the edit and reads the metadata. Both are valid until the next call.
func (s *Source) scan(raw []byte) (*rawjson.Meta, []byte, error) {
	read := rawjson.Scan
	if s.cfg.Edit != nil {
		read = rawjson.ScanHead // the edit has checked the rest
		edited, err := s.cfg.Edit(s.edited[:0], raw)
		if err != nil {
			return nil, nil, &unreadable{fmt.Errorf("edit: %w", err)}
		}
		if s.edited = edited; cap(edited) > keepBuffer {
			s.edited = nil
		}
		raw = edited
	}
	m := &s.meta
	var err error
	*m, err = read(raw)
	if err == nil && (len(m.Name) == 0 || len(m.ResourceVersion) == 0) {
		err = errors.New("an object without name or resourceVersion")
	}
	if err != nil {
		return nil, nil, &unreadable{err}
	}
	return m, raw, nil
}
