package watcherd_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/watcherd"
)

// ask sends a GET to an API in this process.
func ask(ctx context.Context, api http.RoundTripper, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := api.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// TestForeground: a part of the process asks the daemon without its listener, waits for a change
// that the watch has not seen yet, and ends the daemon. Then the store is read without one.
func TestForeground(t *testing.T) {
	api, sink := newCluster(t), newReceiver(t)
	p := newProcess(t, api, sink, "resources: [pods]")
	api.Put(podPath, "ns", "before", nil)
	failure := errors.New("the foreground failed")
	asked := make(chan string, 2)
	p.options = func(o *watcherd.Options) {
		o.Foreground = func(ctx context.Context, d watcherd.Local) error {
			for {
				body, err := ask(ctx, d.API, "/api/v1/history?resource=pods")
				if err != nil {
					return err
				}
				if strings.Contains(body, `"name":"before"`) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			api.Stall(true)
			api.Put(podPath, "ns", "during", nil)
			late, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			if err := d.CatchUp(late); err == nil {
				t.Error("the watch is silent, and has caught up")
			}
			api.Stall(false)
			if err := d.CatchUp(ctx); err != nil {
				return err
			}
			body, err := ask(ctx, d.API, "/api/v1/history?resource=pods")
			if err != nil {
				return err
			}
			asked <- body
			return failure
		}
	}
	p.start()
	if err := <-p.ended; !errors.Is(err, failure) {
		t.Fatalf("Run: %v\n%s", err, p.log)
	}
	if body := <-asked; !strings.Contains(body, `"name":"during"`) {
		t.Errorf("the history lacks a change: %s", body)
	}
	p.options = func(o *watcherd.Options) {
		o.Foreground = func(context.Context, watcherd.Local) error { return nil }
	}
	p.start()
	if err := <-p.ended; err != nil {
		t.Fatalf("Run: %v\n%s", err, p.log)
	}

	read := func(dir string, f func(ctx context.Context, api http.RoundTripper) error) error {
		return watcherd.ReadStore(t.Context(), dir, time.Time{}, slog.New(slog.DiscardHandler), f)
	}
	err := read(filepath.Join(p.dir, "data"), func(ctx context.Context, api http.RoundTripper) error {
		for path, want := range map[string]string{
			"/api/v1/history?resource=po":                    `"name":"during"`,
			"/api/v1/history?resource=pods.v1":               `"name":"before"`,
			"/api/v1/objects/Pod/ns/during/blame":            `"path":"metadata.name"`,
			"/api/v1/objects/pods/ns/during?at=0s":           `"as":"exact"`,
			"/api/v1/changes?from=1h&group=owner":            `"complete":false`,
			"/api/v1/history?resource=pods&from=1ms":         `"cause":"the store ends there"`,
			"/api/v1/changes?from=1ms":                       `"complete":false`,
			"/api/v1/history?resource=deployments":           `no state of`,
			"/api/v1/history?resource=pods&name=none":        `"items":[]`,
			"/api/v1/history?when=metadata.name.size()==6":   `"name":"during"`,
			"/api/v1/history?when=(":                         `Syntax error`,
			"/api/v1/objects/pods?limit=5&labelSelector=a=b": `"items":[]`,
		} {
			if body, err := ask(ctx, api, path); err != nil || !strings.Contains(body, want) {
				t.Errorf("%s: %v %s", path, err, body)
			}
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("ReadStore: %v", err)
	}
	for name, dir := range map[string]string{"an empty folder": t.TempDir(), "no folder": filepath.Join(t.TempDir(), "none")} {
		if err := read(dir, nil); !errors.Is(err, watcherd.ErrStoreOpen) {
			t.Errorf("ReadStore of %s: %v", name, err)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
			t.Errorf("ReadStore of %s leaves %v, %v", name, left, err)
		}
	}
}

// TestReadStoreByItsFeeds: of the store of a daemon that does not run, each resource is known up to the checkpoint of its own watch, whatever others
// have read since. Parts that no watch read any more do not count.
func TestReadStoreByItsFeeds(t *testing.T) {
	api := newCluster(t)
	p := newProcess(t, api, newReceiver(t), "resources: [pods]")
	api.Put(podPath, "ns", "a", nil)
	p.start()
	p.until("the pod", func() bool { _, body := p.get("/api/v1/history"); return strings.Contains(body, `"name":"a"`) })
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	dir, now := filepath.Join(p.dir, "data"), time.Now()
	st, err := store.Open(dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := st.NewBatch()
	for feed, ago := range map[string]time.Duration{"pods#": 30 * time.Minute, "configmaps#": 0, "pods|l=app=web;f=#": 2 * time.Hour, "configmaps#gone": 2 * time.Hour} {
		b.PutMeta(ledger.CheckpointMeta(feed), ledger.Encode(ledger.Checkpoint{ResourceVersion: "1", Synced: true, Time: now.Add(-ago), HistorySince: now.Add(-3 * time.Hour)}))
	}
	note := []byte(now.UTC().Format(time.RFC3339))
	b.PutMeta(ledger.UnwatchedMeta+"pods|l=app=web;f=", note)
	b.PutMeta(ledger.UnwatchedInMeta+"configmaps#gone", note)
	if err := errors.Join(st.Commit(b), st.Close()); err != nil {
		t.Fatal(err)
	}
	err = watcherd.ReadStore(t.Context(), dir, time.Time{}, slog.New(slog.DiscardHandler), func(ctx context.Context, api http.RoundTripper) error {
		for path, want := range map[string]string{
			"/api/v1/history?from=50m&to=40m":               `"complete":true`,
			"/api/v1/history?resource=pods&from=50m&to=40m": `"complete":true`,
			"/api/v1/history?resource=pods&from=20m&to=10m": `"cause":"the store ends there"`,
			"/api/v1/history?from=20m&to=10m":               `"complete":false`,
			"/api/v1/objects/pods?at=10m":                   `"cause":"the store ends there"`,
		} {
			if body, err := ask(ctx, api, path); err != nil || !strings.Contains(body, want) {
				t.Errorf("%s: %v %s", path, err, body)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestBackupIntoTheStore is refused, also by way of links and through folders that are not there.
func TestBackupIntoTheStore(t *testing.T) {
	p := newProcess(t, newCluster(t), newReceiver(t), "resources: [pods]")
	own, link := filepath.Join(p.dir, "data"), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	done := errors.New("done")
	p.options = func(o *watcherd.Options) {
		o.Foreground = func(ctx context.Context, d watcherd.Local) error {
			for _, dir := range []string{own, filepath.Join(own, "copy"), filepath.Join(link, "copy"), filepath.Join(link, "new", "copy")} {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/api/v1/backup", strings.NewReader(`{"dir":"`+dir+`"}`))
				if err != nil {
					return err
				}
				req.Header.Set("Content-Type", "application/json")
				resp, err := d.API.RoundTrip(req)
				if err != nil {
					return err
				}
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusConflict || !strings.Contains(string(body), "in the folder of the store") {
					t.Errorf("%s: %d %s", dir, resp.StatusCode, body)
				}
			}
			return done
		}
	}
	p.start()
	if err := <-p.ended; !errors.Is(err, done) {
		t.Fatalf("Run: %v\n%s", err, p.log)
	}
}

// TestCatchUpAfterARestart: what happened while the daemon was away is recorded when a part of the process has waited
// for it, however early that asks.
func TestCatchUpAfterARestart(t *testing.T) {
	api, sink := newCluster(t), newReceiver(t)
	p := newProcess(t, api, sink, "resources: [pods]")
	api.Put(podPath, "ns", "before", nil)
	p.start()
	p.until("a delivery", func() bool { return sink.has("before") })
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	api.Put(podPath, "ns", "meanwhile", nil)
	p.options = func(o *watcherd.Options) {
		o.Foreground = func(ctx context.Context, d watcherd.Local) error {
			if err := d.CatchUp(ctx); err != nil {
				return err
			}
			body, err := ask(ctx, d.API, "/api/v1/history?resource=pods")
			if err == nil && !strings.Contains(body, `"name":"meanwhile"`) {
				t.Errorf("the history is %s", body)
			}
			return err
		}
	}
	p.start()
	if err := <-p.ended; err != nil {
		t.Fatal(err)
	}
}
