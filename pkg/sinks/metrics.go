package sinks

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers a metric of a kind, or returns the one that is registered
// already: a sink that is opened again continues its series.
//
// A kind never unregisters. The program deletes the series of a sink that is removed
// or changed.
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
