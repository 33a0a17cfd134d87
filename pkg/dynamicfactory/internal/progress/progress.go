package progress

import (
	"context"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// maxMarks bounds the marks of a subscriber that never acknowledges.
const maxMarks = 4096

// maxLists bounds its lists. A subscriber that acknowledges has one or two lists that
// are not acknowledged.
const maxLists = 16

// Progress numbers the notifications of a source, and records which versions are complete.
//
// A version is complete when all its events have been received. An event does not prove
// that, because several may share one version (events that expire together are deleted in
// one transaction). An event of another version proves it, and so does a bookmark. The
// version of a list is complete. The complete version only rises but for a list, also with
// a server whose events are not in the order of their versions.
//
// It is safe for concurrent use; one goroutine forwards notifications.
type Progress struct {
	seed maphash.Seed

	mu       sync.Mutex // guards what follows
	last     uint64     // the last position
	empty    uint64     // the position of an empty list that no event has followed; 0: none
	complete Version    // the newest complete version: where a watch resumes
	quiet    Version    // a later one that showed no difference; see Quiet
	open     Version    // the version of the last event, unless it is complete
	openUpTo uint64
	openSeen []uint64  // the received events of the open version
	earlier  Version   // see Saw
	known    time.Time // see Known
	marks    []mark    // ascending in upTo
	lists    []listed  // not acknowledged; ascending in end
}

// listed is a list that ends at a position.
type listed struct {
	version Version
	end     uint64
	empty   bool
}

// mark is a version that is complete once everything up to a position is durable.
type mark struct {
	version Version
	upTo    uint64
	known   time.Time // nothing up to then is later than the version
}

// New returns a Progress at position 0.
func New() *Progress { return &Progress{seed: maphash.MakeSeed()} }

// List notes a list of n objects at a version. It has the position of Next, which its
// last object carries. No object carries the position of an empty list. Such a list
// deletes everything that was forwarded before, if anything was. It is acknowledged with
// the next event, or by a subscriber without recorded objects (NextList).
//
// The result is the list's position, or the last position before an empty list without
// one.
func (p *Progress) List(v Version, n int) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case n > 0:
		p.last++
		p.empty = 0
	case p.last > 0 && p.empty == 0:
		p.last++
		p.empty = p.last
	}
	p.earlier = Version{}
	p.closeLocked()
	p.completeLocked(v)
	if len(p.lists) >= maxLists {
		p.lists = slices.Delete(p.lists, 0, 1)
	}
	p.lists = append(p.lists, listed{v, p.last, n == 0})
	return p.last
}

// List is a list within the sequence of positions.
type List struct {
	ResourceVersion string
	End             uint64 // the position of its last object; of an empty list, a position that no object carries
	Last            bool   // an empty list that no event has followed yet
}

// NextList returns the first list that ends after a position. A notification that
// follows the position and is not an event belongs to that list; an empty list has
// deletions only.
func (p *Progress) NextList(position uint64, withObjects bool) (_ List, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lists {
		if l.end > position && !(withObjects && l.empty) {
			return List{l.version.String(), l.end, l.empty && l.end == p.empty}, true
		}
	}
	return List{}, false
}

// Next is the position of the next event, or of the next list with objects.
func (p *Progress) Next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last + 1
}

// EventID identifies an event among those of one version. Objects of some aggregated
// servers have no uid, or that of another object.
func (p *Progress) EventID(typ string, uid, namespace, name []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(p.seed)
	_, _ = h.WriteString(typ) // never fails
	_, _ = h.Write(namespace)
	_ = h.WriteByte('/') // in no name
	_, _ = h.Write(name)
	_ = h.WriteByte('/')
	_, _ = h.Write(uid)
	return h.Sum64()
}

// Repeated reports whether the event was forwarded before: a watch that resumes from the
// last complete version receives the events of the open version again.
func (p *Progress) Repeated(v Version, id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v == p.open && slices.Contains(p.openSeen, id)
}

// Event notes that an event of a version is forwarded, at the position of Next.
func (p *Progress) Event(v Version, id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followedLocked(v)
	p.last++
	p.empty = 0
	p.receivedLocked(v, id)
}

