package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Ref names an object as references in objects do.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// Group is an object with the changes that are its consequences: those of objects that it
// controls, of EndpointSlices of these, and of Kubernetes Events about them.
type Group struct {
	Owner  Ref                       `json:"owner"`            // at the top, as far as objects are recorded
	Change *NetChange                `json:"change,omitempty"` // of the owner itself; nil: it ended as it began
	Counts map[string]map[string]int `json:"counts"`           // of the consequences, by resource and change; churned: they ended as they began
	Items  []NetChange               `json:"items"`            // the consequences that did not
}

const (
	maxOwners  = 10      // of a chain
	maxRefs    = 1000    // of an object: as many as an EndpointSlice has endpoints
	maxAllRefs = 100_000 // of the objects of an answer: of each of the others the first one counts
)

// refKey is what a reference has in common with others to the same object.
type refKey struct{ group, kind, namespace, name string }

func (r *Ref) key() refKey {
	group, _, found := strings.Cut(r.APIVersion, "/")
	if !found {
		group = ""
	}
	return refKey{group, r.Kind, r.Namespace, r.Name}
}

func (n *net) ref() Ref {
	return Ref{n.Resource.APIVersion(), n.Resource.Kind, n.Namespace, n.Name}
}

// grouped folds the changes of objects below their owners, which may have ended as they began, or not have changed: of
// these above returns the owner, nil if there is none or it is not known.
func grouped(all []*net, above func(*Ref) (*Ref, error)) ([]Group, error) {
	changed := make(map[refKey]*net, len(all))
	for _, n := range all {
		ref := n.ref()
		changed[ref.key()] = n
	}
	type link struct {
		to  *net
		ref *Ref
	}
	links := make(map[refKey]link, len(all)) // one may own all others, and have many references
	groups, order := map[refKey]*Group{}, []refKey{}
	for _, n := range all {
		top, owner := n, n.ref()
		for range maxOwners {
			l, known := links[owner.key()]
			if !known && top != nil {
				l.to, l.ref = top.owner(changed)
			} else if !known {
				var err error
				if l.ref, err = above(&owner); err != nil {
					return nil, err
				}
				if l.ref != nil {
					l.to = changed[l.ref.key()]
				}
			}
			links[owner.key()] = l
			if l.ref == nil {
				break
			}
			if top, owner = l.to, *l.ref; top != nil {
				owner = top.ref()
			}
		}
		g := groups[owner.key()]
		if g == nil {
			g = &Group{Owner: owner, Counts: map[string]map[string]int{}, Items: []NetChange{}}
			groups[owner.key()] = g
			order = append(order, owner.key())
		}
		switch {
		case top == n && owner == n.ref(): // it is the owner
			if n.Change != "" {
				g.Change = &n.NetChange
			}
			continue
		case n.Change != "":
			g.Items = append(g.Items, n.NetChange)
		}
		resource := strings.TrimSuffix(n.Resource.Resource+"."+n.Resource.Group, ".")
		if g.Counts[resource] == nil {
			g.Counts[resource] = map[string]int{}
		}
		g.Counts[resource][cmp.Or(n.Change, "churned")]++
	}
	list := []Group{}
	for _, key := range order {
		if g := groups[key]; g.Change != nil || len(g.Items) > 0 {
			list = append(list, *g)
		}
	}
	return list, nil
}

