package rawwatch

// Reader is a subscriber's side of a Source: what it has made safe. It is safe for
// concurrent use.
type Reader struct{ source *Source }

// NewReader adds a subscriber, to whom the window is open from here on.
func (s *Source) NewReader() *Reader {
	r := &Reader{source: s}
	s.window.join(r, s.progress.position())
	return r
}

// Ack says that everything up to a position is safe.
func (r *Reader) Ack(position uint64) {
	if acked, ok := r.source.window.ack(r, position); ok {
		r.source.progress.forget(acked)
	}
}

// Checkpoint is the newest version that is complete if everything up to a position
// is safe, "" if there is none.
func (r *Reader) Checkpoint(position uint64) string {
	return r.source.progress.checkpoint(position)
}

// EmptyAfter tells whether all that came after a position is an empty list, and the
// position of that, which nothing carries.
func (r *Reader) EmptyAfter(position uint64) (next uint64, ok bool) {
	return r.source.progress.emptyAfter(position)
}

// ListAfter returns the version of the first list that ends behind a position, and
// where it ends; objects leaves out lists without objects.
func (r *Reader) ListAfter(position uint64, objects bool) (resourceVersion string, end uint64, ok bool) {
	l, ok := r.source.progress.after(position, objects)
	return l.version.String(), l.end, ok
}

// Close takes the subscriber out of the window.
func (r *Reader) Close() { r.source.window.leave(r) }
