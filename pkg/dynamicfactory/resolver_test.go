package dynamicfactory_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// served is what a test's server serves, in aggregated discovery.
type served struct {
	mu     sync.Mutex
	groups []apidiscovery.APIGroupDiscovery // the core group first
	reads  int
	broken bool
}

func group(name string, versions ...apidiscovery.APIVersionDiscovery) apidiscovery.APIGroupDiscovery {
	return apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: versions}
}

func version(name string, resources ...apidiscovery.APIResourceDiscovery) apidiscovery.APIVersionDiscovery {
	return apidiscovery.APIVersionDiscovery{Version: name, Resources: resources, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
}

func serves(plural, kind string, shortNames ...string) apidiscovery.APIResourceDiscovery {
	return apidiscovery.APIResourceDiscovery{
		Resource: plural, SingularResource: strings.ToLower(kind), ShortNames: shortNames,
		ResponseKind: &metav1.GroupVersionKind{Kind: kind}, Scope: apidiscovery.ScopeNamespace,
		Verbs:        []string{"get", "list", "watch", "create"},
		Subresources: []apidiscovery.APISubresourceDiscovery{{Subresource: "status", ResponseKind: &metav1.GroupVersionKind{Kind: kind}, Verbs: []string{"get", "list", "watch"}}},
	}
}

func unwatchable(r apidiscovery.APIResourceDiscovery) apidiscovery.APIResourceDiscovery {
	r.Verbs = []string{"create"}
	return r
}

func clusterScoped(r apidiscovery.APIResourceDiscovery) apidiscovery.APIResourceDiscovery {
	r.Scope = apidiscovery.ScopeCluster
	return r
}

func (s *served) set(change func(groups []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups = change(slices.Clone(s.groups))
}

func (s *served) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func (s *served) serve(w http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var groups []apidiscovery.APIGroupDiscovery
	switch r.URL.Path {
	case "/api":
		s.reads++
		groups = s.groups[:1]
	case "/apis":
		groups = s.groups[1:]
	default:
		return false
	}
	if s.broken {
		apitest.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
		return true
	}
	w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	_ = json.NewEncoder(w).Encode(apidiscovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{APIVersion: "apidiscovery.k8s.io/v2", Kind: "APIGroupDiscoveryList"}, Items: groups,
	})
	return true
}

const (
	crdPath        = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	apiServicePath = "/apis/apiregistration.k8s.io/v1/apiservices"
)

// resolved runs a test with a Resolver that follows a server.
func resolved(t *testing.T, f func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver)) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Serve(crdPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
		s.Serve(apiServicePath, "apiregistration.k8s.io/v1", "APIService")
		d := &served{groups: []apidiscovery.APIGroupDiscovery{
			group("", version("v1", serves("pods", "Pod", "po"), serves("events", "Event", "ev"), clusterScoped(serves("nodes", "Node", "no")), unwatchable(serves("bindings", "Binding")))),
			group("events.k8s.io", version("v1", serves("events", "Event", "ev"))),
			group("apps", version("v1", serves("deployments", "Deployment", "deploy"))),
			group("example.com",
				version("v1", serves("widgets", "Widget", "wd")),
				version("v1beta1", serves("widgets", "Widget", "wd"), serves("gadgets", "Gadget"))),
			group("v1.example.org", version("v2", serves("pods", "OddPod"))),
			group("nothing.example.net", version("v1", unwatchable(serves("reviews", "Review")))),
		}}
		s.Intercept(d.serve)
		r, err := dynamicfactory.NewResolver(s.Config())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Resolve("pods"); !errors.Is(err, dynamicfactory.ErrNotReady) {
			t.Errorf("before Run: %v", err)
		}
		done := make(chan error, 1)
		go func() { done <- r.Run(t.Context()) }()
		t.Cleanup(func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		<-r.Changed()
		time.Sleep(10 * time.Second) // past what the start of the watches triggers
		f(t, s, d, r)
	})
}

func resources(list []dynamicfactory.Resource) string {
	var names []string
	for _, r := range list {
		names = append(names, r.GVR.Resource+"."+r.GVR.Version+"."+r.GVR.Group)
	}
	return strings.Join(names, " ")
}

