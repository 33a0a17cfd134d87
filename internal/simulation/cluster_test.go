package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/apitest"
)

// The resources that a history writes to, by their name in a configuration.
var paths = map[string]string{
	"pods":                "/api/v1/pods",
	"nodes":               "/api/v1/nodes",
	"jobs.batch":          "/apis/batch/v1/jobs",
	"widgets.example.com": "/apis/example.com/v1/widgets",
	"routes.api.test":     "/apis/api.test/v1/routes",
	"namespaces":          "/api/v1/namespaces",
}

var resourceNames = []string{"pods", "nodes", "widgets.example.com", "jobs.batch", "routes.api.test"}

// write is one change that the writer made. The writes of an object path are its
// history.
type write struct {
	verb    string // added, updated or deleted
	uid     string // "" of the aggregated API, whose objects have none
	life    int    // differs for each object
	version string
	made    time.Time // of the object
	at      time.Time
	n       int  // differs for each state
	ready   bool // of an addition: the daemon was ready, and is to tell of it as one
	chosen  bool // of an addition: a watch selected namespaces by label
	red     bool // the state has the label by which a watch selects
}

// cluster is the API server and the writer's own record of what it wrote. Only the
// goroutine that runs the history writes.
type cluster struct {
	*apitest.Server
	history map[string][]write // by resource/namespace/name
	n       int
	labels  map[string]string // of namespaces that exist: the value of tier
	born    int               // namespaces so far
	uids    map[string]string // of namespaces
	births  map[string]string // when they were made
	other   map[string]bool   // namespaces that were of another tier than x once
	passed  int               // how many namespaces of jobs went
	chosen  func() bool       // reports whether a watch has begun that selects namespaces by label
	idle    bool              // jobs are not watched
	idled   bool              // nor were they, once
	beside  bool              // the configuration is being applied: whether the daemon is ready is not known
	ready   func() bool       // reports whether the daemon is ready
}

func newCluster() *cluster {
	c := &cluster{Server: apitest.Start(), history: map[string][]write{}, labels: map[string]string{}, uids: map[string]string{}, births: map[string]string{}, other: map[string]bool{}}
	c.Serve(paths["pods"], "v1", "Pod")
	c.Serve(paths["nodes"], "v1", "Node")
	c.Serve(paths["jobs.batch"], "batch/v1", "Job")
	c.Serve(paths["routes.api.test"], "api.test/v1", "Route") // of an aggregated API
	c.serveWidgets()
	c.Alias("/apis/example.com/v1beta1/widgets", paths["widgets.example.com"])
	for _, ns := range []string{"a", "b"} {
		c.relabel(ns, "x")
	}
	return c
}

func (c *cluster) serveWidgets() {
	c.ServeCustom(paths["widgets.example.com"], "example.com/v1", "Widget")
}

func (c *cluster) relabel(ns, tier string) {
	if c.labels[ns] == "" {
		c.born++
		c.uids[ns], c.births[ns] = fmt.Sprint("uid-", ns, "-", c.born), time.Now().UTC().Format(time.RFC3339)
	}
	c.other[ns] = c.other[ns] || tier != "x"
	c.labels[ns] = tier
	c.putNamespace(ns, nil)
}

func (c *cluster) putNamespace(ns string, more map[string]any) {
	metadata := map[string]any{"name": ns, "uid": c.uids[ns], "creationTimestamp": c.births[ns], "labels": map[string]any{"tier": c.labels[ns]}}
	maps.Copy(metadata, more)
	c.Put(paths["namespaces"], "", ns, map[string]any{"metadata": metadata})
}

// path is an object path: the key of a history.
func path(resource, namespace, name string) string { return resource + "/" + namespace + "/" + name }

// passing is the namespace of jobs. Its name is not used again when it goes.
func (c *cluster) passing() string { return fmt.Sprint("c", c.passed) }

// exists returns the last state of an object.
func (c *cluster) exists(path string) (write, bool) {
	h := c.history[path]
	if len(h) == 0 || h[len(h)-1].verb == "deleted" {
		return write{}, false
	}
	return h[len(h)-1], true
}

