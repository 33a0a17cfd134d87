package e2e

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

// TestDamagedStore damages files of the store in several ways. The daemon does not
// start over: it says what is the matter and what to do, and removes nothing.
func TestDamagedStore(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	d := newDaemon(t, c.Kubeconfig, feedConfig(ns))
	w := newClient(t, c, ns)
	archive := []*tap{tapFiles("file", d.path("events/*.jsonl"))}
	d.start()
	awaitAll(t, archive, w.mark())
	if err := w.flood(400); err != nil {
		t.Fatal(err)
	}
	awaitAll(t, archive, w.history.finals())
	d.stop()
	// A second life leaves tables beside the log of writes.
	d.start()
	awaitAll(t, archive, w.mark())
	d.stop()
	whole := d.path("whole")
	if err := os.CopyFS(whole, os.DirFS(d.path("data"))); err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		name   string
		files  string // pattern of the files to damage
		damage func(name string) error
		late   bool // found when the storage engine is open, which renews its other files
	}{
		{"manifest overwritten", "MANIFEST-*", flipBytes, false},
		{"manifest gone", "MANIFEST-*", os.Remove, false},
		{"tables overwritten", "*.sst", flipBytes, true},
		{"table gone", "*.sst", os.Remove, false},
		{"table cut off", "*.sst", func(name string) error { return os.Truncate(name, 100) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.RemoveAll(d.path("data")); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(d.path("data"), os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			damaged := below(t, d.path("data"), tc.files)
			if len(damaged) == 0 {
				t.Fatalf("the store has no %s", tc.files)
			}
			for _, name := range damaged {
				if err := tc.damage(name); err != nil {
					t.Fatal(err)
				}
			}
			before := sums(t, d.path("data"))
			d.log.Reset()
			d.start()
			if code := d.wait(); code != 4 {
				t.Errorf("exit code %d, want 4", code)
			}
			for _, want := range []string{"the store is damaged", d.path("data"), "watcherd store check", "watcherd store export"} {
				if !strings.Contains(d.log.String(), strings.ReplaceAll(want, d.dir+"/", "")) {
					t.Errorf("the output doesn't say %q:\n%s", want, d.log)
				}
			}
			after := sums(t, d.path("data"))
			for name, sum := range before {
				// OWNER says which process opened the store last.
				renewed := filepath.Base(name) == "OWNER" || tc.late && !slices.Contains(damaged, name)
				if after[name] != sum && !renewed {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

// flipBytes inverts a file.
func flipBytes(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for i := range b {
		b[i] = ^b[i]
	}
	return os.WriteFile(name, b, 0o600)
}

// below returns the files below dir whose names match the pattern.
func below(t testing.TB, dir, pattern string) (names []string) {
	t.Helper()
	for name := range sums(t, dir) {
		match, err := filepath.Match(pattern, filepath.Base(name))
		if err != nil {
			t.Fatal(err)
		}
		if match {
			names = append(names, name)
		}
	}
	return names
}

// sums returns a checksum of every file below dir.
func sums(t testing.TB, dir string) map[string][sha256.Size]byte {
	t.Helper()
	out := map[string][sha256.Size]byte{}
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		out[name] = sha256.Sum256(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestOneStoreOneDaemon starts a second daemon on the store of a first. It ends at
// once and the first never notices.
func TestOneStoreOneDaemon(t *testing.T) {
	c := testcluster.Shared(t)
	c.Apply(t, widgetCRD)
	ns := c.Namespace(t)
	first := newDaemon(t, c.Kubeconfig, feedConfig(ns))
	w := newClient(t, c, ns)
	archive := []*tap{tapFiles("file", first.path("events/*.jsonl"))}
	first.start()
	awaitAll(t, archive, w.mark())

	second := newDaemon(t, c.Kubeconfig, strings.Replace(feedConfig(ns), "./data", first.path("data"), 1))
	second.start()
	if code := second.wait(); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	last := second.log.String()[strings.LastIndex(strings.TrimSpace(second.log.String()), "\n")+1:]
	for _, want := range []string{first.path("data"), "in use by another process: pid "} {
		if !strings.Contains(last, want) {
			t.Errorf("the last line doesn't say %q: %s", want, last)
		}
	}

	awaitAll(t, archive, w.mark())
	first.stop()
	checkAlike(t, archive, func(t testing.TB, events []got) { checkExact(t, w.history, events) })
}