func TestResolve(t *testing.T) {
	resolved(t, func(t *testing.T, _ *apitest.Server, _ *served, r *dynamicfactory.Resolver) {
		for pattern, want := range map[string]string{
			"pods": "pods.v1.", "pod": "pods.v1.", "po": "pods.v1.", "Pod": "pods.v1.", "PODS": "pods.v1.",
			"pods.v1": "pods.v1.", "pods.v1.": "pods.v1.", "pods.": "pods.v1.",
			"pods.v1.example.org":        "pods.v2.v1.example.org", // no version v1 of example.org: it is the group's name
			"events":                     "events.v1.",
			"events.events.k8s.io":       "events.v1.events.k8s.io",
			"deployments":                "deployments.v1.apps",
			"deploy.apps":                "deployments.v1.apps",
			"deployments.v1.apps":        "deployments.v1.apps",
			"widgets.example.com":        "widgets.v1.example.com",
			"Widget.v1beta1.example.com": "widgets.v1beta1.example.com",
			"gadgets":                    "gadgets.v1beta1.example.com", // not in the preferred version
			"*.example.com":              "widgets.v1.example.com gadgets.v1beta1.example.com",
			"*.v1beta1.example.com":      "widgets.v1beta1.example.com gadgets.v1beta1.example.com",
			"*.v1":                       "pods.v1. events.v1. nodes.v1.",
			"*":                          "pods.v1. events.v1. nodes.v1. deployments.v1.apps widgets.v1.example.com gadgets.v1beta1.example.com pods.v2.v1.example.org",
		} {
			list, err := r.Resolve(pattern)
			if got := resources(list); err != nil || got != want {
				t.Errorf("%s: got %s, %v, want %s", pattern, got, err, want)
			}
			p, err := selector.ParseResource(pattern) // which goes by the spelling
			for _, found := range list {
				if plural := p.Wildcard() || p.Name() == found.GVR.Resource; err != nil || plural && !p.Names(found.GVR.GroupResource()) {
					t.Errorf("%s is not %v to a selector (%v)", pattern, found.GVR, err)
				}
			}
		}
		for pattern, want := range map[string]error{
			"": dynamicfactory.ErrBadPattern, "pods/log": dynamicfactory.ErrBadPattern, "a b": dynamicfactory.ErrBadPattern,
			"p*": dynamicfactory.ErrBadPattern, ".apps": dynamicfactory.ErrBadPattern, "pods..": dynamicfactory.ErrBadPattern, "**": dynamicfactory.ErrBadPattern,
			"unheard": dynamicfactory.ErrNotServed, "pods.apps": dynamicfactory.ErrNotServed, "deployments.v2.apps": dynamicfactory.ErrNotServed,
			"*.unheard.com": dynamicfactory.ErrNotServed, "deployments.v1": dynamicfactory.ErrNotServed,
			"bindings": dynamicfactory.ErrNotWatchable, "*.nothing.example.net": dynamicfactory.ErrNotWatchable,
		} {
			if list, err := r.Resolve(pattern); !errors.Is(err, want) || list != nil {
				t.Errorf("%q: got %v, %v, want %v", pattern, list, err, want)
			}
			if _, err := selector.ParseResource(pattern); (err != nil) != errors.Is(want, dynamicfactory.ErrBadPattern) {
				t.Errorf("%q is to a selector: %v, and here: %v", pattern, err, want)
			}
		}
		for name, want := range map[string]string{"events": "[events.events.k8s.io]", "po": "[]", "pods": "[pods.v1.example.org]", "widgets.example.com": "[]", "events.": "[]"} {
			if list, err := r.Resolve(name); err != nil || fmt.Sprint(list[0].Also) != want {
				t.Errorf("%s is also %v, %v, want %s", name, list, err, want)
			}
		}
		nodes, err := r.Resolve("nodes")
		if err != nil || nodes[0].Namespaced || nodes[0].Kind != "Node" {
			t.Errorf("nodes: %v, %v", nodes, err)
		}
	})
}

