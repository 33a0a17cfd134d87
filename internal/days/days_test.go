package days_test

import (
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/days"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "0d": 0, "365d": 8760 * time.Hour, "500ms": 500 * time.Millisecond,
		"1h30m": 90 * time.Minute, "0": 0, "-1h": -time.Hour, "65535d": 65535 * 24 * time.Hour,
	} {
		if got, err := days.ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "7", "1.5d", "-1d", "7D", "1w", "12h1d", "1d1d", "1d-1h", "1d+1h", "1dd", "1d 1h", "65536d", "65535d2000000h"} {
		if got, err := days.ParseDuration(text); err == nil {
			t.Errorf("%q: %s, want an error", text, got)
		}
	}
}
