package route

import "sync/atomic"

// Stats is what a route has done since it was compiled.
type Stats struct {
	Route     string
	Matched   uint64 // changes it sent on
	Filtered  uint64 // changes its expression refused, those of Missing included
	Unchanged uint64 // updates that left all of `changed` as it was
	Missing   uint64 // evaluations that read a key, field or item the object lacks
	Errors    uint64 // evaluations that failed in any other way

	FirstError error // the first of Errors, nil without any
}

type counters struct {
	matched, filtered, unchanged, missing, errors atomic.Uint64
	first                                         atomic.Pointer[error]
}

func (c *counters) read(route string) Stats {
	s := Stats{
		Route:     route,
		Matched:   c.matched.Load(),
		Filtered:  c.filtered.Load(),
		Unchanged: c.unchanged.Load(),
		Missing:   c.missing.Load(),
		Errors:    c.errors.Load(),
	}
	if err := c.first.Load(); err != nil {
		s.FirstError = *err
	}
	return s
}
