package dynamicfactory_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Without WithCompactStore the objects are what client-go's dynamic informers have,
// numbers included.
func TestRawPathWithPlainStore(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		s.Put(configMapPath, "ns", "a", map[string]any{"data": map[string]any{"n": 1, "f": 1.5, "s": "x"}})
		f := must(dynamicfactory.NewForConfig(s.Config()))(t)
		t.Cleanup(f.Shutdown)
		var got []any
		sub := must(f.Subscribe(t.Context(), configMapKey, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { got = append(got, obj) },
			UpdateFunc: func(_, obj any) { got = append(got, obj) },
		}))(t)
		s.Bookmark()
		synctest.Wait()
		s.Put(configMapPath, "ns", "a", map[string]any{"data": map[string]any{"n": 2}})
		synctest.Wait()
		want := func(version string, data map[string]any) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "data": data,
				"metadata": map[string]any{
					"namespace": "ns", "name": "a", "uid": "uid-a-101", "resourceVersion": version, "creationTimestamp": "2026-01-02T03:04:05Z",
				},
			}}
		}
		if !equality.Semantic.DeepEqual(got, []any{
			want("101", map[string]any{"n": int64(1), "f": 1.5, "s": "x"}), want("102", map[string]any{"n": int64(2)}),
		}) {
			t.Errorf("got %v", got)
		}
		is(t, "version of the store", sub.Informer().LastSyncResourceVersion(), "102")
		s.Advance(5)
		s.Bookmark()
		synctest.Wait()
		is(t, "version after a bookmark", sub.Informer().LastSyncResourceVersion(), "107")
	})
}

// A transform sees the object as the server sent it, after the edit; an error is an
// object that cannot be read.
func TestRawPathWithTransform(t *testing.T) {
	for _, compactStore := range []bool{false, true} {
		t.Run(fmt.Sprint(compactStore), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *apitest.Server) {
				put(s, "a")
				opts := []dynamicfactory.Option{dynamicfactory.WithTransform(func(obj any) (any, error) {
					u, ok := obj.(*unstructured.Unstructured)
					if !ok {
						return nil, fmt.Errorf("got a %T", obj)
					}
					u.SetAnnotations(map[string]string{"transformed": "yes"})
					return u, nil
				})}
				if compactStore {
					opts = append(opts, dynamicfactory.WithCompactStore())
				}
				f := must(dynamicfactory.NewForConfig(s.Config(), opts...))(t)
				t.Cleanup(f.Shutdown)
				sub := must(f.Subscribe(t.Context(), configMapKey, cache.ResourceEventHandlerFuncs{}))(t)
				<-sub.Synced()
				put(s, "b")
				synctest.Wait()
				for _, obj := range sub.Informer().GetStore().List() {
					if _, ok := obj.(*compact.Object); ok != compactStore {
						t.Errorf("the cache holds a %T", obj)
					}
				}
				for _, o := range must(sub.Lister().List(nil))(t) {
					is(t, "annotation", o.(*unstructured.Unstructured).GetAnnotations()["transformed"], "yes")
				}
			})
		})
	}
}

func TestTransformFails(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, "a")
		var fail atomic.Bool
		fail.Store(true)
		f := factory(t, s, dynamicfactory.WithTransform(func(obj any) (any, error) {
			if fail.Load() {
				return nil, errors.New("not today")
			}
			return obj, nil
		}))
		j, sub := subscribe(t, f, configMapKey)
		j.expect(t)
		st := sub.Status()
		if st.Reason != "Unreadable" || !strings.Contains(st.Message, "not today") {
			t.Errorf("status: %s %s", st.Reason, st.Message)
		}
		fail.Store(false)
		time.Sleep(time.Minute)
		j.expect(t, "initial a")
	})
}

// Shutdown releases the informer name of either factory.
func TestInformerName(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		requests := must(dynamicfactory.NewForConfig(s.Config(), dynamicfactory.WithName("watched")))(t)
		for _, f := range []*dynamicfactory.Factory{requests, dynamicfactory.New(fakeClient(), dynamicfactory.WithName("listed"))} {
			f.ForResource(configMaps)
			f.Shutdown()
		}
		for _, name := range []string{"watched", "listed"} {
			must(cache.NewInformerName(name))(t).Release()
		}
	})
}