// above returns a function that returns the first owner of an unchanged object by its state at the end of a past: nil if
// that is not recorded, or takes too long to find.
func (r *Reader) above(ctx context.Context, at past) func(*Ref) (*Ref, error) {
	var kinds map[refKey]Known
	began := time.Now()
	return func(ref *Ref) (*Ref, error) {
		if time.Since(began) > patience {
			return nil, nil //nolint:nilnil // as it states
		}
		if kinds == nil {
			kinds = map[refKey]Known{}
			if err := r.stated(func(k Known) { kinds[refKey{group: k.Group, kind: k.Kind}] = k }); err != nil {
				return nil, err
			}
		}
		key := ref.key()
		kind, ok := kinds[refKey{group: key.group, kind: key.kind}]
		if !ok {
			return nil, nil //nolint:nilnil // as it states
		}
		o := Object{Resource: kind.Resource, Name: ref.Name}
		if kind.Namespaced {
			o.Namespace = ref.Namespace
		}
		entries, err := r.entries(&o, leavings{})
		if err != nil || len(entries) != 1 || entries[0].object == nil {
			return nil, err
		}
		s, ok, err := r.walk(ctx, &o, at, fromEntry(&o, entries[0].object), quickSteps)
		if s, err = r.judge(&o, at, s, err); err != nil || !ok || s.As != Exact {
			return nil, err
		}
		owners := ownersOf(&o.Resource, o.Namespace, s.Object)
		if len(owners) == 0 {
			return nil, nil //nolint:nilnil // as it states
		}
		return &owners[0], nil
	}
}

// owner returns what the object is a consequence of, nil if that is not known: of several
// objects the first that changed, with its change, or else the first.
func (n *net) owner(changed map[refKey]*net) (*net, *Ref) {
	for _, ref := range n.owners {
		for _, namespace := range []string{ref.Namespace, ""} { // it may be in none
			ref.Namespace = namespace
			if o := changed[ref.key()]; o != nil && o != n {
				return o, &ref
			}
		}
	}
	if len(n.owners) == 0 {
		return nil, nil
	}
	return nil, &n.owners[0]
}

// ownersOf returns the owners that may have caused a change, by the present or last state of its
// object.
func (r *Reader) ownersOf(n *net) ([]Ref, error) {
	raw := []byte(n.is.Object)
	if raw == nil {
		raw = n.was.Object
	}
	if raw == nil { // it came and went
		rec, err := r.read(n.last)
		if rec == nil || err != nil {
			return nil, err
		}
		raw = r.show(rec.Record, rec.Object)
	}
	return ownersOf(&n.Resource, n.Namespace, raw), nil
}

// ownersOf returns what an object may be a consequence of, in the order of preference.
func ownersOf(about *event.Resource, namespace string, raw []byte) (list []Ref) {
	type reference struct {
		Ref
		Controller bool `json:"controller"`
	}
	type address struct {
		TargetRef *Ref `json:"targetRef"`
	}
	var o struct {
		Metadata struct {
			Name            string      `json:"name"`
			OwnerReferences []reference `json:"ownerReferences"`
		} `json:"metadata"`
		InvolvedObject Ref       `json:"involvedObject"`
		Regarding      Ref       `json:"regarding"`
		Endpoints      []address `json:"endpoints"`
		Subsets        []struct {
			Addresses         []address `json:"addresses"`
			NotReadyAddresses []address `json:"notReadyAddresses"`
		} `json:"subsets"`
	}
	_ = json.Unmarshal(raw, &o) // what has another type is left out
	add := func(r Ref) {
		if r.Kind != "" && r.Name != "" && len(list) < maxRefs {
			list = append(list, r)
		}
	}
	for _, r := range o.Metadata.OwnerReferences {
		if r.Controller {
			if r.Namespace = namespace; r.Kind == "Node" && r.APIVersion == "v1" {
				r.Namespace = ""
			}
			add(r.Ref)
		}
	}
	switch about.Kind {
	case "Event":
		add(o.InvolvedObject)
		add(o.Regarding)
	case "Endpoints":
		add(Ref{"v1", "Service", namespace, o.Metadata.Name})
		for _, s := range o.Subsets {
			o.Endpoints = append(append(o.Endpoints, s.Addresses...), s.NotReadyAddresses...)
		}
		fallthrough
	case "EndpointSlice":
		for _, a := range o.Endpoints {
			if a.TargetRef != nil {
				if a.TargetRef.APIVersion == "" && a.TargetRef.Kind == "Pod" {
					a.TargetRef.APIVersion = "v1"
				}
				add(*a.TargetRef)
			}
		}
	}
	return list
}

