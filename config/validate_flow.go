package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/config/internal/strict"
)

func (k *checker) watches() {
	c := k.config
	k.require(len(c.Watches) > 0, "watches", "at least one watch is required")
	k.names("watches", len(c.Watches), func(i int) string { return c.Watches[i].Name })
	for i := range c.Watches {
		w, path := &c.Watches[i], strict.Index("watches", i)
		k.require(len(w.Resources) > 0, path+".resources", "at least one resource is required")
		k.resources(path+".resources", w.Resources)
		k.resources(path+".excludeResources", w.ExcludeResources)
		k.oneOf(path+".selectorSide", w.SelectorSide, SideClient, SideServer)
		k.oneOf(path+".snapshot", w.Snapshot, SnapshotInitial, SnapshotNever)
		k.oneOf(path+".onMissing", w.OnMissing, MissingWait, MissingFail)
		for _, list := range []struct {
			key    string
			values []string
		}{
			{".namespaces.include", w.Namespaces.Include},
			{".namespaces.exclude", w.Namespaces.Exclude},
			{".drop", w.Drop},
			{".keep", w.Keep},
			{".redact", w.Redact},
			{".redactPresets", w.RedactPresets},
		} {
			k.distinct(path+list.key, list.values)
		}
		k.kept(path, w)
		for j, p := range w.RedactPresets {
			k.oneOf(strict.Index(path+".redactPresets", j), p, PresetPodEnv)
		}
	}
}

// kept checks the paths that a watch keeps although they are dropped or redacted by default.
func (k *checker) kept(path string, w *Watch) {
	keepable := append(DefaultDrop(), AppliedManifest)
	for i, p := range w.Keep {
		at := strict.Index(path+".keep", i)
		k.require(slices.Contains(keepable, p), at, "%s is neither dropped nor redacted by default; keep takes %s", quoted(p), strings.Join(keepable, ", "))
		k.require(!slices.Contains(w.Drop, p), at, "%s is also in drop", quoted(p))
	}
}

// resources reports what a mapping lacks and what is listed twice.
func (k *checker) resources(path string, list []Resource) {
	texts := make([]string, len(list))
	for i, r := range list {
		texts[i] = r.String()
		if r.pattern == "" && r.Resource == "" {
			k.report(strict.Index(path, i)+".resource", "is required")
			texts[i] = ""
		}
	}
	k.distinct(path, texts)
}

func (k *checker) routes() {
	c := k.config
	watches := make([]string, len(c.Watches))
	for i, w := range c.Watches {
		watches[i] = w.Name
	}
	sinks := make([]string, len(c.Sinks))
	for i, s := range c.Sinks {
		sinks[i] = s.Name
	}
	metrics := map[string]string{}
	k.names("routes", len(c.Routes), func(i int) string { return c.Routes[i].Name })
	for i := range c.Routes {
		r, path := &c.Routes[i], strict.Index("routes", i)
		k.references(path+".watches", "watches", "watch", r.Watches, watches)
		k.resources(path+".resources", r.Resources)
		k.values(path+".events", r.Events, EventAdded, EventUpdated, EventDeleted, EventSync)
		k.oneOf(path+".onError", r.OnError, ErrorPass, ErrorDrop)
		k.distinct(path+".changed", r.Changed)
		if r.Sample != nil {
			k.require(*r.Sample > 0 && *r.Sample <= 1, path+".sample", "must be above 0 and at most 1")
		}
		if r.Metric != nil {
			k.metric(path+".metric", r.Metric, metrics)
			metrics[counter(r.Metric.Name)] = path
		}
		k.distinct(path+".drop", r.Drop)
		k.distinct(path+".redact", r.Redact)
		k.require(len(r.Payload) > 0, path+".payload", "must name at least one of object, oldObject, patch, summary")
		k.values(path+".payload", r.Payload, PayloadObject, PayloadOldObject, PayloadPatch, PayloadSummary)
		k.values(path+".enrich", r.Enrich, EnrichOwner, EnrichInvolvedObject)
		if t := r.Throttle; t != nil {
			k.require(t.Per >= time.Second && t.Per <= 24*time.Hour, path+".throttle.per", "must be from 1s to 24h")
		}
		if r.For != nil {
			k.require(*r.For >= time.Second, path+".for", "must be at least 1s")
		}
		k.require(len(r.Sinks) > 0, path+".sinks", "at least one sink is required")
		k.references(path+".sinks", "sinks", "sink", r.Sinks, sinks)
	}
}

// Bounds of a route's metric.
const (
	maxMetricLabels = 10
	maxMetricSeries = 10_000
)

var (
	metricName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	metricOwner = regexp.MustCompile(`^(watcherd|go|process|promhttp|rest_client|informer)_`)
)

// counter is the name that identifies a counter: OpenMetrics adds _total to one without.
func counter(name string) string { return strings.TrimSuffix(name, "_total") }

// metric checks the names of a metric. others are the metrics of earlier routes.
func (k *checker) metric(path string, m *RouteMetric, others map[string]string) {
	switch other := others[counter(m.Name)]; {
	case m.Name == "":
		k.report(path+".name", "is required")
	case !metricName.MatchString(m.Name):
		k.report(path+".name", "%s must be letters, digits and underscores, and not begin with a digit", quoted(m.Name))
	case metricOwner.MatchString(m.Name):
		k.report(path+".name", "%s begins with the prefix of other metrics", quoted(m.Name))
	case other != "":
		k.report(path+".name", "%s is the metric of %s already", quoted(m.Name), other)
	}
	k.require(len(m.Labels) <= maxMetricLabels, path+".labels", "must be at most %d", maxMetricLabels)
	for _, label := range slices.Sorted(maps.Keys(m.Labels)) {
		at := strict.Key(path+".labels", label)
		k.require(metricName.MatchString(label) && !strings.HasPrefix(label, "__"), at, "a label must be letters, digits and underscores, and not begin with a digit or two underscores")
		k.require(m.Labels[label] != "", at, "needs a CEL expression")
	}
	k.require(m.MaxSeries >= 1 && m.MaxSeries <= maxMetricSeries, path+".maxSeries", "must be from 1 to %d", maxMetricSeries)
}

// values checks a list whose values are of a fixed set.
func (k *checker) values(path string, list []string, allowed ...string) {
	for i, v := range list {
		k.oneOf(strict.Index(path, i), v, allowed...)
	}
	k.distinct(path, list)
}