// Skip notes an event of a version that is not forwarded.
func (p *Progress) Skip(v Version, id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.followedLocked(v)
	p.receivedLocked(v, id)
}

// followedLocked ends Quiet with the event that follows: a later one proves that all before it
// have been received.
func (p *Progress) followedLocked(v Version) {
	if !p.quiet.None() && Older(p.quiet.String(), v.String()) {
		p.closeLocked()
		p.completeLocked(p.quiet)
	}
	p.quiet = Version{}
}

func (p *Progress) receivedLocked(v Version, id uint64) {
	if v != p.open {
		if !p.open.None() && !p.open.older(p.complete) {
			p.markLocked(p.open, p.openUpTo)
			p.complete = p.open
		}
		p.open, p.openSeen = v, p.openSeen[:0]
	}
	p.openUpTo = p.last
	p.openSeen = append(p.openSeen, id)
}

// Quiet notes a version whose list has exactly the objects that were received up to a
// position, and a time up to which nothing is later than the version. Events of objects that
// came and went before that version may be missing, so that it is resumed from only where the
// complete version is refused (FallBack). It is ignored if an event was received after the
// position, or it is not later than the complete version. The next event, bookmark or list ends
// it; a later event makes it the complete version.
func (p *Progress) Quiet(position uint64, v Version, known time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == position && Older(p.complete.String(), v.String()) {
		p.quiet = v
		if known.After(p.known) {
			p.known = known
		}
	}
}

// QuietAt returns the version of Quiet, "" if there is none or anything was received after a
// position.
func (p *Progress) QuietAt(position uint64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last > position {
		return ""
	}
	return p.quiet.String()
}

// FallBack makes the version of Quiet the complete one. It reports whether there is one.
func (p *Progress) FallBack() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet.None() {
		return false
	}
	p.closeLocked()
	p.completeLocked(p.quiet)
	return true
}

// Bookmark notes that everything up to a version has been received.
func (p *Progress) Bookmark(v Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked()
	p.completeLocked(v)
}

func (p *Progress) closeLocked() {
	p.open, p.openSeen = Version{}, p.openSeen[:0]
}

func (p *Progress) completeLocked(v Version) {
	p.complete, p.quiet = v, Version{}
	p.markLocked(v, p.last)
}

func (p *Progress) markLocked(v Version, upTo uint64) {
	if n := len(p.marks); n > 0 && p.marks[n-1].upTo == upTo {
		p.marks[n-1].version, p.marks[n-1].known = v, p.known
		return
	}
	if len(p.marks) >= maxMarks {
		// A missing mark only makes a checkpoint older than necessary.
		kept := p.marks[:0]
		for i := 1; i < len(p.marks); i += 2 {
			kept = append(kept, p.marks[i])
		}
		p.marks = kept
	}
	p.marks = append(p.marks, mark{v, upTo, p.known})
}

// Resume is the version from which a watch misses nothing.
func (p *Progress) Resume() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.complete.String()
}

// Saw notes a version that the server had in an earlier life, until the next list.
func (p *Progress) Saw(v Version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.earlier = v
}

// Seen is the newest version that is known to have been the server's. It may be one that is
// not complete.
func (p *Progress) Seen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.complete.String()
	for _, v := range [...]Version{p.open, p.quiet, p.earlier} {
		if other := v.String(); seen == "" || Older(seen, other) {
			seen = other
		}
	}
	return seen
}

// Checkpoint is the newest version that is complete once everything up to a position is
// durable; "" if there is none.
func (p *Progress) Checkpoint(position uint64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.findLocked(position); i >= 0 {
		return p.marks[i].version.String()
	}
	return ""
}

// Known notes the time up to which everything has been received.
func (p *Progress) Known(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = at
}

// KnownAt returns the time up to which nothing is missing, by the version of QuietAt or else of Checkpoint, once
// everything up to a position is durable; zero if it is not known.
func (p *Progress) KnownAt(position uint64) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.quiet.None() && p.last <= position {
		return p.known
	}
	if i := p.findLocked(position); i >= 0 {
		return p.marks[i].known
	}
	return time.Time{}
}

