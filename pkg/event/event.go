package event

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
)

// Type is the kind of a change. Its text is what routes name in
// `events:` and what the CloudEvents type ends in.
type Type string

// The types. Sync is an object that already existed when a watch first started;
// Gap is not a change but a period of history that cannot be recovered.
const (
	Added   Type = "added"
	Updated Type = "updated"
	Deleted Type = "deleted"
	Sync    Type = "sync"
	Gap     Type = "gap"
	// Heartbeat is about watcherd itself: that a sink is delivering, and how far it is. It is in no
	// log, and no route selects it.
	Heartbeat Type = "heartbeat"
)

// CloudEvent is the CloudEvents type attribute.
func (t Type) CloudEvent() string {
	if t == Gap || t == Heartbeat {
		return "dev.watcherd." + string(t)
	}
	return "dev.watcherd.resource." + string(t)
}

// Selection is how a change affects an object's match with the watch's selector.
type Selection string

// The selections. With a client-side selector an object that comes to match, or
// ceases to, is an update marked Entered or Left; with a server-side one the API
// server's ADDED and DELETED cannot be distinguished from real ones and are marked Unknown.
const (
	Inside  Selection = ""
	Entered Selection = "entered"
	Left    Selection = "left"
	Unknown Selection = "unknown"
)

// Resource names a kind of object as the API server serves it.
type Resource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	Kind     string `json:"kind"`
}

// SelfDescribing reports whether an event of the type is described by the object as it is, not by
// what changed: about a Kubernetes Event, of either API group, that is there.
func (r Resource) SelfDescribing(t Type) bool {
	return r.Kind == "Event" && (r.Group == "" || r.Group == "events.k8s.io") && (t == Added || t == Updated || t == Sync)
}

// String is the resource as kubectl spells it: deployments.v1.apps, pods.v1.
func (r Resource) String() string {
	if r.Group == "" {
		return r.Resource + "." + r.Version
	}
	return r.Resource + "." + r.Version + "." + r.Group
}

// APIVersion is the version in the way of objects: apps/v1, v1.
func (r Resource) APIVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

// Event is one change of one object. It is immutable once made.
type Event struct {
	ID       string
	Type     Type
	Time     time.Time // when watcherd observed the change, UTC
	Sequence uint64    // position in watcherd's event log
	Position uint64    // place in the sink's queue, which distinguishes deliveries of one event; not encoded
	Cluster  string    // name of the cluster, from the config
	Feed     string    // name of the feed, from the config; empty: one process has the whole cluster
	// ClusterUID is the uid of the cluster's kube-system namespace, where it is known: a cluster that is
	// made again under a name has another one.
	ClusterUID string

	Resource        Resource
	Namespace       string // empty for cluster-scoped objects
	Name            string
	UID             string
	ResourceVersion string

	Object    json.RawMessage // state after the change; the last known state in a Deleted
	OldObject json.RawMessage // state before an Updated, where the route asks for it
	Patch     json.RawMessage // RFC 6902 patch from OldObject to Object, where the route asks for it

	// PatchOmitted means that the route asks for a patch, and nothing of it can be shown:
	// it was recorded before what it leads through was redacted.
	PatchOmitted bool

	Summary string // what changed, in one line that a person reads, where the route asks for it

	ChangedBy *ChangedBy // of an Added or an Updated, if the object's managed fields name a manager

	Owner          *Owner          // where the route's enrich asks for it; nil: none is known
	InvolvedObject *InvolvedObject // of a Kubernetes Event, where the route's enrich asks for it
	Incomplete     bool            // something of what enrich asks for was not known
	// Coalesced is how many earlier events of the object this one replaces, on a route with
	// `throttle`: OldObject, Patch and Summary are then against the state that the route
	// sent last.
	Coalesced int

	For *For // only in an Updated of a route with `for`

	Selection         Selection
	FinalStateUnknown bool // the deletion was found by comparison: Object may not be the very last state
	Replay            bool // delivered again on an operator's request
	Repair            bool // found by the consistency check
	Truncated         bool // too large for the sink: OldObject, Patch, Object or all of it but its metadata, Summary, Owner and InvolvedObject may be left out

	Gap *GapData // only in a Gap

	// Body is what the sink's `body` expression made of the event, and ContentType its
	// media type: sinks send it in place of an encoding of the event. Nil: the sink has
	// no such expression.
	Body        []byte
	ContentType string
}

// ChangedBy is who changed an object last, as its metadata.managedFields say: the entry
// with the newest time. A manager is a name that a client chose for itself, not a user.
type ChangedBy struct {
	Manager     string    `json:"manager"`     // of several in the same second, all, separated by commas
	Operation   string    `json:"operation"`   // Apply or Update; empty if several differ
	Subresource string    `json:"subresource"` // such as status; empty for the object itself, or if several differ
	Time        time.Time `json:"time"`        // in seconds, as the API server has it
}

