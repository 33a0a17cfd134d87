package dynamicfactory_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// aMinute is one in the long form of a test, and no time at all in the short one.
func aMinute() time.Duration {
	if os.Getenv("WATCHERD_SOAK") != "" {
		return time.Minute
	}
	return 0
}

const (
	patchSize   = 384 << 10 // of base64, which does not compress
	enoughBytes = 24 << 20
)

// load patches objects from several sides until it is stopped, and counts.
type load struct {
	client  metadata.ResourceInterface // does not read back what it has written
	objects []string
	bulk    string
	written atomic.Int64
	writing sync.WaitGroup
}

func newLoad(client metadata.ResourceInterface, objects int) *load {
	b := make([]byte, patchSize/4*3)
	_, _ = rand.Read(b) // never fails
	l := &load{client: client, bulk: base64.StdEncoding.EncodeToString(b)}
	for i := range objects {
		l.objects = append(l.objects, fmt.Sprint("busy-", i))
	}
	return l
}

// patch writes patchSize bytes to one object.
func (l *load) patch(ctx context.Context, name string) error {
	body := fmt.Sprintf(`{"data":{"n":"%d","bulk":"%s"}}`, l.written.Add(1), l.bulk)
	_, err := l.client.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	return err
}

// start returns a function that ends the load.
func (l *load) start(t *testing.T, writers int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	for w := range writers {
		l.writing.Go(func() {
			for n := w; ctx.Err() == nil; n += writers {
				if err := l.patch(ctx, l.objects[n%len(l.objects)]); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		l.writing.Wait()
	}
}

// A handler that blocks costs its window, however much is written meanwhile, and
// misses nothing in the end.
func TestBlockedHandlerCostsItsWindow(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	const window = 4
	f, o := realFactory(t, c.Config(t)), dynamicfactory.DurableOptions{Window: window}
	j, sub := join(t, f, dynamicfactory.Key{GVR: configMaps, Namespace: ns}, o)
	var open sync.RWMutex // held for writing while the handler blocks
	j.mu.Lock()
	j.acks = func(position uint64) {
		open.RLock()
		defer open.RUnlock()
		sub.Ack(position)
	}
	j.mu.Unlock()
	client := c.Dynamic(t).Resource(configMaps).Namespace(ns)
	l := newLoad(must(metadata.NewForConfig(c.Config(t)))(t).Resource(configMaps).Namespace(ns), 10)
	create(t, client, l.objects...)
	for _, name := range l.objects { // until the informer has made itself at home
		if err := l.patch(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	told(t, j, 20)

	open.Lock()
	before, written := heap(), l.written.Load()
	stop := l.start(t, 2)
	eventually(t, "the window is full", func() bool { return sub.Status().InFlight == window })
	began := time.Now()
	for half := range int64(2) {
		for !t.Failed() && (time.Since(began) < aMinute()*time.Duration(half+1)/2 || (l.written.Load()-written)*patchSize < enoughBytes*(half+1)/2) {
			time.Sleep(10 * time.Millisecond)
		}
		now, n := heap(), l.written.Load()-written
		t.Logf("after %v: heap %.1f MiB, at first %.1f MiB; %d updates, %d MiB, written meanwhile",
			time.Since(began).Round(time.Second), mib(now), mib(before), n, n*patchSize>>20)
		// HTTP/2 lets the server send 4 MiB that nobody reads.
		if now > before+10<<20 {
			t.Errorf("the heap has grown by %.1f MiB", mib(now-before))
		}
	}
	stop()
	is(t, "told while it blocked", len(j.take()), 1)
	is(t, "in flight", sub.Status().InFlight, window)
	open.Unlock()

	last := map[string]string{}
	for _, o := range must(client.List(t.Context(), metav1.ListOptions{}))(t).Items {
		last[o.GetName()] = o.GetResourceVersion()
	}
	eventually(t, "everything has come", func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		for name, version := range last {
			if o := j.objects[name]; o == nil || o.GetResourceVersion() != version {
				return false
			}
		}
		return true
	})
	status := sub.Status()
	t.Logf("told %d times afterwards; %d watches broken off, %d relists", len(j.take()), status.Restarts, status.Relists)
	is(t, "relists", status.Relists, 0)
}

func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
