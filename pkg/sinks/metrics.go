package sinks

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers a kind's metric, or returns the one that is registered
// already: while a changed sink replaces its predecessor both are open at once, and
// they count in one series.
//
// A kind does not unregister: the program drops a sink's series when the sink is
// removed.
func Register[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("register metric: %w", err)
	}
	return c, nil
}
