package playground

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Program is one of the playground's programs, or a server of the tests.
type Program struct {
	name    string
	module  string // of the tests' servers: its folder in the checkout
	pkg     string // in the module
	ldflags string
	notice  string // what the wait is going to be like
}

// Server is the API server, with all commands.
func Server() Program {
	return Program{
		name: "playground", pkg: ".", ldflags: serverLDFlags(),
		notice: "this takes several minutes the first time, seconds after a change",
	}
}

// Churn is the churn command alone, which is quick to build.
func Churn() Program {
	return Program{name: "churn", pkg: "./cmd/churn", ldflags: "-s -w", notice: "this may take a minute the first time"}
}

// servers is the module of the servers of the tests.
const servers = "internal/testservers/servers"

// Kafka is the Kafka server of the tests.
func Kafka() Program {
	return Program{name: "kafka", module: servers, pkg: "./kafka", ldflags: "-s -w", notice: "this may take a minute the first time"}
}

// Consumer reads from Kafka with another library than watcherd's.
func Consumer() Program {
	return Program{name: "consumer", module: servers, pkg: "./consumer", ldflags: "-s -w", notice: "this takes seconds"}
}

// Collector is the OTLP receiver of the tests.
func Collector() Program {
	return Program{name: "collector", module: servers, pkg: "./collector", ldflags: "-s -w", notice: "this may take a minute the first time"}
}

// Elasticsearch is the server of the tests that speaks a part of Elasticsearch's API.
func Elasticsearch() Program {
	return Program{name: "elasticsearch", module: servers, pkg: "./elasticsearch", ldflags: "-s -w", notice: "this takes seconds"}
}

// Object is the server of the tests that speaks the API of S3.
func Object() Program {
	return Program{name: "object", module: servers, pkg: "./object", ldflags: "-s -w", notice: "this may take two minutes the first time"}
}

// bento is a module apart, which few tests need: its requirements are more than those of all the others.
const bento = "internal/testservers/bento"

// Bento is Bento, with what its examples need.
func Bento() Program {
	return Program{name: "bento", module: bento, pkg: "./bento", ldflags: "-s -w", notice: "this may take two minutes the first time"}
}

// MQTT is the MQTT broker of the tests.
func MQTT() Program {
	return Program{name: "mqtt", module: bento, pkg: "./mqtt", ldflags: "-s -w", notice: "this takes seconds"}
}

// kubernetesVersion is the version that the server reports. Without it, it would call
// itself "v0.0.0-master+$Format:%H$", which clients cannot parse.
const kubernetesVersion = "v1.37.1"

func serverLDFlags() string {
	minor := strings.Split(kubernetesVersion, ".")[1]
	var b strings.Builder
	b.WriteString("-s -w")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, v := range [][2]string{
			{"gitVersion", kubernetesVersion},
			{"gitMajor", "1"},
			{"gitMinor", minor},
			{"gitCommit", "playground"},
			{"gitTreeState", "archive"},
		} {
			fmt.Fprintf(&b, " -X %s.%s=%s", pkg, v[0], v[1])
		}
	}
	return b.String()
}

// Path is where the program is, after building it if it isn't there. source is
// the folder of the playground module. One line about a build goes to report
// before it begins, and then its progress.
func (p Program) Path(ctx context.Context, source string, report io.Writer) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return "", err
	}
	fingerprint, err := p.fingerprint(source)
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, p.name+"-"+fingerprint)
	if used(path) {
		return path, nil
	}
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if used(path) { // another process built it while this one waited
		return path, nil
	}
	fmt.Fprintf(report, "building %s into %s: %s\n", p.name, path, p.notice)
	if err := p.build(ctx, source, path, report); err != nil {
		return "", err
	}
	return path, p.prune(cache)
}

