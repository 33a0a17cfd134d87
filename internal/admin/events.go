package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/pkg/event"
)

const (
	maxStreams = 32

	// keepAlive is how often an idle stream shows that it is alive, so that proxies
	// keep it and clients notice when it is gone.
	keepAlive = 15 * time.Second

	// writeTimeout is how long a reader may take for what is sent at once.
	writeTimeout = 30 * time.Second

	// askAgain is how often a busy stream asks whether its reader may still have it: its token may have been replaced. An idle
	// one asks each time that it shows that it is alive.
	askAgain = time.Second
)

// Names of the stream's events that are no events of the log.
const (
	// StreamTruncated comes where the log no longer has events that were asked for: first, also if the reader resumes with
	// an id of another log, or later if retention has deleted some before the stream came to them. Its data is {"firstSequence":N}.
	StreamTruncated = "truncated"
	// StreamUnreadable stands for a damaged record; its data is {"sequence":N,
	// "error":"..."}.
	StreamUnreadable = "unreadable"
	// StreamEnd is sent when the stream ends for a reason; its data is
	// {"reason":"..."}. Clients resume with Last-Event-ID.
	StreamEnd = "end"
)

// events answers with the event log as server-sent events: the id is the sequence,
// the name the event's type, the data a CloudEvent. A stream begins after
// Last-Event-ID, or at ?since= (a sequence, a time or a duration), or with the next
// event. Filters: ?resource=, ?namespace=, ?route=, ?type=, each with commas or
// several times, ?name= and ?manager=. ?follow=false ends it at the end of the log, ?limit= after as many
// events. With ?view=feed events come in frames of exact counts and the newest events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		return problemf(http.StatusServiceUnavailable, "%d event streams are open already, which is the limit", maxStreams)
	}
	q, err := s.parseStream(r)
	if err != nil {
		return err
	}
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	ctx, cancel := s.untilStopping(r.Context())
	defer cancel()

	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	st := &stream{w: w, rc: http.NewResponseController(w), metrics: s.metrics, asked: time.Now(), refused: func() *Problem {
		_, p := s.authenticate(r)
		return p
	}}
	_ = st.rc.SetReadDeadline(time.Time{}) // the request is read; see limited
	st.run(ctx, s.cfg.Log, q)
	if ctx.Err() != nil && r.Context().Err() == nil {
		st.send(0, StreamEnd, []byte(`{"reason":"the daemon is stopping"}`))
		st.flush()
	}
	return nil
}

type stream struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	metrics *metrics
	buf     []byte
	err     error // of the first write that failed, or why the stream has ended; nothing is written after it
	wrote   time.Time

	refused func() *Problem // why the reader may not have the stream any more
	asked   time.Time       // when that was called, or the stream began
}

// run sends what q asks for until that is done, ctx is, or the reader is gone.
func (st *stream) run(ctx context.Context, log Log, q *streamQuery) {
	if first, _ := log.Bounds(); q.fromPast {
		q.after = st.resume(log, q.after, 0)
	} else if q.after+1 < first {
		q.after = first - 1
	}
	// An id without data: a reader that loses the connection before the first event
	// resumes here, too.
	st.buf = fmt.Appendf(st.buf, "id: %d\n\n", q.after)
	st.flush()
	if q.frames {
		st.frames(ctx, log, q)
		return
	}
	idle := time.NewTimer(keepAlive)
	defer idle.Stop()
	for st.err == nil && ctx.Err() == nil {
		batch, err := log.Read(q.after, q.keep)
		if err != nil {
			st.send(0, StreamEnd, marshal(map[string]any{"reason": err.Error()}))
			st.flush()
			return
		}
		next := uint64(0)
		if len(batch) > 0 {
			next = batch[0].Sequence
		}
		q.after = st.resume(log, q.after, next)
		for _, l := range batch {
			q.after = l.Sequence
			if !st.logged(&l) {
				continue
			}
			if q.limit--; q.limit == 0 {
				st.flush()
				return
			}
			if st.idle(q.after); st.err != nil { // the reader takes its time for what was read at once
				return
			}
		}
		if len(batch) > 0 {
			st.flush()
			st.idle(q.after)
			continue
		}
		if !q.follow {
			return
		}
		st.wait(ctx, log, q.after, idle)
	}
}

// resume returns the sequence after which the log has events, given the one that they were read after. If
// retention has deleted some of these, it reports that to the reader. What was read begins at next, 0 if there was nothing.
func (st *stream) resume(log Log, after, next uint64) uint64 {
	first, _ := log.Bounds() // after the reading
	if next != 0 {
		first = min(first, next)
	}
	if after+1 >= first {
		return after
	}
	st.send(0, StreamTruncated, marshal(map[string]any{"firstSequence": first}))
	return first - 1
}

