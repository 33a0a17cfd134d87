package dynamicfactory_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// These tests run against a real API server.

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

func configMap(name string, data map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": data,
	}}
}

var eventually = waittest.Until

// realFactory makes a factory of compact informers that ends with the test.
func realFactory(t *testing.T, cfg *rest.Config, opts ...dynamicfactory.RESTOption) *dynamicfactory.RESTFactory {
	t.Helper()
	f := must(dynamicfactory.NewRESTFactory(cfg, append([]dynamicfactory.RESTOption{dynamicfactory.WithCompactStore()}, opts...)...))(t)
	t.Cleanup(f.Shutdown)
	return f
}

// join subscribes a new journal that acknowledges at once, and waits for the list.
func join(t *testing.T, f *dynamicfactory.RESTFactory, k dynamicfactory.Key, opts ...dynamicfactory.DurableOptions) (*journal, *dynamicfactory.DurableSubscription) {
	t.Helper()
	j := newJournal()
	sub := must(f.SubscribeDurable(t.Context(), k, j, append(opts, dynamicfactory.DurableOptions{})[0]))(t)
	receive(t, sub.Synced())
	return j, sub
}

func create(t *testing.T, c dynamic.ResourceInterface, names ...string) {
	t.Helper()
	for _, name := range names {
		must(c.Create(t.Context(), configMap(name, nil), metav1.CreateOptions{}))(t)
	}
}

func patch(t *testing.T, c dynamic.ResourceInterface, name, body string) {
	t.Helper()
	must(c.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}))(t)
}

func remove(t *testing.T, c dynamic.ResourceInterface, name string) {
	t.Helper()
	if err := c.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// told waits until a journal has so many lines, and returns them.
func told(t *testing.T, j *journal, n int) []string {
	t.Helper()
	eventually(t, fmt.Sprintf("%d notifications", n), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return len(j.lines) >= n
	})
	return j.take()
}

