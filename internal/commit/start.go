package commit

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// Begin gives a starting informer what the ledger knows, with the version
// to resume from, so that it needs no list. Where a part of the ledger is not of that
// version, or cannot be read, it lists the resource as it was at that version. An object
// that such a list cannot read begins with its recorded state.
func (c *Committer) Begin(s *Feed) (*dynamicfactory.WarmStart, error) {
	defer s.begun.Store(true)
	listed := &dynamicfactory.WarmStart{Relist: true, Known: c.recordedFor(s), Apart: s.resume.Apart}
	switch {
	case s.start == cold && s.listed != nil: // the position is lost
		newest, err := c.newestRecorded(s)
		if err != nil {
			return nil, err
		}
		s.floor, listed.Recorded = newest, newest
	case s.start != cold:
		listed.ResourceVersion, listed.Time, listed.Quiet = s.resume.ListVersion(), s.resume.Time, s.resume.Quiet
		if !s.rewind { // else it is of the versions before the rollback
			listed.Recorded = s.resume.RecordedUpTo()
		}
	}
	if s.start != warm {
		return listed, nil
	}
	floor := s.resume.RecordedUpTo()
	recorded := &dynamicfactory.WarmStart{ResourceVersion: s.resume.ResourceVersion, Time: s.resume.Time, Quiet: s.resume.Quiet, Recorded: floor, Apart: s.resume.Apart}
	_, err := c.ledger.Scan(s.Partition, s.KeyPrefix(), "", func(_ string, o *compact.Object) error {
		recorded.Objects = append(recorded.Objects, o)
		if v := o.GetResourceVersion(); ledger.Newer(v, floor) {
			floor = v
		}
		return nil
	})
	switch {
	case errors.Is(err, store.ErrUnreadable):
		s.Log.Error("a part of the recorded states cannot be read: the watch starts with a list", "error", err)
		s.start, s.floor, s.listed = relist, floor, map[uint64]struct{}{}
		return listed, nil
	case err != nil:
		return nil, err
	}
	s.warmObjects, s.floor = recorded.Objects, floor
	return recorded, nil
}

// newestRecorded returns the newest version among the recorded states of a feed's objects.
func (c *Committer) newestRecorded(s *Feed) (newest string, err error) {
	_, err = c.ledger.Scan(s.Partition, s.KeyPrefix(), "", func(_ string, o *compact.Object) error {
		newest = ledger.Later(newest, o.GetResourceVersion())
		return nil
	})
	return newest, ledger.IgnoreUnreadable(err)
}

// recordedFor returns the recorded states of the feed's objects, in the form of now.
func (c *Committer) recordedFor(s *Feed) func(namespace, name string) *compact.Object {
	var codec *compact.Codec
	logged := false
	return func(namespace, name string) *compact.Object {
		key := ledger.Key(namespace, name)
		o, err := c.ledger.State(s.Partition, key)
		if err == nil {
			o, err = c.formed(s, &codec, o)
		}
		if err != nil {
			if !logged {
				logged = true
				s.Log.Error("recorded states cannot be read: a rollback does not show by their objects, and of those that cannot be listed either, the watch begins without a state", "object", key, "error", err)
			}
			return nil
		}
		return o
	}
}

// Prepare decides what the feed's informer begins with.
func (c *Committer) Prepare(s *Feed) error {
	cp, ok, err := c.ledger.Checkpoint(s.ID)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		s.Log.Error("the position of a watch cannot be read: it starts with a list", "error", err)
		s.forgot = true
	case err != nil:
		return err
	}
	if ok && !cp.SettledSince.IsZero() && !cp.KeepsOnly(s.kept()) { // readers of the history go by it before the feed has begun
		cp.SettledSince = time.Time{}
		if err := ledger.PutMeta(c.store, ledger.CheckpointMeta(s.ID), ledger.Encode(cp)); err != nil {
			return ledger.StoreError(err, "checkpoint of %s", s.ID)
		}
	}
	if ok {
		if cp.Ahead != nil && cp.Listing == nil && cp.ResourceVersion != "" {
			// Its list was taken in: up to the version, everything is recorded.
			cp.Ahead[""] = ledger.Later(cp.Ahead[""], cp.ResourceVersion)
		}
		s.taken.Store(cp.Synced)
		s.resume, s.saved, s.synced, s.epoch, s.ahead, s.recordedForm, s.forgot = cp, cp, cp.Synced, cp.Epoch, cp.Ahead, cp.Form, cp.Forgot
		switch {
		case cp.Resumable() && !s.rerecord():
			s.start = warm
		case cp.ListVersion() != "":
			s.start = relist
			s.list.mark = cp.Listing
			s.rewind = cp.Listing != nil && cp.Listing.Rewound
			const first = 1 // the position of the first list
			if cp.Gap != nil {
				gap := *cp.Gap
				gap.Position = first
				s.open, s.blindTo = &gap, first
			}
			if cp.Listing != nil && cp.Listing.Blind {
				s.blindTo = first
			}
		}
		if s.start != cold { // what came and went before a first list is in no history
			s.historySince = cp.HistorySince
		}
	}
	if s.start == warm {
		return nil // the informer finds deletions itself
	}
	s.floor = s.resume.Reached()
	empty, err := c.ledger.Empty(s.Partition, s.KeyPrefix())
	if err != nil || empty {
		return err
	}
	s.listed = map[uint64]struct{}{}
	if ok || s.forgot {
		return nil
	}
	expiring, err := c.ledger.Expiring(s.Partition, s.ID)
	if s.forgot = !expiring && err == nil; s.forgot {
		s.Log.Error("the position of a watch is missing, as after a repair of the store: it starts with a list")
	}
	return err
}

