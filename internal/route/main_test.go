package route

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// objects makes compact objects for one test.
type objects struct {
	t     testing.TB
	codec *compact.Codec
}

func newObjects(t testing.TB) *objects {
	t.Helper()
	return &objects{t, compact.NewCodec(compact.NewDictionaries(func(uint32, []byte) error { return nil }))}
}

func (o *objects) from(raw string) *compact.Object {
	o.t.Helper()
	return o.changedBy(raw, "")
}

// changedBy makes an object that a manager, if it has a name, has changed.
func (o *objects) changedBy(raw, manager string) *compact.Object {
	o.t.Helper()
	meta, err := rawjson.Scan([]byte(raw))
	if err != nil {
		o.t.Fatal(err)
	}
	if manager != "" {
		meta.Change = &rawjson.Change{Managers: [][]byte{[]byte(manager)}, Operation: []byte("Update"), Time: []byte("2026-11-22T10:00:00Z")}
	}
	obj, err := o.codec.Encode([]byte(raw), &meta, 0)
	if err != nil {
		o.t.Fatal(err)
	}
	return obj
}

func pods() event.Resource {
	return event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}
}

func deployments() event.Resource {
	return event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"}
}

// change makes a change of the given states that watch "w" has seen.
func change(t event.Type, before, after *compact.Object) *Change {
	return &Change{
		Type:     t,
		Resource: pods(),
		Cluster:  "test",
		Time:     time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC),
		New:      after,
		Old:      before,
		Watches:  []Hit{{Watch: "w"}},
	}
}
