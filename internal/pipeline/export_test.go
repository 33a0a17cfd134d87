package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/committest"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/timer"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// exportLine is what the test reads of an export's lines.
type exportLine struct {
	Type, Key string
	Payload   []byte
	Withheld  bool
}

// TestExportHidesWhatTheConfigurationHides exports a store right after its edits were
// tightened, whole and file by file, and reads everything in it, what a route holds included. Its namespaces are those by
// which watches select, and changes of their labels have not reached all objects.
func TestExportHidesWhatTheConfigurationHides(t *testing.T) {
	dir := t.TempDir()
	const objects = 30
	t.Run("record", func(t *testing.T) {
		r := newRig(t, dir, committest.PodWatch())
		held := allParts("held")
		held.Throttle = time.Hour
		r.adopt([]plan.Watch{committest.PodWatch()}, held)
		canaryPods(r, r.source(pods), objects)
		r.m.committer.HoldRelabels()
		namespaces := r.m.committer.NamespaceHandler(nil)
		labels := map[string]string{"hidden": "customer", "shown": "team"}
		seen := func(name, value string) *compact.Object {
			raw := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"uid":"u","resourceVersion":"1","labels":{%q:%q}}}`, name, labels[name], value)
			o, err := r.Codec.Encode(raw, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		for name := range labels {
			namespaces.OnAdd(seen(name, plaintext), true)
		}
		namespaces.Synced()
		for name := range labels {
			namespaces.OnUpdate(seen(name, plaintext), seen(name, "another"))
		}
		r.m.committer.Flush()
		r.adopt([]plan.Watch{committest.PodWatch(hiding), committest.PodWatch(named("namespaces"), func(w *plan.Watch) {
			w.Resources, w.Edits.Redact = []string{"namespaces"}, []string{"metadata.labels.customer"}
		})}, held)
	})
	for _, damaged := range []bool{false, true} {
		if damaged {
			manifests, err := filepath.Glob(filepath.Join(dir, "db", "MANIFEST-*"))
			if err != nil || len(manifests) == 0 {
				t.Fatal(manifests, err)
			}
			for _, m := range manifests {
				if err := os.Truncate(m, 10); err != nil {
					t.Fatal(err)
				}
			}
		}
		var out bytes.Buffer
		if err := query.Export(dir, &out); err != nil {
			t.Fatal(err)
		}
		dicts := compact.NewDictionaries(nil)
		codec := compact.NewCodec(dicts)
		in := record.Inflater{Dictionaries: dicts}
		recorded := func(payload []byte) (text string, err error) {
			e, err := in.Event(1, record.Object|record.OldObject|record.Patch, payload, "")
			if err == nil {
				text = string(event.AppendData(nil, e))
			}
			return text, err
		}
		seen := map[string]int{}
		for line := range bytes.Lines(out.Bytes()) {
			var l exportLine
			if err := json.Unmarshal(line, &l); err != nil {
				t.Fatal(err)
			}
			if l.Withheld && l.Type != "meta" {
				t.Fatalf("damaged %t: withheld: %s", damaged, line)
			}
			if len(l.Payload) == 0 {
				continue
			}
			seen[l.Type]++
			text := string(l.Payload)
			switch {
			case strings.HasPrefix(l.Key, ledger.DictionaryMeta) && l.Type == "meta":
				id, err := strconv.ParseUint(strings.TrimPrefix(l.Key, ledger.DictionaryMeta), 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				if err := dicts.Load(uint32(id), l.Payload); err != nil {
					t.Fatal(err)
				}
			case l.Type == "meta":
				if _, err := timer.ReviseValue(l.Key, l.Payload, func(held []byte) (_ []byte, err error) {
					seen["held"]++
					text, err = recorded(held)
					return held, err
				}); err != nil {
					t.Fatal(err)
				}
			case l.Type == "record" || l.Type == "entry" || l.Type == "deadletter":
				var err error
				if text, err = recorded(l.Payload); err != nil {
					t.Fatal(err)
				}
			case l.Type == "state":
				o, err := codec.Decode(l.Payload)
				if err != nil {
					t.Fatal(err)
				}
				raw, err := o.AppendJSON(nil)
				if err != nil {
					t.Fatal(err)
				}
				text = string(raw)
			}
			if l.Key == "namespace/shown" || l.Key == "relabel/shown" {
				seen[l.Key]++
				continue
			}
			if strings.Contains(text, plaintext) {
				t.Fatalf("damaged %t: the plaintext is in a %s %s: %.500s", damaged, l.Type, l.Key, text)
			}
			if l.Key == ledger.RedactKeyMeta {
				t.Error("the key of the hashes is shown")
			}
		}
		if seen["record"] < 2*objects || seen["deadletter"] == 0 || seen["entry"] == 0 || seen["state"] < objects || seen["held"] < objects ||
			seen["namespace/shown"] == 0 || seen["relabel/shown"] == 0 {
			t.Errorf("damaged %t: seen %v", damaged, seen)
		}
	}
}
