package testcluster

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Requests counts what the server was asked of one resource since it started, by
// anyone: it reads configmaps, secrets, namespaces and some others itself.
type Requests struct {
	List      int // lists, each page of one
	Watch     int // watches, those that still run included
	OpenWatch int // watches that still run
}

// RequestCounts reads the server's metrics.
func (c *Cluster) RequestCounts(t testing.TB, resource schema.GroupVersionResource) Requests {
	t.Helper()
	families, err := scrape(t.Context(), c.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	// A watch is counted among the requests when it has ended.
	open := sum(families["apiserver_longrunning_requests"], resource, "WATCH")
	return Requests{
		List:      sum(families["apiserver_request_total"], resource, "LIST"),
		Watch:     sum(families["apiserver_request_total"], resource, "WATCH") + open,
		OpenWatch: open,
	}
}

func scrape(ctx context.Context, cfg *rest.Config) (map[string]*dto.MetricFamily, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(resp.Body)
}

func sum(family *dto.MetricFamily, resource schema.GroupVersionResource, verb string) int {
	total := 0.0
	for _, m := range family.GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["verb"] != verb || labels["subresource"] != "" ||
			labels["group"] != resource.Group || labels["version"] != resource.Version ||
			labels["resource"] != resource.Resource {
			continue
		}
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return int(total)
}
