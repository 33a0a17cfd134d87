package file_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/file"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree is a folder with a sink's files.
type tree struct {
	t    *testing.T
	dir  string
	logs *testkit.Log
	log  *slog.Logger // to logs, of all sinks together
}

func newTree(t *testing.T) *tree {
	logs := &testkit.Log{}
	return &tree{t: t, dir: t.TempDir(), logs: logs, log: slog.New(slog.NewTextHandler(logs, nil))}
}

// open opens a sink with that path, relative to the tree, and changes to the block.
func (f *tree) open(path string, change ...func(*file.Config)) sinks.Sink {
	f.t.Helper()
	c := file.NewConfig()
	c.Path = path
	for _, ch := range change {
		ch(c)
	}
	if err := c.Validate(); err != nil {
		f.t.Fatal(err)
	}
	s, err := c.Open(f.t.Context(), sinks.Options{
		Dir: f.dir, Logger: f.log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(f.t.Context())); err != nil {
			f.t.Error(err)
		}
	})
	return s
}

func (f *tree) write(s sinks.Sink, events ...*event.Event) {
	f.t.Helper()
	if err := s.Write(f.t.Context(), events); err != nil {
		f.t.Fatal(err)
	}
}

func (f *tree) path(name string) string { return filepath.Join(f.dir, name) }

func (f *tree) read(name string) []byte {
	f.t.Helper()
	b, err := os.ReadFile(f.path(name))
	if err != nil {
		f.t.Fatal(err)
	}
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			f.t.Fatal(err)
		}
		if b, err = io.ReadAll(z); err != nil {
			f.t.Fatal(err)
		}
	}
	return b
}

// ids reads the ids of a file's lines; every line must be whole.
func (f *tree) ids(name string) []string {
	f.t.Helper()
	return ids(f.t, f.read(name))
}

func ids(t *testing.T, content []byte) []string {
	t.Helper()
	var out []string
	for line := range bytes.Lines(content) {
		var e struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(line, &e); err != nil || line[len(line)-1] != '\n' {
			t.Fatalf("not a whole line: %q: %v", line, err)
		}
		out = append(out, e.ID)
	}
	return out
}

// names are the regular files and links below the tree.
func (f *tree) names() []string {
	f.t.Helper()
	var out []string
	err := filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(f.dir, path)
			out = append(out, name)
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func (f *tree) expect(name string, events ...*event.Event) {
	f.t.Helper()
	if got, want := f.ids(name), sinktest.IDs(events); !slices.Equal(got, want) {
		f.t.Errorf("%s:\n got %v\nwant %v", name, got, want)
	}
}

var eventually = waittest.Until

func TestConformance(t *testing.T) {
	for _, format := range []sinks.Format{sinks.CloudEvents, sinks.JSON} {
		t.Run(string(format), func(t *testing.T) { sinktest.Run(t, destination(format)) })
	}
}

// destination is a file; a file where its folder should be makes it fail, and a
// link where the file should be makes it refuse.
func destination(format sinks.Format) func(t *testing.T) sinktest.Destination {
	return func(t *testing.T) sinktest.Destination {
		f := newTree(t)
		folder, aside := f.path("events"), f.path("aside")
		must := func(err error) {
			t.Helper()
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		disturb := func(link bool) func(*testing.T) {
			return func(*testing.T) {
				must(os.Rename(folder, aside))
				if link {
					must(os.Mkdir(folder, 0o700))
					must(os.Symlink("elsewhere", folder+"/all.jsonl"))
				} else {
					must(os.WriteFile(folder, nil, 0o600))
				}
			}
		}
		return sinktest.Destination{
			Config: func() sinks.Config {
				c := file.NewConfig()
				c.Path = filepath.Join(folder, "all.jsonl")
				return c
			},
			Format: format,
			Received: func(t *testing.T) []string {
				b, err := os.ReadFile(folder + "/all.jsonl")
				must(err)
				return ids(t, b)
			},
			Break:  disturb(false),
			Refuse: disturb(true),
			Repair: func(*testing.T) {
				must(os.RemoveAll(folder))
				must(os.Rename(aside, folder))
			},
		}
	}
}

func TestTemplate(t *testing.T) {
	f := newTree(t)
	s := f.open("events/{cluster}/{group}/{version}-{resource}/{namespace}/{name}@{date}.jsonl")
	plain := sinktest.Event(0, 0)
	global := sinktest.Event(1, 1)
	global.Namespace = ""
	global.Resource = event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}
	f.write(s, plain, global)
	want := []string{
		"events/test/apps/v1-deployments/prod/web-0@2026-03-01.jsonl",
		"events/test/core/v1-nodes/_/web-1@2026-03-01.jsonl",
	}
	if got := f.names(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, path := range []string{"events/test/core", want[0]} {
		info, err := os.Stat(f.path(path))
		if err != nil {
			t.Fatal(err)
		}
		mode := fs.FileMode(0o600)
		if info.IsDir() {
			mode = 0o700
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), mode)
		}
	}
}

