package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

// Checkpoint is how far a feed has come.
type Checkpoint struct {
	ResourceVersion string              `json:"resourceVersion"`
	Synced          bool                `json:"synced"`
	Epoch           int                 `json:"epoch,omitempty"`
	Recorded        string              `json:"recorded,omitempty"` // the newest version that is committed in part, if it is later
	Quiet           string              `json:"quiet,omitempty"`    // see dynamicfactory.DurableSubscription
	Form            string              `json:"form"`               // of all recorded states; "" if they may differ
	Sweeping        bool                `json:"sweeping,omitempty"` // deletions that the first list showed are not all committed
	Listing         *Listing            `json:"listing,omitempty"`  // a list that is committed in part
	Gap             *dynamicfactory.Gap `json:"gap,omitempty"`      // is reported if the rest of the list has a difference
	// Doubt is the rollback of the cluster that another feed has found while this one was watching a later version, until a check shows that
	// it missed nothing. See Committer.settleDoubts.
	Doubt  *dynamicfactory.Gap `json:"doubt,omitempty"`
	Apart  bool                `json:"apart,omitempty"`  // the resource has a storage of its own, with later versions than that of the others
	Forgot bool                `json:"forgot,omitempty"` // what was recorded before the list cannot be read, which is not reported yet
	Time   time.Time           `json:"time"`             // up to which nothing is missing by the version, or Quiet

	// HistorySince is the time since when every change that the feed recorded is in the
	// history; zero: not now.
	HistorySince time.Time `json:"historySince,omitzero"`
	// Kept are the rules of the watches that have kept the history since then; none of a
	// checkpoint from before they were noted.
	Kept []Kept `json:"kept,omitempty"`
	// Narrowed are the times since HistorySince at which the rules of Kept became narrower, or recorded states were lost, the last
	// MaxNarrowed: of an object that was recorded until then, the end may not be in the history.
	Narrowed []time.Time `json:"narrowed,omitempty"`
	// SettledSince is the time since when the history is kept by the rules of Kept, and in the present Form; zero: not known.
	SettledSince time.Time `json:"settledSince,omitzero"`

	// Ahead are namespaces that were watched by themselves, and the versions up to which
	// everything in them is recorded; "" stands for all.
	Ahead map[string]string `json:"ahead,omitempty"`
}

// MaxNarrowed bounds Checkpoint.Narrowed.
const MaxNarrowed = 32

// Kept are the rules by which a watch keeps the history of a feed's objects.
type Kept struct {
	Namespaces []string       `json:"namespaces,omitempty"` // none: all
	Rules      plan.Selection `json:"rules,omitzero"`
}

// within reports whether k certainly selects nothing that other does not select.
func (k *Kept) within(other *Kept) bool {
	of := func(list, all []string) bool {
		return !slices.ContainsFunc(list, func(s string) bool { return !slices.Contains(all, s) })
	}
	narrower := func(list, all []string) bool { return len(all) == 0 || len(list) > 0 && of(list, all) }
	a, b := &k.Rules, &other.Rules
	return narrower(k.Namespaces, other.Namespaces) && narrower(a.Namespaces.Include, b.Namespaces.Include) &&
		of(b.Namespaces.Exclude, a.Namespaces.Exclude) && (b.Namespaces.Selector == "" || a.Namespaces.Selector == b.Namespaces.Selector) &&
		(b.Labels == "" || a.Labels == b.Labels) && (b.Fields == "" || a.Fields == b.Fields)
}

// Keeps reports whether all that rules select has been in the history since HistorySince.
func (c *Checkpoint) Keeps(rules []Kept) bool {
	return len(c.Kept) == 0 || !slices.ContainsFunc(rules, func(k Kept) bool {
		return !slices.ContainsFunc(c.Kept, func(known Kept) bool { return k.within(&known) })
	})
}

// KeepsOnly reports whether rules select all of what has been in the history since HistorySince, and nothing else.
func (c *Checkpoint) KeepsOnly(rules []Kept) bool {
	return c.Keeps(rules) && (&Checkpoint{Kept: rules}).Keeps(c.Kept)
}