// For is the match of an object that has lasted as long as a route's `for` asks.
type For struct {
	Since time.Time `json:"since"` // when the match began, as far as watcherd observed it
}

// GapData describes a lost period of history: what happened to Resource
// between the two versions was not observed. The final states have been
// delivered all the same.
type GapData struct {
	Watch               string    `json:"watch"`
	Resource            Resource  `json:"resource"`
	Namespace           string    `json:"namespace,omitempty"` // of a watch of one namespace, or of the object
	Name                string    `json:"name,omitempty"`      // if it is about one object
	FromResourceVersion string    `json:"fromResourceVersion"`
	ToResourceVersion   string    `json:"toResourceVersion"`
	Cause               string    `json:"cause"`
	From                time.Time `json:"from"` // up to when watcherd knew what happened
	To                  time.Time `json:"to"`   // from when it knows again
}

// Subject is the object's path in the Kubernetes API, for example
// /apis/apps/v1/namespaces/prod/deployments/web, percent-encoded where a URL needs
// it: the API server allows nearly every character in the names of roles, for one.
// A Gap's subject is the path of the resource.
func (e *Event) Subject() string { return string(e.appendSubject(nil)) }

// A source is sourcePrefix and the cluster's name, and of a feed feedPrefix and its name.
const (
	sourcePrefix = "/clusters/"
	feedPrefix   = "/feeds/"
)

// Source is the CloudEvents source: /clusters/ and the cluster's name,
// percent-encoded where a URI needs it, then /feeds/ and the name of a feed. Sequences rise
// within a source.
func (e *Event) Source() string { return string(e.appendSource(nil)) }

func (e *Event) appendSource(dst []byte) []byte {
	dst = appendPath(append(dst, sourcePrefix...), e.Cluster)
	if e.Feed != "" {
		dst = appendPath(append(dst, feedPrefix...), e.Feed)
	}
	return dst
}

// PartitionKey names the object whose events are in order: RESOURCE[.GROUP]/[NAMESPACE/]NAME,
// for example deployments.apps/prod/web or nodes/n1. Neither the uid nor the version
// of the API is part of it, so that a deletion comes before the next object of that name,
// in any version that it is watched in. The key of a Gap that concerns no single object
// ends before the name: pods, or pods/prod for a watch of one namespace.
func (e *Event) PartitionKey() string { return string(e.AppendPartitionKey(nil)) }

// AppendPartitionKey appends the [Event.PartitionKey] to dst.
func (e *Event) AppendPartitionKey(dst []byte) []byte {
	dst = append(dst, e.Resource.Resource...)
	if e.Resource.Group != "" {
		dst = append(dst, '.')
		dst = append(dst, e.Resource.Group...)
	}
	if e.Namespace != "" {
		dst = append(dst, '/')
		dst = append(dst, e.Namespace...)
	}
	if e.Name != "" {
		dst = append(dst, '/')
		dst = append(dst, e.Name...)
	}
	return dst
}

// Size is about how many bytes the event takes in any encoding. Encoders' buffers
// are made this large.
func (e *Event) Size() int {
	const envelope = 720 // attributes, names and punctuation
	if e.Body != nil {
		return envelope + len(e.Body)
	}
	n := envelope + len(e.Object) + len(e.OldObject) + len(e.Patch) + len(e.Summary)
	if c := e.ChangedBy; c != nil {
		n += 128 + len(c.Manager)
	}
	return n + e.EnrichmentSize()
}

func (e *Event) appendSubject(dst []byte) []byte {
	if e.Resource.Group == "" {
		dst = append(dst, "/api/"...)
	} else {
		dst = append(dst, "/apis/"...)
		dst = appendPath(dst, e.Resource.Group)
		dst = append(dst, '/')
	}
	dst = appendPath(dst, e.Resource.Version)
	if e.Namespace != "" && e.Resource.Resource != "namespaces" {
		dst = append(dst, "/namespaces/"...)
		dst = appendPath(dst, e.Namespace)
	}
	dst = append(dst, '/')
	dst = appendPath(dst, e.Resource.Resource)
	if e.Name != "" {
		dst = append(dst, '/')
		dst = appendPath(dst, e.Name)
	}
	return dst
}

// inPath are the characters of a part of a URI's path.
var inPath = charset(func(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~:/@!$&'()*+,;=", c) >= 0
})

func appendPath(dst []byte, s string) []byte { return appendEscaped(dst, s, inPath) }

func charset(has func(c byte) bool) *[256]bool {
	var set [256]bool
	for c := range set {
		set[c] = has(byte(c))
	}
	return &set
}