// Owned are the objects that an object owns.
type Owned struct {
	As        As            `json:"as"` // exact: the list has every object that the watches read, and of none the state is unknown
	Items     []OwnedObject `json:"items"`
	Truncated bool          `json:"truncated,omitempty"` // there may be more
	Unread    []Unread      `json:"unread,omitempty"`    // before the time, of what the watches read: the objects are those before it
}

// OwnedObject is an object with an owner reference.
type OwnedObject struct {
	Resource   event.Resource `json:"resource"`
	Namespace  string         `json:"namespace,omitempty"`
	Name       string         `json:"name"`
	Controller bool           `json:"controller,omitempty"` // the owner controls it
	As         As             `json:"as"`
	Since      time.Time      `json:"since,omitzero"` // when the state was recorded
}

// ownedPage is how many objects are looked at before the time is.
const ownedPage = 500

// Owned returns at most limit objects whose owner references name an object at a time; a zero
// time is now.
func (r *Reader) Owned(ctx context.Context, o Object, t time.Time, limit int) (Owned, error) {
	now := t.IsZero()
	if now {
		t = r.now()
	}
	unread, err := r.unread(nil, o.Namespace, "", t) // before the state of the owner: it waits for what is being recorded
	if err != nil {
		return Owned{}, err
	}
	state, err := r.stateAt(ctx, o, t)
	if err != nil {
		return Owned{}, err
	}
	at, err := r.until(t)
	if err != nil {
		return Owned{}, err
	}
	out, err := r.owned(ctx, &o, state.Object, at, now, limit)
	out.Unread = unread
	return out, err
}

// OwnedVersion is Owned of when a version was the last record.
func (r *Reader) OwnedVersion(ctx context.Context, o Object, sequence uint64, limit int) (Owned, error) {
	s, err := r.AtVersion(o, sequence)
	switch {
	case err != nil:
		return Owned{}, err
	case s.Time.IsZero(): // its record is not there
		return Owned{As: s.As, Items: []OwnedObject{}}, nil
	}
	unread, err := r.unread(nil, o.Namespace, "", s.Time)
	if err != nil {
		return Owned{}, err
	}
	out, err := r.owned(ctx, &o, s.Object, past{t: s.Time, to: sequence, ordered: true}, false, limit)
	out.Unread = unread
	return out, err
}