// MaySelect returns a function that reports whether one of the rules of Kept selects an object, if the labels of its namespace
// are right.
func (c *Checkpoint) MaySelect() (func(o *compact.Object) bool, error) {
	var rules []func(o *compact.Object) bool
	for _, k := range c.Kept {
		k.Rules.Namespaces.Selector = ""
		filter, err := k.Rules.Filter()
		if err != nil {
			return nil, err
		}
		rules = append(rules, func(o *compact.Object) bool {
			return (len(k.Namespaces) == 0 || slices.Contains(k.Namespaces, o.GetNamespace())) && filter.Match(o, nil)
		})
	}
	return func(o *compact.Object) bool {
		return slices.ContainsFunc(rules, func(selects func(*compact.Object) bool) bool { return selects(o) })
	}, nil
}

// MayRead reports whether one of the rules of Kept may select objects of a namespace, or whether they are not known.
func (c *Checkpoint) MayRead(namespace string) bool {
	return len(c.Kept) == 0 || slices.ContainsFunc(c.Kept, func(k Kept) bool {
		return (len(k.Namespaces) == 0 || slices.Contains(k.Namespaces, namespace)) && k.Rules.Namespaces.Names(namespace)
	})
}

// Resumable reports whether the ledger and a watch from the version are everything.
func (c Checkpoint) Resumable() bool {
	return c.Synced && !c.Sweeping && c.Listing == nil && c.ResourceVersion != ""
}

// SetBack is the checkpoint of a feed that begins with the list after a rollback, with its gap: what the feed has of versions behind that is
// of another past.
func (c Checkpoint) SetBack(gap dynamicfactory.Gap) Checkpoint {
	if gap.From, gap.FromTime = c.ResourceVersion, c.Time; c.Gap != nil {
		gap.From, gap.FromTime = c.Gap.From, c.Gap.FromTime
	}
	gap = *Since(&gap, c.Doubt)
	c.Gap, c.Listing = &gap, &Listing{ResourceVersion: gap.To, Rewound: true, Blind: true}
	c.ResourceVersion, c.Recorded, c.Quiet, c.Ahead, c.Doubt, c.SettledSince = "", "", "", nil, nil, time.Time{}
	c.Epoch++
	return c
}

// Since returns the gap of a rollback from where that of a doubt begins, if that was earlier: what a feed has read since then may be of another past.
func Since(gap, doubt *dynamicfactory.Gap) *dynamicfactory.Gap {
	if doubt == nil || !doubt.FromTime.Before(gap.FromTime) {
		return gap
	}
	longer := *gap
	longer.From, longer.FromTime = doubt.From, doubt.FromTime
	return &longer
}

// Same reports whether both say the same, whenever they did.
func (c Checkpoint) Same(other Checkpoint) bool {
	if (c.Listing == nil) != (other.Listing == nil) || c.Listing != nil && *c.Listing != *other.Listing {
		return false
	}
	return c.ResourceVersion == other.ResourceVersion && c.Recorded == other.Recorded && c.Quiet == other.Quiet && c.Synced == other.Synced && c.Sweeping == other.Sweeping && c.Epoch == other.Epoch && c.Form == other.Form && c.Gap == other.Gap && c.Doubt == other.Doubt && c.Apart == other.Apart && c.Forgot == other.Forgot && c.HistorySince.Equal(other.HistorySince) && slices.EqualFunc(c.Narrowed, other.Narrowed, time.Time.Equal) && c.SettledSince.Equal(other.SettledSince) && reflect.DeepEqual(c.Kept, other.Kept) && len(c.Ahead) == len(other.Ahead)
}

// ListVersion is the version whose list shows everything that is recorded, and of
// which everything is recorded after it: a list, in contrast to a watch, does not send
// again what has been recorded of a version that may not be complete.
func (c Checkpoint) ListVersion() string {
	switch {
	case c.Listing != nil:
		return c.Listing.ResourceVersion
	case c.Ahead != nil:
		return c.ResourceVersion
	default:
		return c.RecordedUpTo()
	}
}

// RecordedUpTo is the newest version of which anything is recorded.
func (c Checkpoint) RecordedUpTo() string {
	newest := Later(c.ResourceVersion, c.Recorded)
	if c.Listing != nil {
		newest = Later(newest, c.Listing.ResourceVersion)
	}
	return newest
}

