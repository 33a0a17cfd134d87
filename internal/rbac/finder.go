package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// Finder resolves a pattern of a configuration to resources.
type Finder interface {
	Find(pattern string) ([]Resource, error)
}

// Offline is a Finder that asks no server.
type Offline struct{}

var _ Finder = Offline{}

// Find reads RESOURCE[.VERSION][.GROUP], *.GROUP and *. A name that is not one of
// Kubernetes itself is taken for a plural; without a group it is refused.
func (Offline) Find(pattern string) ([]Resource, error) {
	p, err := selector.ParseResource(pattern)
	if err != nil {
		return nil, err
	}
	if p.Wildcard() {
		if p.Bare() {
			return []Resource{{Group: wildcard, Name: wildcard, Custom: true}}, nil
		}
		return []Resource{{Group: p.Group(), Name: wildcard, Custom: true}}, nil
	}
	groups := builtin()
	if !p.Bare() {
		groups = slices.DeleteFunc(groups, func(g group) bool { return g.name != p.Group() })
	}
	for i := range groups {
		if r, ok := groups[i].find(p.Name()); ok {
			return []Resource{r}, nil
		}
	}
	if p.Bare() {
		return nil, fmt.Errorf("resource %s: its group is not known; write %s.GROUP, or give a cluster to ask", pattern, p.Name())
	}
	return []Resource{{Group: p.Group(), Name: p.Name(), Custom: true}}, nil
}

// Resolver finds served resources. *dynamicfactory.Resolver implements it.
type Resolver interface {
	Resolve(pattern string) ([]dynamicfactory.Resource, error)
}

// Served is a Finder that goes by what a server serves. What is not served is
// read as [Offline] reads it, since it may come.
type Served struct{ Resolver Resolver }

var _ Finder = Served{}

// Find returns the served resources that the pattern means.
func (s Served) Find(pattern string) ([]Resource, error) {
	found, err := s.Resolver.Resolve(pattern)
	if errors.Is(err, dynamicfactory.ErrNotServed) {
		return Offline{}.Find(pattern)
	}
	if err != nil {
		return nil, fmt.Errorf("resource %s: %w", pattern, err)
	}
	groups := builtin()
	out := make([]Resource, len(found))
	for i, f := range found {
		out[i] = Resource{Group: f.GVR.Group, Name: f.GVR.Resource, Scope: ScopeCluster}
		if f.Namespaced {
			out[i].Scope = ScopeNamespaced
		}
		out[i].Custom = strings.HasPrefix(pattern, wildcard) ||
			!slices.ContainsFunc(groups, func(g group) bool { return g.name == f.GVR.Group })
	}
	return out, nil
}

// Reviewer asks a server what the client may do.
// SelfSubjectAccessReviewInterface of client-go implements it.
type Reviewer interface {
	Create(ctx context.Context, review *authorization.SelfSubjectAccessReview, opts metav1.CreateOptions) (*authorization.SelfSubjectAccessReview, error)
}

// concurrentReviews is how many questions are under way at a time. The client's
// rate limit applies too.
const concurrentReviews = 8