// owned returns the objects that one with a state owns at the end of a past; now: that is now.
func (r *Reader) owned(ctx context.Context, o *Object, state []byte, at past, now bool, limit int) (Owned, error) {
	out, size, began := Owned{Items: []OwnedObject{}}, 0, time.Now()
	owner := reference{group: o.Resource.Group, kind: o.Resource.Kind, name: o.Name, uid: uid(state)}
	namespace, damaged := o.Namespace, false // an object in a namespace owns nothing elsewhere
	known := Exact                           // what is known of the objects without a state, which it may own
	prefix := ""
	if namespace != "" {
		prefix = ledger.Key(namespace, "")
	}
	late := func() bool {
		out.Truncated = out.Truncated || time.Since(began) > patience
		return out.Truncated
	}
	since := at.to + 1 // what is recorded later may have been another state at that time
	if !at.ordered {
		var err error
		if since, err = r.begin(at.t); ledger.IgnoreUnreadable(err) != nil {
			return out, err
		}
	}
	changed := func(sequence uint64) bool { return !now && (sequence >= since || sequence <= unlogged) }
	var resources []event.Resource
	for _, p := range r.store.Partitions() {
		gr, _ := ledger.SplitPartition(p)
		resources = append(resources, event.Resource{Group: gr.Group, Resource: gr.Resource})
	}
	slices.SortFunc(resources, func(a, b event.Resource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	for _, resource := range slices.Compact(resources) {
		// Owner references rarely change: an object that exists is read only if it has one now, or has changed since.
		all := Objects{Resource: resource, Namespace: namespace}
		exists, owned, err := r.recordedOwned(ctx, &owner, resource, prefix, changed, late)
		if ledger.IgnoreUnreadable(err) != nil {
			return out, err
		}
		damaged = damaged || err != nil
		if out.Truncated && owned == 0 || now && owned == 0 {
			continue
		}
		all.Named = func(namespace, name string) bool {
			has, here := exists[ledger.Key(namespace, name)]
			return has || !now && !here && !out.Truncated
		}
		for after := ""; ; {
			var unread error
			_, next, _, err := r.eachAt(ctx, all, at, after, ownedPage, func(s *State) bool {
				if s.Object == nil && known != Gap {
					known = s.As
				}
				item, ok := owner.owned(resource, s)
				if ok && (len(out.Items) == limit || size > pageBytes) {
					out.Truncated = true
					return false
				}
				if ok && item.Resource.Kind == metadataKind {
					item.Resource = resource
					var rec *stored
					if rec, unread = r.read(s.before); rec != nil {
						item.Resource = rec.Event.Resource
					}
				}
				if ok {
					out.Items = append(out.Items, item)
					size += len(item.Name)
				}
				return unread == nil
			})
			if err = cmp.Or(err, unread); err != nil {
				return out, err
			}
			if after = next; after == "" || late() {
				break
			}
		}
		if out.Truncated && (len(out.Items) == limit || size > pageBytes) {
			break
		}
	}
	span, err := r.spanOf(nil, namespace, "", at, at)
	switch out.As = span.as(); {
	case damaged:
		out.As = Gap
	case out.As == Exact:
		out.As = known
	}
	return out, err
}

// recordedOwned returns the keys of the recorded objects of a resource, until late, and whether they name the owner or
// have changed since, by the sequence of their states, and how many name it. The error is store.ErrUnreadable if some may be missing.
func (r *Reader) recordedOwned(ctx context.Context, owner *reference, resource event.Resource, prefix string, changed func(sequence uint64) bool, late func() bool) (exists map[string]bool, owned int, err error) {
	exists = map[string]bool{}
	var damage error
	for _, p := range r.partitions(resource) {
		_, err := r.ledger.Scan(p, prefix, "", func(key string, c *compact.Object) error {
			if len(exists)%ownedPage == 0 && late() {
				return ledger.ErrEnough
			}
			has := false
			for _, ref := range c.GetOwnerReferences() {
				has = has || owner.is(ref.APIVersion, ref.Kind, ref.Name, string(ref.UID))
			}
			if has {
				owned++
			}
			exists[key] = exists[key] || has || changed(c.Sequence())
			return stop(ctx)
		})
		switch {
		case errors.Is(err, store.ErrUnreadable):
			damage = err
		case err != nil:
			return exists, owned, err
		}
	}
	return exists, owned, damage
}

// reference is what owner references have of an owner. An empty uid is not known.
type reference struct{ group, kind, name, uid string }

func (o *reference) is(apiVersion, kind, name, uid string) bool {
	ref := Ref{APIVersion: apiVersion, Kind: kind, Name: name}
	return ref.key() == refKey{o.group, o.kind, "", o.name} && (o.uid == "" || uid == "" || uid == o.uid)
}

// owned returns an object of a resource if it names the owner.
func (o *reference) owned(resource event.Resource, s *State) (item OwnedObject, ok bool) {
	meta, err := rawjson.ScanHead(s.Object)
	if err != nil { // there is none, or it is not shown
		return item, false
	}
	var refs []struct {
		Ref
		UID        string `json:"uid"`
		Controller bool   `json:"controller"`
	}
	_ = json.Unmarshal(meta.OwnerReferences, &refs) // what has another type is left out
	item = OwnedObject{Resource: resource, Namespace: s.Namespace, Name: s.Name, As: s.As, Since: s.Time}
	item.Resource.Kind = string(meta.Kind)
	_, version, found := strings.Cut(string(meta.APIVersion), "/")
	if item.Resource.Version = version; !found {
		item.Resource.Version = string(meta.APIVersion)
	}
	for _, ref := range refs {
		if o.is(ref.APIVersion, ref.Kind, ref.Name, ref.UID) {
			item.Controller, ok = ref.Controller, true
		}
	}
	return item, ok
}