// idle shows a reader that has heard nothing for a while that the stream is there, by the id
// after which it would resume: others may have been left out since the last one. It ends the stream of one that may not have it any more.
func (st *stream) idle(after uint64) {
	if st.err == nil && time.Since(st.asked) >= askAgain {
		st.asked = time.Now()
		if p := st.refused(); p != nil {
			st.send(0, StreamEnd, marshal(map[string]any{"reason": p.Error()}))
			st.flush()
			st.err = cmp.Or(st.err, error(p))
			return
		}
	}
	if time.Since(st.wrote) >= keepAlive {
		st.buf = fmt.Appendf(st.buf, "id: %d\n\n", after)
		st.flush()
	}
}

// wait returns when there is more to read, or when the reader should hear that it
// is still there.
func (st *stream) wait(ctx context.Context, log Log, after uint64, idle *time.Timer) {
	idle.Reset(keepAlive - time.Since(st.wrote))
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	news := make(chan struct{})
	go func() {
		defer close(news)
		_ = log.Wait(waiting, after) // an error shows at the next read, or is the end of ctx
	}()
	for {
		select {
		case <-news:
			return
		case <-idle.C:
			st.idle(after)
			if st.err != nil {
				cancel()
				<-news
				return
			}
			idle.Reset(keepAlive)
		}
	}
}

// logged sends an event of the log; it returns false if the filter refused it.
func (st *stream) logged(l *Logged) bool {
	switch {
	case l.Err != nil:
		st.send(l.Sequence, StreamUnreadable, marshal(map[string]any{"sequence": l.Sequence, "error": l.Err.Error()}))
	case l.Event == nil:
		return false
	default:
		st.send(l.Sequence, string(l.Event.Type), event.AppendCloudEvent(nil, l.Event))
	}
	st.metrics.sent.Inc()
	return true
}

// send buffers an event; its data is one line. An id of 0 is left out.
func (st *stream) send(id uint64, name string, data []byte) {
	if id != 0 {
		st.buf = append(st.buf, "id: "...)
		st.buf = strconv.AppendUint(st.buf, id, 10)
		st.buf = append(st.buf, '\n')
	}
	st.buf = append(st.buf, "event: "...)
	st.buf = append(st.buf, name...)
	st.buf = append(st.buf, "\ndata: "...)
	st.buf = append(st.buf, data...)
	st.buf = append(st.buf, "\n\n"...)
	if len(st.buf) > 1<<20 {
		st.flush()
	}
}

// flush writes what is buffered. A reader that does not take it in time is cut off,
// and may resume with the id it had last.
func (st *stream) flush() {
	if st.err == nil && len(st.buf) > 0 {
		_ = st.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // see limited
		if _, st.err = st.w.Write(st.buf); st.err == nil {
			st.err = st.rc.Flush()
		}
		if st.err != nil {
			st.metrics.disconnected.Inc()
		}
		st.wrote = time.Now()
	}
	st.buf = st.buf[:0]
}

// marshal is for maps of strings and numbers.
func marshal(v map[string]any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("admin: marshal %v: %v", v, err))
	}
	return b
}

// StreamFrame is the name of a frame; its data is a [Frame].
const StreamFrame = "frame"

const (
	frameInterval = 100 * time.Millisecond // between two frames, at least
	busyInterval  = 250 * time.Millisecond // after one that has not a row for each event
	frameRows     = 50

	// rowRate is how many rows a second a stream sends in the long run, beside fewRows in each
	// frame at least. Rows are most of its work, and no reader reads more.
	rowRate = 100
	fewRows = 10
)

// Frame is what was recorded since the frame before, for a reader that shows it: exact counts,
// and the newest events. Its id is the sequence of the last event that was counted.
type Frame struct {
	Total      int                `json:"total"`
	Counts     map[event.Type]int `json:"counts"`
	Noise      int                `json:"noise"`                // of Total: status changes and the like, which with noise=false have no rows
	Unreadable int                `json:"unreadable,omitempty"` // records without a headline, which are not in Total
	Rows       []FrameRow         `json:"rows"`                 // at most 50, and about 100 a second, the oldest first

	newest []uint64 // sequences of the last that were counted
	first  uint64   // the sequence of the first record that was read; 0: none was
}

// FrameRow is an event of a frame.
type FrameRow struct {
	Sequence  uint64         `json:"sequence"`
	ID        string         `json:"id"`
	Time      time.Time      `json:"time"`
	Type      event.Type     `json:"type"`
	Resource  event.Resource `json:"resource"`
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name,omitempty"`
	Manager   string         `json:"manager,omitempty"`
	Summary   string         `json:"summary,omitempty"`
	Gap       *event.GapData `json:"gap,omitempty"`
	Routes    []string       `json:"routes,omitempty"` // that took it when it was recorded
}

// add counts an event, and keeps its sequence if it may be shown.
func (f *Frame) add(row *headline.Row, q *streamQuery) {
	f.Total++
	f.Counts[row.Type]++
	if row.Noise(len(q.resources) > 0) {
		f.Noise++
		if q.noNoise {
			return
		}
	}
	if len(f.newest) == 2*frameRows {
		f.newest = append(f.newest[:0], f.newest[frameRows:]...)
	}
	f.newest = append(f.newest, row.Sequence)
}

