package commit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// sweepLook is how many ledger entries a group looks at.
const sweepLook = 8 * maxGroup

// process handles the end of a feed's initial list: every object of the list is
// before this in the queue.
func (c *feedSynced) process(g *group) error {
	s := c.feed
	s.warmObjects = nil
	if s.relisted != 0 {
		return nil // a later list is swept
	}
	if s.listed != nil {
		s.emptyList()
		g.jobs = append(g.jobs, &sweep{feed: s, at: c.at})
		return nil
	}
	return g.synced(s, c.at)
}

// emptyList notes the version of a first list without objects, which nothing carries. What
// follows the list may come before feedSynced does: whichever is first calls it.
func (s *Feed) emptyList() {
	if sub := s.informer(); sub != nil && s.listed != nil && s.first == "" && s.position == 0 && !s.rewind {
		s.first = sub.Checkpoint(0)
	}
}

// synced notes that the first list is committed with all that it shows.
func (g *group) synced(s *Feed, at time.Time) error {
	g.touched[s] = struct{}{}
	if !s.synced { // a watch without a snapshot is given nothing of the list
		g.disarm(s)
	}
	if err := g.reportMoved(s, at); err != nil {
		return err
	}
	s.synced, s.listed, s.relisted, s.repairs = true, nil, 0, false
	if s.ahead == nil { // else states that are later than the list come yet
		s.recordedForm = s.Form
	}
	s.lists++
	if s.list.end == 0 {
		s.list.mark = nil // the list had no object
	}
	s.Log.Info("watch synced", "objects", s.objects(), "fromLedger", s.start == warm)
	if !s.forgot {
		return nil
	}
	s.forgot, s.lost = false, true
	from := s.resume
	if from.Forgot {
		from = ledger.Checkpoint{} // it is of the list, and the one before it is lost
	}
	return g.gap(s, at, &dynamicfactory.Gap{
		Cause: dynamicfactory.CauseUnreadable, From: from.ResourceVersion, To: s.saved.ResourceVersion, FromTime: from.Time, ToTime: at,
	}, nil)
}

// sweep finds the deletions that an informer which started from a list cannot see:
// objects that the ledger has in the feed's scope and the informer has not
// listed. (An informer that started from the ledger finds them itself.) The informer's
// store is no measure: it is ahead of what is committed.
//
// The checkpoint of a feed marks a sweep that is not finished, and its next start
// begins with a list again.
//
// A feed that has taken over what others recorded after the version of its first list
// sweeps every list that comes before it has come as far: what was made and deleted in
// between was never in its informer. The list that the consistency check asks for is swept,
// too: the check compares the ledger, and not the informer, with the cluster.
type sweep struct {
	feed   *Feed
	list   uint64 // as Feed.relisted
	at     time.Time
	cursor string // the last key looked at
}

func (j *sweep) step(g *group) (more bool, err error) {
	s := j.feed
	if s.ended() || s.relisted != j.list {
		return false, nil
	}
	looked, deleted := 0, 0
	more, err = g.c.ledger.Scan(s.Partition, s.KeyPrefix(), j.cursor, func(key string, o *compact.Object) error {
		if looked == sweepLook || deleted == maxGroup || g.full() {
			return ledger.ErrEnough
		}
		looked++
		j.cursor = key
		if _, ok := s.listed[g.hashOf(o)]; ok || ledger.Newer(o.GetResourceVersion(), s.first) {
			return nil // it exists, or was made after the list
		}
		deleted++
		o, err := g.former(s, o)
		if err != nil {
			return err
		}
		return g.deleted(&sighting{feed: s, obj: o, unknown: true, at: j.at, blind: true, repair: s.repairs})
	})
	if errors.Is(err, store.ErrUnreadable) {
		s.Log.Error("a part of the recorded states cannot be read: deletions of its objects are not reported", "error", err)
		s.forgot = true
	} else if err != nil {
		return false, err
	}
	if more {
		return true, nil
	}
	return false, g.synced(s, j.at)
}

func (j *sweep) end() {}

func (s *Feed) objects() int {
	sub := s.informer()
	if sub == nil {
		return 0
	}
	return len(sub.Informer().GetStore().ListKeys())
}

// Farewell reports all recorded objects of a part of the ledger as deleted to the
// watches that were given them, and a gap if some cannot be read. It is the committer's, but for over, and
// is the owner's once it is over.
type Farewell struct {
	feed    *Feed // does not run
	cursor  string
	newest  string               // the newest version of an object
	damaged bool                 // deletions of a part of the objects are not reported
	since   map[string]time.Time // when the checkpoints were, by namespace; a gap begins there if it has objects
	gaps    []string             // the namespaces of which a gap is recorded
	at      time.Time
	total   int
	over    atomic.Bool // all of it is durable
	notify  chan<- struct{}
}

