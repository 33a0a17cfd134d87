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

// Close takes the subscriber out of the window.
func (r *Reader) Close() { r.source.window.leave(r) }
