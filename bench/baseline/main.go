// Command baseline is the program that most people would write: client-go's dynamic
// informer, whose handler marshals the type and the object with encoding/json into
// a file. It is what watcherd is measured against.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	resource := flag.String("resource", "pods", "core resource to watch")
	namespace := flag.String("namespace", "", "only this namespace")
	out := flag.String("out", "events.jsonl", "file to write")
	old := flag.Bool("old", false, "write the object before an update too")
	flush := flag.Duration("flush", 50*time.Millisecond, "how often the file's buffer is written out; 0: after each event")
	flag.Parse()

	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	f, err := os.Create(*out)
	if err != nil {
		return err
	}
	w := &writer{buf: bufio.NewWriterSize(f, 64<<10), old: *old, each: *flush == 0}
	defer func() { err = errors.Join(err, w.flush(), f.Close()) }()

	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, *namespace, nil)
	informer := factory.ForResource(schema.GroupVersionResource{Version: "v1", Resource: *resource}).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.write("ADDED", o, nil) },
		UpdateFunc: func(before, o any) { w.write("MODIFIED", o, before) },
		DeleteFunc: func(o any) { w.write("DELETED", o, nil) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if *flush == 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(*flush)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := w.flush(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// change is a line of the file.
type change struct {
	Type      string `json:"type"`
	Object    any    `json:"object"`
	OldObject any    `json:"oldObject,omitempty"`
}

type writer struct {
	old, each bool

	mu  sync.Mutex
	buf *bufio.Writer // guarded by mu
}

func (w *writer) write(kind string, object, old any) {
	c := change{Type: kind, Object: object}
	if w.old {
		c.OldObject = old
	}
	line, err := json.Marshal(c)
	if err == nil {
		w.mu.Lock()
		_, err = w.buf.Write(append(line, '\n'))
		if err == nil && w.each {
			err = w.buf.Flush()
		}
		w.mu.Unlock()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
	}
}

func (w *writer) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Flush()
}
