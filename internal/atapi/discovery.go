package atapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/watcherd/watcherd/internal/query"
)

var verbs = metav1.Verbs{"get", "list"}

// discover answers what clients ask before they ask for objects.
func discover(w http.ResponseWriter, r *request, parts []string) error {
	slices.SortFunc(r.resources, func(a, b query.Recorded) int {
		return cmp.Or(cmp.Compare(a.GVR.Group, b.GVR.Group), cmp.Compare(a.GVR.Version, b.GVR.Version), cmp.Compare(a.GVR.Resource, b.GVR.Resource))
	})
	core := func(o *query.Recorded) bool { return o.GVR.Group == "" }
	named := func(o *query.Recorded) bool { return o.GVR.Group != "" }
	switch path := strings.Join(parts, "/"); {
	case path == "":
		return answer(w, metav1.RootPaths{Paths: []string{"/api", "/apis", "/version"}})
	case path == "version":
		return answer(w, version.Info{Major: "1", Minor: "0", GitVersion: "v1.0.0-watcherd"})
	case path == "api" && r.form.kind == asGroups:
		return answerGroups(w, r.resources, core)
	case path == "api":
		return answer(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case path == "apis" && r.form.kind == asGroups:
		return answerGroups(w, r.resources, named)
	case path == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: groups(r.resources, named)}
		return answer(w, list)
	case path == "api/v1":
		return answer(w, resources(r.resources, schema.GroupVersion{Version: "v1"}))
	case parts[0] == "apis" && len(parts) == 2:
		for _, g := range groups(r.resources, named) {
			if g.Name == parts[1] {
				g.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}
				return answer(w, g)
			}
		}
	case parts[0] == "apis" && len(parts) == 3:
		if list := resources(r.resources, schema.GroupVersion{Group: parts[1], Version: parts[2]}); len(list.APIResources) > 0 {
			return answer(w, list)
		}
	}
	return notFound("the history of a cluster has no %s", r.URL.Path)
}

func answer(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client is gone
	return nil
}

// groups are the groups of resources, which are sorted.
func groups(all []query.Recorded, of func(*query.Recorded) bool) []metav1.APIGroup {
	list := []metav1.APIGroup{}
	for i := range all {
		gvr := all[i].GVR
		if !of(&all[i]) {
			continue
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: gvr.GroupVersion().String(), Version: gvr.Version}
		if len(list) == 0 || list[len(list)-1].Name != gvr.Group {
			list = append(list, metav1.APIGroup{Name: gvr.Group, PreferredVersion: v})
		}
		if g := &list[len(list)-1]; !slices.Contains(g.Versions, v) {
			g.Versions = append(g.Versions, v)
		}
	}
	return list
}

func resources(all []query.Recorded, gv schema.GroupVersion) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv.String(), APIResources: []metav1.APIResource{}}
	for i := range all {
		if o := &all[i]; o.GVR.GroupVersion() == gv {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: o.GVR.Resource, SingularName: o.Singular, Namespaced: o.Namespaced, Kind: o.Kind,
				Verbs: verbs, ShortNames: o.ShortNames, Categories: o.Categories,
			})
		}
	}
	return list
}

// answerGroups sends groups with their resources in one document.
func answerGroups(w http.ResponseWriter, all []query.Recorded, of func(*query.Recorded) bool) error {
	list := apidiscovery.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{APIVersion: apidiscovery.SchemeGroupVersion.String(), Kind: "APIGroupDiscoveryList"}}
	for _, g := range groups(all, of) {
		group := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, v := range g.Versions {
			one := apidiscovery.APIVersionDiscovery{Version: v.Version, Freshness: apidiscovery.DiscoveryFreshnessCurrent}
			for _, r := range resources(all, schema.GroupVersion{Group: g.Name, Version: v.Version}).APIResources {
				scope := apidiscovery.ScopeCluster
				if r.Namespaced {
					scope = apidiscovery.ScopeNamespace
				}
				one.Resources = append(one.Resources, apidiscovery.APIResourceDiscovery{
					Resource: r.Name, ResponseKind: &metav1.GroupVersionKind{Group: g.Name, Version: v.Version, Kind: r.Kind},
					Scope: scope, SingularResource: r.SingularName, Verbs: verbs, ShortNames: r.ShortNames, Categories: r.Categories,
				})
			}
			group.Versions = append(group.Versions, one)
		}
		list.Items = append(list.Items, group)
	}
	w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	_ = json.NewEncoder(w).Encode(&list) // the client is gone
	return nil
}
