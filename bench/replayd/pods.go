package main

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/watcherd/watcherd/bench/internal/pods"
)

const (
	// writeSize is how much is sent at once.
	writeSize = 256 << 10

	// bookmarkInterval is shorter than a real server's minute, for short runs.
	bookmarkInterval = 5 * time.Second
)

func (s *server) pods(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "true" {
		s.watch(w, r)
		return
	}
	s.list(w, r)
}

// last returns the version of pod n after the given number of updates.
func (s *server) last(n int, updates uint64) uint64 {
	// Update u belongs to pod (u*stride)%count; the pods are hit once every count
	// updates, so only the latest round of them needs a look.
	count := uint64(s.count)
	if updates == 0 {
		return pods.Version(n)
	}
	at := s.inverse() * uint64(n) % count // the first update of the pod
	if at >= updates {
		return pods.Version(n)
	}
	return updatesFrom + at + (updates-1-at)/count*count
}

// inverse is the number that undoes stride, modulo count.
func (s *server) inverse() uint64 {
	count := int64(s.count)
	t, next, r, rest := int64(0), int64(1), count, stride%count
	for rest != 0 {
		q := r / rest
		t, next, r, rest = next, t-q*next, rest, r-q*rest
	}
	if t < 0 {
		t += count
	}
	return uint64(t)
}

// list serves a page. A continue token is the version of the first page and the
// number of the next pod.
func (s *server) list(w http.ResponseWriter, r *http.Request) {
	updates, _ := s.available()
	begin, limit := 0, s.count
	q := r.URL.Query()
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n > 0 {
		limit = n
	}
	if token := q.Get("continue"); token != "" {
		if _, err := fmt.Sscanf(token, "%d-%d", &updates, &begin); err != nil {
			http.Error(w, "bad continue token", http.StatusBadRequest)
			return
		}
	}
	end, next := min(begin+limit, s.count), ""
	if end < s.count {
		next = fmt.Sprintf(`,"continue":"%d-%d","remainingItemCount":%d`, updates, end, s.count-end)
	}
	buf := fmt.Appendf(make([]byte, 0, writeSize+(16<<10)), `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"%s},"items":[`, updatesFrom+updates-1, next)
	for n := begin; n < end; n++ {
		if n > begin {
			buf = append(buf, ',')
		}
		buf = s.render.AppendItem(buf, n, s.last(n, updates))
		if len(buf) >= writeSize {
			if _, err := w.Write(buf); err != nil {
				return
			}
			buf = buf[:0]
		}
	}
	_, _ = w.Write(append(buf, "]}\n"...)) // who has hung up needs no answer
}

// watch serves the updates after the given version; before them, if asked to, all
// pods.
func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	updates, _ := s.available()
	next := updates
	if v, err := strconv.ParseUint(q.Get("resourceVersion"), 10, 64); err == nil && v >= updatesFrom-1 && q.Get("sendInitialEvents") != "true" {
		next = v + 1 - updatesFrom
	}
	out := &sender{w: w, flush: http.NewResponseController(w)}
	if q.Get("sendInitialEvents") == "true" {
		for n := range s.count {
			out.begin("ADDED")
			out.buf = s.render.Append(out.buf, n, s.last(n, updates))
			out.end(false)
		}
		out.bookmark(updatesFrom+updates-1, `,"annotations":{"k8s.io/initial-events-end":"true"}`)
	}
	out.send()
	ctx, cancel := watchContext(r)
	defer cancel()
	bookmarks := time.NewTicker(bookmarkInterval)
	defer bookmarks.Stop()
	for out.err == nil {
		available, news := s.available()
		from := next
		for ; next < available && out.err == nil; next++ {
			out.begin("MODIFIED")
			out.buf = s.render.Append(out.buf, int(next*stride%uint64(s.count)), updatesFrom+next)
			out.end(next+1 == available)
		}
		s.mu.Lock()
		s.stats.Sent += next - from
		s.mu.Unlock()
		select {
		case <-news:
		case <-bookmarks.C:
			out.bookmark(updatesFrom+next-1, "")
		case <-ctx.Done():
			return
		}
	}
}

// sender collects lines and sends them.
type sender struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	buf   []byte
	err   error
}

func (o *sender) begin(kind string) {
	o.buf = append(o.buf, `{"type":"`...)
	o.buf = append(o.buf, kind...)
	o.buf = append(o.buf, `","object":`...)
}

func (o *sender) end(last bool) {
	o.buf = append(o.buf, "}\n"...)
	if last || len(o.buf) >= writeSize {
		o.send()
	}
}

func (o *sender) bookmark(version uint64, more string) {
	o.begin("BOOKMARK")
	o.buf = fmt.Appendf(o.buf, `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","creationTimestamp":null%s},"spec":{"containers":null},"status":{}}`, version, more)
	o.end(true)
}

// send writes what there is. After an error nothing more is sent.
func (o *sender) send() {
	if o.err == nil {
		_, o.err = o.w.Write(o.buf)
	}
	if o.err == nil {
		o.err = o.flush.Flush()
	}
	o.buf = o.buf[:0]
}