// A subscriber that doubts its informer compares what the server has, and has it
// listed again.
func TestMetadataAndRelist(t *testing.T) {
	bubble(t, func(t *testing.T, s *apitest.Server) {
		put(s, numbered(700)...)
		var gaps []string
		f, o := factory(t, s), dynamicfactory.DurableOptions{
			OnGap: func(g dynamicfactory.Gap) { gaps = append(gaps, g.Cause) },
		}
		j, sub := subscribe(t, f, configMapKey, o)
		is(t, "listed", len(j.take()), 700)
		var names []string
		page := func(token string) dynamicfactory.MetadataPage {
			p, err := sub.ListMetadata(t.Context(), token, func() {}, func(m *rawjson.Meta) error {
				names = append(names, string(m.Name))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		first := s.Version()
		p := page("")
		is(t, "version of the first page", p.ResourceVersion, first)
		s.Advance(5)
		p = page(p.Continue)
		is(t, "version of the second page", p.ResourceVersion, first)
		for _, r := range s.Requests("configmaps", false)[2:] { // behind the informer's two pages
			is(t, "asked for", r.Header.Get("Accept"), "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
		}
		is(t, "token after the last page", p.Continue, "")
		if !slices.Equal(names, numbered(700)) {
			t.Errorf("got %d names", len(names))
		}
		names = names[:0]
		p = page("")
		s.Advance(5)
		s.Compact() // the version of the first page expires
		p = page(p.Continue)
		is(t, "version of the second page", p.ResourceVersion, s.Version())
		if !slices.Equal(names, numbered(700)) {
			t.Errorf("got %d names", len(names))
		}
		is(t, "an object", head(t, sub, "cm-00003"), "cm-00003")
		is(t, "no object", head(t, sub, "cm"), "")
		enough := errors.New("enough")
		if _, err := sub.ListMetadata(t.Context(), "", func() {}, func(*rawjson.Meta) error { return enough }); !errors.Is(err, enough) {
			t.Errorf("an error of the visitor: %v", err)
		}
		s.Cut()
		s.Intercept(nil)
		sub.Relist("audit") // while there is no watch
		time.Sleep(time.Minute)
		is(t, "listed again", len(j.take()), 700)
		sub.Relist("audit") // while there is one
		time.Sleep(time.Minute)
		is(t, "listed again", len(j.take()), 700)
		is(t, "gaps", strings.Join(gaps, ","), "audit,audit")
		put(s, "new")
		synctest.Wait()
		j.expect(t, "add new")
	})
}

// head is the name of a config map, read from the server; "" if there is none.
func head(t *testing.T, sub *dynamicfactory.DurableSubscription, name string) string {
	t.Helper()
	got := ""
	if err := sub.GetMetadata(t.Context(), "ns", name, func(m *rawjson.Meta) { got = string(m.Name) }); err != nil {
		t.Error(err)
	}
	return got
}

// metrics is a provider of client-go's metrics that counts what informers set, by their names.
type metrics struct {
	mu  sync.Mutex // guards set
	set map[string]int
}

type metric func()

func (m metric) Set(float64)     { m() }
func (m metric) Observe(float64) { m() }

func (m *metrics) count(id cache.InformerNameAndResource) metric {
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.set[id.Name()]++
	}
}

func (m *metrics) NewQueuedItemMetric(cache.InformerNameAndResource) cache.GaugeMetric {
	return metric(func() {})
}

func (m *metrics) NewProcessingLatencyMetric(cache.InformerNameAndResource) cache.HistogramMetric {
	return metric(func() {})
}

func (m *metrics) NewStoreResourceVersionMetric(id cache.InformerNameAndResource) cache.GaugeMetric {
	return m.count(id)
}

// A resource keeps its place in client-go's metrics when its informer ends and another one begins.
func TestInformerNameAgain(t *testing.T) {
	m := &metrics{set: map[string]int{}}
	cache.SetInformerMetricsProvider(m) // the first of the process
	bubble(t, func(t *testing.T, s *apitest.Server) {
		f := factory(t, s, dynamicfactory.WithName("again"))
		before := 0
		for _, name := range []string{"a", "b", "c"} {
			_, sub := subscribe(t, f, configMapKey)
			put(s, name)
			synctest.Wait()
			m.mu.Lock()
			now := m.set["again"]
			m.mu.Unlock()
			if now == before {
				t.Errorf("the informer that saw %s is not in the metrics", name)
			}
			before = now
			sub.Close()
		}
	})
}
