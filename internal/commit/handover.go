package commit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// HandOverCheckpoints keeps the checkpoints of a partition true: at any time they
// belong to feeds that do not overlap, or an old one might be resumed from
// although the ledger has moved on. active are the IDs of the feeds that run from now on.
func (c *Committer) HandOverCheckpoints(start []*Feed, active map[string]bool) error {
	b := c.store.NewBatch()
	defer b.Discard()
	for _, s := range start {
		wide := s.Partition + "#"
		if s.ID != wide {
			// Narrower than before: what the whole had complete, the part has too.
			if err := c.inherit(b, s, wide); err != nil {
				return err
			}
			if !active[wide] {
				b.DeleteMeta(ledger.CheckpointMeta(wide))
			}
			continue
		}
		if err := c.gather(b, s); err != nil {
			return err
		}
	}
	if err := c.store.Commit(b); err != nil {
		return fmt.Errorf("%w: hand over checkpoints: %w", ledger.ErrStore, err)
	}
	return nil
}

// gather gives a feed that is wider than others were before what they had recorded:
// a list of the oldest version that one of them was at, the watch from there, and how
// far each of them was ahead of it. Where one had recorded a part of a list again, that
// is not known, and the list is of the newest version: if it shows a difference, there is a
// gap.
func (c *Committer) gather(b *outbox.Batch, s *Feed) error {
	whole := ledger.Checkpoint{Sweeping: true, Ahead: map[string]string{}}
	newest, partial := "", false
	err := c.store.ScanMeta(ledger.CheckpointMeta(s.ID), func(key string, _ []byte) error {
		namespace := strings.TrimPrefix(key, ledger.CheckpointMeta(s.ID))
		if namespace == "" {
			return nil
		}
		b.DeleteMeta(key)
		part, ok, err := c.ledger.Checkpoint(strings.TrimPrefix(key, ledger.CheckpointMeta("")))
		if !ok {
			whole.Forgot = whole.Forgot || err != nil
			return ledger.IgnoreUnreadable(err)
		}
		at := part.ResourceVersion
		if at == "" {
			at = part.ListVersion() // of its first list
		}
		partial = partial || part.Listing != nil && part.Listing.ResourceVersion != at || newest != "" && part.Epoch != whole.Epoch
		newest = ledger.Later(newest, part.RecordedUpTo())
		if whole.ResourceVersion == "" || ledger.Newer(whole.ResourceVersion, at) {
			whole.ResourceVersion, whole.Time = at, part.Time
		}
		known := ledger.Later(part.Ahead[namespace], part.Ahead[""])
		taken := known != ""
		if part.Listing == nil && (taken || part.Synced) {
			known = ledger.Later(known, at)
		}
		if known != "" {
			whole.Ahead[namespace] = known
		}
		whole.Epoch = max(whole.Epoch, part.Epoch)
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w: scan checkpoints: %w", ledger.ErrStore, err)
	case newest == "" && !whole.Forgot:
		return nil
	case newest == "":
		whole = ledger.Checkpoint{Forgot: true}
	case partial:
		whole.Gap = &dynamicfactory.Gap{ // of the namespaces that had not come as far
			Cause: dynamicfactory.CauseExpired, From: whole.ResourceVersion, To: newest, FromTime: whole.Time, ToTime: c.cfg.Now(),
		}
		whole.ResourceVersion, whole.Ahead, whole.Listing = "", nil, &ledger.Listing{ResourceVersion: newest}
	default:
		whole.Listing, whole.Recorded = &ledger.Listing{ResourceVersion: whole.ResourceVersion}, newest
	}
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.EncodeCheckpoint(whole))
	return nil
}

func (c *Committer) inherit(b *outbox.Batch, s *Feed, wide string) error {
	// A damaged checkpoint is for prepareSource to report.
	if _, ok, err := c.ledger.Checkpoint(s.ID); err != nil || ok {
		return ledger.IgnoreUnreadable(err)
	}
	cp, ok, err := c.ledger.Checkpoint(wide)
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		cp.Forgot = true
	case err != nil || !ok:
		return err
	}
	b.PutMeta(ledger.CheckpointMeta(s.ID), ledger.EncodeCheckpoint(cp))
	return nil
}
