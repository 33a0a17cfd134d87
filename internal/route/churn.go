package route

import (
	"bytes"
	"slices"
	"sync"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Meaningful is the value of Spec.Changed, as its only item, for updates of more than
// churn.
const Meaningful = "meaningful"

// Churn are the values of some resources that controllers renew by themselves.
type Churn struct {
	Resources []string // RESOURCE[.GROUP]; none: every resource, in addition to its own
	Paths     []string // in the syntax of rawjson.ParsePath, without indices and **
	Why       string   // what an update of them is
}

// Churns is the table of what is not a meaningful change.
func Churns() []Churn {
	return []Churn{
		{nil, []string{
			"metadata.resourceVersion", "metadata.generation", "metadata.managedFields",
			`metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]`,
			"status.observedGeneration", "status.conditions[*].lastHeartbeatTime", "status.conditions[*].lastProbeTime",
			"status.conditions[*].lastTransitionTime", "status.conditions[*].lastUpdateTime",
		}, "counters, copies and times of conditions, which follow another change"},
		{[]string{"leases.coordination.k8s.io"}, []string{"spec.renewTime"}, "renewals"},
		{[]string{"endpoints", "configmaps"}, []string{`metadata.annotations["control-plane.alpha.kubernetes.io/leader"]`}, "renewals by leaders"},
		{[]string{"endpoints", "endpointslices.discovery.k8s.io"}, []string{`metadata.annotations["endpoints.kubernetes.io/last-change-trigger-time"]`}, "times"},
		{[]string{"events", "events.events.k8s.io"}, []string{
			"count", "firstTimestamp", "lastTimestamp", "series", "deprecatedCount", "deprecatedFirstTimestamp", "deprecatedLastTimestamp",
		}, "repetitions"},
		{[]string{"nodes"}, []string{
			"status.images", "status.volumesAttached", "status.volumesInUse", `metadata.annotations["node.alpha.kubernetes.io/ttl"]`,
		}, "heartbeats and inventories of the kubelet; a condition's status and reason count"},
		{[]string{"deployments.apps", "replicasets.apps"}, []string{
			"status", `metadata.annotations["deployment.kubernetes.io/revision"]`, `metadata.annotations["deployment.kubernetes.io/revision-history"]`,
			`metadata.annotations["deployment.kubernetes.io/desired-replicas"]`, `metadata.annotations["deployment.kubernetes.io/max-replicas"]`,
		}, "progress of rollouts"},
		{[]string{"daemonsets.apps"}, []string{"status", `metadata.annotations["deprecated.daemonset.template.generation"]`}, "progress of rollouts"},
		{[]string{
			"statefulsets.apps", "replicationcontrollers", "cronjobs.batch", "horizontalpodautoscalers.autoscaling",
			"poddisruptionbudgets.policy", "resourcequotas", "verticalpodautoscalers.autoscaling.k8s.io", "verticalpodautoscalercheckpoints.autoscaling.k8s.io",
		}, []string{"status"}, "what their controllers count and measure"},
		{[]string{"jobs.batch"}, []string{"status.active", "status.ready", "status.terminating", "status.uncountedTerminatedPods"}, "progress; success and failure count"},
	}
}

// churn is a tree of paths: the values at its leaves do not count.
type churn struct {
	leaf bool
	keys map[string]*churn
	each *churn // of every item
}

// churns are the trees by RESOURCE[.GROUP]; "" is that of every other resource.
var churns = sync.OnceValue(func() map[string]*churn {
	trees := map[string]*churn{"": newChurn()}
	for _, entry := range Churns() {
		for _, resource := range entry.Resources {
			trees[resource] = newChurn()
		}
	}
	for _, entry := range Churns() {
		for resource, tree := range trees {
			if len(entry.Resources) > 0 && !slices.Contains(entry.Resources, resource) {
				continue
			}
			for _, text := range entry.Paths {
				tree.add(rawjson.MustParsePath(text))
			}
		}
	}
	return trees
})

func newChurn() *churn { return &churn{keys: map[string]*churn{}} }

func (c *churn) add(path rawjson.Path) {
	first, rest, ok := path.Cut()
	if !ok {
		c.leaf = true
		return
	}
	key, plain := first.Key()
	next := c.each
	if plain {
		next = c.keys[key]
	}
	if next == nil {
		next = newChurn()
		if plain {
			c.keys[key] = next
		} else {
			c.each = next
		}
	}
	next.add(rest)
}

func churnOf(r event.Resource) *churn {
	name := r.Resource
	if r.Group != "" {
		name += "." + r.Group
	}
	if tree, ok := churns()[name]; ok {
		return tree
	}
	return churns()[""]
}

// same reports whether two values differ in nothing but churn. nil is a missing value; a
// container that holds only churn is as good as missing.
func (c *churn) same(a, b []byte) bool {
	switch {
	case c == nil:
		return sameJSON(a, b)
	case c.leaf || bytes.Equal(a, b):
		return true
	case !c.fits(a) || !c.fits(b):
		return sameJSON(a, b)
	case c.each != nil:
		return c.sameItems(a, b)
	}
	others := make(map[string][]byte)
	for key, value := range rawjson.Members(b) {
		others[string(key)] = value
	}
	for key, value := range rawjson.Members(a) {
		if !c.keys[string(key)].same(value, others[string(key)]) {
			return false
		}
		delete(others, string(key))
	}
	for key, value := range others {
		if !c.keys[key].same(nil, value) {
			return false
		}
	}
	return true
}

func (c *churn) sameItems(a, b []byte) bool {
	items := slices.Collect(rawjson.Items(b))
	n := 0
	for item := range rawjson.Items(a) {
		if n == len(items) || !c.each.same(item, items[n]) {
			return false
		}
		n++
	}
	return n == len(items)
}

// fits reports whether a value is missing or of the type that the paths go through.
func (c *churn) fits(raw []byte) bool {
	first := byte('{')
	if c.each != nil {
		first = '['
	}
	return len(raw) == 0 || raw[0] == first
}

// onlyChurn reports whether two states of a resource differ in nothing but churn.
func onlyChurn(r event.Resource, before, after *celjson.Object) bool {
	return churnOf(r).same(before.JSON(), after.JSON())
}
