package watcherd

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

func TestRedactionKey(t *testing.T) {
	t.Setenv("KEY", "sixteen bytes ok")
	t.Setenv("SHORT", "fifteen bytes..")
	if key, err := redactionKey(sinks.Secret{Env: "KEY"}); err != nil || string(key) != "sixteen bytes ok" {
		t.Errorf("%q, %v", key, err)
	}
	if key, err := redactionKey(sinks.Secret{}); key != nil || err != nil {
		t.Errorf("none: %q, %v", key, err)
	}
	for name, want := range map[string]string{"SHORT": "store.redactionKey: it has 15 bytes", "NONE": "store.redactionKey: environment variable NONE"} {
		if _, err := redactionKey(sinks.Secret{Env: name}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFolderIsMadePrivate: a folder of the store that others may read loses those rights,
// and one whose mode cannot be changed is refused.
func TestFolderIsMadePrivate(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	for _, tc := range []struct {
		mode, want os.FileMode
	}{{0o755, 0o700}, {0o770, 0o700}, {0o501, 0o500}, {0o700, 0o700}} {
		path := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tc.mode); err != nil {
			t.Fatal(err)
		}
		text.Reset()
		if err := makePrivate(path, log); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != tc.want || (tc.mode != tc.want) != strings.Contains(text.String(), path) {
			t.Errorf("mode %04o becomes %04o, want %04o; log %q", tc.mode, got, tc.want, &text)
		}
	}
	if err := makePrivate(filepath.Join(t.TempDir(), "new"), log); err != nil {
		t.Error(err)
	}
	if err := makePrivate("/proc/self/fdinfo", log); err == nil || !strings.Contains(err.Error(), "store.path") {
		if _, missing := os.Stat("/proc/self/fdinfo"); missing == nil {
			t.Errorf("a folder that cannot be changed: %v", err)
		}
	}
}

// TestNamesWithoutAGroup: a name without a group means the resource that a cluster takes it for, in whatever order they were found.
func TestNamesWithoutAGroup(t *testing.T) {
	var all []history.Known
	for name, groups := range map[string][]string{
		"services": {"", "serving.knative.dev"}, "ingresses": {"networking.internal.knative.dev", "networking.k8s.io"}, "events": {"", "events.k8s.io"},
		"clusters": {"cluster.x-k8s.io", "a.example.com"}, "pods": {"metrics.k8s.io"},
	} {
		for _, group := range groups {
			all = append(all, history.Known{Resource: event.Resource{Group: group, Version: "v1", Resource: name}})
		}
	}
	for range 2 {
		for name, group := range map[string]string{
			"services": "", "svc": "", "services.serving.knative.dev": "serving.knative.dev", "services.v1.serving.knative.dev": "serving.knative.dev",
			"ing": "networking.k8s.io", "ingresses": "networking.k8s.io", "events": "", "Clusters": "a.example.com", "pods": "metrics.k8s.io",
		} {
			if k, err := named(all, name); err != nil || k.Group != group {
				t.Errorf("%s: group %q, %v, want %q", name, k.Group, err, group)
			}
		}
		if k, err := named(all, "po"); err == nil {
			t.Errorf("a short name of another resource means %v", k.Resource)
		}
		slices.Reverse(all)
	}
}

// TestEventsReadAtOnceAreBounded: a stream has a few events of large objects in memory, though their
// records are a thousandth of that.
func TestEventsReadAtOnceAreBounded(t *testing.T) {
	st, err := store.Open(t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	dicts := compact.NewDictionaries(nil)
	const large, events = 1 << 20, 20
	o, err := compact.NewCodec(dicts).Encode(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"5"},"data":{"a":%q}}`, strings.Repeat("a", large)), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := st.NewBatch()
	for range events {
		payload, err := record.Append(nil, &record.Record{
			Event:  event.Event{ID: "00ff", Type: event.Updated, Time: time.Now(), Resource: event.Resource{Version: "v1", Resource: "configmaps"}, Namespace: "ns", Name: "a"},
			Object: o.Body(), OldObject: o.Body(),
		})
		if err != nil {
			t.Fatal(err)
		}
		b.Append(store.Record{Time: time.Now(), Payload: payload}, nil)
	}
	if err := st.Commit(b); err != nil {
		t.Fatal(err)
	}
	reader, err := query.New(query.Config{Store: st, Inflater: &record.Inflater{Dictionaries: dicts}, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	p := parts{d: &daemon{store: st}, reader: reader}
	read := 0
	for after := uint64(0); read < events; {
		list, err := p.Read(after, func(*event.Event, []string) bool { return true })
		if err != nil || len(list) == 0 {
			t.Fatalf("%d of %d events were read: %v", read, events, err)
		}
		size := 0
		for _, l := range list {
			if l.Err != nil || len(l.Event.Object) < large || len(l.Event.OldObject) < large {
				t.Fatalf("event %d: %v, %v", l.Sequence, l.Event, l.Err)
			}
			size += l.Event.Size()
			after = l.Sequence
		}
		if size > 7<<20 {
			t.Fatalf("%d events of %d bytes at once", len(list), size)
		}
		read += len(list)
	}
}