// Missing returns the needs that the server refuses, with the refused verbs alone,
// in the order given.
func Missing(ctx context.Context, reviewer Reviewer, needs []Need) ([]Need, error) {
	refused := make([][]string, len(needs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentReviews)
	for i := range needs {
		group.Go(func() (err error) {
			refused[i], err = refusedVerbs(ctx, reviewer, &needs[i].Rule)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var missing []Need
	for i, verbs := range refused {
		if len(verbs) > 0 {
			n := needs[i]
			n.Verbs = verbs
			missing = append(missing, n)
		}
	}
	return missing, nil
}

// refusedVerbs asks for each verb by itself.
func refusedVerbs(ctx context.Context, reviewer Reviewer, r *Rule) ([]string, error) {
	var refused []string
	for _, verb := range r.Verbs {
		answer, err := reviewer.Create(ctx, &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
				Namespace: r.Namespace, Verb: verb, Group: r.Group, Resource: r.Resource, Name: r.Name,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask the server about %s on %s: %w", verb, r.Resource, err)
		}
		if !answer.Status.Allowed {
			refused = append(refused, verb)
		}
	}
	return refused, nil
}

// Scope is where a resource's objects live.
type Scope uint8

// The scopes.
const (
	ScopeUnknown Scope = iota
	ScopeNamespaced
	ScopeCluster
)

// Resource is what a rule can be about.
type Resource struct {
	Group, Name string // Name is "*" for every resource of the group
	Scope       Scope
	Custom      bool // it may come and go while the server runs
}

// builtin are the resources of Kubernetes itself that can be watched, in the order
// in which a name without a group is looked for. Each is its plural, then the
// other names that kubectl takes.
func builtin() []group {
	return []group{
		{
			name: "",
			namespaced: "configmaps configmap cm,endpoints endpoint ep,events event ev,limitranges limitrange limits," +
				"persistentvolumeclaims persistentvolumeclaim pvc,pods pod po,podtemplates podtemplate," +
				"replicationcontrollers replicationcontroller rc,resourcequotas resourcequota quota,secrets secret," +
				"serviceaccounts serviceaccount sa,services service svc",
			cluster: "namespaces namespace ns,nodes node no,persistentvolumes persistentvolume pv",
		},
		{
			name: "apps",
			namespaced: "controllerrevisions controllerrevision,daemonsets daemonset ds,deployments deployment deploy," +
				"replicasets replicaset rs,statefulsets statefulset sts",
		},
		{name: "events.k8s.io", namespaced: "events event ev"},
		{name: "autoscaling", namespaced: "horizontalpodautoscalers horizontalpodautoscaler hpa"},
		{name: "batch", namespaced: "cronjobs cronjob cj,jobs job"},
		{
			name:    "certificates.k8s.io",
			cluster: "certificatesigningrequests certificatesigningrequest csr,clustertrustbundles clustertrustbundle",
		},
		{
			name:       "networking.k8s.io",
			namespaced: "ingresses ingress ing,networkpolicies networkpolicy netpol",
			cluster:    "ingressclasses ingressclass,ipaddresses ipaddress ip,servicecidrs servicecidr",
		},
		{name: "policy", namespaced: "poddisruptionbudgets poddisruptionbudget pdb"},
		{
			name:       "rbac.authorization.k8s.io",
			namespaced: "rolebindings rolebinding,roles role",
			cluster:    "clusterrolebindings clusterrolebinding,clusterroles clusterrole",
		},
		{
			name:       "storage.k8s.io",
			namespaced: "csistoragecapacities csistoragecapacity",
			cluster: "csidrivers csidriver,csinodes csinode,storageclasses storageclass sc,volumeattachments volumeattachment," +
				"volumeattributesclasses volumeattributesclass vac",
		},
		{
			name: "admissionregistration.k8s.io",
			cluster: "mutatingwebhookconfigurations mutatingwebhookconfiguration,mutatingadmissionpolicies mutatingadmissionpolicy," +
				"mutatingadmissionpolicybindings mutatingadmissionpolicybinding," +
				"validatingwebhookconfigurations validatingwebhookconfiguration,validatingadmissionpolicies validatingadmissionpolicy," +
				"validatingadmissionpolicybindings validatingadmissionpolicybinding",
		},
		{name: "apiextensions.k8s.io", cluster: "customresourcedefinitions customresourcedefinition crd crds"},
		{name: "apiregistration.k8s.io", cluster: "apiservices apiservice"},
		{name: "scheduling.k8s.io", cluster: "priorityclasses priorityclass pc"},
		{name: "coordination.k8s.io", namespaced: "leases lease"},
		{name: "node.k8s.io", cluster: "runtimeclasses runtimeclass"},
		{name: "discovery.k8s.io", namespaced: "endpointslices endpointslice"},
		{name: "flowcontrol.apiserver.k8s.io", cluster: "flowschemas flowschema,prioritylevelconfigurations prioritylevelconfiguration"},
		{
			name:       "resource.k8s.io",
			namespaced: "resourceclaims resourceclaim,resourceclaimtemplates resourceclaimtemplate",
			cluster:    "deviceclasses deviceclass,resourceslices resourceslice",
		},
	}
}

// group is an API group of Kubernetes itself.
type group struct {
	name                string
	namespaced, cluster string
}

func (g *group) find(name string) (Resource, bool) {
	for _, part := range []struct {
		list  string
		scope Scope
	}{{g.namespaced, ScopeNamespaced}, {g.cluster, ScopeCluster}} {
		for names := range strings.SplitSeq(part.list, ",") {
			if names := strings.Fields(names); slices.Contains(names, name) {
				return Resource{Group: g.name, Name: names[0], Scope: part.scope}, true
			}
		}
	}
	return Resource{}, false
}
