package query

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/nearest"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// ErrNotWatched means that no watch reads a resource.
var ErrNotWatched = errors.New("no watch reads it")

// View reads what the watches see of one resource, from the informers' caches. The
// API server is never asked.
type View struct {
	reader     *Reader
	about      event.Resource
	namespaced bool
	unserved   bool
	feeds      []Feed // the fullest first
}

// Served reports whether the cluster serves the resource. Otherwise it counts as one without namespaces as long as no object is
// cached.
func (v *View) Served() bool { return !v.unserved }

// About returns what is read, whether it is in namespaces, and why objects may be missing:
// empty if the caches are complete.
func (v *View) About() (resource event.Resource, namespaced bool, unsynced string) {
	return v.about, v.namespaced, v.unsynced()
}

// View returns a view of the resource that a name means, as kubectl takes names:
// plural, singular, short name or kind, with version and group where needed. It fails
// with an error that wraps [ErrNotWatched], or with the resolver's.
func (r *Reader) View(name string) (*View, error) {
	resources, err := r.cfg.Resolver.Resolve(name)
	if err != nil {
		return r.viewUnserved(name, err)
	}
	if len(resources) != 1 {
		return nil, fmt.Errorf("%q means %d resources: name one", name, len(resources))
	}
	res := resources[0]
	group := res.GVR.GroupResource()
	v := &View{reader: r, namespaced: res.Namespaced}
	v.feeds = r.feedsOf(func(s Feed) bool { return s.Key.GVR == res.GVR })
	if len(v.feeds) == 0 { // a watch may have asked for another version by name
		v.feeds = r.feedsOf(func(s Feed) bool { return s.Key.GVR.GroupResource() == group })
	}
	if len(v.feeds) == 0 {
		return nil, fmt.Errorf("%s: %w; the watches read %s", group, ErrNotWatched, r.watched())
	}
	v.about = v.feeds[0].Resource
	return v, nil
}

// Recorded is a resource with a history, in one version.
type Recorded struct {
	dynamicfactory.Resource
	Watches []RecordedBy
}

// RecordedBy is a watch that keeps a resource's history.
type RecordedBy struct {
	Watch        string
	Reads        func(namespace string) bool   // by its name
	Selects      string                        // what it leaves others out for, empty: it sees all
	Hides        func(value rawjson.Path) bool // by its edits, or as it reads metadata only
	MetadataOnly bool
}

// Recorded returns the resources that watches keep the history of, in no order. It fails with
// the resolver's error before that knows what is served.
func (r *Reader) Recorded() ([]Recorded, error) {
	var list []Recorded
	index := map[schema.GroupVersionResource]int{}
	for _, s := range r.cfg.Pipeline.Running().Feeds {
		for _, h := range s.Watches() {
			if !h.Watch.History {
				continue
			}
			i, known := index[s.Key.GVR]
			if !known {
				about, err := r.named(s)
				if err != nil {
					return nil, err
				}
				i, index[s.Key.GVR] = len(list), len(list)
				list = append(list, Recorded{Resource: about})
			}
			by := RecordedBy{Watch: h.Watch.Name, Selects: selects(h.Watch), Hides: hides(h.Watch, s.Key.MetadataOnly), MetadataOnly: s.Key.MetadataOnly}
			by.Reads = func(namespace string) bool {
				return (s.Key.Namespace == "" || s.Key.Namespace == namespace) && h.Reads(namespace) && h.Watch.Selection.Namespaces.Names(namespace)
			}
			list[i].Watches = append(list[i].Watches, by)
		}
	}
	return list, nil
}

// Selectable returns an error if watches that read a resource do not record what its objects are selected by: labels, and other values.
func Selectable(gr schema.GroupResource, reading []RecordedBy, byLabel labels.Selector, values ...rawjson.Path) error {
	rules, _ := byLabel.Requirements()
	for _, rule := range rules {
		path, err := rawjson.ParsePath("metadata.labels[" + strconv.Quote(rule.Key()) + "]")
		if err != nil {
			return fmt.Errorf("labelSelector: %w", err)
		}
		values = append(values, path)
	}
	for _, by := range reading {
		for _, path := range values {
			if by.Hides(path) {
				return fmt.Errorf("watch %s does not record %s of the %s: they cannot be selected by it", by.Watch, path, gr)
			}
		}
	}
	return nil
}

