package ledger

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

func open(t *testing.T) (*Ledger, *store.Store, *compact.Codec) {
	t.Helper()
	st, err := store.Open("store", store.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	dicts, err := LoadDictionaries(st)
	if err != nil {
		t.Fatal(err)
	}
	return New(st, dicts), st, compact.NewCodec(dicts)
}

func TestPartition(t *testing.T) {
	t.Parallel()
	pods, widgets := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Group: "example.com", Resource: "widgets"}
	for _, tc := range []struct {
		gr                     schema.GroupResource
		pinned, labels, fields string
		want                   string
	}{
		{pods, "", "", "", "pods"},
		{widgets, "", "", "", "widgets.example.com"},
		{widgets, "v1", "", "", "widgets.example.com@v1"},
		{pods, "", "a=b", "", "pods|l=a=b;f="},
		{widgets, "v1", "a=b", "metadata.name=x", "widgets.example.com@v1|l=a=b;f=metadata.name=x"},
	} {
		scope := ScopeOf(tc.pinned, tc.labels, tc.fields)
		got := Partition(tc.gr, scope)
		if got != tc.want {
			t.Errorf("partition %q, want %q", got, tc.want)
		}
		if gr, s := SplitPartition(got); gr != tc.gr || s != scope {
			t.Errorf("%q is split into %v and %q", got, gr, s)
		}
	}
}

func TestStates(t *testing.T) {
	t.Parallel()
	l, st, codec := open(t)
	b := st.NewBatch()
	for _, name := range []string{"a", "b", "d"} {
		o, err := codec.Encode(fmt.Appendf(nil, `{"metadata":{"namespace":"ns","name":%q}}`, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		b.PutState("pods", Key("ns", name), o.AppendBinary(nil))
	}
	b.PutState("pods", Key("ns", "c"), []byte("damaged"))
	if err := st.Commit(b); err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]struct {
		found  bool
		damage error
	}{"a": {found: true}, "c": {damage: store.ErrUnreadable}, "e": {}} {
		o, err := l.State("pods", Key("ns", name))
		if (o != nil) != want.found || !errors.Is(err, want.damage) || errors.Is(err, ErrStore) {
			t.Errorf("state of %s: %v, %v", name, o, err)
		}
	}

	scan := func(after string, most int) (names []string, more bool, err error) {
		more, err = l.Scan("pods", "ns/", after, func(_ string, o *compact.Object) error {
			if len(names) == most {
				return ErrEnough
			}
			names = append(names, o.GetName())
			return nil
		})
		return names, more, err
	}
	names, more, err := scan("", 9)
	if diff := cmp.Diff([]string{"a", "b", "d"}, names); diff != "" || more || !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("scan: %v (-want +got):\n%s", err, diff)
	}
	names, more, err = scan(Key("ns", "a"), 1)
	if diff := cmp.Diff([]string{"b"}, names); diff != "" || !more || !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("scan of a part: %v (-want +got):\n%s", err, diff)
	}
	failed := errors.New("it failed")
	more, err = l.Scan("pods", "ns/", Key("ns", "b"), func(string, *compact.Object) error { return failed })
	if more || !errors.Is(err, failed) || IgnoreUnreadable(err) == nil {
		t.Errorf("a failure behind damage: more %t, %v", more, err)
	}

	for prefix, want := range map[string]bool{"": false, "ns/": false, "other/": true} {
		if empty, err := l.Empty("pods", prefix); err != nil || empty != want {
			t.Errorf("%q empty: %t, %v", prefix, empty, err)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	t.Parallel()
	l, st, _ := open(t)
	want := Checkpoint{
		ResourceVersion: "5", Synced: true, Epoch: 2, Recorded: "7", Form: "v1", Sweeping: true, Listing: &Listing{"9", true, true},
		Gap: &dynamicfactory.Gap{From: "1", To: "5"}, Forgot: true, Time: time.Unix(1, 0).UTC(), Ahead: map[string]string{"ns": "6"},
	}
	for key, value := range map[string][]byte{"pods#": Encode(want), "damaged#": []byte("{")} {
		if err := PutMeta(st, CheckpointMeta(key), value); err != nil {
			t.Fatal(err)
		}
	}
	got, ok, err := l.Checkpoint("pods#")
	if diff := cmp.Diff(want, got); diff != "" || !ok || err != nil {
		t.Errorf("found %t, %v (-want +got):\n%s", ok, err, diff)
	}
	if _, ok, err := l.Checkpoint("damaged#"); ok || !errors.Is(err, store.ErrUnreadable) || IgnoreUnreadable(err) != nil {
		t.Errorf("a damaged one: %t, %v", ok, err)
	}
	if _, ok, err := l.Checkpoint("none#"); ok || err != nil {
		t.Errorf("none: %t, %v", ok, err)
	}
}

// TestResumption decides from where a feed goes on.
func TestResumption(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		c         Checkpoint
		resumable bool
		list      string // the version to list
		recorded  string
	}{
		{"nothing", Checkpoint{}, false, "", ""},
		{"complete", Checkpoint{ResourceVersion: "9", Synced: true}, true, "9", "9"},
		{"recorded in part", Checkpoint{ResourceVersion: "9", Synced: true, Recorded: "10"}, true, "10", "10"},
		{"not synced", Checkpoint{ResourceVersion: "9"}, false, "9", "9"},
		{"swept", Checkpoint{ResourceVersion: "9", Synced: true, Sweeping: true}, false, "9", "9"},
		{"in a list", Checkpoint{ResourceVersion: "9", Synced: true, Listing: &Listing{ResourceVersion: "12"}}, false, "12", "12"},
		{"in an older list", Checkpoint{ResourceVersion: "9", Synced: true, Listing: &Listing{ResourceVersion: "5"}}, false, "5", "9"},
		{"taken over", Checkpoint{ResourceVersion: "9", Recorded: "12", Ahead: map[string]string{"ns": "12"}}, false, "9", "12"},
	} {
		if got := tc.c.Resumable(); got != tc.resumable {
			t.Errorf("%s: resumable %t", tc.name, got)
		}
		if list, recorded := tc.c.ListVersion(), tc.c.RecordedUpTo(); list != tc.list || recorded != tc.recorded {
			t.Errorf("%s: lists %q, recorded %q; want %q, %q", tc.name, list, recorded, tc.list, tc.recorded)
		}
	}
	for _, tc := range []struct{ a, b, want string }{{"", "9", "9"}, {"9", "", "9"}, {"9", "10", "10"}, {"10", "9", "10"}, {"9", "other", "9"}} {
		if got := Later(tc.a, tc.b); got != tc.want {
			t.Errorf("the later of %q and %q is %q", tc.a, tc.b, got)
		}
	}
}

