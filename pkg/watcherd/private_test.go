package watcherd

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/history"
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
