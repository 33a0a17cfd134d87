package file

import (
	"slices"

	"github.com/watcherd/watcherd/pkg/event"
)

// group is the part of a batch that goes to one file.
type group struct {
	name    string
	buf     []byte
	indexes []int // of its events in the batch
	size    int   // of these events, about
	chain   int   // groups of one chain share objects, directly or through others

	written bool
	start   int64 // the file's length before buf
	err     error
}

// encode sorts a batch into groups, in the order in which their files first occur.
func (s *sink) encode(batch []*event.Event) []*group {
	var (
		groups []*group
		name   [256]byte
		byName = make(map[string]int, 1)
	)
	for i, e := range batch {
		n := s.template.append(name[:0], e)
		at, ok := byName[string(n)]
		if !ok {
			at = len(groups)
			groups = append(groups, &group{name: string(n), chain: at})
			byName[groups[at].name] = at
		}
		g := groups[at]
		g.indexes = append(g.indexes, i)
		g.size += e.Size()
	}
	for _, g := range groups {
		// A batch is megabytes: a buffer that grew with it would copy it several times.
		g.buf = slices.Grow(s.takeBuffer(), g.size)
		for _, i := range g.indexes {
			g.buf = s.format.AppendLine(g.buf, batch[i])
		}
	}
	if len(groups) > 1 {
		chain(groups, batch)
	}
	return groups
}

// total is how many bytes the groups hold.
func total(groups []*group) (n int64) {
	for _, g := range groups {
		n += int64(len(g.buf))
	}
	return n
}

// chain gives the groups that hold events of one object the same chain.
func chain(groups []*group, batch []*event.Event) {
	owner := make(map[string]int, len(batch)) // object → its group
	for at, g := range groups {
		for _, i := range g.indexes {
			key := batch[i].PartitionKey()
			first, seen := owner[key]
			if !seen {
				owner[key] = at
				continue
			}
			from, to := g.chain, groups[first].chain
			if from == to {
				continue
			}
			for _, other := range groups {
				if other.chain == from {
					other.chain = to
				}
			}
		}
	}
}

// maxKept bounds the buffers that are kept for later batches.
const maxKept = 8 << 20

func (s *sink) takeBuffer() []byte {
	if b, ok := s.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

// release gives the buffers back; the groups must not be used afterwards.
func (s *sink) release(groups []*group) {
	for _, g := range groups {
		buf := g.buf
		g.buf = nil
		if cap(buf) <= maxKept {
			s.buffers.Put(&buf)
		}
	}
}