// TestSameCheckpoint changes one thing after the other: only the time makes no difference.
func TestSameCheckpoint(t *testing.T) {
	t.Parallel()
	base := Checkpoint{ResourceVersion: "1", Listing: &Listing{ResourceVersion: "2"}}
	for name, change := range map[string]func(*Checkpoint){
		"version": func(c *Checkpoint) { c.ResourceVersion = "x" },
		"sync":    func(c *Checkpoint) { c.Synced = true },
		"epoch":   func(c *Checkpoint) { c.Epoch++ },
		"partial": func(c *Checkpoint) { c.Recorded = "x" },
		"form":    func(c *Checkpoint) { c.Form = "x" },
		"sweep":   func(c *Checkpoint) { c.Sweeping = true },
		"list":    func(c *Checkpoint) { c.Listing = &Listing{ResourceVersion: "x"} },
		"no list": func(c *Checkpoint) { c.Listing = nil },
		"gap":     func(c *Checkpoint) { c.Gap = &dynamicfactory.Gap{} },
		"loss":    func(c *Checkpoint) { c.Forgot = true },
		"rules":   func(c *Checkpoint) { c.Kept = []Kept{{}} },
		"settled": func(c *Checkpoint) { c.SettledSince = time.Unix(1, 0) },
		"ahead":   func(c *Checkpoint) { c.Ahead = map[string]string{"ns": "1"} },
	} {
		other := base
		change(&other)
		if base.Same(other) || other.Same(base) {
			t.Errorf("another %s is the same", name)
		}
	}
	other := base
	other.Time, other.Listing = time.Unix(9, 0), &Listing{ResourceVersion: "2"}
	if !base.Same(other) {
		t.Error("another time is not the same")
	}
}

