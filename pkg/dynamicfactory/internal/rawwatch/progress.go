package rawwatch

import (
	"hash/maphash"
	"slices"
	"sync"
)

// maxMarks bounds the marks of a subscriber that never acknowledges.
const maxMarks = 4096

// maxLists bounds its lists. A subscriber that acknowledges has one or two lists that
// are not acknowledged.
const maxLists = 16

// progress numbers what a source hands on, and knows which versions are complete.
//
// A version is complete when every event of it has been received. An event does
// not show that, for several may share one version (events that expire together
// are deleted in one transaction); an event of another version shows it, and so
// does a bookmark. A list is complete by itself.
//
// It is safe for concurrent use, though only one goroutine hands things on.
type progress struct {
	seed maphash.Seed

	mu       sync.Mutex
	last     uint64  // the position given last
	empty    uint64  // the one of an empty list that nothing has come after; 0: none
	complete version // the newest complete version: where a watch resumes
	open     version // the version of the last event, if it is not known to be complete
	openUpTo uint64
	openSeen []uint64 // which events of the open version were handed on
	marks    []mark   // ascending in upTo
	lists    []listed // not acknowledged; ascending in end
}

// listed is a list: its version, and the position that is its end.
type listed struct {
	version version
	end     uint64
	empty   bool
}

// mark says that a version is complete for a subscriber that has made safe
// everything up to a position.
type mark struct {
	version version
	upTo    uint64
}

func newProgress() *progress { return &progress{seed: maphash.MakeSeed()} }

// list notes a list of n objects at a version. It is at next's position, which its
// last object carries. No object carries the position of an empty list. Such a list
// deletes everything that was forwarded before, if anything was. It is acknowledged with
// the next event, or by a subscriber without recorded objects (nextList).
//
// The result is the list's position, or that of the last thing before it if the list
// is empty and has none.
func (p *progress) list(v version, n int) uint64 {
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

// nextList returns the first list that ends after a position. A notification that
// follows the position and is not an event belongs to that list; an empty list has
// deletions only.
func (p *progress) nextList(position uint64, withObjects bool) (_ List, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lists {
		if l.end > position && !(withObjects && l.empty) {
			return List{l.version.String(), l.end, l.empty && l.end == p.empty}, true
		}
	}
	return List{}, false
}

// next is the position that the next event, or a list that is not empty, gets.
func (p *progress) next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last + 1
}

// eventID identifies an event among those of one version. Not every aggregated
// server gives its objects a uid.
func (p *progress) eventID(typ string, uid, namespace, name []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(p.seed)
	_, _ = h.WriteString(typ) // never fails
	_, _ = h.Write(uid)
	if len(uid) == 0 {
		_, _ = h.Write(namespace)
		_ = h.WriteByte('/') // in no name
		_, _ = h.Write(name)
	}
	return h.Sum64()
}

// repeated tells whether the event was handed on before: a watch that resumes
// from the last complete version sends those of the open one again.
func (p *progress) repeated(v version, id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v == p.open && slices.Contains(p.openSeen, id)
}

// event notes that the event of a version is handed on at next's position.
func (p *progress) event(v version, id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	p.empty = 0
	p.receivedLocked(v, id)
}

// skip notes an event of a version that nothing is handed on of.
func (p *progress) skip(v version, id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.receivedLocked(v, id)
}

func (p *progress) receivedLocked(v version, id uint64) {
	if v != p.open {
		if !p.open.none() {
			p.markLocked(p.open, p.openUpTo)
			p.complete = p.open
		}
		p.open, p.openSeen = v, p.openSeen[:0]
	}
	p.openUpTo = p.last
	p.openSeen = append(p.openSeen, id)
}

// caughtUp is bookmark unless something was received after a position, or the version
// is not later than what is complete.
func (p *progress) caughtUp(position uint64, v version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == position && older(p.complete.String(), v.String()) {
		p.closeLocked()
		p.completeLocked(v)
	}
}

// bookmark notes that everything up to a version has been received.
func (p *progress) bookmark(v version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked()
	p.completeLocked(v)
}

func (p *progress) closeLocked() {
	p.open, p.openSeen = version{}, p.openSeen[:0]
}

func (p *progress) completeLocked(v version) {
	p.complete = v
	p.markLocked(v, p.last)
}

func (p *progress) markLocked(v version, upTo uint64) {
	if n := len(p.marks); n > 0 && p.marks[n-1].upTo == upTo {
		p.marks[n-1].version = v
		return
	}
	if len(p.marks) >= maxMarks {
		// Forgetting a mark only makes a checkpoint older than it could be.
		kept := p.marks[:0]
		for i := 1; i < len(p.marks); i += 2 {
			kept = append(kept, p.marks[i])
		}
		p.marks = kept
	}
	p.marks = append(p.marks, mark{v, upTo})
}

// resume is the version from which nothing is missed.
func (p *progress) resume() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.complete.String()
}

// checkpoint is the newest version that is complete for a subscriber that has
// made safe everything up to a position; "" if there is none.
func (p *progress) checkpoint(position uint64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.findLocked(position); i >= 0 {
		return p.marks[i].version.String()
	}
	return ""
}

// forget drops the marks before an acknowledged position.
func (p *progress) forget(position uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.findLocked(position); i > 0 {
		p.marks = slices.Delete(p.marks, 0, i)
	}
	p.lists = slices.DeleteFunc(p.lists, func(l listed) bool { return l.end <= position })
}

// findLocked returns the index of the last mark up to a position, -1 if none.
func (p *progress) findLocked(position uint64) int {
	i, _ := slices.BinarySearchFunc(p.marks, position, func(m mark, at uint64) int {
		if m.upTo <= at {
			return -1
		}
		return 1
	})
	return i - 1
}

// position is the last one given.
func (p *progress) position() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
