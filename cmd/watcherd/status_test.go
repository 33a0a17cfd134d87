package main

import (
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/status"
)

// TestStatusOfAReplica shows what a replica does and how far it is.
func TestStatusOfAReplica(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		journal *status.Journal
		want    string
	}{
		{nil, ""},
		{
			&status.Journal{Stream: "S", Replica: "a/x", Role: status.Leader, Leader: "a/x", Term: 3, Last: 70, Lag: 2 * time.Second},
			"replica  a/x leads   journal S, term 3, entry 70   last append 2s ago\n",
		},
		{
			&status.Journal{Stream: "S", Replica: "b/y", Role: status.Follower, Leader: "a/x", Term: 3, Last: 69, Lag: time.Second},
			"replica  b/y follows a/x   journal S, term 3, entry 69   had all of it 1s ago\n",
		},
		{
			&status.Journal{Stream: "S", Role: status.Follower, Lag: -1},
			"replica  ? follows no leader yet   journal S, term 0, entry 0   had all of it never\n",
		},
	} {
		var b strings.Builder
		if err := printStatus(&b, &status.Status{Store: status.Store{Journal: tc.journal}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		line := ""
		for l := range strings.Lines(b.String()) {
			if strings.HasPrefix(l, "replica") {
				line = l
			}
		}
		if line != tc.want {
			t.Errorf("%q, want %q", line, tc.want)
		}
	}
}
