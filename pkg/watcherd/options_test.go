package watcherd_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// TestMissingOptions: Run names a required option that is missing.
func TestMissingOptions(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "watcherd.yaml")
	const text = `apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: %s}
watches: [{name: w, resources: [pods]}]
sinks: [{name: s, stdout: {}}]
`
	if err := os.WriteFile(file, fmt.Appendf(nil, text, filepath.Join(dir, "store")), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := watcherd.Load(file, kinds.Builtin())
	if err != nil {
		t.Fatal(err)
	}
	for name, remove := range map[string]func(*watcherd.Options){
		"ConfigFile": func(o *watcherd.Options) { o.ConfigFile = "" },
		"REST":       func(o *watcherd.Options) { o.REST = nil },
		"Kinds":      func(o *watcherd.Options) { o.Kinds = nil },
		"Logger":     func(o *watcherd.Options) { o.Logger = nil },
	} {
		t.Run(name, func(t *testing.T) {
			o := watcherd.Options{
				ConfigFile: file, State: st, REST: &rest.Config{Host: "http://127.0.0.1:1"},
				Kinds: kinds.Builtin(), Logger: slog.New(slog.DiscardHandler),
			}
			remove(&o)
			if err := watcherd.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "options: "+name+" is required") {
				t.Errorf("error %v does not name %s", err, name)
			}
		})
	}
}

// TestEndBeforeTheStart: a context that is done is a clean end, also where the address of a listener has a name.
func TestEndBeforeTheStart(t *testing.T) {
	p := newProcess(t, newCluster(t), newReceiver(t), "resources: [pods]")
	config, err := os.ReadFile(p.config())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost"} {
		if err := os.WriteFile(p.config(), bytes.Replace(config, []byte(`"127.0.0.1:`), []byte(`"`+host+`:`), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := watcherd.Run(ctx, watcherd.Options{
			ConfigFile: p.config(), REST: p.api.Config(), Kinds: kinds.Builtin(), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Errorf("listening at %s: %v", host, err)
		}
	}
}

// TestOwnRateLimiter: a rate limiter of the program's connection gives way to the configuration's limits.
func TestOwnRateLimiter(t *testing.T) {
	api, sink := newCluster(t), newReceiver(t)
	p := newProcess(t, api, sink, "resources: [pods]")
	p.options = func(o *watcherd.Options) { o.REST.RateLimiter = flowcontrol.NewFakeNeverRateLimiter() }
	api.Put(podPath, "ns", "one", nil)
	p.start()
	p.until("a delivery", func() bool { return sink.has("one") })
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
}