// BeginFarewell removes the checkpoints of a part of the ledger, so that a feed that reads
// it again lists, and has its objects reported as deleted to the watches that mean it, by
// the rules by which they were given the objects. The checkpoint that takes their place has no version:
// what such a feed lists beside the recorded objects was made later, and is an addition. The history until now stays
// complete, but for what is not known of the objects' last changes.
// notify gets a value when the farewell is over.
func (c *Committer) BeginFarewell(partition string, watches []plan.Watch, means func(*plan.Watch) bool, notify chan<- struct{}) (*Farewell, error) {
	s, err := c.FormerFeed(partition, watches, means, true)
	if err != nil {
		return nil, err
	}
	ids, err := c.ledger.FeedIDs(ledger.CheckpointMeta(s.ID))
	if ledger.IgnoreUnreadable(err) != nil {
		return nil, err
	}
	kept := err == nil
	b := c.store.NewBatch()
	defer b.Discard()
	last := ledger.Checkpoint{Synced: true} // of the history: the part that is known least
	since := map[string]time.Time{}
	for id := range ids {
		cp, _, err := c.ledger.Checkpoint(id)
		if ledger.IgnoreUnreadable(err) != nil {
			return nil, err
		}
		last.Epoch = max(last.Epoch, cp.Epoch)
		if last.Time.IsZero() || cp.Time.Before(last.Time) {
			last.Time = cp.Time
		}
		since[strings.TrimPrefix(id, s.ID)] = cp.Time
		if kept = kept && !cp.HistorySince.IsZero(); cp.HistorySince.After(last.HistorySince) {
			last.HistorySince = cp.HistorySince
		}
		last.Narrowed = append(last.Narrowed, cp.Narrowed...)
		b.DeleteMeta(ledger.CheckpointMeta(id))
	}
	slices.SortFunc(last.Narrowed, time.Time.Compare)
	last.Narrowed = lastNarrowed(last.Narrowed)
	if s.epoch = last.Epoch; !kept {
		last.HistorySince = time.Time{}
	}
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.Encode(last))
	if err := c.store.Commit(b); err != nil {
		return nil, ledger.StoreError(err, "remove checkpoints of %s", partition)
	}
	j := &Farewell{feed: s, since: since, at: c.cfg.Now(), notify: notify}
	return j, c.AtBarrier(func(b Barrier) { b.add(j) })
}

// FormerFeed is the feed that a part of the ledger had, with the watches that mean it, by
// the rules by which they were given its objects. Where none are known, a watch that was
// still being given objects judges by its own rules, and so does, with ungiven, any other.
// It does not run. Only the owner, and the committer, call it.
func (c *Committer) FormerFeed(partition string, watches []plan.Watch, means func(*plan.Watch) bool, ungiven bool) (*Feed, error) {
	gr, scope := ledger.SplitPartition(partition)
	id := Identity{
		Partition: partition, ID: ledger.FeedID(partition, ""), Scope: scope,
		Resource: event.Resource{Group: gr.Group, Resource: gr.Resource},
	}
	all, err := c.ledger.Selections()
	if err != nil {
		return nil, err
	}
	var hits []WatchRef
	for i := range watches {
		w := &watches[i]
		if !means(w) {
			continue // it may have been given the objects before it was changed
		}
		was, err := formerlyCovered(all, partition, w)
		if err != nil {
			return nil, err
		}
		given, begun := false, false
		for feed, rules := range was.known() {
			_, noted := all[feed][w.Name]
			begun = begun || noted && len(rules) == 0
			if len(rules) == 0 {
				continue
			}
			h := rules[len(rules)-1]
			if h.byLabels() && !c.NamespacesReady() {
				continue
			}
			given = true
			id.Resource = all[feed][w.Name].Resource
			h.Watch.ServerLabels, h.Watch.ServerFields, h.Watch.History = w.ServerLabels, w.ServerFields, w.History
			if ns := strings.TrimPrefix(feed, was.all); ns != "" {
				h.namespaces = map[string]struct{}{ns: {}}
			}
			hits = append(hits, h)
		}
		if !given && (begun || ungiven) {
			hits = append(hits, NewWatchRef(w)) // it may have been given a part, or all under another name, or by labels that are not known any more
		}
	}
	if id.Resource.Version == "" {
		if id.Resource, err = c.recordedResource(&id); err != nil {
			return nil, err
		}
	}
	id.Key.GVR = gr.WithVersion(id.Resource.Version)
	return c.NewFeed(id, hits...), nil
}

// recordedResource returns the resource of a feed's objects as they are recorded.
func (c *Committer) recordedResource(id *Identity) (event.Resource, error) {
	r := id.Resource
	_, err := c.ledger.Scan(id.Partition, id.KeyPrefix(), "", func(_ string, o *compact.Object) error {
		kind := o.GetObjectKind().GroupVersionKind()
		r.Version, r.Kind = kind.Version, kind.Kind
		return ledger.ErrEnough
	})
	return r, ledger.IgnoreUnreadable(err)
}