// show reads the newest events that were counted, at most as many as rows. Of one that is gone, or
// cannot be read, there is no row.
func (f *Frame) show(log Log, rows int) error {
	for _, sequence := range f.newest[max(len(f.newest)-rows, 0):] {
		e, routes, err := log.Event(sequence)
		if err != nil {
			return err
		}
		if e == nil {
			continue
		}
		row := FrameRow{
			Sequence: e.Sequence, ID: e.ID, Time: e.Time, Type: e.Type, Resource: e.Resource, Namespace: e.Namespace, Name: e.Name,
			Summary: e.Summary, Gap: e.Gap, Routes: slices.Compact(slices.Sorted(slices.Values(routes))),
		}
		if e.ChangedBy != nil {
			row.Manager = e.ChangedBy.Manager
		}
		f.Rows = append(f.Rows, row)
	}
	return nil
}

// frames sends what q asks for in frames, until that is done, ctx is, or the reader is gone.
func (st *stream) frames(ctx context.Context, log Log, q *streamQuery) {
	idle := time.NewTimer(keepAlive)
	defer idle.Stop()
	credit, last := float64(rowRate), time.Now() // rows that may be sent
	for st.err == nil && ctx.Err() == nil {
		after := q.after
		f, end, err := q.frame(ctx, log)
		if err == nil {
			q.after = max(q.after, st.resume(log, after, f.first))
			now := time.Now()
			credit, last = min(credit+now.Sub(last).Seconds()*rowRate, rowRate), now
			err = f.show(log, max(min(int(credit), frameRows), fewRows))
			credit -= float64(len(f.Rows))
		}
		if err != nil {
			st.send(0, StreamEnd, marshal(map[string]any{"reason": err.Error()}))
			st.flush()
			return
		}
		if f.Total+f.Unreadable > 0 {
			data, err := json.Marshal(f)
			if err != nil { // numbers and texts
				panic(fmt.Sprintf("admin: marshal a frame: %v", err))
			}
			st.send(q.after, StreamFrame, data)
			st.flush()
			st.metrics.sent.Add(float64(f.Total))
		}
		st.idle(q.after)
		if end && !q.follow || q.limit < 0 {
			return
		}
		interval := frameInterval
		if len(f.newest) > len(f.Rows) {
			interval = busyInterval
		}
		next := time.NewTimer(interval)
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
		}
		if end {
			st.wait(ctx, log, q.after, idle)
		}
	}
}

// frame reads on until the end of the log, for as long as the time between two frames at
// most. A limit that is reached becomes negative.
func (q *streamQuery) frame(ctx context.Context, log Log) (f *Frame, end bool, err error) {
	f = &Frame{Counts: map[event.Type]int{}, Rows: []FrameRow{}}
	began := time.Now()
	more := func() bool {
		return time.Since(began) < frameInterval && ctx.Err() == nil && (q.limit <= 0 || f.Total < q.limit)
	}
	count := q.count
	if len(q.routes) > 0 { // which headlines do not have
		count = q.countRecords
	}
	if end, err = count(log, f, more); err != nil { // headlines may be damaged; a store that failed shows again
		end, err = q.countRecords(log, f, more)
	}
	if err != nil {
		return f, false, err
	}
	if q.limit > 0 {
		if q.limit -= f.Total; q.limit <= 0 {
			q.limit = -1
		}
	}
	return f, end, nil
}

// count counts by headlines, a fraction of the work of reading records, while there are more.
func (q *streamQuery) count(log Log, f *Frame, more func() bool) (end bool, err error) {
	_, last := log.Bounds()
	end = true
	err = log.Headlines(q.after, func(row *headline.Row) bool {
		if end = more(); !end {
			return false
		}
		q.after, f.first = row.Sequence, cmp.Or(f.first, row.Sequence)
		if row.Flags&headline.Rerecorded == 0 && q.wants(row) {
			f.add(row, q)
		}
		return true
	})
	if end && err == nil {
		q.after = max(q.after, last)
	}
	return end, err
}

// countRecords is count by the records, which do not show what changes status alone.
func (q *streamQuery) countRecords(log Log, f *Frame, more func() bool) (end bool, err error) {
	for !end && more() {
		batch, err := log.Read(q.after, func(e *event.Event, routes []string) bool {
			if q.keep(e, routes) {
				f.add(&headline.Row{Sequence: e.Sequence, Type: e.Type, Resource: e.Resource}, q)
			}
			return false
		})
		if err != nil {
			return false, err
		}
		for i := range batch {
			q.after, f.first = batch[i].Sequence, cmp.Or(f.first, batch[i].Sequence)
			if batch[i].Err != nil {
				f.Unreadable++
			}
		}
		end = len(batch) == 0
	}
	return end, nil
}
