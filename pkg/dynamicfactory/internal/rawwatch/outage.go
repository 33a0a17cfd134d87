package rawwatch

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
)

const (
	// outageGather is the time in which the failures of the watches of one server are
	// collected before the outage is logged, in addition to the time over which they
	// reconnect.
	outageGather = time.Second

	// outageOver is the time after the end of an outage from which a client that still
	// fails has an outage of its own. Every client makes several attempts in it.
	outageOver = 2 * apiclient.MaxBackoff
)

// cause is the cause of failures that concern an API server as a whole.
type cause int

const (
	causeOwn         cause = iota // the failure concerns one resource
	causeUnavailable              // no connection, or a failure of the server (5xx, 429)
	causeCredentials              // 401
	causeForeign                  // the server belongs to another cluster
	causes
)

// causeOf returns the cause of a failure.
func causeOf(err error) cause {
	reason := apierrors.ReasonForError(err)
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, apiclient.ErrForeign):
		return causeForeign
	case errors.As(err, new(*apiclient.UnreadableError)) || errors.Is(err, ErrMaker) || errors.Is(err, errWarmStart):
		return causeOwn
	case apierrors.IsUnauthorized(err):
		return causeCredentials
	case errors.As(err, &status) && (status.Status().Code >= 500 || reason == metav1.StatusReasonTooManyRequests):
		return causeUnavailable
	case errors.As(err, &status):
		return causeOwn
	default:
		return causeUnavailable
	}
}

// Outages logs the failures that the clients of one API server have in common: one line
// when an outage begins, with its cause and the number of watches, and one at its end,
// with its duration. It is safe for concurrent use.
type Outages struct {
	gather time.Duration

	mu      sync.Mutex // guards what follows, every outage, and Member.in
	current [causes]*outage
}

// NewOutages returns an Outages without an outage.
func NewOutages() *Outages { return &Outages{gather: outageGather} }

// Member is a client of the API server: a watch, or the reader of discovery. It has at
// most one outage at a time.
type Member struct {
	outages  *Outages
	resource string // "" for a client that is not a watch
	in       *outage
}

// NewMember returns a member for a watch of a resource, or for another client if resource
// is "".
func (o *Outages) NewMember(resource string) *Member { return &Member{outages: o, resource: resource} }

// outage is a period in which clients fail for one cause.
type outage struct {
	cause cause
	began time.Time
	err   error // the cause, in full
	lost  bool  // so far, established watches have ended, and no request has failed

	members   map[*Member]struct{} // those that fail
	resumed   map[*Member]struct{} // watches that failed and succeeded since
	gathering bool                 // an announcement is pending
	announced bool                 // the begin is logged
	answered  time.Time            // the first success; zero: none
}

// Failed notes a failure. It reports whether the failure is part of an outage, which logs
// it. A failure of another cause ends the member's part in an outage. The caller runs
// announce, unless it is nil, in a goroutine that it waits for.
func (m *Member) Failed(ctx context.Context, err error, spread time.Duration) (shared bool, announce func()) {
	o, c := m.outages, causeOf(err)
	o.mu.Lock()
	var over func(context.Context)
	if m.in != nil && m.in.cause != c {
		over = m.leaveLocked(false)
	}
	if c != causeOwn {
		announce = m.joinLocked(ctx, c, err, spread)
	}
	o.mu.Unlock()
	run(ctx, over)
	return c != causeOwn, announce
}

// joinLocked returns what announces the outage, nil if another member does.
func (m *Member) joinLocked(ctx context.Context, c cause, err error, spread time.Duration) func() {
	now, lost := time.Now(), errors.As(err, new(*disconnected))
	o := m.outages.current[c]
	switch {
	case o == nil:
		o = &outage{cause: c, began: now, err: err, lost: lost, members: map[*Member]struct{}{}, resumed: map[*Member]struct{}{}}
		m.outages.current[c] = o
	case o.answered.IsZero():
	case m.in != o && !o.announced: // the same outage
		o.answered = time.Time{}
	case m.in != o || now.Sub(o.answered) > outageOver || !o.announced && !lost && now.Sub(o.answered) > m.outages.gather:
		o.answered, o.began, o.err, o.lost, o.announced = time.Time{}, now, err, lost, false // another one
		clear(o.resumed)
	}
	worse := o.lost && !lost
	if worse {
		o.lost, o.err = false, err
	}
	m.in = o
	o.members[m] = struct{}{}
	delete(o.resumed, m)
	if o.gathering || o.announced && !worse || !o.answered.IsZero() {
		return nil
	}
	o.gathering = true
	return func() {
		_ = apiclient.Sleep(ctx, m.outages.gather+spread) // at the end of ctx, others may still fail
		m.outages.announce(ctx, o)
	}
}