// Resumes reports whether a prepared feed resumes from an earlier life, and the version
// from whose list it records the objects again because their form has changed; "": it
// does not.
func (s *Feed) Resumes() (resumes bool, rerecords string) {
	if s.start == relist && s.resume.Form != "" && s.resume.Form != s.Form {
		rerecords = s.resume.ListVersion()
	}
	return s.start != cold, rerecords
}

// HandOverCheckpoints keeps the checkpoints of a partition true: that of a namespace holds
// for its objects, and that of the whole for those of namespaces without one, or an old one
// might be resumed from although the ledger has moved on.
func (c *Committer) HandOverCheckpoints(start []*Feed) error {
	if err := c.settleDoubts(); err != nil {
		return err
	}
	b := c.store.NewBatch()
	defer b.Discard()
	for _, s := range start {
		if _, over, _ := c.store.Meta(ledger.FarewellMeta + s.Partition); over {
			b.DeleteMeta(ledger.FarewellMeta + s.Partition) // the feed records objects
		}
		wide := s.Partition + "#"
		if s.ID != wide {
			// Narrower than before: what the whole had complete, the part has too.
			if err := c.inherit(b, s, wide); err != nil {
				return err
			}
			continue
		}
		if err := c.gather(b, s); err != nil {
			return err
		}
	}
	return ledger.StoreError(c.store.Commit(b), "inherit checkpoints")
}

// isSetBack reports whether the cluster was set back, and not all feeds were checked since.
func (c *Committer) isSetBack() bool {
	_, back, _ := c.store.Meta(ledger.SetBackMeta) // the store removes what is damaged
	return back
}

// settleDoubts has feeds begin with the list after a rollback that were watching a later version when others found it, and have ended before
// a check could show whether the cluster had passed that version without a sign: a list for another reason would look like one of
// changes that were all seen.
func (c *Committer) settleDoubts() error {
	if !c.isSetBack() {
		return nil
	}
	running := map[string]bool{}
	for _, s := range c.cfg.Running() {
		running[s.ID] = true
	}
	b := c.store.NewBatch()
	defer b.Discard()
	err := c.ledger.Checkpoints(func(feed string, cp ledger.Checkpoint) error {
		if cp.Doubt != nil && !running[feed] {
			b.PutMeta(ledger.CheckpointMeta(feed), ledger.Encode(cp.SetBack(*cp.Doubt)))
		}
		return nil
	})
	if ledger.IgnoreUnreadable(err) != nil {
		return err
	}
	return ledger.StoreError(c.store.Commit(b), "checkpoints after a rollback")
}

