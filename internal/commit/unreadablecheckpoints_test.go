package commit

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// holed is a store of which the block with the checkpoint of the pods is unreadable, and with it the end of a scan of checkpoints.
type holed struct{ *store.Store }

func (h holed) Meta(key string) ([]byte, bool, error) {
	if key == ledger.CheckpointMeta("pods#") {
		return nil, false, store.ErrUnreadable
	}
	return h.Store.Meta(key)
}

func (h holed) ScanMeta(prefix string, fn func(key string, value []byte) error) error {
	err := h.Store.ScanMeta(prefix, func(key string, value []byte) error {
		if key == ledger.CheckpointMeta("pods#") {
			return nil
		}
		return fn(key, value)
	})
	if err == nil && strings.HasPrefix(ledger.CheckpointMeta("pods#"), prefix) {
		err = store.ErrUnreadable
	}
	return err
}

// TestRollbackBesideAnUnreadableCheckpoint: a rollback is followed, and the feed whose checkpoint cannot be read and that does not watch
// begins with a list, as the others do.
func TestRollbackBesideAnUnreadableCheckpoint(t *testing.T) {
	r := newRig(t, disk(), committest.PodWatch())
	for _, id := range []string{"pods#", "secrets#"} {
		r.saveAll(map[string]ledger.Checkpoint{id: {ResourceVersion: "90", Synced: true, Time: now}})
	}
	s, other := r.feed(pods), r.feed(dynamicfactory.Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", Namespaced: true})
	s.saved = r.saved(s)
	st := holed{r.Store}
	r.c.ledger = ledger.New(st, r.In.Dictionaries)
	r.running = []*Feed{s, other}
	r.commit(&gapFound{feed: other, gap: &dynamicfactory.Gap{Cause: dynamicfactory.CauseRollback, From: "90", To: "60", FromTime: now, ToTime: now.Add(time.Second)}})
	r.c.ledger = ledger.New(r.Store, r.In.Dictionaries)
	for _, id := range []string{"pods#", "secrets#"} {
		if cp, _, err := r.c.ledger.Checkpoint(id); err != nil || cp.ListVersion() != "60" || cp.Gap == nil || cp.Gap.Cause != dynamicfactory.CauseRollback {
			t.Errorf("%s: %+v, %v", id, cp, err)
		}
	}
	if !s.doubted {
		t.Error("the next checkpoint of the feed takes the place of that")
	}
}