// Over reports whether all of it is durable.
func (j *Farewell) Over() bool {
	if !j.over.Load() {
		return false
	}
	if j.total > 0 {
		j.feed.Log.Info("the definition of a resource is gone: its recorded objects are reported as deleted", "objects", j.total)
	}
	return true
}

// Stop ends it: the resource is served again. It is called at a barrier.
func (j *Farewell) Stop() { j.feed.Stop() }

func (j *Farewell) step(g *group) (more bool, err error) {
	if j.feed.ended() {
		return false, nil // the resource is served again
	}
	n := 0
	more, err = g.c.ledger.Scan(j.feed.Partition, "", j.cursor, func(key string, o *compact.Object) error {
		if n == maxGroup || g.full() {
			return ledger.ErrEnough
		}
		n++
		if err := j.missed(g, o); err != nil {
			return err
		}
		j.cursor, j.newest = key, ledger.Later(j.newest, o.GetResourceVersion())
		return g.deleted(&sighting{feed: j.feed, obj: o, unknown: true, at: j.at})
	})
	j.total += n
	j.damaged = j.damaged || errors.Is(err, store.ErrUnreadable)
	if err = ledger.IgnoreUnreadable(err); more || err != nil {
		return more, err
	}
	if j.damaged {
		j.feed.Log.Error("a part of the recorded states cannot be read: deletions of its objects are not reported")
		g.batch.PutMeta(ledger.FarewellMeta+j.feed.Partition, []byte("{}"))
		err = g.gap(j.feed, j.at, &dynamicfactory.Gap{Cause: dynamicfactory.CauseUnreadable, To: j.newest, ToTime: j.at}, nil)
	}
	return false, errors.Join(err, g.reportWaiting(j.feed))
}

// missed records a gap of the history before the first deletion that the watch of a namespace, or of all, did not show:
// it may have missed more since its checkpoint.
func (j *Farewell) missed(g *group, o *compact.Object) error {
	namespace := ""
	if _, wide := j.since[""]; !wide || len(j.since) > 1 {
		namespace = o.GetNamespace()
	}
	from, ok := j.since[namespace]
	if !ok {
		from, ok = j.since[""]
	}
	if !ok || slices.Contains(j.gaps, namespace) {
		return nil
	}
	j.gaps = append(j.gaps, namespace)
	return g.gapOfHistory(j.feed, j.at, &dynamicfactory.Gap{Cause: record.CauseDefinition, Namespace: namespace, To: o.GetResourceVersion(), FromTime: from, ToTime: j.at})
}

func (j *Farewell) end() {
	j.over.Store(true)
	select {
	case j.notify <- struct{}{}:
	default: // there is a value
	}
}

// A change of edits, or of the API version, changes the form in which states are
// recorded and nothing about the objects. A feed whose checkpoint names another
// form begins with a list of the resource as it was at the newest version that is
// recorded. Objects of equal version are recorded again without an event. What the
// recorded states are needed for until then, such as the oldObject of an update, sees
// them in the new form. The checkpoint names the new form once the list is committed,
// so that a stop in between has the list taken again.

// rerecord reports whether recorded states may be in another form than the feed's.
func (s *Feed) rerecord() bool { return s.recordedForm != s.Form }

// former returns a state of the ledger in the form that the feed records now. The
// edits are those of now: what they do not remove but those of the recording did is
// gone.
func (g *group) former(s *Feed, o *compact.Object) (*compact.Object, error) {
	return g.c.formed(s, &s.codec, o)
}

var metadataPath = rawjson.MustParsePath("metadata")

// formed is former with a codec of the caller's, which is made when it is needed.
func (c *Committer) formed(s *Feed, codec **compact.Codec, o *compact.Object) (*compact.Object, error) {
	if o == nil || !s.rerecord() || s.edit == nil {
		return o, nil
	}
	raw, err := o.AppendJSON(nil)
	if err != nil {
		return nil, fmt.Errorf("recorded state of %s: %w", ledger.Key(o.GetNamespace(), o.GetName()), err)
	}
	if s.Key.MetadataOnly && o.Kind() != "PartialObjectMetadata" {
		if metadata, ok := rawjson.Lookup(raw, metadataPath); ok {
			raw = fmt.Appendf(nil, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}`, metadata)
		}
	}
	edited, err := s.edit(nil, raw, new(rawjson.Change))
	if err != nil {
		return nil, fmt.Errorf("edit recorded state of %s: %w", ledger.Key(o.GetNamespace(), o.GetName()), err)
	}
	if *codec == nil {
		*codec = compact.NewCodecFor(c.dicts, s.Key.GVR.GroupResource().String()+" former")
	}
	formed, err := (*codec).Encode(edited, nil, 0)
	if err == nil {
		formed.RecordedAs(o.Sequence())
	}
	return formed, err
}