// gather gives a feed that is wider than others were before what they had recorded, and
// what the whole had of the namespaces that they left out: a list of the oldest version
// that one of them was at, the watch from there, and how far each of them was ahead of it.
// Where one had recorded a part of a list again, that is not known, and the list is of the
// newest version: if it shows a difference, there is a gap.
func (c *Committer) gather(b *store.Batch, s *Feed) error {
	whole := ledger.Checkpoint{Sweeping: true, Ahead: map[string]string{}}
	newest, quiet, parted, partial, blind, rewound := "", "", false, false, false, false
	var open *dynamicfactory.Gap // of a list that is not taken in, the one that begins first
	var forms []string
	err := c.store.ScanMeta(ledger.CheckpointMeta(s.ID), func(key string, _ []byte) error {
		namespace := strings.TrimPrefix(key, ledger.CheckpointMeta(s.ID))
		if namespace != "" {
			parted = true
			b.DeleteMeta(key)
		}
		part, ok, err := c.ledger.Checkpoint(strings.TrimPrefix(key, ledger.CheckpointMeta("")))
		if part.Listing != nil {
			part.Form = "" // some states may have another
		}
		forms = append(forms, part.Form)
		if !ok {
			whole.Forgot = whole.Forgot || err != nil
			return ledger.IgnoreUnreadable(err)
		}
		at, recorded := part.ResourceVersion, part.Reached()
		if at == "" {
			at = part.ListVersion() // of its first list
		}
		if part.Listing != nil && part.Listing.Rewound { // the others are of the versions before the rollback
			at, rewound = recorded, true
		}
		l := part.Listing
		again := part.Synced && l != nil && !l.Rewound && (l.ResourceVersion == part.ResourceVersion || l.ResourceVersion == part.Recorded && !l.Blind) // of what is recorded, in another form
		partial = partial || rewound || l != nil && l.ResourceVersion != at && !again || newest != "" && part.Epoch != whole.Epoch
		blind = blind || part.Listing != nil && part.Listing.Blind
		if part.Gap != nil && part.Listing != nil {
			partial = true
			if open == nil || ledger.Newer(open.From, part.Gap.From) {
				open = part.Gap
			}
		}
		newest = ledger.Later(newest, recorded)
		if whole.ResourceVersion == "" || ledger.Newer(whole.ResourceVersion, at) {
			whole.ResourceVersion, whole.Time = at, part.Time
		}
		if later := ledger.Later(at, part.Quiet); quiet == "" || ledger.Newer(quiet, later) {
			quiet = later
		}
		known := ledger.Later(part.Ahead[namespace], part.Ahead[""])
		if part.Listing == nil && (part.Synced || part.Ahead != nil) || again {
			known = ledger.Later(known, at)
		}
		if namespace == "" {
			maps.Copy(whole.Ahead, part.Ahead)
		}
		if known != "" {
			whole.Ahead[namespace] = known
		}
		whole.Epoch, whole.Forgot, whole.Apart = max(whole.Epoch, part.Epoch), whole.Forgot || part.Forgot, whole.Apart || part.Apart
		return nil
	})
	if errors.Is(err, store.ErrUnreadable) {
		parted, whole.Forgot = true, true // one of them may be among what cannot be read
		err = nil
	} else if forms = slices.Compact(forms); len(forms) == 1 {
		whole.Form = forms[0]
	}
	switch {
	case err != nil:
		return ledger.StoreError(err, "scan checkpoints")
	case !parted || newest == "" && !whole.Forgot:
		return nil
	case newest == "":
		whole = ledger.Checkpoint{Forgot: true}
	case partial:
		whole.Gap = &dynamicfactory.Gap{ // of the namespaces that had not come as far
			Cause: dynamicfactory.CauseExpired, From: whole.ResourceVersion, To: newest, FromTime: whole.Time, ToTime: c.cfg.Now(),
		}
		switch {
		case open != nil && rewound: // the versions of the two cannot be compared
			whole.Gap.Cause, whole.Gap.From = open.Cause, open.From
			if open.FromTime.Before(whole.Time) {
				whole.Gap.FromTime = open.FromTime
			}
		case open != nil && !ledger.Newer(open.From, whole.ResourceVersion):
			whole.Gap.From, whole.Gap.FromTime = open.From, open.FromTime
		}
		whole.ResourceVersion, whole.Ahead, whole.Listing = "", nil, &ledger.Listing{ResourceVersion: newest, Rewound: rewound}
	default:
		whole.Listing, whole.Recorded = &ledger.Listing{ResourceVersion: whole.ResourceVersion, Blind: blind}, newest
		if ledger.Newer(quiet, whole.ResourceVersion) {
			whole.Quiet = quiet
		}
	}
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.Encode(whole))
	return nil
}

func (c *Committer) inherit(b *store.Batch, s *Feed, wide string) error {
	// A damaged checkpoint is for Prepare to report.
	if _, ok, err := c.ledger.Checkpoint(s.ID); err != nil || ok {
		return ledger.IgnoreUnreadable(err)
	}
	cp, ok, err := c.ledger.Checkpoint(wide)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		cp.Forgot = true
	case err != nil || !ok:
		return err
	}
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.Encode(cp))
	return nil
}