// A reading that began before another one does not undo what that has found.
func TestRefreshBesideRun(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		var held atomic.Bool
		release := make(chan struct{})
		s.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
			if req.URL.Path != "/apis" || held.Swap(true) {
				return d.serve(w, req)
			}
			answer := httptest.NewRecorder() // of what is served now
			d.serve(answer, req)
			<-release
			maps.Copy(w.Header(), answer.Header())
			_, _ = w.Write(answer.Body.Bytes())
			return true
		})
		s.Put(crdPath, "", "others.example.com", nil)
		time.Sleep(300 * time.Millisecond)
		is(t, "Run is reading", held.Load(), true)
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			return append(g, group("new.example.com", version("v1", serves("gizmos", "Gizmo"))))
		})
		refreshed := make(chan error, 1)
		go func() { refreshed <- r.Refresh(t.Context()) }()
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_ = r.Refresh(impatient) // it returns
		close(release)
		if err := <-refreshed; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if list, err := r.Resolve("gizmos"); err != nil {
			t.Errorf("gizmos are %v, %v", list, err)
		}
	})
}

// A definition that comes, changes or goes shows within seconds, and only then.
func TestResolverFollowsDefinitions(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		is(t, "lists of definitions", len(s.Requests("customresourcedefinitions", false))+len(s.Requests("apiservices", false)), 0)
		before := d.count()
		time.Sleep(4 * time.Minute)
		is(t, "discoveries while nothing happens", d.count()-before, 0)
		s.Put(crdPath, "", "gizmos.example.com", nil)
		time.Sleep(2 * time.Second) // the server takes its time to publish it
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			return append(g, group("new.example.com", version("v1alpha1", serves("gizmos", "Gizmo"))))
		})
		changedSoon(t, r)
		list, err := r.Resolve("gizmos")
		is(t, "gizmos", resources(list), "gizmos.v1alpha1.new.example.com")
		if err != nil {
			t.Error(err)
		}
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			g[len(g)-1] = group("new.example.com", version("v1", serves("gizmos", "Gizmo")), version("v1alpha1", serves("gizmos", "Gizmo")))
			return g
		})
		s.Put(crdPath, "", "gizmos.example.com", nil)
		changedSoon(t, r)
		list, _ = r.Resolve("gizmos")
		is(t, "gizmos of the next version", resources(list), "gizmos.v1.new.example.com")
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery { return g[:len(g)-1] })
		s.Delete(crdPath, "", "gizmos.example.com")
		changedSoon(t, r)
		if _, err := r.Resolve("gizmos"); !errors.Is(err, dynamicfactory.ErrNotServed) {
			t.Errorf("gizmos that are gone: %v", err)
		}
		s.Put(apiServicePath, "", "v1.something", nil) // of which discovery shows nothing
		time.Sleep(time.Minute)
		select {
		case <-r.Changed():
			t.Error("a change without one")
		default:
		}
	})
}

// A definition that changes while an earlier change settles gets its own time.
func TestDefinitionsChangeInTurn(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		s.Put(crdPath, "", "first.example.com", nil)
		time.Sleep(2900 * time.Millisecond)
		s.Put(crdPath, "", "gizmos.example.com", nil)
		time.Sleep(2 * time.Second)
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			return append(g, group("new.example.com", version("v1", serves("gizmos", "Gizmo"))))
		})
		changedSoon(t, r)
	})
}

func changedSoon(t *testing.T, r *dynamicfactory.Resolver) {
	t.Helper()
	select {
	case <-r.Changed():
	case <-time.After(6 * time.Second):
		t.Error("no change within six seconds")
	}
}

// Without the right to watch definitions, discovery is read every 30 seconds.
func TestResolverPolls(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == crdPath || r.URL.Path == apiServicePath {
				apitest.Fail(w, http.StatusForbidden, "Forbidden")
				return true
			}
			return d.serve(w, r)
		})
		s.Cut()
		time.Sleep(6 * time.Minute)
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			return append(g, group("new.example.com", version("v1", serves("gizmos", "Gizmo"))))
		})
		select {
		case <-r.Changed():
		case <-time.After(31 * time.Second):
			t.Error("no change within 31 seconds")
		}
	})
}