// Recovered notes a success. It reports whether the member was part of an outage.
func (m *Member) Recovered(ctx context.Context) bool {
	o := m.outages
	o.mu.Lock()
	in := m.in != nil
	over := m.leaveLocked(true)
	o.mu.Unlock()
	run(ctx, over)
	return in
}

// Close ends the membership.
func (m *Member) Close() {
	m.outages.mu.Lock()
	defer m.outages.mu.Unlock()
	o := m.in
	if o == nil {
		return
	}
	m.in = nil
	delete(o.members, m)
	if len(o.members) == 0 && !o.gathering {
		m.outages.endLocked(o)
	}
}

// leaveLocked removes a member whose server answers, with a success or with a failure of
// another cause. It returns what logs the end of the outage, nil if there is nothing to log.
func (m *Member) leaveLocked(success bool) (over func(context.Context)) {
	o := m.in
	if o == nil {
		return nil
	}
	m.in = nil
	failing := o.failingLocked()
	delete(o.members, m)
	if success && m.resource != "" {
		o.resumed[m] = struct{}{}
	}
	if o.answered.IsZero() {
		o.answered = time.Now()
		if o.announced {
			over = o.over(o.answered.Sub(o.began), failing)
		}
	}
	if len(o.members) > 0 || o.gathering {
		return over
	}
	m.outages.endLocked(o)
	if !o.announced {
		over = o.blip()
	}
	return over // its end was logged before, if it is nil
}

func (o *Outages) endLocked(x *outage) {
	if o.current[x.cause] == x {
		o.current[x.cause] = nil
	}
}

func (o *outage) failingLocked() (watches int) {
	for m := range o.members {
		if m.resource != "" {
			watches++
		}
	}
	return watches
}

// announce logs an outage that lasts, or one that is over.
func (o *Outages) announce(ctx context.Context, x *outage) {
	o.mu.Lock()
	var log func(context.Context)
	x.gathering = false
	switch {
	case len(x.members) == 0:
		o.endLocked(x)
		if !x.answered.IsZero() && !x.announced {
			log = x.blip()
		}
	case x.answered.IsZero():
		x.announced = true
		log = x.begin()
	}
	o.mu.Unlock()
	run(ctx, log)
}

func run(ctx context.Context, log func(context.Context)) {
	if log != nil {
		log(ctx)
	}
}

// begin returns what logs the begin of an outage. A single watch has its name in the line.
func (o *outage) begin() func(context.Context) {
	var values []any
	if watches := o.failingLocked(); watches > 0 {
		values = []any{"watches", watches}
	}
	for m := range o.members {
		if len(o.members) == 1 && m.resource != "" {
			values = append(values, "resource", m.resource)
		}
	}
	err, lost, c := o.err, o.lost, o.cause
	if e := (*apiclient.UnansweredError)(nil); errors.As(err, &e) {
		err = e.Err // the message has the rest
	}
	return func(ctx context.Context) {
		log := klog.FromContext(ctx).WithValues(values...)
		switch {
		case lost:
			log.Info("the API server ended its watches; retrying", "err", err)
		case c == causeCredentials:
			log.Error(err, "the API server rejects the credentials; retrying")
		case c == causeForeign:
			log.Error(err, "the API server is not the one of the recorded state; retrying")
		case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
			log.Error(err, "the API server fails; retrying")
		default:
			log.Error(err, "the API server does not answer; retrying")
		}
	}
}

// over returns what logs the end of an outage.
func (o *outage) over(after time.Duration, watches int) func(context.Context) {
	c := o.cause
	return func(ctx context.Context) {
		log := klog.FromContext(ctx).WithValues("after", after.Round(time.Millisecond), "watches", watches)
		switch c {
		case causeCredentials:
			log.Info("the API server accepts the credentials again; watches resume")
		case causeForeign:
			log.Info("the API server is the one of the recorded state again; watches resume")
		default:
			log.Info("the API server answers again; watches resume")
		}
	}
}

// blip returns what logs an outage that ended before its begin was logged, nil if no watch
// resumed.
func (o *outage) blip() func(context.Context) {
	err, watches, after := o.err, len(o.resumed), o.answered.Sub(o.began)
	if watches == 0 {
		return nil
	}
	return func(ctx context.Context) {
		klog.FromContext(ctx).Info("watches failed and resumed", "watches", watches, "after", after.Round(time.Millisecond), "err", err)
	}
}
