package journal_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/layout"
)

// otherRelease is a leader of another release: it writes entries as they are documented, with code of its own.
type otherRelease struct {
	t              *testing.T
	js             jetstream.JetStream
	format, layout int
	term, prev     uint64
}

// write appends an entry, with edit in its header.
func (o *otherRelease) write(kind string, batch []byte, edit func(map[string]any)) {
	o.t.Helper()
	const secret = "0123456789abcdef"
	key, id := sha256.Sum256([]byte("watcherd journal "+secret)), sha256.Sum256([]byte("watcherd journal id "+secret))
	d := xxhash.New()
	_, _ = d.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, o.prev), o.term))
	_, _ = d.WriteString(kind + " W ")
	_, _ = d.Write(batch)
	frame := map[string]any{
		"format": o.format, "layout": o.layout, "kind": kind, "term": o.term, "replica": "other/1", "writer": "W", "part": 1, "parts": 1,
		"prev": fmt.Sprintf("%016x", o.prev), "sum": fmt.Sprintf("%016x", d.Sum64()), "key": hex.EncodeToString(id[:4]),
	}
	if edit != nil {
		edit(frame)
	}
	header, err := json.Marshal(frame)
	if err != nil {
		o.t.Fatal(err)
	}
	aead, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		o.t.Fatal(err)
	}
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce)
	m := &nats.Msg{
		Subject: "watcherd.journal.J", Header: nats.Header{"Watcherd-Entry": {string(header)}},
		Data: aead.Seal(nonce, nonce, s2.Encode(nil, batch), header),
	}
	if _, err := o.js.PublishMsg(o.t.Context(), m); err != nil {
		o.t.Fatal(err)
	}
	o.prev = d.Sum64()
}

// TestOlderRelease: a leader of the release before is followed, and replaced.
func TestOlderRelease(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	j := open(t, configOf(t, "J", node))
	o := &otherRelease{t: t, js: node.Connect(), format: 0, layout: layout.Version, term: 1}
	o.write("term", nil, nil)
	var want [][]byte
	for i := range 5 {
		want = append(want, fmt.Append(nil, "batch ", i))
		// It does not know what it has later.
		o.write("batch", want[i], nil)
	}
	w, got := contend(t, j, store.Position{})
	check(t, got, want)
	if e := got[len(got)-1]; e.Term != 2 || e.Kind != journal.Term {
		t.Errorf("%+v", e)
	}
	want = append(want, []byte("of this release"))
	if _, err := w.Append(t.Context(), want[5]); err != nil {
		t.Fatal(err)
	}
	r := j.Read(store.Position{})
	defer r.Close()
	check(t, read(t, r), want)
}

// TestOtherReleases: an entry of a release that this one does not understand is not applied, with an error that says
// so, whatever else it has; nothing is written behind it.
func TestOtherReleases(t *testing.T) {
	t.Parallel()
	node := startOne(t)
	js := node.Connect()
	for name, tc := range map[string]struct {
		format, layout int
		kind           string
		edit           func(map[string]any)
		want           error
	}{
		"this release":      {1, layout.Version, "batch", nil, nil},
		"a newer format":    {2, layout.Version, "batch", nil, journal.ErrNewer},
		"a newer layout":    {1, layout.Version + 1, "batch", nil, journal.ErrNewer},
		"an older layout":   {1, layout.Version - 1, "batch", nil, journal.ErrOlder},
		"another kind":      {1, layout.Version, "hologram", nil, journal.ErrNewer},
		"another header":    {2, layout.Version, "batch", func(f map[string]any) { f["term"], f["part"] = "the second", nil }, journal.ErrNewer},
		"parts":             {2, layout.Version, "batch", func(f map[string]any) { f["parts"] = 2 }, journal.ErrNewer},
		"another key, too":  {2, layout.Version, "batch", func(f map[string]any) { f["key"] = "another" }, journal.ErrNewer},
		"a term of its own": {2, layout.Version, "term", nil, journal.ErrNewer},
	} {
		if err := js.DeleteStream(t.Context(), "J"); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
		j := open(t, configOf(t, "J", node))
		o := &otherRelease{t: t, js: js, format: 1, layout: layout.Version, term: 1}
		o.write("term", nil, nil)
		o.write("batch", []byte("first"), nil)
		r := j.Read(store.Position{})
		first := read(t, r)
		o.format, o.layout = tc.format, tc.layout
		if tc.kind == "term" {
			o.term++
		}
		o.write(tc.kind, []byte("second"), tc.edit)
		e, err := r.Next(t.Context(), patience)
		if tc.want == nil {
			if err != nil || e == nil || !bytes.Equal(e.Batch, []byte("second")) {
				t.Errorf("%s: %+v, %v", name, e, err)
			}
			r.Close()
			continue
		}
		if e != nil || !errors.Is(err, tc.want) || errors.Is(err, journal.ErrDiverged) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
		if r.At() != first[len(first)-1].Position {
			t.Errorf("%s: the reader is at %+v", name, r.At())
		}
		if _, _, err := r.Contend(t.Context(), t.Name(), nil); !errors.Is(err, store.ErrStolen) {
			t.Errorf("%s: a contest behind it: %v", name, err)
		}
		r.Close()
	}
}