// named is the resource of a source with its names, if it is still served.
func (r *Reader) named(s Feed) (dynamicfactory.Resource, error) {
	gvr := s.Key.GVR
	about := dynamicfactory.Resource{GVR: gvr, Kind: s.Resource.Kind, Singular: strings.ToLower(s.Resource.Kind), Namespaced: true}
	found, err := r.cfg.Resolver.Resolve(gvr.Resource + "." + gvr.Version + "." + gvr.Group)
	switch {
	case errors.Is(err, dynamicfactory.ErrNotReady):
		return about, err
	case len(found) == 1 && found[0].GVR == gvr:
		return found[0], nil
	}
	for _, o := range s.cached("") {
		about.Namespaced = o.GetNamespace() != ""
		break
	}
	return about, nil
}

// selects are the rules by which a watch leaves out objects, in words.
func selects(w *plan.Watch) string {
	var rules []string
	for _, rule := range []struct{ key, value string }{
		{"namespaces", strings.Join(append(slices.Clone(w.Namespaces), w.Selection.Namespaces.Include...), ",")},
		{"namespaces other than", strings.Join(w.Selection.Namespaces.Exclude, ",")},
		{"namespaces with labels", w.Selection.Namespaces.Selector},
		{"labels", w.Selection.Labels},
		{"labels", w.ServerLabels},
		{"fields", w.Selection.Fields},
		{"fields", w.ServerFields},
	} {
		if rule.value != "" {
			rules = append(rules, rule.key+" "+rule.value)
		}
	}
	return strings.Join(rules, ", ")
}

// hides returns whether the objects of a watch lack a value, or have a hash in its place.
func hides(w *plan.Watch, metadataOnly bool) func(rawjson.Path) bool {
	var hidden []rawjson.Path
	for _, text := range slices.Concat(w.Edits.Drop, w.Edits.Redact) {
		if path, err := rawjson.ParsePath(text); err == nil { // it is valid
			hidden = append(hidden, path)
		}
	}
	return func(value rawjson.Path) bool {
		key, _ := value.Key()
		return metadataOnly && key != "metadata" || slices.ContainsFunc(hidden, func(p rawjson.Path) bool { return p.Covers(value) })
	}
}

// viewUnserved looks for a resource that the cluster does not serve any more, but
// whose objects are still known.
func (r *Reader) viewUnserved(name string, cause error) (*View, error) {
	feeds := r.feedsOf(func(s Feed) bool {
		return s.Key.GVR.GroupResource().String() == name || s.Key.GVR.Resource == name
	})
	if len(feeds) == 0 {
		return nil, &unresolvedError{cause, r.hint(name)}
	}
	v := &View{reader: r, about: feeds[0].Resource, unserved: true, feeds: feeds}
	for _, s := range feeds {
		for _, obj := range s.cached("") {
			v.namespaced = obj.GetNamespace() != ""
			return v, nil
		}
	}
	return v, nil
}

// unresolvedError is a name that cannot be resolved, in words for users.
type unresolvedError struct {
	err  error
	hint string // what to write in its place; may be empty
}

func (e *unresolvedError) Error() string {
	text := strings.TrimPrefix(e.err.Error(), factoryPrefix)
	if e.hint != "" {
		text += "; " + e.hint
	}
	return text
}

func (e *unresolvedError) Unwrap() error { return e.err }

// hint is what may be written in place of a name that is no resource: the watched resources of the category, the one
// that has nearly the name, or any. A name that a watch waits for is right.
func (r *Reader) hint(name string) string {
	var names, members []string
	running := r.cfg.Pipeline.Running()
	for i := range running.Missing {
		if m := &running.Missing[i]; m.Pattern == name || strings.HasPrefix(m.Pattern, name+".") {
			return fmt.Sprintf("watch %s waits for %s", m.Watch, m.Pattern)
		}
	}
	for _, s := range running.Feeds {
		about, err := r.named(s)
		if err != nil {
			continue
		}
		names = append(append(names, about.GVR.Resource, about.Singular), about.ShortNames...)
		if slices.Contains(about.Categories, name) {
			members = append(members, about.GVR.GroupResource().String())
		}
	}
	slices.Sort(members)
	near := nearest.Of(name, names)
	switch {
	case len(members) > 0:
		return "of that category the watches read " + strings.Join(slices.Compact(members), ",")
	case near != "":
		return "did you mean " + near + "?"
	case len(names) > 0:
		watched := r.watched()
		first, _, _ := strings.Cut(watched, ",")
		return fmt.Sprintf("an object is RESOURCE/NAME, such as %s/%s; the watches read %s", first, name, watched)
	default:
		return ""
	}
}

