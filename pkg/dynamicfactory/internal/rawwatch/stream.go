package rawwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// quietTimeout replaces apiclient.WatchTimeout for sources without bookmarks: there, the version of a
	// request after a quiet time has most likely expired.
	quietTimeout = 30 * time.Minute

	// backoffAbsent is the maximum wait for a resource that is not served or not allowed: a
	// restored CRD, or a new grant, takes effect soon.
	backoffAbsent = 10 * time.Second

	// probeFresh bounds the age of a probe that a list uses: the sources share it.
	probeFresh = 5 * time.Second

	// unreadableAttempts bounds the attempts to read the events after one version when one
	// of them is unreadable.
	unreadableAttempts = 3

	// invalidAttempts is the number of watches rejected as invalid after which a list
	// follows. It doubles with each list that does not help, invalidDoublings times.
	invalidAttempts  = 3
	invalidDoublings = 6
)

// Errors that end a watch request, in addition to the server's.
var (
	errSilent     = errors.New("watch stopped sending bookmarks")
	errNoHeaders  = errors.New("no response to the watch request")
	errOverdue    = errors.New("watch did not end at its timeout")
	errProbe      = errors.New("no response to a probe")
	errRolledBack = errors.New("the server's resource versions went backwards")
	errSetBack    = &disconnected{errors.New("another watch found that the server was set back")}
)

// unreadableEvent marks the error of an event. Unlike that of a probe, it may come again with
// every request from the same version.
type unreadableEvent struct{ error }

func (u *unreadableEvent) Unwrap() error { return u.error }

// stream is the endless watch of the reflector. Its counts belong to the goroutine of run.
type stream struct {
	source *Source
	cancel context.CancelFunc
	events chan watch.Event

	done       <-chan struct{} // closed when the reflector stops the watch
	backoff    apiclient.Backoff
	requests   int    // watches established
	bookmarks  bool   // the current request has had a bookmark
	quiet      bool   // the source sends no bookmarks
	unreadable int    // successive attempts with an unreadable event
	unreadAt   string // the version that they resumed from
	invalid    int    // successive requests rejected as invalid
}

var _ watch.Interface = (*stream)(nil)

// WatchWithContext returns a watch that ends when ctx is done or history is lost. It
// ignores the options: the watch begins where the last list ended.
func (s *Source) WatchWithContext(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &stream{
		source: s, cancel: cancel, done: ctx.Done(), events: make(chan watch.Event),
		quiet: s.cfg.GVR.Resource == "events", backoff: apiclient.Backoff{Streams: &s.cfg.Client.Streams},
	}
	s.cfg.Client.Streams.Add(1)
	go func() {
		defer s.running.Done()
		defer s.cfg.Client.Streams.Add(-1)
		defer cancel()
		defer close(w.events)
		w.run(ctx)
	}()
	return w, nil
}

func (w *stream) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch. It does not wait; Source.Wait does.
func (w *stream) Stop() { w.cancel() }

func (w *stream) run(ctx context.Context) {
	s := w.source
	for ctx.Err() == nil {
		err := w.request(ctx)
		if ctx.Err() != nil {
			return
		}
		if apiclient.IsExpired(err) {
			if _, other := s.sameCluster(ctx, time.Now()); other != nil {
				err = other // what a foreign cluster does not keep is no loss
			}
		}
		var requested errRelistRequested
		switch {
		case err == nil:
			continue // its timeout
		case errors.As(err, &requested):
			w.end(ctx, requested.cause, err)
			return
		case apiclient.IsExpired(err) && s.progress.FallBack():
			s.stats.contact(func(t *Counters) { t.Expired++ })
			s.log(ctx).Info("the version of a quiet watch has expired; resuming from a later list that showed no change", "resourceVersion", s.progress.Resume())
			continue
		case apiclient.IsExpired(err):
			w.end(ctx, CauseExpired, err)
			return
		case errors.Is(err, errRolledBack):
			w.end(ctx, CauseRollback, err)
			return
		case errors.As(err, new(*unreadableEvent)):
			s.failed(ctx, "watch", err)
			if w.givesUp() {
				w.end(ctx, CauseUnreadable, err)
				return
			}
		case w.needsList(err):
			s.failed(ctx, "watch", err)
			w.end(ctx, CauseExpired, err)
			return
		default:
			s.failed(ctx, "watch", err)
		}
		most := apiclient.MaxBackoff
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			most = backoffAbsent
		}
		if w.backoff.Wait(ctx, apiclient.RetryAfter(err), most) != nil {
			return
		}
	}
}

// givesUp counts an attempt with an unreadable event. It reports whether to list instead
// of another attempt.
func (w *stream) givesUp() bool {
	at := w.source.progress.Resume()
	if at != w.unreadAt {
		w.unreadAt, w.unreadable = at, 0
	}
	w.unreadable++
	return w.unreadable >= unreadableAttempts
}

