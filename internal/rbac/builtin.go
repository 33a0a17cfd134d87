package rbac

import (
	"slices"
	"strings"
)

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
