package churn

import (
	"fmt"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind is how objects of one resource are made and changed.
type kind struct {
	resource schema.GroupVersionResource
	count    int // objects at most
	name     string

	// object is a new object without metadata.
	object func(*rand.Rand) map[string]any
	// patch is a merge patch, to be applied to the subresource if one is named.
	patch func(*rand.Rand) (patch map[string]any, subresource string)
}

var (
	widgetResource     = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	deploymentResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	podResource        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	configMapResource  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// kinds are the resources to change. Widgets are only if the cluster serves
// the definition that is ours.
func kinds(widgets bool) []kind {
	list := []kind{
		{resource: configMapResource, count: 4, name: "settings", object: configMap, patch: configMapPatch},
		{resource: podResource, count: 6, name: "worker", object: pod, patch: podPatch},
		{resource: deploymentResource, count: 3, name: "web", object: deployment, patch: deploymentPatch},
	}
	if widgets {
		list = append(list, kind{resource: widgetResource, count: 5, name: "widget", object: widget, patch: widgetPatch})
	}
	return list
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

func configMap(r *rand.Rand) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": configData(r)}
}

func configMapPatch(r *rand.Rand) (map[string]any, string) {
	return map[string]any{"data": configData(r)}, ""
}

func configData(r *rand.Rand) map[string]any {
	return map[string]any{
		"logLevel": pick(r, "debug", "info", "warn", "error"),
		"limit":    fmt.Sprint(r.IntN(1000)),
	}
}

func pod(*rand.Rand) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": podSpec("1.0")}
}

// podSpec is a pod that never runs: its gate keeps every scheduler away.
func podSpec(version string) map[string]any {
	return map[string]any{
		"schedulingGates": []any{map[string]any{"name": "example.com/demo"}},
		"containers": []any{map[string]any{
			"name":  "main",
			"image": "registry.example.com/app:" + version,
			"env":   []any{map[string]any{"name": "MODE", "value": "demo"}},
		}},
	}
}

// podPatch changes what a kubelet would, or a label.
func podPatch(r *rand.Rand) (map[string]any, string) {
	if r.IntN(3) == 0 {
		return metadata("labels", "tier", pick(r, "web", "batch", "cache")), ""
	}
	phase := pick(r, "Pending", "Running", "Running", "Succeeded", "Failed")
	return map[string]any{"status": map[string]any{
		"phase":   phase,
		"message": fmt.Sprintf("attempt %d", r.IntN(1000)),
	}}, "status"
}

func deployment(r *rand.Rand) map[string]any {
	labels := map[string]any{"app": "web"}
	return map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "spec": map[string]any{
		"replicas": int64(1 + r.IntN(3)),
		"selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec":     podSpec("1.0"),
		},
	}}
}

func deploymentPatch(r *rand.Rand) (map[string]any, string) {
	switch r.IntN(3) {
	case 0:
		return metadata("annotations", "example.com/reviewed-by", pick(r, "ada", "grace", "alan")), ""
	case 1:
		version := fmt.Sprintf("1.%d", r.IntN(100))
		return map[string]any{"spec": map[string]any{"template": map[string]any{"spec": podSpec(version)}}}, ""
	default:
		return map[string]any{"spec": map[string]any{"replicas": int64(1 + r.IntN(3))}}, ""
	}
}

func widget(r *rand.Rand) map[string]any {
	return map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "spec": widgetSpec(r)}
}

func widgetPatch(r *rand.Rand) (map[string]any, string) {
	return map[string]any{"spec": widgetSpec(r)}, ""
}

func widgetSpec(r *rand.Rand) map[string]any {
	return map[string]any{
		"size":  int64(r.IntN(100)),
		"color": pick(r, "red", "green", "blue", "yellow"),
	}
}

func metadata(field, key, value string) map[string]any {
	return map[string]any{"metadata": map[string]any{field: map[string]any{key: value}}}
}