// TestKept: a history is kept since it began by rules that select no more than those before.
func TestKept(t *testing.T) {
	rules := func(edits ...func(*Kept)) Kept {
		var k Kept
		for _, edit := range edits {
			edit(&k)
		}
		return k
	}
	in := func(names ...string) func(*Kept) { return func(k *Kept) { k.Namespaces = names } }
	like := func(globs ...string) func(*Kept) { return func(k *Kept) { k.Rules.Namespaces.Include = globs } }
	but := func(globs ...string) func(*Kept) { return func(k *Kept) { k.Rules.Namespaces.Exclude = globs } }
	labelled := func(selector string) func(*Kept) { return func(k *Kept) { k.Rules.Namespaces.Selector = selector } }
	labels := func(selector string) func(*Kept) { return func(k *Kept) { k.Rules.Labels = selector } }
	fields := func(selector string) func(*Kept) { return func(k *Kept) { k.Rules.Fields = selector } }
	for name, tc := range map[string]struct {
		before, now []Kept
		want        bool
	}{
		"not noted":             {nil, []Kept{rules(labels("a=b"))}, true},
		"nothing":               {[]Kept{rules(labels("a=b"))}, nil, true},
		"all":                   {[]Kept{rules()}, []Kept{rules(in("x"), like("x*"), but("y"), labelled("e=p"), labels("a=b"), fields("c=d"))}, true},
		"the same":              {[]Kept{rules(in("x"), labels("a=b"))}, []Kept{rules(in("x"), labels("a=b"))}, true},
		"one of two":            {[]Kept{rules(labels("a=b")), rules(labels("a=c"))}, []Kept{rules(labels("a=c"))}, true},
		"one more":              {[]Kept{rules(labels("a=b"))}, []Kept{rules(labels("a=b")), rules(labels("a=c"))}, false},
		"fewer namespaces":      {[]Kept{rules(in("x", "y"))}, []Kept{rules(in("y"))}, true},
		"a namespace more":      {[]Kept{rules(in("x"))}, []Kept{rules(in("x", "y"))}, false},
		"all namespaces":        {[]Kept{rules(in("x"))}, []Kept{rules()}, false},
		"a pattern more":        {[]Kept{rules(like("x*"))}, []Kept{rules(like("x*", "y*"))}, false},
		"no pattern":            {[]Kept{rules(like("x*"))}, []Kept{rules()}, false},
		"one that was excluded": {[]Kept{rules(but("x", "y"))}, []Kept{rules(but("x"))}, false},
		"other labels":          {[]Kept{rules(labels("a=b"))}, []Kept{rules(labels("a in (b,c)"))}, false},
		"other fields":          {[]Kept{rules(fields("a=b"))}, []Kept{rules()}, false},
		"other namespaces":      {[]Kept{rules(labelled("a=b"))}, []Kept{rules(labelled("a=c"))}, false},
	} {
		c := Checkpoint{Kept: tc.before}
		if got := c.Keeps(tc.now); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestFeedIDs(t *testing.T) {
	t.Parallel()
	l, st, _ := open(t)
	for _, id := range []string{"pods#", "pods#ns", "pods|l=a;f=#", "podsets.example.com#"} {
		if err := PutMeta(st, CheckpointMeta(id), Encode(Checkpoint{})); err != nil {
			t.Fatal(err)
		}
	}
	if err := PutMeta(st, CheckpointMeta("pods#x#"), nil); err != nil { // of a selector that holds the mark
		t.Fatal(err)
	}
	got, err := l.FeedIDs(CheckpointMeta(FeedID("pods", "")))
	if diff := cmp.Diff(map[string]bool{"pods#": true, "pods#ns": true}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestSelections(t *testing.T) {
	t.Parallel()
	l, st, _ := open(t)
	pods := event.Resource{Version: "v1", Resource: "pods"}
	prod := Selected{Resource: pods, Namespaces: []string{"a"}, Rules: plan.Selection{Labels: "env=prod"}}
	owed := Selected{Resource: pods, Rules: plan.Selection{Namespaces: selector.Namespaces{Selector: "x=y"}}, Owed: true}
	b := st.NewBatch()
	prod.Put(b, "w", FeedID("pods", "a"))
	owed.Put(b, "v", FeedID("pods", ""))
	if err := st.Commit(b); err != nil {
		t.Fatal(err)
	}
	all, err := l.Selections()
	want := Selections{"pods#a": {"w": prod}, "pods#": {"v": owed}}
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Fatalf("%v (-want +got):\n%s", err, diff)
	}
	if !all.Parted("pods") || all.Parted("nodes") {
		t.Error("parts of the partitions are wrong")
	}
	former, err := all.Watch("pods", &plan.Watch{Name: "w", Fingerprint: "next", FailOnMissing: true})
	if err != nil || former == nil || former.Selection.Labels != "env=prod" || !former.FailOnMissing || former.Fingerprint == "next" || former.Filter == nil {
		t.Errorf("the watch by its former rules is %+v, %v", former, err)
	}
	changed := prod.Then(Selected{Rules: plan.Selection{Labels: "env=dev"}})
	later, err := Selections{"pods#a": {"w": changed}}.Watch("pods", &plan.Watch{Name: "w"})
	if err != nil || later == nil || later.Selection.Labels != "env=dev" {
		t.Errorf("the watch by rules that changed is %+v, %v", later, err)
	}
	if again := changed.Then(Selected{Rules: plan.Selection{Labels: "env=dev"}}); len(again.Later) != 1 {
		t.Errorf("the same rules again: %+v", again)
	}
	back := changed.Then(prod)
	if len(back.Later) != 2 || back.InForce().Rules.Labels != "env=prod" {
		t.Errorf("the rules of before again: %+v", back)
	}
	if third := back.Then(Selected{Rules: plan.Selection{Labels: "env=test"}}); len(third.Later) != 2 || third.InForce().Rules.Labels != "env=test" {
		t.Errorf("other rules after those of before: %+v", third)
	}
	for partition, name := range map[string]string{"nodes": "w", "pods": "v"} { // not given, or by labels that are not known any more
		if former, err := all.Watch(partition, &plan.Watch{Name: name}); former != nil || err != nil {
			t.Errorf("watch %s judged %s by %+v, %v", name, partition, former, err)
		}
	}
	newer := prod
	newer.Resource.Version = "v2"
	if !prod.Same(newer) || prod.Same(owed) {
		t.Error("equal rules are not the same, or others are")
	}

	b = st.NewBatch()
	DropSelections(b, "pods#a", all["pods#a"])
	if err := st.Commit(b); err != nil {
		t.Fatal(err)
	}
	if all, err = l.Selections(); len(all) != 1 || err != nil {
		t.Errorf("after the removal: %v, %v", all, err)
	}
	for _, damaged := range []string{"{", `{"rules":{"labels":"!!"}}`} {
		if err := PutMeta(st, SelectionKey("w", "pods#"), []byte(damaged)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Selections(); !errors.Is(err, ErrStore) {
			t.Errorf("%s: %v", damaged, err)
		}
	}
}

// TestRedactKey is the same in every life.
func TestRedactKey(t *testing.T) {
	t.Parallel()
	_, st, _ := open(t)
	first, err := LoadRedactKey(st, nil)
	if err != nil || len(first) != RedactKeyLen {
		t.Fatal(first, err)
	}
	second, err := LoadRedactKey(st, nil)
	if diff := cmp.Diff(first, second); diff != "" || err != nil {
		t.Errorf("%v (-first +second):\n%s", err, diff)
	}
	configured, err := LoadRedactKey(st, []byte("configured"))
	if err != nil || string(configured) != "configured" {
		t.Errorf("%q, %v", configured, err)
	}
	if _, kept, err := st.Meta(RedactKeyMeta); kept || err != nil {
		t.Errorf("the store's own key is kept: %t, %v", kept, err)
	}
}

// TestDictionaries loads what an earlier life has kept, by the id in the key.
func TestDictionaries(t *testing.T) {
	t.Parallel()
	_, st, _ := open(t)
	for _, tc := range []struct {
		key    string
		refuse bool
	}{{DictionaryKey(7), false}, {DictionaryMeta + "x", true}} {
		if err := PutMeta(st, tc.key, []byte("some content that is common to objects")); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadDictionaries(st); (err != nil) != tc.refuse {
			t.Errorf("%s: %v", tc.key, err)
		}
	}
}

// TestDamagedDictionaries flips a bit of one of several dictionaries on disk. The others are loaded, and the
// damaged one is kept again once it is made again.
func TestDamagedDictionaries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	life := func(f func(st *store.Store)) {
		st, err := store.Open(dir, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f(st)
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var contents [][]byte
	for range 3 {
		contents = append(contents, bytes.Repeat([]byte(rand.Text()), 1000))
	}
	add := func(dicts *compact.Dictionaries, content []byte) uint32 {
		id, err := dicts.Add(bytes.Clone(content))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	life(func(st *store.Store) {
		dicts, err := LoadDictionaries(st)
		if err != nil {
			t.Fatal(err)
		}
		for _, content := range contents {
			add(dicts, content)
		}
	})
	life(func(*store.Store) {}) // the log becomes tables
	tables, err := filepath.Glob(filepath.Join(dir, "db", "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	hit := false
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(b, contents[1]); at >= 0 {
			hit = true
			b[at+len(contents[1])/2] ^= 1
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !hit {
		t.Fatal("no table has the dictionary")
	}
	life(func(st *store.Store) {
		dicts, err := LoadDictionaries(st)
		if !errors.Is(err, store.ErrUnreadable) || dicts == nil {
			t.Fatalf("%v, %v", dicts, err)
		}
		for _, content := range contents {
			kept, ok, err := st.Meta(DictionaryKey(add(dicts, content)))
			if err != nil || !ok || !bytes.Equal(kept, content) {
				t.Errorf("kept %t, %v", ok, err)
			}
		}
	})
}

func TestScrub(t *testing.T) {
	t.Parallel()
	at := time.Unix(1, 0)
	for want, s := range map[bool]Scrub{true: {Began: at, Resources: []string{"pods"}}, false: {Began: at, Done: at}} {
		if s.Pending() != want || s.Concerns("pods") != want {
			t.Errorf("%+v: pending %t, concerns pods %t", s, s.Pending(), s.Concerns("pods"))
		}
	}
	if (&Scrub{}).Pending() {
		t.Error("none is pending")
	}
}
