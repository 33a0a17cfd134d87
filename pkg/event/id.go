package event

import (
	"crypto/sha256"
	"encoding/hex"
)

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
func ID(clusterUID string, t Type, r Resource, scope, uid, version string) string {
	h := sha256.New()
	for _, part := range [...]string{"watcherd/1", clusterUID, string(t), r.Group, r.Resource, scope, uid, version} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	var sum [sha256.Size]byte
	return hex.EncodeToString(h.Sum(sum[:0])[:16])
}
