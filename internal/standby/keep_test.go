package standby_test

import (
	"context"
	crand "crypto/rand"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/store"
)

// TestTrimOnDemand writes many times what the stream has room for, as fast as it takes that: it is trimmed as it fills,
// not once in ten seconds.
func TestTrimOnDemand(t *testing.T) {
	t.Parallel()
	g := newGroup(t, one(t))
	g.maxBytes = 1 << 20
	r := g.replicas[0]
	if err := g.lead(r); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- r.member.Run(ctx) }()
	deadline := time.Now().Add(patience)
	for written := int64(0); written < 8*g.maxBytes; {
		b := r.store.NewBatch()
		payload := make([]byte, 16<<10)
		_, _ = crand.Read(payload) // so that it is not compressed
		b.Append(store.Record{Time: time.Now(), Payload: payload}, nil)
		if err := r.store.Commit(b); err != nil {
			t.Fatal(err)
		}
		written += int64(len(payload))
		g.log = append(g.log, string(payload))
		if time.Now().After(deadline) {
			t.Fatalf("the stream of %d bytes has taken %d only", g.maxBytes, written)
		}
	}
	stop()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	g.same(r, g.replicas[1])
}
