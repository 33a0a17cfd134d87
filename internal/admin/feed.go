package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

// StreamFrame is the name of a frame; its data is a [Frame].
const StreamFrame = "frame"

const (
	frameInterval = 100 * time.Millisecond // between two frames, at least
	frameRows     = 50
)

// Frame is what was recorded since the frame before, for a reader that shows it: exact counts,
// and the newest events. Its id is the sequence of the last event that was counted.
type Frame struct {
	Total      int                `json:"total"`
	Counts     map[event.Type]int `json:"counts"`
	Unreadable int                `json:"unreadable,omitempty"` // records, which are not in Total
	Rows       []FrameRow         `json:"rows"`                 // at most 50, the oldest first
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
	Routes    []string       `json:"routes,omitempty"` // that took it when it was recorded
}

func (f *Frame) add(e *event.Event, routes []string) {
	f.Total++
	f.Counts[e.Type]++
	row := FrameRow{
		Sequence: e.Sequence, ID: e.ID, Time: e.Time, Type: e.Type, Resource: e.Resource,
		Namespace: e.Namespace, Name: e.Name, Routes: slices.Compact(slices.Sorted(slices.Values(routes))),
	}
	if e.ChangedBy != nil {
		row.Manager = e.ChangedBy.Manager
	}
	if len(f.Rows) == 2*frameRows {
		f.Rows = append(f.Rows[:0], f.Rows[frameRows:]...)
	}
	f.Rows = append(f.Rows, row)
}

// frames sends what q asks for in frames, until that is done, ctx is, or the reader is gone.
func (st *stream) frames(ctx context.Context, log Log, q *streamQuery) {
	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	for st.err == nil && ctx.Err() == nil {
		f, end, err := q.frame(ctx, log)
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
		st.beat(q.after)
		if end && !q.follow || q.limit < 0 {
			return
		}
		interval := time.NewTimer(frameInterval)
		select {
		case <-interval.C:
		case <-ctx.Done():
			interval.Stop()
		}
		if end {
			st.wait(ctx, log, q.after, beat)
		}
	}
}

// frame reads on until the end of the log, for as long as the time between two frames at
// most. A limit that is reached becomes negative.
func (q *streamQuery) frame(ctx context.Context, log Log) (f *Frame, end bool, err error) {
	f = &Frame{Counts: map[event.Type]int{}, Rows: []FrameRow{}}
	began := time.Now()
	for !end && time.Since(began) < frameInterval && ctx.Err() == nil && (q.limit <= 0 || f.Total < q.limit) {
		batch, err := log.Read(q.after, func(e *event.Event, routes []string) bool {
			if q.keep(e, routes) {
				f.add(e, routes)
			}
			return false
		})
		if err != nil {
			return f, false, err
		}
		for i := range batch {
			q.after = batch[i].Sequence
			if batch[i].Err != nil {
				f.Unreadable++
			}
		}
		end = len(batch) == 0
	}
	if q.limit > 0 {
		if q.limit -= f.Total; q.limit <= 0 {
			q.limit = -1
		}
	}
	f.Rows = f.Rows[max(len(f.Rows)-frameRows, 0):]
	for i := range f.Rows {
		if f.Rows[i].Summary, err = log.Summary(f.Rows[i].Sequence); err != nil {
			return f, end, err
		}
	}
	return f, end, nil
}
