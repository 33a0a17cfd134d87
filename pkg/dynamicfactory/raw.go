package dynamicfactory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// EditFunc appends an object's JSON to dst, edited, and returns the extended slice,
// as rawjson.Editor.Append does. What it appends has to be one valid JSON object. An
// error makes the object unreadable. It may be called from several goroutines.
type EditFunc func(dst, raw []byte) ([]byte, error)

// RawOptions is for programs that have to miss nothing over restarts: they keep
// what they are told in a store of their own and begin again from there. All of it
// is optional. Window and Snapshot need WithCompactStore.
type RawOptions struct {
	// Dictionaries compress compact objects. nil: the factory's own, never saved.
	Dictionaries *compact.Dictionaries
	// Edit is asked, at each start of an informer, for the change that is made to
	// every object before anything else sees it; nil changes nothing.
	Edit func(Key) EditFunc
	// Snapshot is asked, at each start of an informer, for what is known of the
	// resource. The informer begins with that, and resumes the watch from its
	// version without any list. nil without an error means that there is nothing.
	Snapshot func(context.Context, Key) (*Snapshot, error)
	// Window is how many watch events of an informer may be handed on and not
	// acknowledged by every one of its subscriptions (Subscription.Ack); then the
	// stream is not read any further, and TCP slows the server down; with HTTP/2, up
	// to 4 MiB that it has sent wait in memory. 0 is no bound. It excludes a resync
	// period: with one, client-go does not hand on every event.
	Window int
	// SpoolDir is where watches that have to wait for their resource's list keep what
	// they bring, once it is more than fits in memory (64 MiB for all informers); the
	// system's folder for temporary files if it is "". Files are encrypted, and have
	// no names where the system allows that; what a killed process leaves elsewhere
	// may be deleted.
	SpoolDir string
	// OnGap is told of lost history, after a list has made up for it as far as that
	// is possible, and before that list's objects are handed on; and of an object that
	// was left out because it could not be read, once for each of its versions.
	OnGap func(Key, Gap)
	// ClusterUID is asked at the first contact, before anything is listed or resumed,
	// whether the cluster is the right one: uid is that of the namespace kube-system,
	// "" if the client may not know it. An error refuses the cluster.
	ClusterUID func(ctx context.Context, uid string) error
}

// needsConfig tells whether anything is set that needs a factory made by NewForConfig.
func (r *RawOptions) needsConfig() bool {
	return r.Edit != nil || r.Snapshot != nil || r.Window > 0 || r.OnGap != nil || r.ClusterUID != nil
}

// Snapshot is what a program knows of a resource: all its objects as they were at
// a version.
type Snapshot struct {
	ResourceVersion string
	Time            time.Time // when that was, for the Gap if it cannot be resumed; may be zero
	Objects         []*compact.Object
	// Relist is for a program that has recorded only a part of a list at
	// ResourceVersion. Objects are not used: the informer begins with a list of the
	// resource as it was at that version, and watches from there. If the server no
	// longer has that version, the list is of now, and OnGap is told of a gap from
	// that version on. If ResourceVersion is "", the list is of now, without a gap.
	Relist bool
	// Known is asked, with Relist, for the state of an object that the list has and
	// cannot read: the informer begins with that, and so tells of what happens to the
	// object later. nil, from it too, stands for nothing.
	Known func(namespace, name string) *compact.Object
}

// Gap is a stretch of history that was lost: what happened in between shows only
// in its result.
type Gap struct {
	Cause string // one of the Cause constants, or what Relist was given
	// Namespace and Name are of the one object that the gap concerns: it could not be
	// read, and From and To are its versions in the cache and of what was left out, ""
	// if there is none. Name is "" in all other gaps.
	Namespace, Name string
	From, To        string // resourceVersions: the last one known to be complete, and that of the list
	// FromTime is up to when nothing was missed, if that is known; ToTime is when the
	// list was complete.
	FromTime, ToTime time.Time
	// Position is that of the list that makes up for the loss: of its last object, and
	// of what comes before it if the list is empty. Notifications from before the list
	// may come after OnGap.
	Position uint64
}

// Causes of gaps that the factory finds itself.
const (
	CauseExpired    = rawwatch.CauseExpired    // the server no longer had the history
	CauseRollback   = rawwatch.CauseRollback   // the server's versions went backwards: they are used again
	CauseUnreadable = rawwatch.CauseUnreadable // an event or an object could not be read, again and again
)

// codec returns a codec for the objects of the key. Those of one resource that are
// edited alike look alike, wherever they are.
func (k Key) codec(d *compact.Dictionaries) *compact.Codec {
	name := k.GVR.GroupResource().String()
	if k.MetadataOnly {
		name += " metadata"
	}
	if k.Variant != "" {
		name += " " + k.Variant
	}
	return compact.NewCodecFor(d, name)
}

// maker makes what an informer stores of raw JSON. Make is called by one goroutine
// at a time.
type maker struct {
	codec     *compact.Codec // nil: *unstructured.Unstructured
	transform func(any) (any, error)
	bookmarks *bookmarks
}

func (m *maker) make(raw []byte, meta *rawjson.Meta, position uint64) (runtime.Object, error) {
	if m.codec == nil {
		return decode(raw)
	}
	if m.transform == nil {
		o, err := m.codec.Encode(raw, meta, position)
		if errors.Is(err, compact.ErrDictionary) {
			return nil, fmt.Errorf("%w: %w", rawwatch.ErrMaker, err)
		}
		if err != nil {
			return nil, err
		}
		return o, nil
	}
	u, err := decode(raw)
	if err != nil {
		return nil, err
	}
	changed, err := m.transform(u)
	if err == nil {
		var o *compact.Object
		if o, err = encode(m.codec, changed, position); err == nil {
			return o, nil
		}
	}
	return nil, fmt.Errorf("%w: %w", rawwatch.ErrMaker, err)
}

func decode(raw []byte) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		return nil, err
	}
	return u, nil
}

// encode makes a compact object of what a transform returned.
func encode(c *compact.Codec, obj any, position uint64) (*compact.Object, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, errors.New("the transform did not return an *unstructured.Unstructured")
	}
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	return c.Encode(raw, nil, position)
}

func (m *maker) bookmark(resourceVersion string) (runtime.Object, error) {
	if m.codec == nil {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetResourceVersion(resourceVersion)
		return u, nil
	}
	return m.bookmarks.make(resourceVersion)
}

// bookmarks makes compact objects for the reflector, which reads their version and
// drops them.
type bookmarks struct {
	mu    sync.Mutex // guards codec
	codec *compact.Codec
}

func newBookmarks() *bookmarks {
	return &bookmarks{codec: compact.NewCodec(compact.NewDictionaries(nil))}
}

func (b *bookmarks) make(resourceVersion string) (runtime.Object, error) {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": resourceVersion}})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.codec.Encode(raw, nil, 0)
}

// newSource makes the lister and watcher of an informer.
func (f *Factory) newSource(i *informer) *rawwatch.Source {
	k := i.key
	o := metav1.ListOptions{LabelSelector: k.LabelSelector, FieldSelector: k.FieldSelector}
	if tweak := f.opts.tweak.of(k.GVR); tweak != nil {
		tweak(&o)
	}
	m := &maker{bookmarks: f.bookmarks}
	if f.opts.compact {
		m.codec, m.transform = k.codec(f.dictionaries), f.opts.transform.of(k.GVR)
	}
	known := func(namespace, name string) runtime.Object {
		obj, _, _ := i.shared.GetStore().GetByKey(cache.NewObjectName(namespace, name).String())
		o, _ := obj.(runtime.Object)
		return o
	}
	cfg := rawwatch.Config{
		Client: f.raw, Prober: f.prober,
		GVR: k.GVR, Namespace: k.Namespace, LabelSelector: o.LabelSelector, FieldSelector: o.FieldSelector,
		MetadataOnly: k.MetadataOnly, Spool: f.spool, Make: m.make, Bookmark: m.bookmark, Window: f.opts.raw.Window,
		Known: known, Count: func() int { return len(i.shared.GetStore().ListKeys()) }, At: placed,
	}
	if o.TimeoutSeconds != nil {
		cfg.TimeoutSeconds = *o.TimeoutSeconds
	}
	if edit := f.opts.raw.Edit; edit != nil {
		cfg.Edit = edit(k)
	}
	if snapshot := f.opts.raw.Snapshot; snapshot != nil {
		cfg.Snapshot = func(ctx context.Context) (*rawwatch.Snapshot, error) {
			s, err := snapshot(ctx, k)
			if s == nil || err != nil {
				return nil, err
			}
			return &rawwatch.Snapshot{ResourceVersion: s.ResourceVersion, Time: s.Time, Relist: s.Relist, Objects: s.at, Known: s.known}, nil
		}
	}
	if onGap := f.opts.raw.OnGap; onGap != nil {
		cfg.OnGap = func(g rawwatch.Gap) { onGap(k, Gap(g)) }
	}
	return rawwatch.NewSource(cfg)
}

// placed returns an object at a position, if it is one that carries it.
func placed(o runtime.Object, position uint64) runtime.Object {
	if c, ok := o.(*compact.Object); ok {
		return c.WithPosition(position)
	}
	return o
}

// known is Known for the list.
func (s *Snapshot) known(namespace, name string) runtime.Object {
	if s.Known == nil {
		return nil
	}
	if o := s.Known(namespace, name); o != nil {
		return o
	}
	return nil
}

// at returns the objects as a list at a position, which the last one carries.
func (s *Snapshot) at(position uint64) []runtime.Object {
	list := make([]runtime.Object, len(s.Objects))
	for i, o := range s.Objects {
		if i == len(s.Objects)-1 {
			o = o.WithPosition(position)
		}
		list[i] = o
	}
	return list
}
