package standby

import (
	"context"
	"time"
)

// Keep is one round of Run.
func (m *Member) Keep(ctx context.Context) error { return m.keep(ctx) }

// SetSeedPatience is called before Lead.
func (m *Member) SetSeedPatience(d time.Duration) { m.seedPatience = d }
