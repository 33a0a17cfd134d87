package rawwatch

import (
	"context"
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// watchTimeout is the shortest time after which the server is asked to end a
	// watch; the longest is twice that, so that informers do not reconnect all at
	// once. Authorisation is checked anew with every request.
	watchTimeout = 5 * time.Minute

	// quietTimeout takes its place for sources that send no bookmarks: there, a
	// request after a quiet time most likely finds its version expired.
	quietTimeout = 30 * time.Minute

	// timeoutGrace is how much longer than asked for the server may take to end a
	// watch before that is taken for a broken connection.
	timeoutGrace = 30 * time.Second

	// probeFresh is how old the answer of a probe may be that a source goes by
	// when it begins.
	probeFresh = 5 * time.Second

	// unreadableAttempts is how often events after one version are read again when
	// one of them makes no sense.
	unreadableAttempts = 3

	// invalidAttempts is how often a watch is refused as invalid before a list is
	// made. It doubles with each list that does not help, invalidDoublings times.
	invalidAttempts  = 3
	invalidDoublings = 6
)

// What ends a watch request, besides what the server says.
var (
	errSilent     = errors.New("the watch fell silent")
	errNoHeaders  = errors.New("the server does not answer the watch request")
	errOverdue    = errors.New("the watch did not end when it should have")
	errProbe      = errors.New("the server does not answer")
	errRolledBack = errors.New("the server's resource versions went backwards")
)

// stream is the one endless watch that the reflector sees.
type stream struct {
	source *Source
	cancel context.CancelFunc
	events chan watch.Event

	done       <-chan struct{} // closed when the reflector stops the watch
	backoff    backoff
	requests   int    // watches established
	bookmarks  bool   // the current request has had a bookmark
	quiet      bool   // the source sends none
	unreadable int    // events in a row that made no sense
	unreadAt   string // the version after which
	invalid    int    // requests in a row that were refused as invalid
}

var _ watch.Interface = (*stream)(nil)

// WatchWithContext returns a watch that goes on until ctx is done or history is
// lost. The options do not matter: it begins where the last list ended.
func (s *Source) WatchWithContext(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &stream{
		source: s, cancel: cancel, done: ctx.Done(), events: make(chan watch.Event),
		quiet: s.cfg.GVR.Resource == "events", backoff: backoff{streams: &s.cfg.Client.streams},
	}
	s.cfg.Client.streams.Add(1)
	go func() {
		defer s.running.Done()
		defer s.cfg.Client.streams.Add(-1)
		defer cancel()
		defer close(w.events)
		w.run(ctx)
	}()
	return w, nil
}

// ResultChan is closed when the watch ends.
func (w *stream) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch. It does not wait; Source.Wait does.
func (w *stream) Stop() { w.cancel() }

// run makes one request after the other.
func (w *stream) run(ctx context.Context) {
	s := w.source
	for ctx.Err() == nil {
		err := w.request(ctx)
		if ctx.Err() != nil {
			return
		}
		var bad *unreadable
		var requested errRelistRequested
		switch {
		case err == nil:
			continue // the server ended it, as asked
		case errors.As(err, &requested):
			w.end(ctx, requested.cause, err)
			return
		case isExpired(err):
			w.end(ctx, CauseExpired, err)
			return
		case errors.Is(err, errRolledBack):
			w.end(ctx, CauseRollback, err)
			return
		case errors.As(err, &bad):
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
		most := backoffMax
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			most = backoffAbsent
		}
		if w.backoff.wait(ctx, retryAfter(err), most) != nil {
			return
		}
	}
}

// givesUp counts events that make no sense, and tells whether to list instead of
// reading them again.
func (w *stream) givesUp() bool {
	at := w.source.progress.Resume()
	if at != w.unreadAt {
		w.unreadAt, w.unreadable = at, 0
	}
	w.unreadable++
	return w.unreadable >= unreadableAttempts
}

// needsList counts requests in a row that the server refuses as invalid, and tells
// whether to list: a version that another server has given may be no version of this
// one. A server that refuses the version of its own list as well is listed ever more
// seldom.
func (w *stream) needsList(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusBadRequest, http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
	default:
		return false
	}
	s := w.source
	if w.invalid++; w.invalid < invalidAttempts<<s.invalid {
		return false
	}
	s.invalid = min(s.invalid+1, invalidDoublings)
	return true
}

// end has the reflector list again.
func (w *stream) end(ctx context.Context, cause string, err error) {
	w.source.lost(cause) // before anything counts as a contact
	if isExpired(err) {
		w.source.stats.contact(func(t *Counters) { t.Expired++ })
	}
	klog.FromContext(ctx).Info("Informer lost a part of its resource's history and lists it again",
		"resource", w.source.cfg.GVR.String(), "namespace", w.source.cfg.Namespace, "cause", cause, "err", err)
	status := apierrors.NewResourceExpired(err.Error()).Status()
	_ = w.send(watch.Event{Type: watch.Error, Object: &status}) // who has stopped does not list again
}

// send hands an event to the reflector. It fails only if the reflector has stopped: an
// event that progress counts as received is not lost with the request that brought it.
func (w *stream) send(e watch.Event) error {
	select {
	case w.events <- e:
		return nil
	case <-w.done:
		return context.Canceled
	}
}

