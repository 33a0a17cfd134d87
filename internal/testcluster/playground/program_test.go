package playground

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tiny() Program { return Program{name: "tiny", pkg: ".", ldflags: "-s -w"} }

// newSource makes a module of one program.
func newSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module example.com/tiny\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { println(\"one\") }\n")
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func path(t *testing.T, source string, report *bytes.Buffer) string {
	t.Helper()
	p, err := tiny().Path(t.Context(), source, report)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPathBuildsOnceForAllWhoAsk(t *testing.T) {
	t.Setenv("WATCHERD_CACHE", t.TempDir())
	source := newSource(t)
	var wg sync.WaitGroup
	reports := make([]bytes.Buffer, 4)
	errs := make([]error, len(reports))
	for i := range reports {
		wg.Go(func() { _, errs[i] = tiny().Path(t.Context(), source, &reports[i]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	builds := 0
	for i := range reports {
		builds += strings.Count(reports[i].String(), "building tiny")
	}
	if builds != 1 {
		t.Errorf("%d builds, want 1", builds)
	}
}

func TestPathFollowsTheSources(t *testing.T) {
	t.Setenv("WATCHERD_CACHE", t.TempDir())
	source := newSource(t)
	var report bytes.Buffer
	first := path(t, source, &report)
	if out, err := exec.CommandContext(t.Context(), first).CombinedOutput(); err != nil || string(out) != "one\n" {
		t.Fatalf("the program: %v, %q", err, out)
	}

	write(t, filepath.Join(source, "main_test.go"), "package main\n")
	if p := path(t, source, &report); p != first {
		t.Error("a test made another program")
	}
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { println(\"two\") }\n")
	second := path(t, source, &report)
	if out, err := exec.CommandContext(t.Context(), second).CombinedOutput(); err != nil || string(out) != "two\n" {
		t.Fatalf("the program after a change: %v, %q", err, out)
	}
	if n := strings.Count(report.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want one a build:\n%s", n, report.String())
	}
}

func TestPathForgetsWhatNobodyUses(t *testing.T) {
	t.Setenv("WATCHERD_CACHE", t.TempDir())
	source := newSource(t)
	var report bytes.Buffer
	first := path(t, source, &report)
	other := filepath.Join(filepath.Dir(first), "other-program")
	write(t, other, "")
	old := time.Now().Add(-2 * keepUnused)
	for _, file := range []string{first, other} {
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() {}\n")
	path(t, source, &report)
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old build: %v, want it gone", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another program: %v, want it kept", err)
	}
}

func TestPathReportsCompilerErrors(t *testing.T) {
	t.Setenv("WATCHERD_CACHE", t.TempDir())
	source := newSource(t)
	write(t, filepath.Join(source, "main.go"), "package main\n\nfunc main() { nonsense }\n")
	_, err := tiny().Path(t.Context(), source, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "undefined: nonsense") {
		t.Fatalf("got %v, want the compiler's words", err)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	for _, c := range []struct{ own, xdg, want string }{
		{"", "", "/home/ada/.cache/watcherd"},
		{"", "/xdg", "/xdg/watcherd"},
		{"/own", "/xdg", "/own/watcherd"},
	} {
		t.Setenv("WATCHERD_CACHE", c.own)
		t.Setenv("XDG_CACHE_HOME", c.xdg)
		if got, err := CacheDir(); err != nil || got != c.want {
			t.Errorf("WATCHERD_CACHE=%q XDG_CACHE_HOME=%q: got %q, %v, want %q", c.own, c.xdg, got, err, c.want)
		}
	}
}

func TestSource(t *testing.T) {
	got, err := Source(".")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(got, "go.mod")); err != nil {
		t.Errorf("%s: %v", got, err)
	}
	if _, err := Source(t.TempDir()); err == nil {
		t.Error("a folder outside of any checkout has a playground")
	}
}

// TestProgress: packages are counted, and the rest of the output is what a failure reports.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var report strings.Builder
		p := &progress{report: &report, interval: progressInterval, last: time.Now(), all: 4}
		for _, out := range []string{"internal/a\nexample.com/b", "/c\n", "# example.com/d\nmain.go:3:1: ", "broken here\n", "x\n"} {
			time.Sleep(progressInterval / 2)
			if n, err := p.Write([]byte(out)); n != len(out) || err != nil {
				t.Fatal(n, err)
			}
		}
		if got, want := report.String(), "2 of 4 packages are built\n2 of 4 packages are built\n"; got != want {
			t.Errorf("reported %q, want %q", got, want)
		}
		if got, want := p.rest.String(), "# example.com/d\nmain.go:3:1: broken here\n"; got != want || p.built != 3 {
			t.Errorf("%d packages, and %q, want %q", p.built, got, want)
		}
	})
}
