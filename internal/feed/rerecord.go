package feed

import (
	"fmt"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// A change of edits, or of the API version, changes the form in which states are
// recorded and nothing about the objects. A source whose checkpoint names another
// form begins with a list of the resource as it was at the newest version that is
// recorded. Objects of equal version are recorded again without an event. What the
// recorded states are needed for until then, such as the oldObject of an update, sees
// them in the new form. The checkpoint names the new form once the list is committed,
// so that a stop in between has the list taken again.

// rerecord reports whether recorded states may be in another form than the source's.
func (s *source) rerecord() bool { return s.recordedForm != s.form }

// former returns a state of the ledger in the form that the source records now. The
// edits are those of now: what they do not remove but those of the recording did is
// gone.
func (g *group) former(s *source, o *compact.Object) (*compact.Object, error) {
	return g.m.formed(s, &s.codec, o)
}

// formed is former with a codec of the caller's, which is made when it is needed.
func (m *Manager) formed(s *source, codec **compact.Codec, o *compact.Object) (*compact.Object, error) {
	if o == nil || !s.rerecord() || s.edit == nil {
		return o, nil
	}
	raw, err := o.AppendJSON(nil)
	if err != nil {
		return nil, fmt.Errorf("recorded state of %s: %w", stateKey(o.GetNamespace(), o.GetName()), err)
	}
	if s.key.MetadataOnly && o.Kind() != "PartialObjectMetadata" {
		path, err := rawjson.ParsePath("metadata")
		if err != nil {
			return nil, err
		}
		if metadata, ok := rawjson.Lookup(raw, path); ok {
			raw = fmt.Appendf(nil, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}`, metadata)
		}
	}
	edited, err := s.edit(nil, raw)
	if err != nil {
		return nil, fmt.Errorf("edit recorded state of %s: %w", stateKey(o.GetNamespace(), o.GetName()), err)
	}
	if *codec == nil {
		*codec = compact.NewCodecFor(m.dicts, s.key.GVR.GroupResource().String()+" former")
	}
	return (*codec).Encode(edited, nil, 0)
}