// Acknowledged drops the marks and lists before an acknowledged position.
func (p *Progress) Acknowledged(position uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.findLocked(position); i > 0 {
		p.marks = slices.Delete(p.marks, 0, i)
	}
	p.lists = slices.DeleteFunc(p.lists, func(l listed) bool { return l.end <= position })
}

// findLocked returns the index of the last mark up to a position, -1 without one.
func (p *Progress) findLocked(position uint64) int {
	i, _ := slices.BinarySearchFunc(p.marks, position, func(m mark, at uint64) int {
		if m.upTo <= at {
			return -1
		}
		return 1
	})
	return i - 1
}

// Position is the last position.
func (p *Progress) Position() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Version is a resourceVersion. Nearly all are decimal numbers, which need no memory of
// their own. The zero Version stands for no version.
type Version struct {
	number uint64 // 0: text, or no version
	text   string // of a version that is not a number
}

// ParseVersion returns the version of a string, "" for no version.
func ParseVersion(s string) Version {
	if len(s) > 0 && s[0] != '0' {
		if n, err := strconv.ParseUint(s, 10, 64); err == nil && s[0] != '+' {
			return Version{number: n}
		}
	}
	return Version{text: s}
}

// VersionOf is ParseVersion for a buffer that the caller reuses.
func VersionOf(b []byte) Version {
	var n uint64
	for i, c := range b {
		if c < '0' || c > '9' || i == 0 && c == '0' || i >= 19 {
			return Version{text: string(b)}
		}
		n = n*10 + uint64(c-'0')
	}
	return Version{number: n}
}

// None reports whether there is no version.
func (v Version) None() bool { return v == Version{} }

func (v Version) String() string {
	if v.number == 0 {
		return v.text
	}
	return strconv.FormatUint(v.number, 10)
}

// older reports whether v is certainly older than other.
func (v Version) older(other Version) bool {
	if v.number != 0 && other.number != 0 {
		return v.number < other.number
	}
	return Older(v.String(), other.String())
}

// Older reports whether a is certainly older than b. Versions that are not numbers are
// only equal or different.
func Older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}

// Window bounds the events that are forwarded and not acknowledged. It records their
// positions, and an acknowledgement frees all positions up to its own: an event that the
// informer drops holds a place until the next acknowledgement. Of lists there is one that
// is not acknowledged.
//
// It is safe for concurrent use.
type Window struct {
	limit int // 0: no bound

	mu    sync.Mutex    // guards what follows
	out   []uint64      // ascending
	list  uint64        // the position of the list that is not acknowledged; 0: none
	acked uint64        // the position acknowledged last
	room  chan struct{} // closed and replaced when places become free
}

// NewWindow returns a window of a limit; 0: no bound.
func NewWindow(limit int) *Window {
	return &Window{limit: limit, room: make(chan struct{})}
}

// Free reports whether there is a place.
func (w *Window) Free() bool {
	if w.limit <= 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out) < w.limit
}

// Wait returns when there is a place.
func (w *Window) Wait(ctx context.Context) error {
	for {
		w.mu.Lock()
		free, room := len(w.out) < w.limit, w.room
		w.mu.Unlock()
		if free {
			return ctx.Err()
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Take notes that the event at a position is forwarded.
func (w *Window) Take(position uint64) {
	if w.limit <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out = append(w.out, position)
}

// TakeList notes that the list at a position is forwarded.
func (w *Window) TakeList(position uint64) {
	if w.limit <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = position
}

// Listable reports whether there is a place for a list. If there is none, the channel is
// closed when that may have changed.
func (w *Window) Listable() (bool, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.list == 0, w.room
}

// Ack frees the places up to a position. It reports whether the position is a later one
// than before.
func (w *Window) Ack(position uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if position <= w.acked {
		return false
	}
	w.acked = position
	n := 0
	for n < len(w.out) && w.out[n] <= position {
		n++
	}
	listed := w.list != 0 && w.list <= position
	if listed {
		w.list = 0
	}
	if n > 0 || listed {
		w.out = w.out[:copy(w.out, w.out[n:])]
		close(w.room)
		w.room = make(chan struct{})
	}
	return true
}

// InFlight is the number of events forwarded and not acknowledged.
func (w *Window) InFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.out)
}
