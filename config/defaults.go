package config

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Default is a Config with every default and nothing to watch.
func Default() Config {
	return Config{
		APIVersion: APIVersion,
		Kind:       Kind,
		KubeAPI:    KubeAPI{QPS: 50, Burst: 100},
		Store: Store{
			Path:        "./watcherd-data",
			MaxBytes:    resource.MustParse("10Gi"),
			Retention:   Retention{MaxAge: 7 * 24 * time.Hour, MaxBytes: resource.MustParse("4Gi")},
			DeadLetters: DeadLetters{MaxAge: 7 * 24 * time.Hour, MaxBytes: resource.MustParse("1Gi")},
			MinFree:     resource.MustParse("512Mi"),
		},
		Admin:            Admin{Listen: "127.0.0.1:8080"},
		ConsistencyCheck: ConsistencyCheck{Enabled: true, Interval: time.Hour},
	}
}

// DefaultDrop are the key paths that a watch drops unless it keeps them.
func DefaultDrop() []string { return []string{"metadata.managedFields"} }

// DefaultWatch is what a watch is where the file is silent.
func DefaultWatch() Watch {
	return Watch{
		SelectorSide: SideClient,
		Snapshot:     SnapshotInitial,
		History:      true,
		OnMissing:    MissingWait,
	}
}

// DefaultRoute is what a route is where the file is silent.
func DefaultRoute() Route {
	return Route{Payload: []string{PayloadObject}, OnError: ErrorDrop}
}

// DefaultRouteMetric is what a metric is where the file is silent.
func DefaultRouteMetric() RouteMetric { return RouteMetric{MaxSeries: 1000} }

// DefaultSink is what a sink is where the file is silent. Batches and lanes are
// up to the kind.
func DefaultSink() Sink {
	return Sink{
		Format:     FormatCloudEvents,
		Retry:      Retry{Initial: 500 * time.Millisecond, Max: 5 * time.Minute, PoisonAttempts: 3},
		OnOversize: OversizeDeadLetter,
		StartFrom:  StartLatest,
	}
}

// SetDefaults makes w a [DefaultWatch].
func (w *Watch) SetDefaults() { *w = DefaultWatch() }

// SetDefaults makes r a [DefaultRoute].
func (r *Route) SetDefaults() { *r = DefaultRoute() }

// SetDefaults makes m a [DefaultRouteMetric].
func (m *RouteMetric) SetDefaults() { *m = DefaultRouteMetric() }

// SetDefaults makes s a [DefaultSink].
func (s *Sink) SetDefaults() { *s = DefaultSink() }

// fitRetention lowers a retention that the file does not name to what the
// store's budget has room for.
func (s *Store) fitRetention() {
	if half := s.MaxBytes.Value() / 2; s.Retention.MaxBytes.Value() > half {
		s.Retention.MaxBytes = *resource.NewQuantity(half, resource.BinarySI)
	}
}

// fitDeadLetters lowers a bound of dead letters that the file does not name to what
// the store has room for.
func (s *Store) fitDeadLetters() {
	if tenth := s.MaxBytes.Value() / 10; s.DeadLetters.MaxBytes.Value() > tenth {
		s.DeadLetters.MaxBytes = *resource.NewQuantity(tenth, resource.BinarySI)
	}
}
