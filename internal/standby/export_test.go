package standby

import "context"

// Keep is one round of Run.
func (m *Member) Keep(ctx context.Context) error { return m.keep(ctx) }
