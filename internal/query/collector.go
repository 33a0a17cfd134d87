package query

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// collector exports what [Reader.Status] knows at each scrape: series
// come and go with what is configured, and no counter is kept twice.
//
// Namespaces are no label. Where a watch reads several one by one its figures are
// their sum, its state is the worst of theirs, and its last contact the oldest.
type collector struct{ r *Reader }

// sourceStates from good to bad. A pattern without an informer is waiting.
var sourceStates = [...]dynamicfactory.State{
	dynamicfactory.StateWatching, dynamicfactory.StateListing, dynamicfactory.StateWaiting, dynamicfactory.StateBackingOff,
	dynamicfactory.StateForbidden, dynamicfactory.StateForeign, dynamicfactory.StateStopped,
}

func watchDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("watcherd_watch_"+name, help, append([]string{"watch", "resource"}, labels...), nil)
}

var (
	stateDesc   = watchDesc("state", "1 for the current state of the watch of a resource.", "state")
	contactDesc = watchDesc("last_contact_timestamp_seconds", "Time of the last event or bookmark from the API server.")
	syncedDesc  = watchDesc("synced", "1 once the initial list is complete.")

	watchCounters = []struct {
		desc *prometheus.Desc
		get  func(*dynamicfactory.Counters) uint64
	}{
		{watchDesc("events_total", "Events received from the API server."), func(c *dynamicfactory.Counters) uint64 { return c.Events }},
		{watchDesc("bookmarks_total", "Bookmarks received from the API server."), func(c *dynamicfactory.Counters) uint64 { return c.Bookmarks }},
		{watchDesc("relists_total", "Lists after the first."), func(c *dynamicfactory.Counters) uint64 { return c.Relists }},
		{watchDesc("expired_total", "Watches and lists that failed because the history has expired (410)."), func(c *dynamicfactory.Counters) uint64 { return c.Expired }},
		{watchDesc("forbidden_total", "Requests that the API server rejected (401, 403)."), func(c *dynamicfactory.Counters) uint64 { return c.Forbidden }},
		{watchDesc("not_found_total", "Requests for a resource that is not served (404)."), func(c *dynamicfactory.Counters) uint64 { return c.NotFound }},
		{watchDesc("decode_errors_total", "Events, objects and lists that could not be read."), func(c *dynamicfactory.Counters) uint64 { return c.DecodeErrors }},
		{watchDesc("skipped_total", "Objects and events skipped because they could not be read."), func(c *dynamicfactory.Counters) uint64 { return c.Skipped }},
		{watchDesc("restarts_total", "Watches established after the first."), func(c *dynamicfactory.Counters) uint64 { return c.Restarts }},
	}

	inFlightDesc = watchDesc("in_flight_events", "Events read from the watch and not committed yet.")

	editsDesc = watchDesc("edit_hits_total", "Values that a path of the watch's drop or redact matched, by key (drop, redact) and path. It restarts from zero with the informer.", "key", "path")

	objectsDesc = prometheus.NewDesc("watcherd_cached_objects", "Objects in the caches; a count of many is up to 15 seconds old.", []string{"resource"}, nil)
	bytesDesc   = prometheus.NewDesc("watcherd_cached_bytes", "Memory of the objects in the caches.", []string{"resource"}, nil)

	// These counters restart from zero with an edit of their route.
	routeEventsDesc = prometheus.NewDesc("watcherd_route_events_total",
		"Changes that a route evaluated, by result: matched (forwarded), filtered (rejected by its expression), "+
			"unchanged (nothing that its changed names has changed), unsampled (outside of its sample); and evaluations that lacked a field (missing) or failed otherwise (errors).",
		[]string{"route", "result"}, nil)
	routeResults = []struct {
		name string
		get  func(*status.Route) uint64
	}{
		{"matched", func(r *status.Route) uint64 { return r.Matched }},
		{"filtered", func(r *status.Route) uint64 { return r.Filtered }},
		{"unchanged", func(r *status.Route) uint64 { return r.Unchanged }},
		{"unsampled", func(r *status.Route) uint64 { return r.Unsampled }},
		{"missing", func(r *status.Route) uint64 { return r.Missing }},
		{"errors", func(r *status.Route) uint64 { return r.Errors }},
	}

	unseenDesc = prometheus.NewDesc("watcherd_route_unseen_fields", "Fields that changed, when, drop or redact of a route names and that none of many changes has had: their names may be wrong.", []string{"route"}, nil)

	keptDesc     = prometheus.NewDesc("watcherd_sink_dead_letters_kept", "Dead letters currently kept.", []string{"sink"}, nil)
	orphanedDesc = prometheus.NewDesc("watcherd_sink_orphaned_events", "Pending events of a sink that is no longer configured; 0 for a configured sink.", []string{"sink"}, nil)
	beatDesc     = prometheus.NewDesc("watcherd_committer_last_iteration_timestamp_seconds", "Time of the committer's last iteration.", nil, nil)
)

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{stateDesc, contactDesc, syncedDesc, inFlightDesc, editsDesc, objectsDesc, bytesDesc, keptDesc, orphanedDesc, beatDesc, routeEventsDesc, unseenDesc} {
		ch <- d
	}
	for _, x := range watchCounters {
		ch <- x.desc
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	p := c.r.Status()
	if !p.Beat.IsZero() {
		ch <- gauge(beatDesc, seconds(p.Beat))
	}
	for i := range p.Watches {
		collectWatch(ch, &p.Watches[i])
	}
	for i := range p.Routes {
		r := &p.Routes[i]
		for _, x := range routeResults {
			ch <- prometheus.MustNewConstMetric(routeEventsDesc, prometheus.CounterValue, float64(x.get(r)), r.Name, x.name)
		}
		ch <- gauge(unseenDesc, float64(len(r.Unseen)), r.Name)
	}
	for i := range p.Sinks {
		s := &p.Sinks[i]
		ch <- gauge(keptDesc, float64(s.DeadLetters), s.Name)
		orphaned := 0.0
		if !s.Configured {
			orphaned = float64(s.Queued)
		}
		ch <- gauge(orphanedDesc, orphaned, s.Name)
	}
	for _, x := range p.Caches {
		ch <- gauge(objectsDesc, float64(x.Objects), x.Resource)
		ch <- gauge(bytesDesc, float64(x.Bytes), x.Resource)
	}
}

func collectWatch(ch chan<- prometheus.Metric, w *status.Watch) {
	merged := map[string]*status.Source{}
	for i := range w.Sources {
		merge(merged, &w.Sources[i])
	}
	for _, x := range w.Missing {
		missing := status.Source{Resource: x.Resource}
		missing.State = dynamicfactory.StateWaiting
		merge(merged, &missing)
	}
	for resource, s := range merged {
		for _, state := range sourceStates {
			ch <- gauge(stateDesc, number(s.State == state), w.Name, resource, string(state))
		}
		ch <- gauge(syncedDesc, number(s.Synced), w.Name, resource)
		ch <- gauge(inFlightDesc, float64(s.InFlight), w.Name, resource)
		if !s.LastContact.IsZero() {
			ch <- gauge(contactDesc, seconds(s.LastContact), w.Name, resource)
		}
		for _, e := range s.Edits {
			ch <- prometheus.MustNewConstMetric(editsDesc, prometheus.CounterValue, float64(e.Hits), w.Name, resource, e.Key, e.Path)
		}
		for _, x := range watchCounters {
			ch <- prometheus.MustNewConstMetric(x.desc, prometheus.CounterValue, float64(x.get(&s.Counters)), w.Name, resource)
		}
	}
}

// merge adds s to what is known of its resource.
func merge(known map[string]*status.Source, s *status.Source) {
	all, ok := known[s.Resource]
	if !ok {
		one := *s
		one.Edits = slices.Clone(s.Edits)
		known[s.Resource] = &one
		return
	}
	if badness(s.State) > badness(all.State) {
		all.State = s.State
	}
	if s.LastContact.Before(all.LastContact) {
		all.LastContact = s.LastContact
	}
	all.Synced = all.Synced && s.Synced
	all.InFlight += s.InFlight
	for _, e := range s.Edits {
		i := slices.IndexFunc(all.Edits, func(known status.Edit) bool { return known.Key == e.Key && known.Path == e.Path })
		if i < 0 {
			all.Edits = append(all.Edits, e)
			continue
		}
		all.Edits[i].Hits += e.Hits
	}
	all.Add(&s.Counters)
}

func badness(state dynamicfactory.State) int {
	return max(slices.Index(sourceStates[:], state), 0)
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// routeMetrics exports the metrics that routes define. Their names and labels change with
// the configuration, so it describes none.
type routeMetrics struct{ p Pipeline }

func (routeMetrics) Describe(chan<- *prometheus.Desc) {}

func (c routeMetrics) Collect(ch chan<- prometheus.Metric) {
	st := c.p.Running().State
	if st == nil {
		return
	}
	for _, m := range st.Router.Metrics() {
		desc := prometheus.NewDesc(m.Name, "Events that route "+m.Route+" has taken since the process started.", m.Labels, nil)
		for _, s := range m.Series {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(s.Count), s.Values...)
		}
	}
}