// A group whose discovery fails keeps what it had; the others go on.
func TestGroupFails(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			stale := version("v1")
			stale.Freshness = apidiscovery.DiscoveryFreshnessStale
			g[2] = group("apps", stale)
			never := stale
			return append(g, group("never.example.com", never), group("new.example.com", version("v1", serves("gizmos", "Gizmo"))))
		})
		s.Put(apiServicePath, "", "v1.apps", nil)
		changedSoon(t, r)
		for _, name := range []string{"deployments", "deployments.apps", "*.apps", "gizmos"} {
			if list, err := r.Resolve(name); err != nil || len(list) != 1 {
				t.Errorf("%s: %v, %v", name, list, err)
			}
		}
		if _, err := r.Resolve("things.never.example.com"); !errors.Is(err, dynamicfactory.ErrNotServed) || !errors.Is(err, dynamicfactory.ErrUncertain) || !strings.Contains(err.Error(), "discovery of its group fails") {
			t.Errorf("a resource of a group that never worked: %v", err)
		}
		if list, err := r.Resolve("*"); err != nil || len(list) != 8 {
			t.Errorf("everything: %s, %v", resources(list), err)
		}
	})
}

// When discovery fails altogether, everything stays as it was.
func TestDiscoveryFails(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		d.mu.Lock()
		d.broken = true
		d.mu.Unlock()
		s.Cut()
		time.Sleep(10 * time.Minute)
		if list, err := r.Resolve("pods"); err != nil || len(list) != 1 {
			t.Errorf("pods: %v, %v", list, err)
		}
		synctest.Wait()
		select {
		case <-r.Changed():
			t.Error("a change without one")
		default:
		}
	})
}

// Definitions that never stop changing do not keep a new resource from being found,
// nor is discovery read for each change.
func TestDefinitionsChangeAllTheTime(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			return append(g, group("new.example.com", version("v1", serves("gizmos", "Gizmo"))))
		})
		before := d.count()
		for i := range 600 { // a minute
			s.Put(crdPath, "", "fought.example.com", map[string]any{"spec": map[string]any{"n": i}})
			time.Sleep(100 * time.Millisecond)
		}
		if _, err := r.Resolve("gizmos"); err != nil {
			t.Errorf("a new resource after a minute: %v", err)
		}
		if n := d.count() - before; n < 10 || n > 30 {
			t.Errorf("discovery was read %d times in a minute", n)
		}
	})
}

// A server or proxy that ends each watch at once is not asked again at once.
func TestDefinitionWatchesEndAtOnce(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, _ *dynamicfactory.Resolver) {
		var n atomic.Int64
		s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "" {
				if n.Add(1) > 100 { // no time passes between them
					<-r.Context().Done()
				}
				return true // 200 and the end
			}
			return d.serve(w, r)
		})
		s.Cut()
		before := len(s.Requests("customresourcedefinitions", true))
		time.Sleep(5 * time.Minute)
		if n := len(s.Requests("customresourcedefinitions", true)) - before; n > 30 {
			t.Errorf("%d watches in five minutes", n)
		}
	})
}

// While discovery fails it is read again, at growing intervals.
func TestDiscoveryIsRetried(t *testing.T) {
	resolved(t, func(t *testing.T, s *apitest.Server, d *served, r *dynamicfactory.Resolver) {
		d.mu.Lock()
		d.broken = true
		d.mu.Unlock()
		s.Put(crdPath, "", "gizmos.example.com", nil)
		time.Sleep(time.Minute)
		before := d.count()
		time.Sleep(5 * time.Minute)
		if n := d.count() - before; n < 20 || n > 60 {
			t.Errorf("discovery was read %d times in five minutes", n)
		}
		d.set(func(g []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
			d.broken = false
			return append(g, group("new.example.com", version("v1", serves("gizmos", "Gizmo"))))
		})
		select {
		case <-r.Changed():
		case <-time.After(resolverRetryMost):
			t.Error("no change once discovery works again")
		}
	})
}

// resolverRetryMost is the longest wait after discovery failed.
const resolverRetryMost = 10 * time.Second