// openFiles counts the process's file descriptors, connections among them.
func openFiles(t *testing.T) int {
	t.Helper()
	return len(must(os.ReadDir("/proc/self/fd"))(t))
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Starting and stopping one informer, over and over, leaves nothing behind and
// does not disturb those beside it.
func TestStartAndStopBesideOthers(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	client := c.Dynamic(t).Resource(configMaps).Namespace(ns)
	create(t, client, "first")
	f := realFactory(t, c.Config(t))
	var others []*journal
	for range 20 {
		j, _ := join(t, f, dynamicfactory.Key{GVR: configMaps, Namespace: ns})
		others = append(others, j)
	}
	one := dynamicfactory.Key{GVR: secrets, Namespace: ns}
	cycle := func() {
		_, sub := join(t, f, one)
		sub.Close()
	}
	for range 20 {
		cycle()
	}
	write := func() {
		for i := range 50 {
			create(t, client, fmt.Sprint("cm-", i))
			remove(t, client, fmt.Sprint("cm-", i))
		}
	}
	complete := func(initially int) {
		t.Helper()
		for i, j := range others {
			lines := told(t, j, initially+100)[initially:]
			for n := range 50 {
				if lines[2*n] != fmt.Sprint("add cm-", n) || lines[2*n+1] != fmt.Sprint("delete cm-", n) {
					t.Fatalf("informer %d was told %q", i, lines)
				}
			}
			is(t, "notifications", len(lines), 100)
		}
	}
	write() // until the informers have made themselves at home
	complete(1)
	goroutines, files, bytes := runtime.NumGoroutine(), openFiles(t), heap()
	var writing sync.WaitGroup
	writing.Go(write)
	for range 500 {
		cycle()
	}
	writing.Wait()
	complete(0)
	eventually(t, "the goroutines are as many as before", func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := openFiles(t); n > files {
		t.Errorf("%d open files, there were %d", n, files)
	}
	if now := heap(); now > bytes+4<<20 {
		t.Errorf("the heap has %d bytes, it had %d", now, bytes)
	}
	for _, s := range f.Statuses() {
		if s.Relists+s.Restarts > 0 {
			t.Errorf("%v: %d relists, %d restarts", s.Key, s.Relists, s.Restarts)
		}
	}
}

// A restarted program that knows what it had asks for no list.
func TestRestartNeedsNoList(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	client := c.Dynamic(t).Resource(deployments).Namespace(ns)
	deploy := func(name string) {
		c.Apply(t, strings.ReplaceAll(strings.ReplaceAll(`{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: NS, name: NAME},
  spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`, "NS", ns), "NAME", name))
	}
	deploy("a")
	deploy("b")
	k := dynamicfactory.Key{GVR: deployments, Namespace: ns}
	f := realFactory(t, c.Config(t))
	j, sub := join(t, f, k)
	deploy("c")
	told(t, j, 3)
	snap := warmStartOf(sub.Checkpoint(j.seen()), j.objects)
	f.Shutdown()

	// The server itself lists what is in namespaces that other tests have left.
	namespaces := c.Dynamic(t).Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	eventually(t, "no namespace is being emptied", func() bool {
		list := must(namespaces.List(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Terminating"}))(t)
		return len(list.Items) == 0
	})
	before := c.RequestCounts(t, deployments)
	remove(t, client, "a")
	deploy("d")
	f = realFactory(t, c.Config(t))
	j, sub = join(t, f, k, remember(snap, dynamicfactory.DurableOptions{
		OnGap: func(g dynamicfactory.Gap) { t.Errorf("a gap: %v", g) },
	}))
	lines := told(t, j, 6)
	slices.Sort(lines[:3]) // the warm start is in no order
	// c's own event comes again: the checkpoint could not know that it had no company.
	is(t, "told", fmt.Sprint(lines), "[initial a initial b initial c update c delete a add d]")
	after := c.RequestCounts(t, deployments)
	is(t, "lists", after.List-before.List, 0)
	is(t, "watches", after.Watch-before.Watch, 1)
	is(t, "relists", sub.Status().Relists, 0)
}

// gate is the way to the server, which a test can shut.
type gate struct {
	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]struct{}
}

var errShut = errors.New("the gate is shut")

func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, errShut
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		g.conns[c] = struct{}{}
	}
	return c, err
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	for c := range g.conns {
		if shut {
			_ = c.Close()
			delete(g.conns, c)
		}
	}
}

// What happened while an informer was cut off and the history was compacted shows
// in exactly the additions, updates and deletions that make up the difference.
func TestCompactionWhileCutOff(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t)
	ns := c.Namespace(t)
	client := c.Dynamic(t).Resource(configMaps).Namespace(ns)
	create(t, client, "same", "changed", "deleted", "recreated")
	g := &gate{conns: map[net.Conn]struct{}{}}
	cfg := c.Config(t)
	cfg.Dial = g.dial
	var gaps []string
	j, sub := join(t, realFactory(t, cfg), dynamicfactory.Key{GVR: configMaps, Namespace: ns}, dynamicfactory.DurableOptions{
		OnGap: func(gap dynamicfactory.Gap) { gaps = append(gaps, gap.Cause) },
	})
	is(t, "initially", len(told(t, j, 4)), 4)
	uid := j.objects["recreated"].GetUID()

	g.set(true)
	eventually(t, "the informer is cut off", func() bool { return sub.Status().State == dynamicfactory.StateBackingOff })
	patch(t, client, "changed", `{"data":{"a":"b"}}`)
	remove(t, client, "deleted")
	remove(t, client, "recreated")
	create(t, client, "recreated", "new", "brief")
	remove(t, client, "brief")
	c.Compact(t, 0)
	c.Restart(t) // or else the server's cache would know
	time.Sleep(aMinute())
	is(t, "cached meanwhile", sub.Status().Objects, 4)
	j.expect(t)
	g.set(false)

	lines := told(t, j, 5)
	slices.Sort(lines)
	is(t, "told", fmt.Sprint(lines), "[add new delete? deleted update changed update recreated update same]")
	if j.objects["recreated"].GetUID() == uid {
		t.Error("the recreated object has the old uid")
	}
	is(t, "gaps", fmt.Sprint(gaps), "[expired]")
	create(t, client, "after")
	is(t, "told afterwards", fmt.Sprint(told(t, j, 1)), "[add after]")
}

// A cluster that was restored from a backup under a running informer is found out,
// and what the backup does not have is gone.
func TestRestoreFromBackup(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t)
	ns := c.Namespace(t)
	client := c.Dynamic(t).Resource(configMaps).Namespace(ns)
	create(t, client, "kept", "restored")
	backup := c.SaveEtcd(t)
	remove(t, client, "restored")
	create(t, client, "lost")
	var gaps []string
	j, _ := join(t, realFactory(t, c.Config(t)), dynamicfactory.Key{GVR: configMaps, Namespace: ns}, dynamicfactory.DurableOptions{
		OnGap: func(gap dynamicfactory.Gap) { gaps = append(gaps, gap.Cause) },
	})
	is(t, "initially", fmt.Sprint(told(t, j, 2)), "[initial kept initial lost]")
	c.RestoreEtcd(t, backup)
	is(t, "told", fmt.Sprint(told(t, j, 3)), "[delete? lost update kept add restored]")
	is(t, "gaps", fmt.Sprint(gaps), "[rollback]")
}

