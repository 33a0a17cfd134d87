package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// Checkpoint is how far a feed has come.
type Checkpoint struct {
	ResourceVersion string              `json:"resourceVersion"`
	Synced          bool                `json:"synced"`
	Epoch           int                 `json:"epoch,omitempty"`
	Recorded        string              `json:"recorded,omitempty"` // the newest version that is committed in part, if it is later
	Form            string              `json:"form"`               // of all recorded states; "" if they may differ
	Sweeping        bool                `json:"sweeping,omitempty"` // deletions that the first list showed are not all committed
	Listing         *Listing            `json:"listing,omitempty"`  // a list that is committed in part
	Gap             *dynamicfactory.Gap `json:"gap,omitempty"`      // is reported if the rest of the list has a difference
	Forgot          bool                `json:"forgot,omitempty"`   // what was recorded before the list cannot be read, which is not reported yet
	Time            time.Time           `json:"time"`

	// HistorySince is the time since when every change that the feed recorded is in the
	// history; zero: not now.
	HistorySince time.Time `json:"historySince,omitzero"`

	// Ahead are namespaces that were watched by themselves, and the versions up to which
	// everything in them is recorded; "" stands for all.
	Ahead map[string]string `json:"ahead,omitempty"`
}

// Resumable reports whether the ledger and a watch from the version are everything.
func (c Checkpoint) Resumable() bool {
	return c.Synced && !c.Sweeping && c.Listing == nil && c.ResourceVersion != ""
}

// Same reports whether both say the same, whenever they did.
func (c Checkpoint) Same(other Checkpoint) bool {
	if (c.Listing == nil) != (other.Listing == nil) || c.Listing != nil && *c.Listing != *other.Listing {
		return false
	}
	return c.ResourceVersion == other.ResourceVersion && c.Recorded == other.Recorded && c.Synced == other.Synced && c.Sweeping == other.Sweeping && c.Epoch == other.Epoch && c.Form == other.Form && c.Gap == other.Gap && c.Forgot == other.Forgot && c.HistorySince.Equal(other.HistorySince) && len(c.Ahead) == len(other.Ahead)
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

// Later returns b if it is certainly later than a, or a is none.
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
		return c, false, fmt.Errorf("%w: checkpoint of %s: %w", ErrStore, sourceID, err)
	case !ok:
		return c, false, nil
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return Checkpoint{}, false, fmt.Errorf("%w: checkpoint of %s: %w", store.ErrUnreadable, sourceID, err)
	}
	return c, true, nil
}

// Checkpoints calls f with the checkpoints of all feeds, the zero value for a damaged one.
func (l *Ledger) Checkpoints(f func(feed string, c Checkpoint) error) error {
	prefix := CheckpointMeta("")
	err := l.store.ScanMeta(prefix, func(key string, value []byte) error {
		var c Checkpoint
		if json.Unmarshal(value, &c) != nil {
			c = Checkpoint{}
		}
		return f(key[len(prefix):], c)
	})
	if err != nil {
		return fmt.Errorf("%w: scan checkpoints: %w", ErrStore, err)
	}
	return nil
}

// Listing marks a list in a checkpoint: a start that finds it begins with the list of
// that version.
type Listing struct {
	ResourceVersion string `json:"resourceVersion"`
	Rewound         bool   `json:"rewound,omitempty"` // it is the first after a rollback
}

// Newer reports whether version a is certainly later than b.
func Newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c > 0
}