// TestNamesStayInside gives the most hostile names an API could ever have.
func TestNamesStayInside(t *testing.T) {
	f := newTree(t)
	s := f.open("in/{name}.jsonl")
	names := []string{"..", ".", "../out", "/etc/passwd", "a/b", `a\b`, "a\x00b", ".hidden", "con:aux", "é", "a%2Fb", strings.Repeat("long.", 50) + "1", strings.Repeat("long.", 50) + "2"}
	var events []*event.Event
	for i, name := range names {
		e := sinktest.Event(i, i)
		e.Name = name
		events = append(events, e)
	}
	f.write(s, events...)
	got := f.names()
	if len(got) != len(names) {
		t.Errorf("%d files for %d names: %q", len(got), len(names), got)
	}
	for _, name := range got {
		if rest, inside := strings.CutPrefix(name, "in/"); !inside || strings.ContainsAny(rest, `/\`) || rest[0] == '.' {
			t.Errorf("file %q", name)
		}
	}
}

// TestLongNames gives a file name of several values, each as long as it may be: the name
// has room for what a rotation adds.
func TestLongNames(t *testing.T) {
	f := newTree(t)
	s := f.open("{group}/{group}.{resource}.{namespace}.{name}.jsonl", func(c *file.Config) {
		c.Rotate = file.Rotate{MaxBytes: 1, Compress: "gzip"}
	})
	events := sinktest.Events(4, 2)
	for i, e := range events {
		e.Resource.Group, e.Resource.Resource = strings.Repeat("g", 63)+".example.com", strings.Repeat("r", 63)
		e.Namespace, e.Name = strings.Repeat("n", 63), strings.Repeat("o", 250)+"12"[i%2:i%2+1]
	}
	f.write(s, events[:2]...)
	f.write(s, events[2:]...)
	eventually(t, "a compressed file of each object", func() bool {
		n := 0
		for _, name := range f.names() {
			if strings.HasSuffix(name, ".gz") {
				n++
			}
		}
		return n == 2
	})
}

func TestValidate(t *testing.T) {
	for _, test := range []struct{ path, bad string }{
		{"./events/{resource}.jsonl", ""},
		{"/var/log/{cluster}/x", ""},
		{"{name}", ""},
		{"", "required"},
		{"events/", "name of a file"},
		{"events/{resource}/", "name of a file"},
		{"events/{resorce}.jsonl", "unknown token {resorce}"},
		{"events/{resource", "{ without a }"},
		{"events/resource}", "} without a {"},
		{"events/{resource}/../{name}", ".. after its first token"},
		{"events/{resource}//{name}", "empty part"},
	} {
		c := file.NewConfig()
		c.Path = test.path
		err := c.Validate()
		switch {
		case test.bad == "" && err != nil:
			t.Errorf("%q: %v", test.path, err)
		case test.bad != "" && (err == nil || !strings.Contains(err.Error(), test.bad)):
			t.Errorf("%q: %v does not say %q", test.path, err, test.bad)
		}
	}
	c := &file.Config{Path: "x", MinFree: -1, Rotate: file.Rotate{MaxBytes: -1, MaxAge: -1, Keep: -1, Compress: "zip"}}
	err := c.Validate()
	for _, path := range []string{"maxOpenFiles", "minFree", "rotate.maxBytes", "rotate.maxAge", "rotate.keep", "rotate.compress"} {
		if err == nil || !strings.Contains(err.Error(), path+": ") {
			t.Errorf("%v does not name %s", err, path)
		}
	}
	if err := json.Unmarshal([]byte(`{"path":"x","rotate":{"maxBytes":"100Mi","maxAge":"24h","keep":14,"compress":"gzip"}}`), c); err != nil || c.Rotate.MaxBytes != 100<<20 || c.Rotate.MaxAge.Std() != 24*time.Hour {
		t.Errorf("decoded %+v: %v", c, err)
	}
}

func TestRepairsTornLine(t *testing.T) {
	events := sinktest.Events(4, 4)
	whole := sinks.CloudEvents.AppendLine(nil, events[0])
	torn := sinks.CloudEvents.AppendLine(nil, events[1])
	torn = append(torn[:len(torn)-1:len(torn)-1], bytes.Repeat([]byte(" "), 200<<10)...)
	for _, cut := range []int{1, 50, len(torn)} {
		f := newTree(t)
		if err := os.WriteFile(f.path("all.jsonl"), slices.Concat(whole, torn[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		f.write(f.open("all.jsonl"), events[1:]...)
		f.expect("all.jsonl", events...)
		if !strings.Contains(f.logs.String(), "incomplete last line") {
			t.Errorf("nothing was said about the repair: %s", f.logs)
		}
	}
	f := newTree(t)
	if err := os.WriteFile(f.path("all.jsonl"), torn, 0o600); err != nil { // nothing but a torn line
		t.Fatal(err)
	}
	f.write(f.open("all.jsonl"), events...)
	f.expect("all.jsonl", events...)
}

// TestRepairsTornBody: the torn line of a sink with a body is cut off, whatever it looks like, when its event comes again.
func TestRepairsTornBody(t *testing.T) {
	events := sinktest.Events(4, 4)
	for i, body := range []string{`[1,"a"]`, `1234567`, `plain text`, `{"text":"é"}`} {
		events[i].Body = []byte(body)
	}
	var want []byte
	for _, e := range events {
		want = sinks.CloudEvents.AppendLine(want, e)
	}
	for torn := range len(want) {
		f := newTree(t)
		if err := os.WriteFile(f.path("all.txt"), want[:torn], 0o600); err != nil {
			t.Fatal(err)
		}
		f.write(f.open("all.txt"), events[bytes.Count(want[:torn], []byte("\n")):]...)
		if got := f.read("all.txt"); !bytes.Equal(got, want) {
			t.Errorf("torn behind %d bytes: %q, want %q", torn, got, want)
		}
	}
}

// TestRepairsHoles: after a power cut pages of the last batch may be missing, before
// others that are there. What follows a hole was never accepted.
func TestRepairsHoles(t *testing.T) {
	events := sinktest.Events(6, 6)
	old := time.Now().Add(-time.Hour)
	for _, format := range []sinks.Format{sinks.CloudEvents, sinks.JSON} {
		line := func(i int) []byte { return format.AppendLine(nil, events[i]) }
		zeros := make([]byte, 4096)
		whole := slices.Concat(line(0), line(1))
		for _, test := range []struct {
			name    string
			content []byte
			keep    int // events before the hole
		}{
			{"within a line", slices.Concat(whole, line(2)[:40], zeros, []byte(`rest"}}`+"\n"), line(3)), 2},
			{"at the start of a line", slices.Concat(whole, zeros, []byte(`rest"}}`+"\n"), line(3)), 2},
			{"at the end", slices.Concat(whole, zeros), 2},
			{"two", slices.Concat(whole, zeros, line(2), zeros, line(3)), 2},
			{"far from the end", slices.Concat(whole, zeros, bytes.Repeat(line(2), 5000)), 2},
			{"one byte", slices.Concat(whole, line(2)[:90], []byte{0}, line(2)[91:]), 2},
			{"of everything", zeros, 0},
			{"of the first page", slices.Concat(zeros, []byte(`rest"}}`+"\n"), line(3)), 0},
			{"none", whole, 2},
		} {
			t.Run(string(format)+" "+test.name, func(t *testing.T) {
				f := newTree(t)
				if err := errors.Join(os.WriteFile(f.path("all.jsonl"), test.content, 0o600), os.Chtimes(f.path("all.jsonl"), old, old)); err != nil {
					t.Fatal(err)
				}
				s := f.open("all.jsonl")
				f.write(s, events[test.keep:]...)
				f.expect("all.jsonl", events...)
			})
		}
	}
}

