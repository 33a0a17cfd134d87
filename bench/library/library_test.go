package library

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// objects is how many pods of 5.5 KB the caches hold.
const objects = 10_000

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// serve starts a server of pods, a process of its own, for as long as the benchmark
// runs.
func serve(b *testing.B) *rest.Config {
	b.Helper()
	binary := filepath.Join(b.TempDir(), "replayd")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", binary, "../replayd").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	server := exec.Command(binary, "-pods", fmt.Sprint(objects))
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = server.Process.Kill() // it may have ended by itself
		_ = server.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	_, url, _ := strings.Cut(strings.TrimSpace(line), " ")
	return &rest.Config{Host: url, QPS: -1}
}

// heap is what is in use after garbage has been collected.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkCache reports the heap that an object costs once it is cached, key and
// namespace index included, and the time until all are.
func BenchmarkCache(b *testing.B) {
	cfg := serve(b)
	factory := func(opts ...dynamicfactory.RESTOption) func(*testing.B) dynamicinformer.DynamicSharedInformerFactory {
		return func(b *testing.B) dynamicinformer.DynamicSharedInformerFactory {
			f, err := dynamicfactory.NewRESTFactory(cfg, opts...)
			if err != nil {
				b.Fatal(err)
			}
			return f
		}
	}
	editor, err := rawjson.NewEditor(rawjson.Rule{Path: "metadata.managedFields"})
	if err != nil {
		b.Fatal(err)
	}
	for _, bc := range []struct {
		name string
		make func(*testing.B) dynamicinformer.DynamicSharedInformerFactory
	}{
		{"dynamicinformer", func(b *testing.B) dynamicinformer.DynamicSharedInformerFactory {
			client, err := dynamic.NewForConfig(cfg)
			if err != nil {
				b.Fatal(err)
			}
			return dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
		}},
		{"factory", factory()},
		{"compact", factory(dynamicfactory.WithCompactStore())},
		{"compact,no-managedFields", factory(dynamicfactory.WithCompactStore(), dynamicfactory.WithEdit(editor.AppendChange))},
	} {
		b.Run(bc.name, func(b *testing.B) {
			var used int64
			for b.Loop() {
				b.StopTimer()
				before := heap()
				b.StartTimer()
				used += measure(b, bc.make(b)) - before
			}
			b.ReportMetric(float64(used)/float64(objects*b.N), "B/object")
		})
	}
}

// measure fills a factory's cache and returns the heap in use then.
func measure(b *testing.B, f dynamicinformer.DynamicSharedInformerFactory) (used int64) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	informer := f.ForResource(pods).Informer()
	f.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		b.Fatal("no cache")
	}
	b.StopTimer()
	used = heap()
	if n := len(informer.GetStore().ListKeys()); n != objects {
		b.Fatalf("%d objects cached", n)
	}
	cancel()
	f.Shutdown()
	b.StartTimer()
	return used
}
