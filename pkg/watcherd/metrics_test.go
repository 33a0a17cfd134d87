package watcherd_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/watcherd"
)

// TestOpenMetrics reads /metrics as Prometheus does by default and checks it by the
// rules of OpenMetrics for families.
func TestOpenMetrics(t *testing.T) {
	api, sink := newCluster(t), newReceiver(t)
	p := newProcess(t, api, sink, "resources: [pods]")
	api.Put(podPath, "ns", "one", nil)
	p.start()
	p.until("a delivery", func() bool { return sink.has("one") })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text") {
		t.Errorf("the content type is %s", kind)
	}
	families, err := parseOpenMetrics(string(body))
	if err != nil {
		t.Error(err)
	}
	for name, kind := range map[string]string{
		"watcherd_sink_dead_letters": "counter", "watcherd_sink_dead_letters_kept": "gauge",
		"watcherd_sink_delivery_duration_seconds": "histogram",
	} {
		if families[name] != kind {
			t.Errorf("%s is a %q, want a %s", name, families[name], kind)
		}
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
}

// TestOpenMetricsFamilies tries parseOpenMetrics on what it is to find.
func TestOpenMetricsFamilies(t *testing.T) {
	const gauge, counter = "# TYPE a gauge\na 1\n", "# TYPE a counter\na_total{x=\"y\"} 1\n"
	for text, want := range map[string]string{
		gauge + "# EOF\n":                "",
		counter + "# EOF\n":              "",
		gauge:                            "no # EOF",
		gauge + counter + "# EOF\n":      "two TYPE",
		"# TYPE a counter\na 1\n# EOF\n": "outside",
		gauge + "# TYPE b gauge\nb 1\na 2\n# EOF\n":     "outside",
		"# TYPE a gauge\na{x=\"y\" 1\n# EOF\n":          "not a sample",
		"# TYPE a summary\n# TYPE a_sum gauge\n# EOF\n": "clashes",
	} {
		if _, err := parseOpenMetrics(text); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// suffixes are those of the samples of a type.
var suffixes = map[string][]string{
	"counter": {"_total", "_created"}, "gauge": {""}, "info": {"_info"}, "unknown": {""},
	"histogram": {"_bucket", "_count", "_sum", "_created"}, "summary": {"", "_count", "_sum", "_created"},
}

var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\.)*",?)*\})? \S+( \S+)?( # \{.*\} \S+( \S+)?)?$`)

// parseOpenMetrics returns the type of each family in an OpenMetrics text. Each family
// must have one block, and the names of no two families may clash.
func parseOpenMetrics(text string) (map[string]string, error) {
	text, complete := strings.CutSuffix(text, "# EOF\n")
	if !complete {
		return nil, fmt.Errorf("no # EOF at the end")
	}
	types, names, family := map[string]string{}, map[string]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "# ") {
			fields := strings.SplitN(line, " ", 4)
			if fields[1] != "TYPE" {
				continue
			}
			family = fields[2]
			if types[family] != "" {
				return types, fmt.Errorf("two TYPE lines of %s", family)
			}
			types[family] = fields[3]
			for _, suffix := range append(slices.Clone(suffixes[fields[3]]), "") {
				if other, taken := names[family+suffix]; taken && other != family {
					return types, fmt.Errorf("%s clashes with %s", family, other)
				}
				names[family+suffix] = family
			}
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			return types, fmt.Errorf("not a sample: %s", line)
		}
		if suffix, ok := strings.CutPrefix(m[1], family); !ok || !slices.Contains(suffixes[types[family]], suffix) {
			return types, fmt.Errorf("a sample outside its family: %s", line)
		}
	}
	return types, nil
}

// TestRunTwiceWithOneRegistry runs a daemon after another one. Nothing of the first is
// left, but for what the caller registered.
func TestRunTwiceWithOneRegistry(t *testing.T) {
	api, sink := newCluster(t), newReceiver(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "callers", Help: "Help."}))
	names := func() map[string]bool {
		all, err := registry.Gather()
		if err != nil {
			t.Error(err)
		}
		names := map[string]bool{}
		for _, f := range all {
			names[f.GetName()] = true
		}
		return names
	}
	p := newProcess(t, api, sink, "resources: [pods]}]\nroutes: [{name: r, sinks: [hook], metric: {name: routed_total}")
	p.options = func(o *watcherd.Options) { o.Registerer = registry }
	for _, name := range []string{"one", "two"} {
		api.Put(podPath, "ns", name, nil)
		p.start()
		p.until("a delivery", func() bool { return sink.has(name) })
		if !names()["routed_total"] {
			t.Error("the route's metric is missing")
		}
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		if left, want := names(), map[string]bool{"callers": true}; !maps.Equal(left, want) {
			t.Errorf("after Run the registry has %v, want %v", left, want)
		}
	}
}

// TestRegistererWithoutGatherer refuses a Registerer that /metrics cannot show.
func TestRegistererWithoutGatherer(t *testing.T) {
	o := watcherd.Options{Registerer: prometheus.WrapRegistererWithPrefix("x_", prometheus.NewRegistry())}
	if err := watcherd.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "Gatherer") {
		t.Errorf("Run returns %v", err)
	}
}