// appendEscaped appends s with %XX for the characters that are not among plain.
func appendEscaped(dst []byte, s string, plain *[256]bool) []byte {
	const hexdigits = "0123456789ABCDEF"
	for i := range len(s) {
		if c := s[i]; plain[c] {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', hexdigits[c>>4], hexdigits[c&15])
		}
	}
	return dst
}

// Attribute is one CloudEvents context attribute.
type Attribute struct{ Name, Value string }

// Attributes are the context attributes of the event for binary-mode bindings,
// where each becomes a header (`ce-` and the name over HTTP and NATS) and the
// body is [AppendData] with content type [ContentTypeJSON].
// Values are not escaped; see [HeaderValue].
func Attributes(e *Event) []Attribute {
	list := []Attribute{
		{"specversion", "1.0"},
		{"id", e.ID},
		{"source", e.Source()},
		{"type", e.Type.CloudEvent()},
		{"subject", e.Subject()},
		{"time", e.Time.UTC().Format(time.RFC3339Nano)},
		{"sequence", SequenceText(e.Sequence)},
		{"partitionkey", e.PartitionKey()},
		{"dataschema", DataSchema},
	}
	if e.ClusterUID != "" {
		list = append(list, Attribute{"clusteruid", e.ClusterUID})
	}
	return list
}

var inHeader = charset(func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' })

// HeaderValue encodes an attribute for a header, as the HTTP and NATS bindings want
// it: UTF-8, percent-encoded but for printable ASCII without quote and percent.
// See https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md#3132-http-header-values.
func HeaderValue(s string) string {
	return string(appendEscaped(make([]byte, 0, len(s)), strings.ToValidUTF8(s, "\uFFFD"), inHeader))
}

// ID derives an event's identity from what makes the change itself: when and how
// often it was observed is no part of it. Its form is 32 hexadecimal
// digits; the dot that Standard Webhooks reserves never occurs.
//
// An update, an addition and a sync are distinguished by the resourceVersion they
// led to; a deletion by the last recorded version of the object that is gone, so
// that a deletion seen in the stream and the same deletion found by comparison
// after a restart have one ID.
//
// The scope is what makes two feeds of one object differ in content (a pinned
// version, server-side selectors); it is empty for the default. Where no change of the object led to the event, the scope ends with what did: a namespace's
// version, or the position at which a snapshot began.
func ID(cluster string, t Type, r Resource, scope, uid, version string) string {
	h := sha256.New()
	for _, part := range [...]string{"watcherd/1", cluster, string(t), r.Group, r.Resource, scope, uid, version} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(h.Sum(sum[:0])[:16])
}

// Ref names an object as an owner reference does.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// Owner is the controller at the top of a chain of controllers: of a Pod, its Deployment.
type Owner struct {
	Ref
	Chain []Ref `json:"chain"` // from the direct controller to this one; never empty
}

// OwnerOf returns the owner at the end of a chain, nil if that is empty.
func OwnerOf(chain []Ref) *Owner {
	if len(chain) == 0 {
		return nil
	}
	return &Owner{Ref: chain[len(chain)-1], Chain: chain}
}

// InvolvedObject is the object that a Kubernetes Event is about, as it was when the Event
// was recorded.
type InvolvedObject struct {
	APIVersion  string            `json:"apiVersion"`
	Kind        string            `json:"kind"`
	Namespace   string            `json:"namespace"` // empty for cluster-scoped objects
	Name        string            `json:"name"`
	UID         string            `json:"uid"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Owner       *Owner            `json:"owner,omitempty"`
}

// appendEnrichment appends the members that a route's `enrich` asks for.
func appendEnrichment(dst []byte, e *Event) []byte {
	if e.Owner != nil {
		dst = appendRaw(dst, "owner", marshal(e.Owner))
	}
	if e.InvolvedObject != nil {
		dst = appendRaw(dst, "involvedObject", marshal(e.InvolvedObject))
	}
	if e.Incomplete {
		dst = append(dst, `,"enrichment":"`+Incomplete+`"`...)
	}
	return dst
}

// Incomplete is the value of the member enrichment.
const Incomplete = "incomplete"

func marshal(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil { // strings always marshal
		panic(err)
	}
	return raw
}

// EnrichmentSize is the encoded size of Owner, InvolvedObject and Incomplete.
func (e *Event) EnrichmentSize() (n int) {
	if e.Owner != nil {
		n += len(marshal(e.Owner)) + len(`,"owner":`)
	}
	if e.InvolvedObject != nil {
		n += len(marshal(e.InvolvedObject)) + len(`,"involvedObject":`)
	}
	if e.Incomplete {
		n += len(`,"enrichment":""`) + len(Incomplete)
	}
	return n
}
