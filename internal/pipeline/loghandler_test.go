package pipeline

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// countingHandler counts warnings.
type countingHandler struct {
	slog.Handler
	count atomic.Int64
}

func (h *countingHandler) logger() *slog.Logger {
	h.Handler = slog.DiscardHandler
	return slog.New(h)
}

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *countingHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		h.count.Add(1)
	}
	return nil
}