// request makes one watch request and reads it to its end, which is nil if the
// server ended it in its time.
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
	defer func() { _ = s.interruptible(nil) }() // only a beginning can be refused
	resp, err := w.open(ctx, cancel)
	if err != nil {
		return err
	}
	defer resp.body.Close()
	w.established(ctx)

	dog := newWatchdog(s, cancel, resp.timeout-time.Since(resp.began)+timeoutGrace)
	var guard sync.WaitGroup
	guard.Go(func() { dog.run(ctx) })
	err = w.read(ctx, resp.body, dog)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	guard.Wait()

	lived := time.Since(resp.began)
	if lived >= backoffReset {
		w.backoff.reset()
	}
	w.quiet = w.quiet && !w.bookmarks || !w.bookmarks && lived > 4*time.Minute
	switch {
	case errors.Is(err, io.EOF) && lived >= resp.timeout-timeoutGrace/2:
		return nil
	case isExpired(err) || errors.Is(err, errRolledBack) || errors.As(err, new(errRelistRequested)):
		return err
	case errors.Is(err, io.EOF):
		err = &disconnected{fmt.Errorf("the watch ended after %v, before its time", lived.Round(time.Millisecond))}
	}
	s.suspectSince(time.Now())
	return err
}

// response is a watch that the server has answered.
type response struct {
	body    io.ReadCloser
	began   time.Time
	timeout time.Duration // after which the server ends it
}

// open takes over the watch that was sent while the list was read, or sends one.
func (w *stream) open(ctx context.Context, cancel context.CancelCauseFunc) (response, error) {
	s := w.source
	if h := s.takeHeld(); h != nil {
		context.AfterFunc(ctx, func() { h.cancel(context.Cause(ctx)) })
		err := h.takeOver(ctx)
		if err == nil && h.version == s.progress.Resume() {
			return response{h, h.began, h.timeout}, nil
		}
		h.close()
		if ctx.Err() != nil || isExpired(err) {
			return response{}, err
		}
	}
	timeout := watchTimeout
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
	accept := acceptObjects
	if s.cfg.MetadataOnly {
		accept = acceptMetadata
	}
	headers := time.AfterFunc(silence, func() { cancel(errNoHeaders) })
	defer headers.Stop()
	resp, err := s.cfg.Client.get(ctx, s.path, query, accept) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// watchTimeout is what a watch asks for, at least and at most twice that, unless
// there is one for all.
func (s *Source) watchTimeout(least time.Duration) time.Duration {
	if t := s.cfg.TimeoutSeconds; t > 0 {
		return time.Duration(t) * time.Second
	}
	return least + rand.N(least)
}

func (w *stream) established(ctx context.Context) {
	w.bookmarks = false
	w.requests++
	w.invalid, w.source.invalid = 0, 0
	first := w.requests == 1
	w.source.stats.contact(func(t *Counters) {
		if !first {
			t.Restarts++
		}
	})
	if w.source.stats.healthy(Watching) {
		klog.FromContext(ctx).Info("Informer watches its resource again", "resource", w.source.cfg.GVR.String(), "namespace", w.source.cfg.Namespace)
	}
}

// read hands on what the stream brings until it ends.
func (w *stream) read(ctx context.Context, body io.Reader, dog *watchdog) error {
	l := newLines(body)
	for {
		line, err := l.next()
		if errors.As(err, new(*unreadable)) {
			return err
		}
		if err != nil {
			return &disconnected{err}
		}
		dog.busy()
		if err := w.line(ctx, line); err != nil {
			return err
		}
		dog.idle()
	}
}

// line hands on one line of the stream.
func (w *stream) line(ctx context.Context, line []byte) error {
	typ, raw, err := rawjson.SplitWatchLine(line)
	if err != nil {
		return &unreadable{err}
	}
	switch watch.EventType(typ) {
	case watch.Added, watch.Modified, watch.Deleted:
		return w.change(ctx, watch.EventType(typ), raw)
	case watch.Bookmark:
		return w.bookmark(raw)
	case watch.Error:
		return statusError(raw)
	default:
		return &unreadable{fmt.Errorf("watch event of unknown type %q", typ)}
	}
}

// change hands on an object that was added, modified or deleted.
func (w *stream) change(ctx context.Context, typ watch.EventType, raw []byte) error {
	s := w.source
	if !s.window.Free() {
		s.stats.pause()
		err := s.window.Wait(ctx)
		s.stats.unpause()
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
	return w.handOn(watch.Event{Type: typ, Object: o}, position, v, id)
}

// handOn hands on an event at next's position.
func (w *stream) handOn(e watch.Event, position uint64, v progress.Version, id uint64) error {
	s := w.source
	s.progress.Event(v, id)
	s.window.Take(position)
	s.stats.current(func(t *Counters) { t.Events++ })
	return w.send(e)
}

// bookmark notes how far the stream has come.
func (w *stream) bookmark(raw []byte) error {
	s := w.source
	m, err := rawjson.Scan(raw)
	if err == nil && len(m.ResourceVersion) == 0 {
		err = errors.New("a bookmark without resourceVersion")
	}
	if err != nil {
		return &unreadable{err}
	}
	rv := string(m.ResourceVersion)
	o, err := s.cfg.Bookmark(rv)
	if err != nil {
		return &unreadable{err}
	}
	w.bookmarks = true
	s.progress.Bookmark(progress.ParseVersion(rv))
	s.stats.current(func(t *Counters) { t.Bookmarks++ })
	return w.send(watch.Event{Type: watch.Bookmark, Object: o})
}

// statusError makes an error of the object of an ERROR event.
func statusError(raw []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(raw, &status); err != nil || status.Kind != "Status" {
		return &unreadable{fmt.Errorf("error event without a status: %.200s", raw)}
	}
	return apierrors.FromObject(runtime.Object(&status))
}
