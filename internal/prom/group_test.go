package prom_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/prom"
)

func counter(name string) prometheus.Collector {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "Help."})
}

func families(t *testing.T, r *prometheus.Registry) int {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestGroup(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(counter("others_total"))
	g := prom.NewGroup(r)
	labelled := prometheus.WrapRegistererWith(prometheus.Labels{"sink": "a"}, g)
	g.MustRegister(counter("one_total"), counter("two_total"))
	labelled.MustRegister(counter("three_total"))
	labelled.Unregister(counter("three_total"))
	labelled.MustRegister(counter("three_total"))
	if n := families(t, r); n != 4 {
		t.Errorf("%d families are registered, want 4", n)
	}
	err := g.RegisterAll(counter("four_total"), counter("others_total"))
	if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); !ok {
		t.Errorf("registering a known collector returns %v", err)
	}
	if n := families(t, r); n != 4 {
		t.Errorf("%d families are registered after a failure, want 4", n)
	}
	g.Close()
	if n := families(t, r); n != 1 {
		t.Errorf("%d families are left, want 1", n)
	}
}

func TestGroupOfNoRegisterer(t *testing.T) {
	g := prom.NewGroup(nil)
	if err := g.RegisterAll(counter("one_total"), counter("one_total")); err != nil {
		t.Error(err)
	}
	g.Close()
}
