package delivery

import (
	"context"
	"errors"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
)

// gathered returns every series as name{label=value,...} with its value; of a
// histogram the count.
func gathered(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			sort.Strings(labels)
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			series[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = v
		}
	}
	return series
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStorage(t)
		defer s.close()
		step := 0
		r := newReceiver(t, func(_ context.Context, batch []change) error {
			step++
			switch {
			case step <= 3: // within ten seconds
				return sinks.Pause(errors.New("403"))
			case step == 4:
				return errors.New("503")
			case batch[0].Object == 1:
				return sinks.Poison(errors.New("400"))
			case batch[0].Object == 2 && step < 20:
				panic("no")
			}
			return nil
		})
		w := start(t, s, r, nil)

		synctest.Wait()
		before := gathered(t, w.registry)
		for _, name := range []string{
			"watcherd_sink_events_delivered_total{sink=ops,type=deleted}",
			"watcherd_sink_errors_total{class=pause,sink=ops}",
			"watcherd_sink_dead_letters_total{reason=oversize,sink=ops}",
			"watcherd_sink_retries_total{sink=ops}",
			"watcherd_sink_truncated_events_total{sink=ops}",
			"watcherd_sink_batch_events{sink=ops}",
			"watcherd_sink_delivery_duration_seconds{sink=ops}",
			"watcherd_sink_queue_length{sink=ops}",
			"watcherd_sink_queue_bytes{sink=ops}",
			"watcherd_sink_queue_oldest_age_seconds{sink=ops}",
			"watcherd_sink_stalled{sink=ops}",
			"watcherd_sink_dead_letters_total{reason=skipped,sink=ops}",
			"watcherd_sink_state{sink=ops,state=paused}",
		} {
			if v, ok := before[name]; !ok || v != 0 {
				t.Errorf("at the start %s is %v (present: %v), want 0", name, v, ok)
			}
		}
		if before["watcherd_sink_state{sink=ops,state=idle}"] != 1 {
			t.Error("at the start the sink is not idle")
		}

		s.add(numbered(1, 0, 1, 2, 3)...)
		time.Sleep(10 * time.Second)
		paused := gathered(t, w.registry)
		for name, want := range map[string]float64{
			"watcherd_sink_state{sink=ops,state=paused}":       1,
			"watcherd_sink_state{sink=ops,state=idle}":         0,
			"watcherd_sink_queue_length{sink=ops}":             4,
			"watcherd_sink_queue_oldest_age_seconds{sink=ops}": 10,
		} {
			if paused[name] != want {
				t.Errorf("while paused %s is %v, want %v", name, paused[name], want)
			}
		}

		time.Sleep(time.Hour)
		after := gathered(t, w.registry)
		for name, want := range map[string]float64{
			"watcherd_sink_events_delivered_total{sink=ops,type=updated}": 2,
			"watcherd_sink_errors_total{class=pause,sink=ops}":            3,
			"watcherd_sink_errors_total{class=retry,sink=ops}":            1,
			"watcherd_sink_errors_total{class=poison,sink=ops}":           3,
			"watcherd_sink_errors_total{class=panic,sink=ops}":            3,
			"watcherd_sink_errors_total{class=open,sink=ops}":             0,
			"watcherd_sink_dead_letters_total{reason=refused,sink=ops}":   1,
			"watcherd_sink_dead_letters_total{reason=panic,sink=ops}":     1,
			"watcherd_sink_batch_events{sink=ops}":                        12,
			"watcherd_sink_retries_total{sink=ops}":                       8,
			"watcherd_sink_queue_length{sink=ops}":                        0,
			"watcherd_sink_queue_oldest_age_seconds{sink=ops}":            0,
			"watcherd_sink_state{sink=ops,state=idle}":                    1,
			"watcherd_sink_blocked_events{sink=ops}":                      0,
		} {
			if after[name] != want {
				t.Errorf("%s is %v, want %v", name, after[name], want)
			}
		}

		w.stop()
		if left := gathered(t, w.registry); len(left) != 0 {
			t.Errorf("series that outlive the worker: %v", left)
		}
	})
}

// Workers share a registry, and a name may be used again once it is free.
func TestMetricsOfSeveralWorkers(t *testing.T) {
	s := newStorage(t)
	defer s.close()
	r := newReceiver(t, accept)
	registry := prometheus.NewRegistry()
	tune := func(name string) func(*Config) {
		return func(c *Config) { c.Registerer, c.Name = registry, name }
	}
	for range 2 {
		a := start(t, s, r, tune("a"))
		b := start(t, s, r, tune("b"))
		for _, w := range []*running{a, b} {
			eventually(t, "the worker is idle", func() bool { return w.Status().State == Idle })
		}
		again := New(Config{Name: "a", Queue: s.queue, Open: r.open, Decode: decodeChange, Registerer: registry})
		if err := again.Run(t.Context()); err == nil {
			t.Error("two workers of one name ran at once")
		}
		series := gathered(t, registry)
		if series["watcherd_sink_state{sink=a,state=idle}"] != 1 || series["watcherd_sink_state{sink=b,state=idle}"] != 1 {
			t.Errorf("series: %v", series)
		}
		a.stop()
		b.stop()
	}
}