// Reached is the newest version that counts: RecordedUpTo, or that of the list after a rollback, which the others are before.
func (c Checkpoint) Reached() string {
	if c.Listing != nil && c.Listing.Rewound {
		return c.ListVersion()
	}
	return c.RecordedUpTo()
}

// Later returns b if it is certainly later than a or a is empty, else a.
func Later(a, b string) string {
	if a == "" || Newer(b, a) {
		return b
	}
	return a
}

// CheckpointMeta is the key of a feed's checkpoint.
func CheckpointMeta(sourceID string) string { return "checkpoint/" + sourceID }

// Checkpoint returns a feed's checkpoint; ok is false if there is none. A damaged
// one is store.ErrUnreadable.
func (l *Ledger) Checkpoint(sourceID string) (c Checkpoint, ok bool, err error) {
	b, ok, err := l.store.Meta(CheckpointMeta(sourceID))
	switch {
	case errors.Is(err, store.ErrUnreadable):
		return c, false, fmt.Errorf("checkpoint of %s: %w", sourceID, err)
	case err != nil:
		return c, false, StoreError(err, "checkpoint of %s", sourceID)
	case !ok:
		return c, false, nil
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return Checkpoint{}, false, fmt.Errorf("%w: checkpoint of %s: %w", store.ErrUnreadable, sourceID, err)
	}
	return c, true, nil
}

// Checkpoints calls f with the checkpoints of all feeds, the zero value for one that is not
// well-formed. The error is an [ErrStore], also if some cannot be read.
func (l *Ledger) Checkpoints(f func(feed string, c Checkpoint) error) error {
	prefix := CheckpointMeta("")
	err := l.store.ScanMeta(prefix, func(key string, value []byte) error {
		var c Checkpoint
		if json.Unmarshal(value, &c) != nil {
			c = Checkpoint{}
		}
		return f(key[len(prefix):], c)
	})
	return StoreError(err, "scan checkpoints")
}

// Listing marks a list in a checkpoint: a start that finds it begins with the list of
// that version.
type Listing struct {
	ResourceVersion string `json:"resourceVersion"`
	Rewound         bool   `json:"rewound,omitempty"` // it is the first after a rollback
	Blind           bool   `json:"blind,omitempty"`   // it makes up for lost history
}

// Newer reports whether version a is certainly later than b.
func Newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c > 0
}

// selectedMeta, the name of a watch and the id of a feed say by which rules the
// watch was given the feed's objects. What it covers in addition after a restart
// comes as after a reload. An entry is written with the last of the objects; that of a
// feed that has been stopped stays, as nothing of its objects is recorded without it.
const selectedMeta = "selected/"

// Selected are the rules by which a watch was given the objects of a feed.
type Selected struct {
	Resource   event.Resource `json:"resource"`
	Namespaces []string       `json:"namespaces,omitempty"` // none: all
	Rules      plan.Selection `json:"rules,omitzero"`

	// Owed means that the rules are in force and nothing counts as given by them: the watch
	// is still being given its first objects, or what it was given went by labels of
	// namespaces that are not known any more.
	Owed bool `json:"owed,omitempty"`

	// Former means that the rules are not in force: the feed ended, and others read the part of
	// the ledger since. What was given by them was.
	Former bool `json:"former,omitempty"`

	// Left is where the watch had come to when it left the part of the ledger, which others read on; nil: it has not. Nothing counts as
	// given by the rules of one that has.
	Left *Left `json:"left,omitempty"`

	// Later are rules that came into force after these, the present ones last, and by which not all
	// was given. As given counts what all of them select, these included.
	Later []Selected `json:"later,omitempty"`
}

// Left is the version up to which a watch was given a part of the ledger, and the time at which that was complete.
type Left struct {
	ResourceVersion string    `json:"resourceVersion"` // "": it is not known
	Time            time.Time `json:"time"`
	Sequence        uint64    `json:"sequence,omitempty"` // of the last record before the watch left
}

// After reports whether a watch left a part of the ledger later than another one. Where nothing was recorded in between, the one that had
// come further counts as later.
func (l Left) After(other Left) bool {
	return cmp.Or(cmp.Compare(l.Sequence, other.Sequence), l.Time.Compare(other.Time)) > 0
}