const gizmos = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gizmos.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: gizmos, singular: gizmo, kind: Gizmo}
  versions:
  - {name: v1beta1, served: BETA, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1, served: STABLE, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// A custom resource comes, changes its version, goes, and comes again, while
// everything keeps running.
func TestCustomResourceComesAndGoes(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	group := ns + ".example.org"
	definition := func(beta, stable string) string {
		return strings.NewReplacer("GROUP", group, "BETA", beta, "STABLE", stable).Replace(gizmos)
	}
	gizmo := func(version, name string) string {
		return fmt.Sprintf("{apiVersion: %s/%s, kind: Gizmo, metadata: {namespace: %s, name: %s}}", group, version, ns, name)
	}
	r := must(dynamicfactory.NewResolver(c.Config(t)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-running; err != nil {
			t.Error(err)
		}
	}()
	resolves := func(want string) {
		t.Helper()
		began := time.Now()
		eventually(t, "gizmos resolve to "+want, func() bool {
			list, err := r.Resolve("*." + group)
			if want == "" {
				return errors.Is(err, dynamicfactory.ErrNotServed)
			}
			return err == nil && len(list) == 1 && list[0].GVR.Version == want
		})
		t.Logf("%q after %v", want, time.Since(began).Round(time.Millisecond))
	}
	definitions := c.Dynamic(t).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	t.Cleanup(func() {
		_ = definitions.Delete(context.WithoutCancel(t.Context()), "gizmos."+group, metav1.DeleteOptions{}) // gone already, if all went well
	})

	f := realFactory(t, c.Config(t))
	beta := dynamicfactory.Key{GVR: schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "gizmos"}}
	j := newJournal()
	early := must(f.Subscribe(ctx, beta, j))(t) // before there is any
	eventually(t, "the informer waits", func() bool { return early.Status().State == dynamicfactory.StateWaiting })
	c.Apply(t, definition("true", "false"))
	resolves("v1beta1")
	c.Apply(t, gizmo("v1beta1", "one"))
	lines := told(t, j, 1) // the first list is older or younger than the object
	if !slices.Equal(lines, []string{"initial one"}) && !slices.Equal(lines, []string{"add one"}) {
		t.Errorf("told %q, want one", lines)
	}

	c.Apply(t, definition("true", "true"))
	resolves("v1")
	c.Apply(t, definition("false", "true"))
	eventually(t, "the informer of the old version waits", func() bool { return early.Status().State == dynamicfactory.StateWaiting })
	is(t, "still cached", early.Status().Objects, 1)
	j.expect(t)

	stable := beta
	stable.GVR.Version = "v1"
	k, sub := join(t, f, stable)
	is(t, "told of the new version", fmt.Sprint(told(t, k, 1)), "[initial one]")
	remove(t, definitions, "gizmos."+group)
	resolves("")
	eventually(t, "the informer waits", func() bool { return sub.Status().State == dynamicfactory.StateWaiting })
	c.Apply(t, definition("false", "true"))
	resolves("v1")
	// By the watch, or by the next list: a busy server may end the watch before it
	// sends the deletions.
	lines = told(t, k, 1)
	if !slices.Equal(lines, []string{"delete one"}) && !slices.Equal(lines, []string{"delete? one"}) {
		t.Errorf("told of the end %q, want the deletion of one", lines)
	}
	c.Apply(t, gizmo("v1", "two"))
	is(t, "told of the new one", fmt.Sprint(told(t, k, 1)), "[add two]")
}

// A real API server lists a resource as it was, page by page.
func TestExactListOfARealServer(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	client := c.Dynamic(t).Resource(configMaps).Namespace(ns)
	names := numbered(600) // two pages
	create(t, client, names...)
	at := must(client.List(t.Context(), metav1.ListOptions{}))(t).GetResourceVersion()
	remove(t, client, names[0])
	create(t, client, "new")
	f, o := realFactory(t, c.Config(t)), remember(&dynamicfactory.WarmStart{ResourceVersion: at, Relist: true}, dynamicfactory.DurableOptions{
		OnGap: func(g dynamicfactory.Gap) { t.Errorf("a gap: %v", g) },
	})
	j, _ := join(t, f, dynamicfactory.Key{GVR: configMaps, Namespace: ns}, o)
	lines := told(t, j, 602)
	is(t, "listed", strings.Count(strings.Join(lines, ","), "initial"), 600)
	is(t, "since then", strings.Join(lines[600:], ","), "delete "+names[0]+",add new")
}
