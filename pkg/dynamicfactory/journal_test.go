package dynamicfactory_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

const configMapPath = "/api/v1/configmaps"

var (
	configMaps   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	configMapKey = dynamicfactory.Key{GVR: configMaps}
)

// journal is a handler that writes down what it is told.
type journal struct {
	mu       sync.Mutex
	lines    []string
	objects  map[string]*compact.Object
	position uint64
	acks     func(position uint64) // called after each notification
}

func newJournal() *journal { return &journal{objects: map[string]*compact.Object{}} }

func (j *journal) note(verb string, obj any) {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj, verb = t.Obj, verb+"?"
	}
	o := obj.(*compact.Object)
	j.mu.Lock()
	if verb[0] == 'd' {
		delete(j.objects, o.GetName())
	} else {
		j.objects[o.GetName()] = o
	}
	j.lines = append(j.lines, verb+" "+o.GetName())
	j.position = max(j.position, o.Position())
	position, acks := j.position, j.acks
	j.mu.Unlock()
	if acks != nil {
		acks(position)
	}
}

func (j *journal) OnAdd(obj any, initial bool) {
	if initial {
		j.note("initial", obj)
		return
	}
	j.note("add", obj)
}
func (j *journal) OnUpdate(_, obj any) { j.note("update", obj) }
func (j *journal) OnDelete(obj any)    { j.note("delete", obj) }

// take returns what was written down since the last call.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

// seen is the highest position so far.
func (j *journal) seen() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.position
}

// expect compares what was written down since the last call.
func (j *journal) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := j.take(); !slices.Equal(got, want) {
		t.Errorf("the handler was told %q, want %q", got, want)
	}
}

// bubble runs a test with an API server of its own, in its own time.
func bubble(t *testing.T, f func(t *testing.T, s *apitest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(t)
		s.Serve(configMapPath, "v1", "ConfigMap")
		f(t, s)
	})
}

// put creates or changes config maps.
func put(s *apitest.Server, names ...string) {
	for _, name := range names {
		s.Put(configMapPath, "ns", name, map[string]any{"data": map[string]any{"at": s.Version()}})
	}
}

// factory makes a factory of compact informers that ends with the test.
func factory(t *testing.T, s *apitest.Server, opts ...dynamicfactory.RESTOption) *dynamicfactory.RESTFactory {
	t.Helper()
	f, err := dynamicfactory.NewRESTFactory(s.Config(), append([]dynamicfactory.RESTOption{dynamicfactory.WithCompactStore()}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Shutdown)
	return f
}

// share subscribes a new journal to a shared informer and waits until nothing moves.
func share(t *testing.T, f *dynamicfactory.RESTFactory, k dynamicfactory.Key) (*journal, *dynamicfactory.Subscription) {
	t.Helper()
	j := newJournal()
	sub, err := f.Subscribe(t.Context(), k, j)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return j, sub
}

// subscribe makes a durable subscription for a new journal and waits until nothing moves.
func subscribe(t *testing.T, f *dynamicfactory.RESTFactory, k dynamicfactory.Key, opts ...dynamicfactory.DurableOptions) (*journal, *dynamicfactory.DurableSubscription) {
	t.Helper()
	j := newJournal()
	sub, err := f.SubscribeDurable(t.Context(), k, j, append(opts, dynamicfactory.DurableOptions{})[0])
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return j, sub
}

// lists and watches count the requests for config maps so far, without those of one
// object, which ask for a version.
// lists counts the pages of objects that were asked for: not those of metadata, which
// look after a watch.
func lists(s *apitest.Server) int {
	n := 0
	for _, r := range s.Requests("configmaps", false) {
		if !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
			n++
		}
	}
	return n
}

func watches(s *apitest.Server) int { return len(s.Requests("configmaps", true)) }

func warmStartOf(version string, objs map[string]*compact.Object) *dynamicfactory.WarmStart {
	snap := &dynamicfactory.WarmStart{ResourceVersion: version}
	for _, o := range objs {
		snap.Objects = append(snap.Objects, o.WithPosition(0))
	}
	return snap
}

// remember adds a warm start to the options.
func remember(snap *dynamicfactory.WarmStart, o dynamicfactory.DurableOptions) dynamicfactory.DurableOptions {
	o.WarmStart = func(context.Context) (*dynamicfactory.WarmStart, error) { return snap, nil }
	return o
}

func is[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("cm-%05d", i)
	}
	return names
}
