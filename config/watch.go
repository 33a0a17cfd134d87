package config

import (
	"slices"
	"strings"

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
	// Key paths that stay although they are dropped by default: metadata.managedFields.
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
	// API group; empty for the core group.
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

// String is the resource in kubectl's spelling.
func (r Resource) String() string {
	if r.pattern != "" {
		return r.pattern
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