// feedsOf returns the feeds that f accepts, those with the fullest objects
// first.
func (r *Reader) feedsOf(f func(Feed) bool) []Feed {
	list := slices.DeleteFunc(r.cfg.Pipeline.Running().Feeds, func(s Feed) bool { return !f(s) })
	slices.SortFunc(list, func(a, b Feed) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// ManagedFields reads from the API server who manages the fields of a watched object, and its
// uid.
func (r *Reader) ManagedFields(ctx context.Context, o history.Object) (uid string, fields []byte, err error) {
	feeds := r.feedsOf(func(s Feed) bool {
		return s.Resource.Group == o.Resource.Group && s.Resource.Resource == o.Resource.Resource && s.Informer != nil &&
			(s.Key.Namespace == "" || s.Key.Namespace == o.Namespace)
	})
	if len(feeds) == 0 {
		return "", nil, fmt.Errorf("%s: %w", o.Resource, ErrNotWatched)
	}
	err = feeds[0].Informer.GetMetadata(ctx, o.Namespace, o.Name, func(m *rawjson.Meta) {
		uid, fields = string(m.UID), bytes.Clone(m.ManagedFields)
	})
	return uid, fields, err
}

// rank orders the feeds of one resource by how much their objects hold.
func (s Feed) rank() int {
	switch {
	case s.Key.MetadataOnly:
		return 2
	case s.Scope != "":
		return 1
	default:
		return 0
	}
}

func (r *Reader) watched() string {
	var names []string
	for _, s := range r.cfg.Pipeline.Running().Feeds {
		names = append(names, s.Key.GVR.GroupResource().String())
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return "nothing yet"
	}
	const most = 20
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// List returns the objects that at least one watch sees and the selector matches,
// in a namespace or in all if it is empty, sorted by namespace and name. Where
// several watches see different forms of an object the fullest is returned.
func (v *View) List(namespace string, selector labels.Selector) []*compact.Object {
	var list []*compact.Object
	known := map[[2]string]struct{}{}
	for _, s := range v.feeds {
		hits := s.Watches()
		for _, o := range s.cached(namespace) {
			id := [2]string{o.GetNamespace(), o.GetName()}
			if _, ok := known[id]; ok || !selector.Matches(o.Labels()) || !v.reader.seenByAny(hits, o) {
				continue
			}
			if len(v.feeds) > 1 {
				known[id] = struct{}{}
			}
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *compact.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return list
}

// Get returns one object, nil if no watch sees it.
func (v *View) Get(namespace, name string) *compact.Object {
	key := strings.TrimPrefix(ledger.Key(namespace, name), "/")
	for _, s := range v.feeds {
		sub := s.Informer
		if sub == nil {
			continue
		}
		obj, found, err := sub.Informer().GetStore().GetByKey(key)
		if o, ok := obj.(*compact.Object); err == nil && found && ok && v.reader.seenByAny(s.Watches(), o) {
			return o
		}
	}
	return nil
}

func (v *View) unsynced() string {
	const reading, listing = "the watch is still reading its first list", "its watch lists again"
	for _, s := range v.feeds {
		if s.Informer == nil {
			return reading
		}
		w := s.Informer.Watch()
		if w.State == dynamicfactory.StateForbidden {
			return fmt.Sprintf("the API server refuses the watch of %s: %s", s.Resource, w.Message)
		}
		select {
		case <-s.Informer.Synced():
		default:
			return reading
		}
		if !w.UnreadSince.IsZero() && w.PausedSince.IsZero() {
			return fmt.Sprintf("changes since %s are not read yet: %s", w.UnreadSince.UTC().Format(time.RFC3339), cmp.Or(w.Message, listing))
		}
	}
	return ""
}

func (r *Reader) seenByAny(hits []commit.WatchRef, o *compact.Object) bool {
	return slices.ContainsFunc(hits, func(h commit.WatchRef) bool { return h.Covers(o, r.committer.NamespaceLabels) })
}

// cached returns what the source's cache holds of a namespace, or of all.
func (s Feed) cached(namespace string) []*compact.Object {
	sub := s.Informer
	if sub == nil {
		return nil
	}
	indexer := sub.Informer().GetIndexer()
	var objs []any
	if namespace == "" {
		objs = indexer.List()
	} else {
		var err error
		if objs, err = indexer.ByIndex(cache.NamespaceIndex, namespace); err != nil {
			objs = indexer.List() // an informer without that index
		}
	}
	list := make([]*compact.Object, 0, len(objs))
	for _, obj := range objs {
		if o, ok := obj.(*compact.Object); ok && (namespace == "" || o.GetNamespace() == namespace) {
			list = append(list, o)
		}
	}
	return list
}