func (c *cluster) put(resource, namespace, name string) {
	if namespace != "" && c.labels[namespace] == "" {
		c.relabel(namespace, []string{"x", "y"}[c.n%2])
	}
	c.n++
	key := path(resource, namespace, name)
	last, exists := c.exists(key)
	chosen := c.chosen() && !exists && !(c.idled && resource == "jobs.batch")
	ready := !c.beside && !exists && resource != "widgets.example.com" && resource != "routes.api.test" && !(c.idle && resource == "jobs.batch") && c.ready()
	w := write{verb: "updated", uid: last.uid, life: last.life, made: last.made, n: c.n, ready: ready, chosen: chosen, red: c.n%3 == 0}
	if !exists {
		w.verb, w.life, w.made = "added", c.n, time.Now()
		if resource != "routes.api.test" {
			w.uid = fmt.Sprint("uid-", name, "-", c.n)
		}
	}
	metadata := map[string]any{"namespace": namespace, "name": name, "creationTimestamp": w.made.UTC().Format(time.RFC3339)}
	if w.uid != "" {
		metadata["uid"] = w.uid
	}
	if w.red {
		metadata["labels"] = map[string]any{"color": "red"}
	}
	c.skipVersionOf(key)
	c.Put(paths[resource], namespace, name, map[string]any{
		"metadata": metadata,
		"spec":     map[string]any{"n": c.n, "secret": fmt.Sprint("s", c.n), "noise": c.n},
	})
	w.version, w.at = c.Version(), time.Now()
	c.history[key] = append(c.history[key], w)
}

// skipVersionOf leaves out the next version if an object has had it: a restored cluster uses versions again, and the check
// knows a state of an object by its version.
func (c *cluster) skipVersionOf(key string) {
	last, _ := strconv.ParseUint(c.Version(), 10, 64)
	if slices.ContainsFunc(c.history[key], func(h write) bool { return h.version == strconv.FormatUint(last+1, 10) }) {
		c.Advance(1)
	}
}

// delete deletes those of the objects that exist, all at one version.
func (c *cluster) delete(resource, namespace string, names ...string) {
	names = slices.DeleteFunc(names, func(name string) bool {
		_, exists := c.exists(path(resource, namespace, name))
		return !exists
	})
	if len(names) == 0 {
		return
	}
	for _, name := range names {
		c.skipVersionOf(path(resource, namespace, name))
	}
	c.Delete(paths[resource], namespace, names...)
	for _, name := range names {
		key := path(resource, namespace, name)
		last, _ := c.exists(key)
		last.verb, last.version, last.at = "deleted", c.Version(), time.Now()
		c.history[key] = append(c.history[key], last)
	}
}

// write makes one random change.
func (c *cluster) write(r *rand.Rand, widgets bool) {
	resource := resourceNames[r.IntN(len(resourceNames))]
	if resource == "widgets.example.com" && !widgets {
		resource = "pods"
	}
	namespace := []string{"a", "b"}[r.IntN(2)]
	switch resource {
	case "nodes", "routes.api.test":
		namespace = ""
	case "jobs.batch":
		namespace = c.passing()
	}
	c.writeTo(r, resource, namespace)
}

func (c *cluster) writeTo(r *rand.Rand, resource, namespace string) {
	name := "o" + strconv.Itoa(r.IntN(6))
	switch _, exists := c.exists(path(resource, namespace, name)); {
	case exists && r.IntN(4) == 0:
		c.delete(resource, namespace, name)
		if r.IntN(2) == 0 {
			c.put(resource, namespace, name)
		}
	default:
		c.put(resource, namespace, name)
	}
}

// removeNamespace deletes a namespace with the objects in it.
func (c *cluster) removeNamespace(ns string) {
	names := map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(c.history)) {
		if part := strings.Split(key, "/"); part[1] == ns {
			names[part[0]] = append(names[part[0]], part[2])
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(names)) {
		c.delete(resource, ns, names[resource]...)
	}
	if c.labels[ns] != "" {
		c.putNamespace(ns, map[string]any{"deletionTimestamp": time.Now().UTC().Format(time.RFC3339)})
		c.Delete(paths["namespaces"], "", ns)
		delete(c.labels, ns)
		if ns == c.passing() {
			c.passed++
		}
	}
}

// removeWidgets deletes the custom resource definition with its objects.
func (c *cluster) removeWidgets() {
	for _, key := range slices.Sorted(maps.Keys(c.history)) {
		var ns, name string
		if n, _ := fmt.Sscanf(key, "widgets.example.com/%1s/%s", &ns, &name); n == 2 {
			c.delete("widgets.example.com", ns, name)
		}
	}
	c.Unserve(paths["widgets.example.com"])
}