// TestRepairsHolesUnderAnotherClock: a file that a power cut left may seem to be of the time since the start, where the clock
// was behind until the network set it.
func TestRepairsHolesUnderAnotherClock(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(3, 3)
	s := f.open("all.jsonl")
	now := time.Now()
	content := append(sinks.CloudEvents.AppendLine(nil, events[0]), make([]byte, 4096)...)
	if err := errors.Join(os.WriteFile(f.path("all.jsonl"), content, 0o600), os.Chtimes(f.path("all.jsonl"), now, now)); err != nil {
		t.Fatal(err)
	}
	f.write(s, events[1:]...)
	f.expect("all.jsonl", events...)
}

// TestKeepsForeignFiles: nothing of a file that another program wrote is cut off.
func TestKeepsForeignFiles(t *testing.T) {
	old := time.Now().Add(-time.Hour)
	for _, content := range []string{
		"precious, one line, no newline at the end",
		"precious\nlast line",
		"{\"type\":\"ADDED\",\"object\":{",
		"{\"some\": \"JSON\"}\n{\"more",
		"\x00\x01binary\x00\n\x00\x00",
		"text\nwith \x00 zeros\n",
		"text\n\x00\x00\x00\x00\n",
	} {
		f := newTree(t)
		if err := errors.Join(os.WriteFile(f.path("notes"), []byte(content), 0o600), os.Chtimes(f.path("notes"), old, old)); err != nil {
			t.Fatal(err)
		}
		e := sinktest.Event(0, 0)
		f.write(f.open("notes"), e)
		want := content
		if !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		if got, want := f.read("notes"), want+string(sinks.CloudEvents.AppendLine(nil, e)); string(got) != want {
			t.Errorf("%q:\n got %q\nwant %q", content, got, want)
		}
	}
}

