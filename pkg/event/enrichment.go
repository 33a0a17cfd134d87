package event

import "encoding/json"

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
