package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/file"
)

// TestFilesFillTheStoresDisk delivers a backlog to a file on the store's own disk, which
// is too small for it, and takes the file away whenever the sink has to wait. Meanwhile
// the store works, and opens again; nothing is lost.
func TestFilesFillTheStoresDisk(t *testing.T) {
	for reason, minFree := range map[string]sinks.Bytes{"make room": 20 << 20, "no space left": 0} {
		t.Run(reason, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
				t.Skip("mounting a small file system is not permitted here: ", err)
			}
			defer func() {
				if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}()
			c := file.NewConfig()
			c.Path, c.MinFree = filepath.Join(dir, "all.jsonl"), minFree
			s := &storage{t: t}
			open := func() (closeStore func()) {
				var err error
				if s.store, err = store.Open(filepath.Join(dir, "store"), store.Options{MaxBytes: 48 << 20, MinFree: 12 << 20, RetentionMaxBytes: 1}); err != nil {
					t.Fatal(err)
				}
				if s.queue, err = s.store.EnsureSink(sinkName, store.FromNow); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- s.store.Run(ctx) }()
				return func() {
					cancel()
					if err := <-ended; err != nil {
						t.Errorf("run: %v", err)
					}
					s.close()
				}
			}
			got := map[string]bool{}
			takeAway := func() {
				content, err := os.ReadFile(c.Path)
				if err = errors.Join(err, os.Remove(c.Path)); err != nil {
					t.Fatal(err)
				}
				for line := range bytes.Lines(content) {
					var e struct {
						Data struct {
							Object change `json:"object"`
						} `json:"data"`
					}
					if err := json.Unmarshal(line, &e); err != nil {
						t.Fatal(err)
					}
					got[e.Data.Object.String()] = true
				}
			}
			const objects, changes = 800, 10
			closeStore := open()
			pad := strings.Repeat("x", 900)
			for _, c := range numbered(changes, upTo(objects)...) {
				c.Pad = pad
				s.add(c)
			}
			full := 0
			for delivered := false; !delivered; {
				w := start(t, s, newReceiver(t, accept), func(cfg *Config) {
					cfg.Open = func(ctx context.Context) (sinks.Sink, error) {
						return c.Open(ctx, sinks.Options{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
					}
					cfg.Decode = func(item store.Item) (*event.Event, error) {
						e, err := decodeChange(item)
						if err == nil {
							e.OldObject = json.RawMessage(`"` + strings.Repeat("old", 2000) + `"`)
						}
						return e, err
					}
					cfg.Retry.Initial, cfg.Retry.Max = 10*time.Millisecond, 50*time.Millisecond
				})
				eventually(t, "the backlog is delivered, or the sink waits for room", func() bool {
					delivered = s.queue.Stats().Length == 0
					return delivered || strings.Contains(w.Status().LastError, reason)
				})
				if minFree > 0 && s.store.Health().Paused {
					t.Errorf("ingest waits although the sink leaves room: %+v", s.store.Health())
				}
				w.stop()
				closeStore()
				closeStore = open() // on the disk as it is
				if !delivered {
					full++
				}
				takeAway()
			}
			eventually(t, "ingest goes on", func() bool { return !s.store.Health().Paused })
			closeStore()
			if full == 0 || len(got) != objects*changes {
				t.Errorf("%d of %d events arrived; the disk was full %d times", len(got), objects*changes, full)
			}
		})
	}
}