// Without is where a watch had come to if versions do not count for which past is true.
func (l Left) Without(past func(version string) bool) Left {
	if past(l.ResourceVersion) {
		l.ResourceVersion = ""
	}
	return l
}

// All returns the rules of s and the later ones.
func (s Selected) All() []Selected { return append([]Selected{s}, s.Later...) }

// InForce returns the rules by which objects are judged.
func (s Selected) InForce() Selected {
	if n := len(s.Later); n > 0 {
		return s.Later[n-1]
	}
	return s
}

// Owing returns the rules in force, by which nothing counts as given.
func (s Selected) Owing() Selected {
	now := s.InForce()
	s.Namespaces, s.Rules, s.Later, s.Owed = now.Namespaces, now.Rules, nil, true
	return s
}

// Then returns s with rules that come into force and by which not all is given yet.
func (s Selected) Then(next Selected) Selected {
	s.Former, next.Resource = false, s.Resource
	if s.InForce().Same(next) {
		return s
	}
	first, later := s, s.Later
	first.Later, s.Later = nil, nil
	for _, rules := range later {
		if !rules.Same(first) && !rules.Same(next) {
			s.Later = append(s.Later, rules)
		}
	}
	s.Later = append(s.Later, next)
	return s
}

// Same reports whether both select the same, in any version of the resource.
func (s Selected) Same(other Selected) bool {
	s.Resource, s.Former = other.Resource, other.Former
	return reflect.DeepEqual(s, other)
}

// Put adds the rules by which a watch was given the objects of a feed to the batch.
func (s Selected) Put(b *store.Batch, watch, id string) {
	b.PutMeta(SelectionKey(watch, id), Encode(s))
}

// SelectionKey is the key of the rules by which a watch was given a feed's objects.
func SelectionKey(watch, id string) string { return selectedMeta + watch + "/" + id }

// Selections are the rules of watches, by id of the feed and name of the watch.
type Selections map[string]map[string]Selected

// Selections returns the rules by which watches were given objects. Each compiles.
func (l *Ledger) Selections() (Selections, error) {
	all := Selections{}
	err := l.store.ScanMeta(selectedMeta, func(key string, value []byte) error {
		var s Selected
		err := json.Unmarshal(value, &s)
		for _, rules := range s.All() {
			if err == nil {
				_, err = rules.Rules.Filter()
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		watch, id, _ := strings.Cut(strings.TrimPrefix(key, selectedMeta), "/")
		if all[id] == nil {
			all[id] = map[string]Selected{}
		}
		all[id][watch] = s
		return nil
	})
	return all, StoreError(err, "load selections")
}

// DropSelections removes the rules by which watches were given a feed's objects.
func DropSelections(b *store.Batch, id string, watches map[string]Selected) {
	for name := range watches {
		b.DeleteMeta(SelectionKey(name, id))
	}
}

// Watch returns next by the rules by which it judged the objects of a part of the ledger,
// nil if it did not.
func (all Selections) Watch(partition string, next *plan.Watch) (*plan.Watch, error) {
	for _, id := range slices.Sorted(maps.Keys(all)) { // those of one part are alike but for their namespaces
		given, ok := all[id][next.Name]
		rules := given.InForce()
		if !ok || given.Former || rules.Owed && rules.Rules.Namespaces.Selector != "" || !strings.HasPrefix(id, FeedID(partition, "")) {
			continue
		}
		filter, err := rules.Rules.Filter()
		if err != nil {
			return nil, fmt.Errorf("rules of watch %s: %w", next.Name, err)
		}
		w := *next
		w.Namespaces, w.Selection, w.Filter = rules.Namespaces, rules.Rules, filter
		w.Fingerprint += " former"
		return &w, nil
	}
	return nil, nil
}

// Parted reports whether feeds of parts of a partition's namespaces were the last to record
// them.
func (all Selections) Parted(partition string) bool {
	whole := FeedID(partition, "")
	for id := range all {
		if id != whole && strings.HasPrefix(id, whole) {
			return true
		}
	}
	return false
}
