package admin

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/watcherd/watcherd/internal/prom"
)

type metrics struct {
	group        *prom.Group
	requests     *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	denied       *prometheus.CounterVec
	streams      prometheus.Gauge
	sent         prometheus.Counter
	disconnected prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		group:        prom.NewGroup(r),
		requests:     prom.CounterVec("watcherd_admin_requests_total", "Requests by handler and status code.", "handler", "code"),
		duration:     prom.HistogramVec("watcherd_admin_request_duration_seconds", "Duration of requests except event streams.", prometheus.ExponentialBuckets(0.001, 4, 8), "handler"),
		denied:       prom.CounterVec("watcherd_admin_denied_total", "Requests rejected, by reason.", "reason"),
		streams:      prom.Gauge("watcherd_admin_event_streams", "Open event streams."),
		sent:         prom.Counter("watcherd_admin_stream_events_total", "Events sent on event streams."),
		disconnected: prom.Counter("watcherd_admin_streams_disconnected_total", "Event streams disconnected because the client read too slowly."),
	}
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		m.denied.WithLabelValues(http.StatusText(code))
	}
	if err := m.group.RegisterAll(m.requests, m.duration, m.denied, m.streams, m.sent, m.disconnected); err != nil {
		return nil, fmt.Errorf("register metrics of the admin listener: %w", err)
	}
	return m, nil
}

func (m *metrics) unregister() {
	if m != nil {
		m.group.Close()
	}
}

// instrument counts a handler's answers under its pattern.
func (m *metrics) instrument(pattern string, next http.Handler) http.Handler {
	name := handlerName(pattern)
	stream := strings.HasSuffix(name, "/events")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		rec := &recorder{ResponseWriter: w, code: http.StatusOK}
		defer func() {
			m.requests.WithLabelValues(name, strconv.Itoa(rec.code)).Inc()
			if !stream {
				m.duration.WithLabelValues(name).Observe(time.Since(begin).Seconds())
			}
		}()
		next.ServeHTTP(rec, r)
	})
}

// handlerName is a pattern's path; unknown paths share one.
func handlerName(pattern string) string {
	_, path, ok := strings.Cut(pattern, " ")
	switch {
	case pattern == past:
		return pattern
	case !ok:
		return "other"
	}
	return strings.TrimSuffix(path, "{$}")
}

type recorder struct {
	http.ResponseWriter
	code  int
	wrote bool
}

func (r *recorder) WriteHeader(code int) {
	if !r.wrote {
		r.code, r.wrote = code, true
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.wrote = true
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// maxGathers is how many collections of the metrics run at a time on one listener.
const maxGathers = 2

// exposition answers with the metrics. They are written to memory first, so that clients
// who read slowly do not keep others waiting.
func (s *Server) exposition() handler {
	h := promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{
		ErrorLog: promLogger{s.log}, ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true,
	})
	turns := make(chan struct{}, maxGathers)
	return func(w http.ResponseWriter, r *http.Request) error {
		release, ok := take(r, turns)
		if !ok {
			return nil
		}
		p := page{ResponseWriter: w, code: http.StatusOK}
		func() {
			defer release()
			h.ServeHTTP(&p, r)
		}()
		w.WriteHeader(p.code)
		return ignoreGone(s.unread.write(w, p.body))
	}
}

// page keeps an answer in memory.
type page struct {
	http.ResponseWriter
	code int
	body []byte
}

func (p *page) WriteHeader(code int) { p.code = code }

func (p *page) Write(b []byte) (int, error) {
	p.body = append(p.body, b...)
	return len(b), nil
}

// maxUnread is how many bytes of answers that do not wait for a place are in memory.
const maxUnread = 32 << 20

// unread are the answers in memory that clients have not read yet, of requests that must not wait for other clients:
// metrics and the status. Where they are too large the oldest ends; the newest stays.
type unread struct {
	mu      sync.Mutex
	answers []*unreadAnswer // guarded by mu; the oldest first
	size    int             // guarded by mu; of all of them
}

type unreadAnswer struct {
	to   *http.ResponseController
	size int
}

// write returns when the client has read the body, or the answer has ended before.
func (u *unread) write(w http.ResponseWriter, body []byte) error {
	a := &unreadAnswer{http.NewResponseController(w), len(body)}
	u.add(a)
	defer u.remove(a)
	_, err := w.Write(body)
	return err
}

func (u *unread) add(a *unreadAnswer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answers = append(u.answers, a)
	u.size += a.size
	for u.size > maxUnread && len(u.answers) > 1 {
		_ = u.answers[0].to.SetWriteDeadline(time.Unix(1, 0)) // its write fails; see limited
		u.removeLocked(0)
	}
}

func (u *unread) remove(a *unreadAnswer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := slices.Index(u.answers, a); i >= 0 {
		u.removeLocked(i)
	}
}

func (u *unread) removeLocked(i int) {
	u.size -= u.answers[i].size
	u.answers = slices.Delete(u.answers, i, i+1)
}

// promLogger takes the errors of collectors.
type promLogger struct{ log *slog.Logger }

func (l promLogger) Println(v ...any) {
	l.log.Error("metrics collection failed", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}
