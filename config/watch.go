package config

import (
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// Watch selects the objects to observe.
type Watch struct {
	// Name of the watch: lower-case letters, digits and dashes, unique among watches.
	Name string `json:"name" jsonschema:"required"`
	// Resources to watch, as kubectl spells them.
	Resources []Resource `json:"resources" jsonschema:"required,minItems=1"`
	// Resources to leave out of what wildcards match, as kubectl spells them, wildcards too. A version makes no difference.
	ExcludeResources []Resource `json:"excludeResources"`
	// Which namespaces; all when left out.
	Namespaces Namespaces `json:"namespaces"`
	// Label selector in kubectl's syntax. With selectorSide client, of labels that drop and redact leave.
	LabelSelector string `json:"labelSelector"`
	// Field selector in kubectl's syntax. With selectorSide client, of fields that drop and redact leave.
	FieldSelector string `json:"fieldSelector"`
	// Who selects. client: watcherd does, so that an object leaving the selection is not taken for deleted. server: the API server does, which is cheaper.
	SelectorSide string `json:"selectorSide" jsonschema:"enum=client,enum=server"`
	// Handling of objects that exist when the watch first starts, or that a reload adds to it. initial: each is delivered as a sync event. never: they are only recorded.
	Snapshot string `json:"snapshot" jsonschema:"enum=initial,enum=never"`
	// Record every change for the time of store.retention, whether a route takes it or not. false: only what routes take, as they take it.
	History bool `json:"history"`
	// Watch metadata only, which is much cheaper. Events then carry no spec or status.
	MetadataOnly bool `json:"metadataOnly"`
	// Key paths that are removed before any other processing, in addition to metadata.managedFields. A change in them alone is not an event. Items of an array are dropped all ([*]), not by number.
	Drop []string `json:"drop"`
	// Key paths that stay although they are dropped or redacted by default: metadata.managedFields, and metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"], which stays without what the watch and its routes hide elsewhere, and not in Secrets.
	Keep []string `json:"keep"`
	// Key paths whose values are replaced by keyed hashes: a change stays visible, the value does not.
	Redact []string `json:"redact"`
	// Lists of key paths to redact in addition. podEnv: values of environment variables of containers, in every kind with a pod template, revisions and custom resources included (**.env[*].value).
	RedactPresets []string `json:"redactPresets" jsonschema:"enum=podEnv"`
	// Leave the values of Secrets, and the copies of them in annotations of Secrets, as they are: on disk and in sinks too.
	ExposeSecrets bool `json:"exposeSecrets"`
	// What to do about a resource that the API server does not serve. wait: watch it as soon as it does. fail: refuse the configuration; at a start without the API server, end once it answers and lacks the resource.
	OnMissing string `json:"onMissing" jsonschema:"enum=wait,enum=fail"`

	// Raw is the block as canonical JSON, before defaults: equal for blocks that say the same. Nil in a Config made by a program.
	Raw []byte `json:"-"`
}

// Dropped are the key paths that the watch drops: its own and those dropped by
// default that it does not keep.
func (w *Watch) Dropped() []string {
	dropped := slices.Clone(w.Drop)
	for _, p := range DefaultDrop() {
		if !slices.Contains(w.Keep, p) && !slices.Contains(dropped, p) {
			dropped = append(dropped, p)
		}
	}
	return dropped
}

// Namespaces selects namespaces, live: as they come, go and are relabelled. All
// parts given must agree. With include or selector, objects that are in no
// namespace are left out.
type Namespaces struct {
	// Names or patterns (team-*) to watch; all when empty. Plain names alone, without exclude and selector, are watched one by one and need no permission beyond them.
	Include []string `json:"include"`
	// Names or patterns to leave out.
	Exclude []string `json:"exclude"`
	// Label selector on the namespace itself.
	Selector string `json:"selector"`
}

// Values of a watch's keys.
const (
	SideClient      = "client"
	SideServer      = "server"
	SnapshotInitial = "initial"
	SnapshotNever   = "never"
	MissingWait     = "wait"
	MissingFail     = "fail"
	PresetPodEnv    = "podEnv"
)

// Resource names a resource, or several with a wildcard. In the file it is a
// string in kubectl's spelling, RESOURCE[.VERSION][.GROUP], or a mapping.
type Resource struct {
	// API group; the core group when left out.
	Group string `json:"group"`
	// API version; the one the API server prefers when left out.
	Version string `json:"version"`
	// Plural name, such as deployments, or * for every kind of the group that can be listed.
	Resource string `json:"resource" jsonschema:"required"`

	pattern string
}

// ParseResource takes a resource in kubectl's spelling. What the parts of a name
// with dots are is up to the API server's discovery.
func ParseResource(pattern string) Resource { return Resource{pattern: pattern} }

// String is the resource in kubectl's spelling: of a mapping without group and version "pods.", of the
// core group, since "pods" would be the resource of any group.
func (r Resource) String() string {
	if r.pattern != "" {
		return r.pattern
	}
	if r.Group == "" && r.Version == "" {
		return r.Resource + "."
	}
	parts := slices.DeleteFunc([]string{r.Resource, r.Version, r.Group}, func(part string) bool { return part == "" })
	return strings.Join(parts, ".")
}

func decodeResource(d *strict.Decoder, n strict.Node, into *Resource) {
	if n.IsMapping() {
		d.Mapping(n, into, strict.Others{})
		return
	}
	text, ok := n.Text()
	if !ok || strings.TrimSpace(text) == "" {
		d.Report(n, "must be a name such as deployments.apps, or a mapping {group, version, resource}")
		return
	}
	*into = ParseResource(text)
}

// Route maps changes to sinks and defines the payload.
type Route struct {
	// Name of the route: lower-case letters, digits and dashes, unique among routes.
	Name string `json:"name" jsonschema:"required"`
	// Names of the watches it takes from; all when empty.
	Watches []string `json:"watches"`
	// Resources it takes; all of those watches when empty.
	Resources []Resource `json:"resources"`
	// Types of events it takes; all when empty, with changed all but sync.
	Events []string `json:"events" jsonschema:"enum=added,enum=updated,enum=deleted,enum=sync"`
	// CEL expression that must be true; it sees object, oldObject, metadata, event and resource (listed below).
	When string `json:"when"`
	// Handling of an event on which the expression fails, as it does on an object that lacks a field of it. drop: the event does not match. pass: it does. Failures are counted; the first of a route that is not about a missing field is logged.
	OnError string `json:"onError" jsonschema:"enum=pass,enum=drop"`
	// Key paths; an update counts only if one of these changed. meaningful: only if more changed than what controllers renew by themselves (listed below). Additions and deletions are not affected; sync events are taken only if events names them.
	Changed Changed `json:"changed"`
	// Share of the events to take, above 0 and at most 1. An event is taken or not by a hash of its id: the same after a restart, and in every route. Default: all.
	Sample *float64 `json:"sample,omitempty" jsonschema:"minimum=0,maximum=1"`
	// A counter in /metrics of the events that the route takes, since the process started. A reload that keeps its name and labels keeps its counts.
	Metric *RouteMetric `json:"metric,omitempty"`
	// Key paths, as a watch's: further values that the events of this route do not carry. Its expressions see them. Of several routes to one sink the edits of all apply.
	Drop []string `json:"drop"`
	// Key paths whose values the events of this route carry as keyed hashes only.
	Redact []string `json:"redact"`
	// What the events carry: the state after the change, the state before it, the RFC 6902 patch between them, a summary of the change in one line that a person reads.
	Payload []string `json:"payload" jsonschema:"enum=object,enum=oldObject,enum=patch,enum=summary"`
	// What the events have in addition about other objects, as it is known when they are recorded. owner: the controllers of the object, up to the one at the top. involvedObject: of a Kubernetes Event, labels, annotations and owner of the object that it is about. What is not cached then is left out, and the event marked as incomplete.
	Enrich []string `json:"enrich" jsonschema:"enum=owner,enum=involvedObject"`
	// Limit to the events of one object. The first is delivered at once.
	Throttle *Throttle `json:"throttle,omitempty"`
	// Time for which an object must match `when` without a break, at least 1s. The route then delivers one event for it, of type updated with data.for, instead of one for each change. It excludes events and changed, and a `when` that reads event or oldObject.
	For *time.Duration `json:"for,omitempty"`
	// Names of the sinks it delivers to.
	Sinks []string `json:"sinks" jsonschema:"required,minItems=1"`
}

// RouteMetric is a counter in /metrics. It counts from the start of the process; a reload
// that keeps its name and labels keeps its counts.
type RouteMetric struct {
	// Name of the counter, unique among routes, as in rollouts_total. It must not begin with watcherd_, go_, process_, promhttp_, informer_ or rest_client_.
	Name string `json:"name" jsonschema:"required"`
	// Labels, at most 10, each with a CEL expression over what when sees, values that drop and redact of the route hide included. A missing field is an empty text; watcherd status warns of a label that is empty on every event.
	Labels map[string]string `json:"labels"`
	// Most series. Events with further combinations of labels are counted in one series whose labels are all _overflow.
	MaxSeries int `json:"maxSeries" jsonschema:"minimum=1,maximum=10000"`
}

// Changed are the key paths of which an update must change one, or ChangedMeaningful
// alone, which in the file is no list.
type Changed []string

func decodeChanged(d *strict.Decoder, n strict.Node, into *Changed) {
	if text, ok := n.Text(); ok && text == ChangedMeaningful {
		*into = Changed{text}
		return
	}
	if _, list := n.Scalar(); list {
		d.Report(n, "must be meaningful, or a list of key paths")
		return
	}
	d.Value(n, (*[]string)(into))
}

// Throttle limits the events of one object to one in each period: the last one, with the
// number of those that it replaces. Deletions are delivered at once.
type Throttle struct {
	// Length of the period, from 1s to 24h.
	Per time.Duration `json:"per" jsonschema:"required"`
}

// Values of a route's keys.
const (
	EventAdded   = "added"
	EventUpdated = "updated"
	EventDeleted = "deleted"
	EventSync    = "sync"

	ChangedMeaningful = "meaningful"

	PayloadObject    = "object"
	PayloadOldObject = "oldObject"
	PayloadPatch     = "patch"
	PayloadSummary   = "summary"

	EnrichOwner          = "owner"
	EnrichInvolvedObject = "involvedObject"

	ErrorPass = "pass"
	ErrorDrop = "drop"
)
