package standby

import (
	"context"
	"time"

	"github.com/watcherd/watcherd/internal/journal"
)

// Keep is one round of Run.
func (m *Member) Keep(ctx context.Context) error { return m.keep(ctx) }

// Save makes a snapshot.
func (m *Member) Save(ctx context.Context) (*journal.Snapshot, error) {
	before, err := m.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return m.saveNow(ctx, before)
}

// Behind reports whether the journal has a lot behind a snapshot.
func Behind(x journal.Extent, s *journal.Snapshot) bool { return behind(x, s) }

// SetSeedPatience is called before Lead.
func (m *Member) SetSeedPatience(d time.Duration) { m.seedPatience = d }