// needsList counts successive requests that the server rejects as invalid, and reports
// whether to list: the version may be of another server. The interval grows for a server
// that rejects the version of its own list.
func (w *stream) needsList(err error) bool {
	if !isInvalid(err) {
		return false
	}
	s := w.source
	if w.invalid++; w.invalid < invalidAttempts<<s.invalid {
		return false
	}
	s.invalid = min(s.invalid+1, invalidDoublings)
	return true
}

// isInvalid reports whether the server rejected a request as invalid, which it may do after
// the headers of a watch. The page of a proxy does not mean the version.
func isInvalid(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsUnexpectedServerError(err) {
		return false
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		return true
	default:
		return false
	}
}

// end makes the reflector list again.
func (w *stream) end(ctx context.Context, cause string, err error) {
	w.source.lost(cause) // before anything counts as a contact
	if apiclient.IsExpired(err) {
		w.source.stats.contact(func(t *Counters) { t.Expired++ })
	}
	w.source.log(ctx).Info("the watch can't be resumed; listing to find what changed meanwhile", "cause", cause, "err", err)
	status := apierrors.NewResourceExpired(err.Error()).Status()
	if cause == CauseRollback {
		w.source.reportRollback(ctx)
	}
	_ = w.send(watch.Event{Type: watch.Error, Object: &status}) // a stopped reflector does not list
}

// send forwards an event to the reflector. It fails only if the reflector has stopped: an
// event that progress counts as received must not be lost with its request.
func (w *stream) send(e watch.Event) error {
	select {
	case w.events <- e:
		return nil
	case <-w.done:
		return context.Canceled
	}
}