// build compiles to a neighbour of path and renames it, so that path is complete
// whenever it exists.
func (p Program) build(ctx context.Context, source, path string, report io.Writer) error {
	partial := path + ".partial"
	run := func(out io.Writer, args ...string) error {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "GOWORK=off")
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	}
	var packages bytes.Buffer
	progress := &progress{report: report, interval: progressInterval, last: time.Now()}
	if run(&packages, "list", "-deps", p.pkg) == nil { // its error is that of the build
		progress.all = bytes.Count(packages.Bytes(), []byte("\n"))
	}
	// Neither the checkout's place nor its commit gets into the program: all
	// checkouts share one build cache.
	err := run(progress, "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", p.ldflags, "-o", partial, p.pkg)
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("building %s needs the go command in PATH", p.name)
		}
		return fmt.Errorf("building %s in %s: %w\n%s", p.name, source, err, progress.rest.Bytes())
	}
	return os.Rename(partial, path)
}

// progressInterval is the least time between two lines about a build.
const progressInterval = 5 * time.Second

// progress counts the packages that go build -v prints, and keeps its other output.
type progress struct {
	report   io.Writer
	interval time.Duration
	last     time.Time
	all      int // packages of the program; 0: unknown
	built    int
	line     bytes.Buffer // without its end so far
	rest     bytes.Buffer
}

func (p *progress) Write(out []byte) (int, error) {
	for part := range bytes.Lines(out) {
		p.line.Write(part)
		line := p.line.Bytes()
		if line[len(line)-1] != '\n' {
			break
		}
		if bytes.ContainsAny(line, " \t:") {
			p.rest.Write(line)
		} else {
			p.built++
		}
		p.line.Reset()
	}
	if now := time.Now(); p.all > 0 && now.Sub(p.last) >= p.interval {
		p.last = now
		fmt.Fprintf(p.report, "%d of %d packages are built\n", p.built, p.all)
	}
	return len(out), nil
}

// CacheDir is the folder where the programs are kept: watcherd in WATCHERD_CACHE,
// else in XDG_CACHE_HOME, else in ~/.cache.
func CacheDir() (string, error) {
	for _, name := range []string{"WATCHERD_CACHE", "XDG_CACHE_HOME"} {
		if dir := os.Getenv(name); dir != "" {
			return filepath.Abs(filepath.Join(dir, "watcherd"))
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for built programs: set WATCHERD_CACHE (%w)", err)
	}
	return filepath.Join(home, ".cache", "watcherd"), nil
}

// Source is the folder of the playground module, seen from a folder anywhere in
// the checkout, such as the one a test runs in.
func Source(from string) (string, error) { return find(from, "playground") }

// Source is the folder of the module of a server of the tests, found as by [Source].
func (p Program) Source(from string) (string, error) { return find(from, filepath.FromSlash(p.module)) }

func find(from, module string) (string, error) {
	dir, err := filepath.Abs(from)
	if err != nil {
		return "", err
	}
	for {
		candidate := filepath.Join(dir, module)
		if _, err := os.Stat(filepath.Join(candidate, "go.mod")); err == nil {
			return candidate, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%s: in no checkout that has a folder %s", from, module)
		}
		dir = parent
	}
}

// keepUnused is how long a program stays in the cache unused.
const keepUnused = 14 * 24 * time.Hour

// used reports whether the program exists, and marks it as used.
func used(path string) bool {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	now := time.Now()
	// Only prune reads the time. In a read-only cache nothing can be pruned.
	_ = os.Chtimes(path, now, now)
	return true
}

// prune removes older builds that have not been used for some time: one may be
// over 100 MB, and each change of the sources makes another.
func (p Program) prune(cache string) error {
	builds, err := filepath.Glob(filepath.Join(cache, p.name+"-*"))
	if err != nil {
		return err
	}
	for _, build := range builds {
		info, err := os.Stat(build)
		if err != nil || time.Since(info.ModTime()) < keepUnused {
			continue
		}
		if err := os.Remove(build); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func platform() string { return runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH }
