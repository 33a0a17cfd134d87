package route

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	"github.com/watcherd/watcherd/internal/celexpr"
)

// Metric is a counter of the changes that a route takes.
type Metric struct {
	Name      string
	Labels    map[string]string // CEL expressions
	MaxSeries int
}

const (
	// Overflow is the value of every label of the series that counts what the limit of
	// series leaves no room for.
	Overflow = "_overflow"

	maxLabelValue = 256 // bytes
)

// ErrSeries is passed to [Router.OnError] when a metric reaches its limit of series.
var ErrSeries = errors.New("the metric has reached its limit of series")

type metric struct {
	name   string
	limit  int
	labels []string
	values []*condition  // of the labels
	filled []atomic.Bool // by label: a change had a value for it
	used   atomic.Bool   // a change was counted
	counts *counts
}

// counts are a metric's series. They outlive a router.
type counts struct {
	mu     sync.Mutex
	series map[string]*Series // guarded by mu; by values, each with a zero byte
	full   bool               // guarded by mu; the limit was reached
}

// Series is a count of changes with the same values of a metric's labels.
type Series struct {
	Values []string // in the order of the labels
	Count  uint64
}

// MetricCounts are the series of a route's metric since the process started.
type MetricCounts struct {
	Name   string
	Route  string
	Labels []string
	Series []Series // of no order
}

// isLabel returns why a type is not that of a label, "" if it is: a text, or what has one.
func isLabel(t *cel.Type) string {
	switch t.Kind() {
	case types.StringKind, types.IntKind, types.UintKind, types.DoubleKind, types.BoolKind, types.TimestampKind, types.DurationKind, types.DynKind, types.NullTypeKind:
		return ""
	}
	return "the expression must be a string, a number or a bool, not " + cel.FormatCELType(t)
}

func compileMetric(m *Metric, x *expressions, fault func(label string, f celexpr.Fault)) *metric {
	out := &metric{name: m.Name, limit: m.MaxSeries, labels: slices.Sorted(maps.Keys(m.Labels)), counts: &counts{series: map[string]*Series{}}}
	for _, label := range out.labels {
		value, faults := x.compile(m.Labels[label], isLabel)
		for _, f := range faults {
			fault(label, f)
		}
		out.values = append(out.values, value)
	}
	out.filled = make([]atomic.Bool, len(out.labels))
	if len(out.labels) == 0 {
		out.counts.series[""] = &Series{} // the only one
	}
	return out
}

// count adds the change to its series.
func (r *Router) count(rule *rule, e *evaluation) {
	m := rule.metric
	m.used.Store(true)
	key := make([]byte, 0, 128)
	values := make([]string, len(m.labels))
	for i, label := range m.values {
		text, err := label.text(e)
		if err != nil {
			r.failed(rule, err)
		}
		if values[i] = text; text != "" && !m.filled[i].Load() {
			m.filled[i].Store(true)
		}
		key = append(append(key, text...), 0)
	}
	if m.counts.add(string(key), values, m.limit) && r.onError != nil {
		r.onError(rule.name, ErrSeries)
	}
}

// empty are the labels that no change had a value for, if one was counted.
func (m *metric) empty() (labels []string) {
	for i, label := range m.labels {
		if m.used.Load() && !m.filled[i].Load() {
			labels = append(labels, label)
		}
	}
	return labels
}

// add reports whether the limit was reached for the first time.
func (c *counts) add(key string, values []string, limit int) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.series[key]
	if s == nil && len(c.series) >= limit {
		first, c.full = !c.full, true
		for i := range values {
			values[i] = Overflow
		}
		key = strings.Repeat(Overflow+"\x00", len(values))
		s = c.series[key]
	}
	if s == nil {
		s = &Series{Values: values}
		c.series[key] = s
	}
	s.Count++
	return first
}

// text evaluates a label. It is empty if the expression fails; a missing field is no
// error.
func (c *condition) text(e *evaluation) (string, error) {
	v, err := c.value(e)
	switch {
	case err != nil && isMissing(err):
		return "", nil
	case err != nil:
		return "", celexpr.Shorten(err)
	case v == types.NullValue:
		return "", nil
	}
	text, ok := v.ConvertToType(types.StringType).Value().(string)
	if !ok {
		return "", errors.New(isLabel(types.NewObjectType(v.Type().TypeName())))
	}
	if len(text) > maxLabelValue {
		text = text[:maxLabelValue]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", ""), nil
}

// Continue makes the routes of r that an earlier router has too, and the metrics with the
// same labels, continue its counts. It is called before the first Route.
func (r *Router) Continue(earlier *Router) {
	for _, rule := range r.rules {
		for _, before := range earlier.rules {
			if reflect.DeepEqual(rule.spec, before.spec) {
				rule.counters = before.counters
			}
			a, b := rule.metric, before.metric
			if a != nil && b != nil && a.name == b.name && slices.Equal(a.labels, b.labels) {
				a.counts = b.counts
			}
		}
	}
}

// Metrics returns the counts of the routes that have a metric.
func (r *Router) Metrics() (all []MetricCounts) {
	for _, rule := range r.rules {
		if m := rule.metric; m != nil {
			all = append(all, MetricCounts{Name: m.name, Route: rule.name, Labels: m.labels, Series: m.counts.read()})
		}
	}
	return all
}

func (c *counts) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.series)
	c.full = false
}

func (c *counts) read() []Series {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Series, 0, len(c.series))
	for _, s := range c.series {
		list = append(list, *s)
	}
	return list
}