// request sends one watch request and reads it to its end. The error is nil for an end at
// the timeout.
func (w *stream) request(ctx context.Context) error {
	s := w.source
	if err := s.sameServer(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := s.interruptible(cancel); err != nil {
		return err
	}
	defer func() { _ = s.interruptible(nil) }() // fails with a cancel function only
	resp, err := w.open(ctx, cancel)
	if err != nil {
		s.suspectSince(time.Now()) // the next request may be long after, as where it is forbidden
		return err
	}
	defer resp.body.Close()
	w.established(ctx)

	dog := &watchdog{source: s, cancel: cancel, life: resp.timeout - time.Since(resp.began) + apiclient.TimeoutGrace, began: time.Now(), bookmarks: s.stats.bookmarks()}
	var guard sync.WaitGroup
	guard.Go(func() { dog.run(ctx) })
	err = w.read(ctx, resp.body, dog)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	guard.Wait()

	lived := time.Since(resp.began)
	if lived >= apiclient.BackoffReset {
		w.backoff.Reset()
	}
	w.quiet = w.quiet && !w.bookmarks || !w.bookmarks && lived > 4*time.Minute
	if !isInvalid(err) {
		w.invalid, s.invalid = 0, 0
	}
	switch {
	case errors.Is(err, io.EOF) && lived >= resp.timeout-apiclient.TimeoutGrace/2:
		return nil
	case apiclient.IsExpired(err) || errors.Is(err, errRolledBack) || errors.As(err, new(errRelistRequested)):
		return err
	case errors.Is(err, io.EOF):
		err = &disconnected{fmt.Errorf("watch ended after %v, before its timeout", lived.Round(time.Millisecond))}
	}
	s.suspectSince(time.Now())
	return err
}

// response is an established watch.
type response struct {
	body    io.ReadCloser
	began   time.Time
	timeout time.Duration // after which the server ends the watch
}

// open takes over the watch that was sent during the list, or sends one.
func (w *stream) open(ctx context.Context, cancel context.CancelCauseFunc) (response, error) {
	s := w.source
	if h := s.takeHeld(); h != nil {
		context.AfterFunc(ctx, func() { h.cancel(context.Cause(ctx)) })
		err := h.takeOver(ctx)
		if err == nil && h.version == s.progress.Resume() {
			s.stats.delayed()
			return response{h, h.began, h.timeout}, nil
		}
		h.close()
		if ctx.Err() != nil || apiclient.IsExpired(err) {
			return response{}, err
		}
	}
	timeout := apiclient.WatchTimeout
	if w.quiet {
		timeout = quietTimeout
	}
	timeout = s.watchTimeout(timeout)
	began := time.Now()
	body, err := s.getWatch(ctx, cancel, s.progress.Resume(), timeout)
	if err != nil {
		return response{}, err
	}
	return response{body, began, timeout}, nil
}

// getWatch sends a watch request from a version on. cancel ends ctx.
func (s *Source) getWatch(ctx context.Context, cancel context.CancelCauseFunc, version string, timeout time.Duration) (io.ReadCloser, error) {
	query := s.query()
	query.Set("watch", "true")
	query.Set("allowWatchBookmarks", "true")
	query.Set("resourceVersion", version)
	query.Set("timeoutSeconds", strconv.FormatInt(int64(timeout/time.Second), 10))
	accept := apiclient.AcceptObjects
	if s.cfg.MetadataOnly {
		accept = apiclient.AcceptMetadata
	}
	headers := time.AfterFunc(silence, func() { cancel(errNoHeaders) })
	defer headers.Stop()
	resp, err := s.cfg.Client.Get(ctx, s.path, query, accept) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// watchTimeout is the timeout that a watch requests: the configured one, or between least
// and twice that.
func (s *Source) watchTimeout(least time.Duration) time.Duration {
	if t := s.cfg.TimeoutSeconds; t > 0 {
		return time.Duration(t) * time.Second
	}
	return least + rand.N(least)
}

func (w *stream) established(ctx context.Context) {
	w.bookmarks = false
	w.requests++
	first := w.requests == 1
	w.source.stats.contact(func(t *Counters) {
		if !first {
			t.Restarts++
		}
	})
	w.source.recovered(ctx, Watching)
}

func (w *stream) read(ctx context.Context, body io.Reader, dog *watchdog) error {
	l := apiclient.NewLines(body)
	for first := true; ; first = false {
		line, err := l.Next()
		if err != nil && !errors.As(err, new(*apiclient.UnreadableError)) {
			return &disconnected{err}
		}
		dog.busy()
		if first {
			seen := w.source.progress.Seen()
			version, err := w.source.sameCluster(ctx, dog.began)
			if err != nil {
				return err
			}
			w.source.compareStorage(ctx, seen, version)
		}
		if err == nil {
			err = w.line(ctx, line)
		}
		switch {
		case errors.As(err, new(*apiclient.UnreadableError)):
			return &unreadableEvent{err}
		case err != nil:
			return err
		}
		dog.idle()
	}
}

func (w *stream) line(ctx context.Context, line []byte) error {
	typ, raw, err := rawjson.SplitWatchLine(line)
	if err != nil {
		return &apiclient.UnreadableError{Err: err}
	}
	switch watch.EventType(typ) {
	case watch.Added, watch.Modified, watch.Deleted:
		return w.change(ctx, watch.EventType(typ), raw)
	case watch.Bookmark:
		return w.bookmark(raw)
	case watch.Error:
		return apiclient.StatusError(raw)
	default:
		return &apiclient.UnreadableError{Err: fmt.Errorf("watch event of unknown type %q", typ)}
	}
}

func (w *stream) change(ctx context.Context, typ watch.EventType, raw []byte) error {
	s := w.source
	if !s.window.Free() {
		s.stats.setPaused(time.Now())
		err := s.window.Wait(ctx)
		s.stats.setPaused(time.Time{})
		if err != nil {
			return err
		}
	}
	m, edited, err := s.scan(raw)
	if err != nil {
		return w.unmade(ctx, typ, raw, err)
	}
	v, id := progress.VersionOf(m.ResourceVersion), s.progress.EventID(string(typ), m.UID, m.Namespace, m.Name)
	if s.progress.Repeated(v, id) {
		s.stats.contact(func(t *Counters) { t.Repeated++ })
		return nil
	}
	position := s.progress.Next()
	o, err := s.make(edited, m, position)
	if err != nil {
		return w.unmade(ctx, typ, raw, err)
	}
	return w.forward(watch.Event{Type: typ, Object: o}, position, v, id)
}

func (w *stream) forward(e watch.Event, position uint64, v progress.Version, id uint64) error {
	s := w.source
	s.progress.Event(v, id)
	s.window.Take(position)
	s.progress.Known(s.stats.received(func(t *Counters) { t.Events++ }))
	return w.send(e)
}

// bookmark notes the version that the stream has reached.
func (w *stream) bookmark(raw []byte) error {
	s := w.source
	m, err := rawjson.Scan(raw)
	if err == nil && len(m.ResourceVersion) == 0 {
		err = errors.New("bookmark has no resourceVersion")
	}
	if err != nil {
		return &apiclient.UnreadableError{Err: err}
	}
	rv := string(m.ResourceVersion)
	if rv == "0" { // it stands for any version
		s.stats.contact(nil)
		return nil
	}
	if seen := s.progress.Seen(); progress.Older(rv, seen) {
		s.doubtProbes()
		return &disconnected{fmt.Errorf("bookmark of version %s after %s", rv, seen)} // whether the server was set back is checked before the watch resumes
	}
	o, err := s.cfg.Bookmark(rv)
	if err != nil {
		return &apiclient.UnreadableError{Err: err}
	}
	w.bookmarks = true
	s.progress.Known(s.stats.received(func(t *Counters) { t.Bookmarks++ }))
	s.progress.Bookmark(progress.ParseVersion(rv))
	return w.send(watch.Event{Type: watch.Bookmark, Object: o})
}