// TestEndsForeignLine: another program writes half a line to the file that the sink has open.
func TestEndsForeignLine(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(2, 1)
	s := f.open("all.jsonl")
	f.write(s, events[0])
	const half = "a note without a newline"
	other, err := os.OpenFile(f.path("all.jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.WriteString(half)
	if err := errors.Join(err, other.Close()); err != nil {
		t.Fatal(err)
	}
	f.write(s, events[1])
	want := sinks.CloudEvents.AppendLine(nil, events[0])
	want = sinks.CloudEvents.AppendLine(append(want, half+"\n"...), events[1])
	if got := f.read("all.jsonl"); !bytes.Equal(got, want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestLineStarts: the repair knows the lines of every format and type.
func TestLineStarts(t *testing.T) {
	for _, format := range []sinks.Format{sinks.CloudEvents, sinks.JSON} {
		for _, typ := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync, event.Gap} {
			e := sinktest.Event(0, 0)
			e.Type = typ
			if typ == event.Gap {
				e.Gap = &event.GapData{}
			}
			line := format.AppendLine(nil, e)
			for _, n := range []int{1, 20, len(line) / 2} {
				f := newTree(t)
				if err := os.WriteFile(f.path("all.jsonl"), line[:n], 0o600); err != nil {
					t.Fatal(err)
				}
				f.write(f.open("all.jsonl"), e)
				f.expect("all.jsonl", e)
			}
		}
	}
}

// TestKeepsTheNewest: with the clock set back the files that are kept are still those
// rotated last.
func TestKeepsTheNewest(t *testing.T) {
	f := newTree(t)
	for i := range 3 {
		at := time.Now().Add(time.Hour + time.Duration(i)*time.Second).UTC().Format("20060102T150405.000Z")
		if err := os.WriteFile(f.path("all@"+at+".jsonl"), sinks.CloudEvents.AppendLine(nil, sinktest.Event(100+i, 0)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	events := sinktest.Events(4, 1)
	newest := func(c *file.Config) { c.Rotate = file.Rotate{MaxBytes: 1, Keep: 3} }
	s := f.open("all.jsonl", newest)
	f.write(s, events[0])
	f.write(s, events[1])
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = f.open("all.jsonl", newest) // it knows the order by the names alone
	f.write(s, events[2])
	f.write(s, events[3])
	eventually(t, "3 rotated files are left", func() bool { return len(f.names()) == 4 })
	var got []string
	for _, name := range append(f.names()[1:], "all.jsonl") { // in the order of their stamps
		got = append(got, f.ids(name)...)
	}
	if want := sinktest.IDs(events); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestKeepsThoseOfOthers: rotated files of an object whose name ends like a compressed file are its own, also for a sink that
// knows them by their names alone.
func TestKeepsThoseOfOthers(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(7, 1)
	var s sinks.Sink
	for i, name := range []string{"web", "web", "web.gz", "web.gz", "web.gz", "web", "web.gz"} {
		if i%5 == 0 {
			if s != nil {
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s = f.open("{name}", func(c *file.Config) { c.Rotate = file.Rotate{MaxBytes: 1, Keep: 2} })
		}
		events[i].Name = name
		f.write(s, events[i])
	}
	lines := func(name string) []string {
		b, err := os.ReadFile(f.path(name)) // none is compressed
		if err != nil {
			t.Fatal(err)
		}
		return ids(t, b)
	}
	var names []string
	eventually(t, "two rotated files of each are left", func() bool { names = f.names(); return len(names) <= 6 })
	for _, own := range [][]*event.Event{{events[0], events[1], events[5]}, {events[3], events[4], events[6]}} {
		var got []string
		for _, name := range names { // in the order of their stamps
			if stem, _, rotated := strings.Cut(name, "@"); rotated && stem == own[0].Name {
				got = append(got, lines(name)...)
			}
		}
		if got = append(got, lines(own[0].Name)...); !slices.Equal(got, sinktest.IDs(own)) {
			t.Errorf("%s has %v, want %v, in %q", own[0].Name, got, sinktest.IDs(own), names)
		}
	}
}

// TestFolderWithArchives replaces the folder by one that holds rotated files, as a disk
// that is mounted late: they count.
func TestFolderWithArchives(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(4, 1)
	s := f.open("in/all.jsonl", func(c *file.Config) { c.Rotate = file.Rotate{MaxBytes: 1, Keep: 2} })
	f.write(s, events[0])
	f.write(s, events[1])
	if err := errors.Join(os.Rename(f.path("in"), f.path("out")), os.Mkdir(f.path("in"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		at := time.Now().Add(time.Hour + time.Duration(i)*time.Second).UTC().Format("20060102T150405.000Z")
		if err := os.WriteFile(f.path("in/all@"+at+".jsonl"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.write(s, events[2])
	f.write(s, events[3]) // rotates
	var names []string
	eventually(t, "two rotated files are left", func() bool {
		names = slices.DeleteFunc(f.names(), func(n string) bool { return !strings.HasPrefix(n, "in/all@") })
		return len(names) == 2
	})
	f.expect(names[1], events[2])
}

// TestTidiesAtStart: what a crash left undone is done when the sink is opened again,
// without another rotation: deleted where the path is written to, compressed also where
// it is not.
func TestTidiesAtStart(t *testing.T) {
	f := newTree(t)
	e := sinktest.Event(0, 0)
	line := sinks.CloudEvents.AppendLine(nil, e)
	for _, name := range []string{
		"web-0.jsonl", "web-0@20200101T000000.001Z.jsonl", "web-0@20200101T000000.002Z.jsonl", "web-0@20200101T000000.003Z.jsonl",
		"gone@20200101T000000.001Z.jsonl", "gone@20200101T000000.002Z.jsonl", "gone@20200101T000000.003Z.jsonl",
		"other@20200101T000000.001Z.log", // not of this sink
	} {
		if err := os.WriteFile(f.path(name), line, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := f.open("{name}.jsonl", func(c *file.Config) { c.Rotate = file.Rotate{Keep: 2, Compress: "gzip"} })
	f.write(s, e)
	want := []string{
		"gone@20200101T000000.001Z.jsonl", "gone@20200101T000000.002Z.jsonl.gz", "gone@20200101T000000.003Z.jsonl.gz",
		"other@20200101T000000.001Z.log",
		"web-0.jsonl", "web-0@20200101T000000.002Z.jsonl.gz", "web-0@20200101T000000.003Z.jsonl.gz",
	}
	eventually(t, "everything is tidied", func() bool { return slices.Equal(f.names(), want) })
}

// TestTidiesTogether: sinks whose names overlap do not compress one file twice at once.
func TestTidiesTogether(t *testing.T) {
	f := newTree(t)
	e := sinktest.Event(0, 0)
	line := bytes.Repeat(sinks.CloudEvents.AppendLine(nil, e), 2000)
	for i := range 40 {
		if err := os.WriteFile(f.path("gone@20200101T000000.0"+itoa(10+i)+"Z.jsonl"), line, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	gzipped := func(c *file.Config) { c.Rotate = file.Rotate{Compress: "gzip"} }
	a, b := f.open("{name}.jsonl", gzipped), f.open("{resource}.jsonl", gzipped)
	f.write(a, e)
	f.write(b, e)
	eventually(t, "everything is compressed", func() bool {
		return !slices.ContainsFunc(f.names(), func(n string) bool { return strings.Contains(n, "@") && !strings.HasSuffix(n, ".gz") })
	})
	for _, name := range f.names() {
		if strings.HasSuffix(name, ".gz") && len(f.ids(name)) != 2000 {
			t.Errorf("%s holds %d lines", name, len(f.ids(name)))
		}
	}
}

func TestRotateBySize(t *testing.T) {
	f := newTree(t)
	s := f.open("{resource}.jsonl", func(c *file.Config) {
		c.Rotate = file.Rotate{MaxBytes: 4 << 10, Keep: 3, Compress: "gzip"}
	})
	events := sinktest.Events(40, 1)
	for _, e := range events {
		f.write(s, e)
		if info, err := os.Stat(f.path("deployments.jsonl")); err != nil || info.Size() > 4<<10 {
			t.Fatalf("size %d: %v", info.Size(), err)
		}
	}
	rotated := func() []string {
		return slices.DeleteFunc(f.names(), func(n string) bool { return n == "deployments.jsonl" })
	}
	eventually(t, "3 rotated files, compressed", func() bool {
		names := rotated()
		return len(names) == 3 && !slices.ContainsFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".jsonl.gz") })
	})
	// What is kept is the newest, whole and in order.
	var got []string
	for _, name := range append(rotated(), "deployments.jsonl") {
		got = append(got, f.ids(name)...)
	}
	if want := sinktest.IDs(events[len(events)-len(got):]); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRotateByAge(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(3, 1)
	day := func(c *file.Config) { c.Rotate.MaxAge = sinks.Duration(24 * time.Hour) }
	s := f.open("all.jsonl", day)
	f.write(s, events[0])
	f.write(s, events[1])
	if names := f.names(); len(names) != 1 {
		t.Skipf("midnight came between two writes: %q", names)
	}
	yesterday := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(f.path("all.jsonl"), yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
	// A restart does not make the file younger.
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.write(f.open("all.jsonl", day), events[2])
	f.expect("all.jsonl", events[2])
	names := f.names()
	if len(names) != 2 {
		t.Fatalf("files %q", names)
	}
	f.expect(names[1-slices.Index(names, "all.jsonl")], events[:2]...)
}

// TestRotateByAgeOnAServer: the clock of a file server differs from the sink's, and around the end of a day that dates what was
// just written with another one. It is no reason to rotate with each batch, which leaves `keep` files of a moment.
func TestRotateByAgeOnAServer(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(6, 1)
	day := func(c *file.Config) { c.Rotate = file.Rotate{MaxAge: sinks.Duration(24 * time.Hour), Keep: 2} }
	midnight := time.Now().Truncate(24 * time.Hour)
	s := f.open("all.jsonl", day)
	for i, e := range events {
		f.write(s, e)
		if err := os.Chtimes(f.path("all.jsonl"), time.Time{}, midnight.Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		if i != 2 {
			continue
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		s = f.open("all.jsonl", day) // which goes by what the server says, once
	}
	if !time.Now().Truncate(24 * time.Hour).Equal(midnight) {
		t.Skip("midnight came between two writes")
	}
	if names := f.names(); len(names) != 2 {
		t.Errorf("files %q", names)
	}
	f.expect("all.jsonl", events[3:]...)
}

// TestTidiesAfterCrash leaves behind what a crash at each step of the compression
// leaves.
func TestTidiesAfterCrash(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(10, 1)
	line := func(e *event.Event) []byte { return sinks.CloudEvents.AppendLine(nil, e) }
	zipped := func(b []byte) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		if _, err := z.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for name, content := range map[string][]byte{
		"all@20200101T000000.001Z.jsonl":            line(events[0]), // not begun
		"all@20200101T000000.002Z.jsonl":            line(events[1]), // half-way
		"all@20200101T000000.002Z.jsonl.gz.partial": []byte("half"),
		"all@20200101T000000.003Z.jsonl":            line(events[2]), // original not removed
		"all@20200101T000000.003Z.jsonl.gz":         zipped(line(events[2])),
		"all-notes.txt":                             []byte("somebody else's"),
		"all@2020.jsonl":                            []byte("somebody else's"),
		"all.jsonl":                                 line(events[3]),
	} {
		if err := os.WriteFile(f.path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := f.open("all.jsonl", func(c *file.Config) { c.Rotate = file.Rotate{MaxBytes: 1, Compress: "gzip"} })
	f.write(s, events[4])
	eventually(t, "everything is compressed", func() bool {
		n := 0
		for _, name := range f.names() {
			if strings.HasSuffix(name, ".gz") {
				n++
			}
		}
		return n == 4 && len(f.names()) == 7
	})
	for i, name := range []string{"all@20200101T000000.001Z.jsonl.gz", "all@20200101T000000.002Z.jsonl.gz", "all@20200101T000000.003Z.jsonl.gz"} {
		f.expect(name, events[i])
	}
	if got := f.read("all-notes.txt"); string(got) != "somebody else's" {
		t.Errorf("a file of somebody else was changed: %q", got)
	}
}

// TestOutsideHands does to the file what logrotate and people do.
func TestOutsideHands(t *testing.T) {
	events := sinktest.Events(3, 1)
	for _, test := range []struct {
		name string
		do   func(f *tree) error
		left []*event.Event // in all.jsonl at the end
	}{
		{"renamed", func(f *tree) error { return os.Rename(f.path("in/all.jsonl"), f.path("in/all.jsonl.1")) }, events[1:]},
		{"renamed and made", func(f *tree) error {
			return errors.Join(os.Rename(f.path("in/all.jsonl"), f.path("in/all.jsonl.1")), os.WriteFile(f.path("in/all.jsonl"), nil, 0o600))
		}, events[1:]},
		{"removed", func(f *tree) error { return os.Remove(f.path("in/all.jsonl")) }, events[1:]},
		{"truncated", func(f *tree) error { return os.Truncate(f.path("in/all.jsonl"), 0) }, events[1:]},
		{"folder removed", func(f *tree) error { return os.RemoveAll(f.path("in")) }, events[1:]},
		{"folder renamed", func(f *tree) error { return os.Rename(f.path("in"), f.path("out")) }, events[1:]},
		{"cut amid a line", func(f *tree) error { return os.Truncate(f.path("in/all.jsonl"), 20) }, events[1:]},
		{"nothing", func(*tree) error { return nil }, events},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newTree(t)
			s := f.open("in/all.jsonl")
			f.write(s, events[0])
			if err := test.do(f); err != nil {
				t.Fatal(err)
			}
			f.write(s, events[1])
			f.write(s, events[2])
			f.expect("in/all.jsonl", test.left...)
		})
	}
}

func TestRefusesLinks(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "victim")
	victim := []byte("precious\nwithout newline")
	for _, test := range []struct {
		name  string
		plant func(f *tree) error
	}{
		{"file", func(f *tree) error { return os.Symlink(outside, f.path("in/prod/web-0.jsonl")) }},
		{"file within", func(f *tree) error { return os.Symlink("../other", f.path("in/prod/web-0.jsonl")) }},
		{"folder", func(f *tree) error {
			return errors.Join(os.Remove(f.path("in/prod")), os.Symlink(filepath.Dir(outside), f.path("in/prod")))
		}},
		{"folder within", func(f *tree) error {
			return errors.Join(os.Remove(f.path("in/prod")), os.Mkdir(f.path("in/real"), 0o700), os.Symlink("real", f.path("in/prod")))
		}},
		{"not a file", func(f *tree) error { return os.Mkdir(f.path("in/prod/web-0.jsonl"), 0o700) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(outside, victim, 0o600); err != nil {
				t.Fatal(err)
			}
			f := newTree(t)
			if err := errors.Join(os.MkdirAll(f.path("in/prod"), 0o700), os.WriteFile(f.path("in/other"), victim, 0o600), test.plant(f)); err != nil {
				t.Fatal(err)
			}
			s := f.open("in/{namespace}/{name}.jsonl")
			err := s.Write(t.Context(), sinktest.Events(1, 1))
			if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause {
				t.Errorf("error %v, class %s; pause is wanted", err, class)
			}
			if err != nil && !strings.Contains(err.Error(), "write "+f.path("in/prod/web-0.jsonl")+": ") {
				t.Errorf("%v does not name the whole path", err)
			}
			for _, path := range []string{outside, f.path("in/other")} {
				if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, victim) {
					t.Errorf("%s was changed: %q, %v", path, got, err)
				}
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(outside), "web-0.jsonl")); err == nil {
				t.Error("a file was made outside")
			}
		})
	}
}

// TestOneBadFile lets one object's file fail: the others go on.
func TestOneBadFile(t *testing.T) {
	f := newTree(t)
	if err := os.Symlink("/etc/passwd", f.path("web-1.jsonl")); err != nil {
		t.Fatal(err)
	}
	s := f.open("{name}.jsonl")
	events := sinktest.Events(6, 3)
	err := s.Write(t.Context(), events)
	batch, ok := errors.AsType[*sinks.BatchError](err)
	if !ok || len(batch.Failed) != 2 || batch.Failed[1] == nil || batch.Failed[4] == nil {
		t.Fatalf("error %v", err)
	}
	f.expect("web-0.jsonl", events[0], events[3])
	f.expect("web-2.jsonl", events[2], events[5])
}

// TestFailsTogether lets an object go to two files, the first of which fails: the
// second must not show the later event before the earlier.
func TestFailsTogether(t *testing.T) {
	f := newTree(t)
	if err := os.Symlink("/etc/passwd", f.path("2026-03-01.jsonl")); err != nil {
		t.Fatal(err)
	}
	s := f.open("{date}.jsonl")
	events := sinktest.Events(4, 2) // objects 0 1 0 1
	events[1].UID = "other"
	tomorrow := func(i int) { events[i].Time = events[i].Time.Add(24 * time.Hour) }
	tomorrow(1) // another object, first in tomorrow's file
	tomorrow(2) // the later event of object 0
	tomorrow(3)
	err := s.Write(t.Context(), []*event.Event{events[1], events[0], events[2], events[3]})
	if err == nil {
		t.Fatal("no error")
	}
	if got := f.ids("2026-03-02.jsonl"); len(got) != 0 {
		t.Errorf("events stand before one that failed: %v", got)
	}
	if err := os.Remove(f.path("2026-03-01.jsonl")); err != nil {
		t.Fatal(err)
	}
	f.write(s, events...)
	f.expect("2026-03-01.jsonl", events[0])
	f.expect("2026-03-02.jsonl", events[1:]...)
}

func TestBoundedOpenFiles(t *testing.T) {
	f := newTree(t)
	s := f.open("{name}.jsonl", func(c *file.Config) { c.MaxOpenFiles = 4 })
	events := sinktest.Events(60, 30)
	f.write(s, events[:30]...)
	if n := openBelow(t, f.dir); n > 5 { // the root is open, too
		t.Errorf("%d files are open, 4 are allowed", n)
	}
	f.write(s, events[30:]...)
	for i := range 30 {
		f.expect("web-"+itoa(i)+".jsonl", events[i], events[30+i])
	}
}

func itoa(i int) string { b, _ := json.Marshal(i); return string(b) }

// openBelow counts the process's open files below dir.
func openBelow(t *testing.T, dir string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("open files cannot be counted here: ", err)
	}
	n := 0
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(target, dir) {
			n++
		}
	}
	return n
}

// TestTwoSinksOneFile: the second waits until the first has let go.
func TestTwoSinksOneFile(t *testing.T) {
	f := newTree(t)
	events := sinktest.Events(3, 1)
	first, second := f.open("all.jsonl"), f.open("all.jsonl")
	f.write(first, events[0])
	err := second.Write(t.Context(), events[1:2])
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassRetry {
		t.Fatalf("error %v, class %s; retry is wanted", err, class)
	}
	f.write(first, events[1])
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.write(second, events[2])
	f.expect("all.jsonl", events...)
}
