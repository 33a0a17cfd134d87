package compact

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/klauspost/compress/s2"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// bank saves dictionaries as a store would.
type bank struct {
	mu      sync.Mutex
	saved   map[uint32][]byte
	order   []uint32
	failing error
}

func (b *bank) save(id uint32, content []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing != nil {
		return b.failing
	}
	if _, twice := b.saved[id]; twice {
		return fmt.Errorf("dictionary %d was saved before", id)
	}
	if b.saved == nil {
		b.saved = map[uint32][]byte{}
	}
	b.saved[id] = slices.Clone(content)
	b.order = append(b.order, id)
	return nil
}

// reopen returns what a later process starts with.
func (b *bank) reopen(t testing.TB) *Dictionaries {
	t.Helper()
	d := NewDictionaries(b.save)
	for id, content := range b.saved {
		if err := d.Load(id, slices.Clone(content)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func editedPods(t testing.TB, g *apitest.Pods, n int) [][]byte {
	t.Helper()
	e, err := rawjson.NewEditor(rawjson.Rule{Path: "metadata.managedFields"})
	if err != nil {
		t.Fatal(err)
	}
	pods := make([][]byte, n)
	for i := range pods {
		if pods[i], err = e.Append(nil, g.Next()); err != nil {
			t.Fatal(err)
		}
	}
	return pods
}

// TestDictionariesOfACodec follows a codec from its first object on, over a restart.
func TestDictionariesOfACodec(t *testing.T) {
	var b bank
	codec := NewCodec(NewDictionaries(b.save))
	pods := editedPods(t, apitest.NewPods(1), laterObjects+200)
	var objects []*Object
	size := map[uint32][2]int{}
	for _, raw := range pods {
		o := mustEncode(t, codec, raw)
		objects = append(objects, o)
		body := o.Body()
		if body.Dict != 0 && b.saved[body.Dict] == nil {
			t.Fatalf("dictionary %d was used before it was saved", body.Dict)
		}
		s := size[body.Dict]
		size[body.Dict] = [2]int{s[0] + 1, s[1] + len(body.Data)}
	}
	if len(b.order) != 2 {
		t.Fatalf("%d dictionaries, want the first and a trained one", len(b.order))
	}
	mean := func(id uint32) int { return size[id][1] / size[id][0] }
	first, trained := b.order[0], b.order[1]
	t.Logf("bodies of %d bytes of JSON: %d without a dictionary, %d with the first (%d bytes), %d with the trained (%d bytes)",
		meanLen(pods), mean(0), mean(first), len(b.saved[first]), mean(trained), len(b.saved[trained]))
	if size[0][0] >= firstObjects || mean(first) > mean(0)/2 || mean(trained) >= mean(first) {
		t.Errorf("%d objects without a dictionary; mean bodies %d, %d, %d", size[0][0], mean(0), mean(first), mean(trained))
	}
	if n := len(b.saved[trained]); n > trainedBytes+100 {
		t.Errorf("the trained dictionary has %d bytes", n)
	}
	for i := 0; i < len(objects); i += 10 {
		checkObject(t, objects[i], pods[i])
	}

	later := NewCodec(b.reopen(t))
	for i, o := range objects {
		decoded, err := later.Decode(o.AppendBinary(nil))
		if err != nil {
			t.Fatal(err)
		}
		checkObjectJSON(t, decoded, pods[i])
		if i%10 == 0 {
			checkObject(t, decoded, pods[i])
		}
		if decoded.Size() != o.Size() {
			t.Errorf("decoded, the object has %d bytes, not %d", decoded.Size(), o.Size())
		}
	}
	for _, raw := range pods[:100] {
		if got := mustEncode(t, later, raw).Body().Dict; got != trained {
			t.Fatalf("after a restart objects are encoded with dictionary %d, not %d", got, trained)
		}
	}
	if len(b.order) != 2 {
		t.Errorf("the restart made %d more dictionaries", len(b.order)-2)
	}
}

// TestFirstDictionaryIsReplacedAfterRestart restarts while there is the first dictionary only.
func TestFirstDictionaryIsReplacedAfterRestart(t *testing.T) {
	var b bank
	codec := NewCodec(NewDictionaries(b.save))
	pods := editedPods(t, apitest.NewPods(1), laterObjects+60)
	for _, raw := range pods[:50] {
		mustEncode(t, codec, raw)
	}
	later := NewCodec(b.reopen(t))
	for _, raw := range pods {
		mustEncode(t, later, raw)
	}
	if len(b.order) != 2 {
		t.Errorf("%d dictionaries, want the first and a trained one", len(b.order))
	}
}

// TestCodecsShareDictionaries is what an informer per namespace makes: many codecs of one resource.
func TestCodecsShareDictionaries(t *testing.T) {
	var b bank
	dicts := NewDictionaries(b.save)
	pods := editedPods(t, apitest.NewPods(1), laterObjects+60)
	one, other := NewCodecFor(dicts, "pods"), NewCodecFor(dicts, "pods")
	for _, raw := range pods[:firstObjects] {
		mustEncode(t, one, raw)
	}
	if o := mustEncode(t, other, pods[0]); o.dict == 0 || o.dict != one.trainer.current.id {
		t.Errorf("the first object of the other codec has dictionary %d", o.dict)
	}
	for _, raw := range pods {
		mustEncode(t, one, raw)
		mustEncode(t, other, raw)
	}
	if one.trainer.current != other.trainer.current || len(b.order) != 2 {
		t.Errorf("dictionaries %v and %v, of %d", one.trainer.current, other.trainer.current, len(b.order))
	}
	// Another resource goes its own way, although its objects say the same of themselves.
	if o := mustEncode(t, NewCodecFor(dicts, "nodes"), pods[0]); o.dict != 0 {
		t.Errorf("another resource uses dictionary %d", o.dict)
	}
}

func TestOrigin(t *testing.T) {
	for _, resource := range []string{"apps/v1 Deployment", "v1 \"x\"\n%d", "ü", " "} {
		if got, n := readOrigin(append(appendOrigin(nil, resource, 12), "{}\n"...)); got != resource || n != 12 {
			t.Errorf("%q: got %q, %d", resource, got, n)
		}
	}
	for _, content := range []string{"x", `{"kind":"Pod"}`, "watcherd dictionary", "watcherd dictionary 1 of x", `watcherd dictionary 0 of "x"`, "\n"} {
		if got, n := readOrigin([]byte(content)); got != "" || n != 0 {
			t.Errorf("%q: got %q, %d", content, got, n)
		}
	}
}

// TestFewObjectsHaveNoDictionary is what keeps hundreds of small resources cheap.
func TestFewObjectsHaveNoDictionary(t *testing.T) {
	var b bank
	dicts := NewDictionaries(b.save)
	for range 300 {
		codec := NewCodec(dicts)
		for i := range 5 {
			raw := fmt.Appendf(nil, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"l-%d"}}`, i)
			checkObject(t, mustEncode(t, codec, raw), raw)
		}
	}
	if len(b.order) != 0 {
		t.Errorf("%d dictionaries", len(b.order))
	}
}

// TestDrift changes what the objects look like: the dictionary follows, but not for ever.
func TestDrift(t *testing.T) {
	var b bank
	codec := NewCodec(NewDictionaries(b.save))
	var o *Object
	world := func(seed uint64, n int) {
		random := rand.New(rand.NewPCG(seed, 42))
		kind := fmt.Sprintf("%012x", random.Uint64()>>16)
		var keys [6]string
		for j := range keys {
			keys[j] = fmt.Sprintf("%s-%d-%016x%016x", kind, j, random.Uint64(), random.Uint64())
		}
		for i := range n {
			raw := fmt.Appendf(nil, `{"kind":"%s","metadata":{"name":"n%d"},"spec":{`, kind, i)
			for _, key := range keys {
				raw = fmt.Appendf(raw, `"%s":%d,`, key, i%7)
			}
			raw = append(raw, `"end":true}}`...)
			o = mustEncode(t, codec, raw)
			if i%500 == 0 {
				checkObjectJSON(t, o, raw)
			}
		}
	}
	world(1, firstObjects+laterObjects+watchWindow)
	if len(b.order) != 2 {
		t.Fatalf("%d dictionaries at first", len(b.order))
	}
	world(2, 2*watchWindow+laterObjects)
	if len(b.order) != 3 {
		t.Errorf("%d dictionaries once the objects have changed", len(b.order))
	}
	codec.trainer.current.generation = maxGenerations
	codec.trainer.ratio = 0.0001
	for range 2 * watchWindow {
		codec.trainer.observe(o)
	}
	if codec.trainer.collecting {
		t.Error("yet another dictionary is to be trained")
	}
}

func checkObjectJSON(t *testing.T, o *Object, raw []byte) {
	t.Helper()
	if got, err := o.AppendJSON(nil); err != nil || !bytes.Equal(got, raw) {
		t.Errorf("got %s, %v, want %s", got, err, raw)
	}
}

func TestSaveFails(t *testing.T) {
	b := bank{failing: errors.New("disk full")}
	codec := NewCodec(NewDictionaries(b.save))
	pods := editedPods(t, apitest.NewPods(1), 2*firstObjects)
	failed := 0
	for _, raw := range pods {
		if _, err := codec.Encode(raw, nil, 0); err != nil {
			failed++
			if !errors.Is(err, b.failing) {
				t.Errorf("got %v", err)
			}
		}
	}
	if failed == 0 {
		t.Error("no object failed")
	}
	b.failing = nil
	for _, raw := range pods {
		checkObject(t, mustEncode(t, codec, raw), raw)
	}
	if len(b.order) != 1 {
		t.Errorf("%d dictionaries once saving works", len(b.order))
	}
}

func TestDictionaries(t *testing.T) {
	var b bank
	d := NewDictionaries(b.save)
	one, two := []byte("the content of a dictionary"), []byte("the content of another one")
	id, err := d.Add(one)
	if err != nil || id == 0 {
		t.Fatal(id, err)
	}
	if again, err := d.Add(slices.Clone(one)); err != nil || again != id || len(b.order) != 1 {
		t.Errorf("added again: %d, %v, saved %d times", again, err, len(b.order))
	}
	// The same content has the same id in another process.
	if other, err := NewDictionaries(nil).Add(slices.Clone(one)); err != nil || other != id {
		t.Errorf("elsewhere: %d, %v, want %d", other, err, id)
	}
	// An id that is taken by other content.
	clash := NewDictionaries(nil)
	if err := clash.Load(id, two); err != nil {
		t.Fatal(err)
	}
	if err := clash.Load(id, slices.Clone(two)); err != nil {
		t.Errorf("loaded again: %v", err)
	}
	if err := clash.Load(id, one); !errors.Is(err, ErrCorrupt) {
		t.Errorf("loaded with other content: %v", err)
	}
	if other, err := clash.Add(one); err != nil || other == id || other == 0 {
		t.Errorf("added under a taken id: %d, %v", other, err)
	}
	for name, err := range map[string]error{
		"no id": d.Load(noDictionary, one), "a reserved id": d.Load(dense, one), "no content": d.Load(50000, nil), "too little": d.Load(50000, one[:15]),
	} {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Add(nil); err == nil {
		t.Error("added nothing")
	}
}

// TestDenseBodies has objects that dictionaries do nothing for: zstd makes them smaller than S2 can.
func TestDenseBodies(t *testing.T) {
	var b bank
	dicts := NewDictionaries(b.save)
	codec := NewCodec(dicts)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 40 {
		secret := make([]byte, 6<<10)
		for j := range secret {
			secret[j] = byte(random.Uint32())
		}
		raw := fmt.Appendf(nil, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s-%d"},"data":{"key":"%s"}}`, i, base64.StdEncoding.EncodeToString(secret))
		o := mustEncode(t, codec, raw)
		checkObject(t, o, raw)
		// The first dictionary is made of whole objects, one of them its first user.
		if i >= firstObjects && o.Body().Dict != dense || o.Body().Dict == dense && len(o.Body().Data) > len(raw)*4/5 {
			t.Fatalf("object %d: dictionary %d, %d of %d bytes", i, o.Body().Dict, len(o.Body().Data), len(raw))
		}
		again, err := NewCodec(b.reopen(t)).Decode(o.AppendBinary(nil))
		if err != nil {
			t.Fatal(err)
		}
		checkObjectJSON(t, again, raw)
	}
}

func TestInflateErrors(t *testing.T) {
	var b bank
	codec := NewCodec(NewDictionaries(b.save))
	var o *Object
	for _, raw := range editedPods(t, apitest.NewPods(1), 20) {
		o = mustEncode(t, codec, raw)
	}
	body := o.Body()
	d := b.reopen(t)
	damaged := slices.Clone(body.Data)
	damaged[len(damaged)/2] ^= 0xff
	for name, test := range map[string]struct {
		body Body
		want error
	}{
		"unknown dictionary": {Body{body.Dict + 1, body.RawLen, body.Data}, ErrNoDictionary},
		"no block":           {Body{noDictionary, 10, []byte("no block at all")}, ErrCorrupt},
		"no frame":           {Body{dense, 10, []byte("no frame at all")}, ErrCorrupt},
		"nothing":            {Body{0, 10, nil}, ErrCorrupt},
		"breaks off":         {Body{body.Dict, body.RawLen, body.Data[:len(body.Data)-1]}, ErrCorrupt},
		"too short":          {Body{body.Dict, body.RawLen + 1, body.Data}, ErrCorrupt},
		"too long":           {Body{body.Dict, body.RawLen - 1, body.Data}, ErrCorrupt},
		"no length":          {Body{body.Dict, 0, body.Data}, ErrCorrupt},
		"absurd length":      {Body{body.Dict, 1 << 40, body.Data}, ErrCorrupt},
	} {
		if got, err := d.Inflate([]byte("kept"), test.body); !errors.Is(err, test.want) || string(got) != "kept" {
			t.Errorf("%s: got %d bytes, %v, want %v", name, len(got), err, test.want)
		}
	}
	// Without a checksum of its own a body may inflate to something else, but no damage may panic.
	for i := range body.Data {
		for _, flip := range []byte{1, 0x80, 0xff} {
			damaged := slices.Clone(body.Data)
			damaged[i] ^= flip
			if got, err := d.Inflate(nil, Body{body.Dict, body.RawLen, damaged}); err == nil && len(got) != body.RawLen {
				t.Errorf("byte %d: %d bytes", i, len(got))
			}
		}
	}
	if _, err := NewDictionaries(nil).Inflate(nil, body); !errors.Is(err, ErrNoDictionary) {
		t.Errorf("no dictionaries at all: %v", err)
	}
}

func TestDecodeErrors(t *testing.T) {
	var b bank
	codec := NewCodec(NewDictionaries(b.save))
	var data []byte
	for _, raw := range editedPods(t, apitest.NewPods(1), 20) {
		data = mustEncode(t, codec, raw).AppendBinary(data[:0])
	}
	if _, err := NewCodec(NewDictionaries(nil)).Decode(data); !errors.Is(err, ErrNoDictionary) {
		t.Errorf("without its dictionary: %v", err)
	}
	for n := range data {
		if _, err := codec.Decode(data[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
		damaged := slices.Clone(data)
		damaged[n] ^= 1
		if _, err := codec.Decode(damaged); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d changed: %v", n, err)
		}
		// Damage under a checksum that is right.
		if _, err := codec.Decode(seal(data[:n])); n < len(data)-checksumLen-100 && n < 60 && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNoDictionary) {
			t.Fatalf("the first %d bytes, sealed: %v", n, err)
		}
	}
	later := slices.Clone(data[:len(data)-checksumLen])
	later[0] = binaryVersion + 1
	if _, err := codec.Decode(seal(later)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another version: %v", err)
	}
}

// seal puts a right checksum behind data.
func seal(data []byte) []byte {
	return binary.LittleEndian.AppendUint32(slices.Clone(data), checksum(data))
}

// smallObjects returns a codec with a dictionary, and objects of it that are small enough to fuzz.
func smallObjects(tb testing.TB) (codec *Codec, objects []*Object) {
	tb.Helper()
	codec = NewCodec(NewDictionaries(nil))
	for i := range firstObjects + 4 {
		objects = append(objects, mustEncode(tb, codec, fmt.Appendf(nil,
			`{"kind":"A","apiVersion":"v1","metadata":{"name":"n%d","namespace":"n","labels":{"a":"b"},"annotations":{"c":"d"},"creationTimestamp":"2026-01-02T03:04:05Z"},"x":"%x"}`, i, i*i)))
	}
	return codec, objects
}

func FuzzDecode(f *testing.F) {
	codec, objects := smallObjects(f)
	for _, o := range objects {
		data := o.AppendBinary(nil)
		f.Add(data[:len(data)-checksumLen])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := codec.Decode(seal(data))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNoDictionary) {
				t.Fatal(err)
			}
			return
		}
		_, _, _, _ = o.GetNamespace(), o.GetName(), o.GetUID(), o.GetResourceVersion()
		labels := maps.Collect(o.Labels().All())
		again, err := codec.Decode(o.AppendBinary(nil))
		if err != nil {
			t.Fatal(err)
		}
		if o.GetName() != again.GetName() || !maps.Equal(labels, again.GetLabels()) || o.head() != again.head() || !bytes.Equal(o.Body().Data, again.Body().Data) {
			t.Error("encoded and decoded again, the object differs")
		}
		if o.RawLen() > 1<<20 {
			return // would only spend the fuzzer's memory
		}
		if raw, err := o.AppendJSON(nil); err == nil && len(raw) != o.RawLen() {
			t.Errorf("%d bytes of JSON, want %d", len(raw), o.RawLen())
		}
		_, _, _ = o.GetAnnotations(), o.GetOwnerReferences(), o.GetManagedFields()
	})
}

// FuzzBody gives the decompressor whatever comes.
func FuzzBody(f *testing.F) {
	codec, objects := smallObjects(f)
	dict := codec.trainer.current.id
	for _, o := range objects {
		body := o.Body()
		f.Add(body.Data, uint16(body.RawLen), body.Dict == 0)
	}
	f.Fuzz(func(t *testing.T, data []byte, rawLen uint16, plain bool) {
		body := Body{Dict: dict, RawLen: int(rawLen), Data: data}
		if plain {
			body.Dict = 0
		}
		got, err := codec.dicts.Inflate(nil, body)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if err == nil && len(got) != int(rawLen) {
			t.Errorf("%d bytes, want %d", len(got), rawLen)
		}
	})
}

// FuzzEncode holds the one promise that matters most: what goes in comes out.
func FuzzEncode(f *testing.F) {
	pods := editedPods(f, apitest.NewPods(1), 40)
	codecs := map[string]*Codec{"none": NewCodec(NewDictionaries(nil)), "first": NewCodec(NewDictionaries(nil)), "trained": NewCodec(NewDictionaries(nil))}
	var objects []*Object
	for _, raw := range pods {
		objects = append(objects, mustEncode(f, codecs["first"], raw))
	}
	trained, err := codecs["trained"].dicts.addFor("", 2, train(objects))
	if err != nil {
		f.Fatal(err)
	}
	codecs["trained"].trainer.use(trained)
	f.Add([]byte(`{"kind":"Pod","metadata":{"name":"a-7d4b9c"}}`), 1)
	f.Add([]byte(`{"a":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`), 40)
	f.Fuzz(func(t *testing.T, part []byte, times int) {
		raw := append([]byte(`{"x":`), bytes.Repeat(part, 1+max(0, times)%64)...)
		raw = append(append(raw, pods[len(part)%len(pods)]...), part...)
		for name, codec := range codecs {
			codec.trainer.collecting, codec.trainer.samples, codec.trainer.sampled = false, nil, 0
			o, err := codec.Encode(raw, &rawjson.Meta{Name: []byte("n")}, 0)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got, err := o.AppendJSON(nil); err != nil || !bytes.Equal(got, raw) {
				t.Errorf("%s: %d bytes come out differently: %v", name, len(raw), err)
			}
		}
	})
}

// TestConcurrentUse encodes with several codecs at once while others decode and inflate what comes of it.
func TestConcurrentUse(t *testing.T) {
	dicts := NewDictionaries(nil)
	var encoders, readers sync.WaitGroup
	type made struct {
		codec *Codec
		o     *Object
		raw   []byte
	}
	objects := make(chan made, 64)
	for i := range 20 {
		pods := editedPods(t, apitest.NewPods(uint64(i)), 24)
		encoders.Go(func() {
			codec := NewCodec(dicts)
			for _, raw := range pods {
				o, err := codec.Encode(raw, nil, 0)
				if err != nil {
					t.Error(err)
					return
				}
				objects <- made{codec, o, raw}
			}
		})
	}
	for range 4 {
		readers.Go(func() {
			for m := range objects {
				o, err := m.codec.Decode(m.o.AppendBinary(nil))
				if err != nil {
					t.Error(err)
					continue
				}
				if got, err := o.AppendJSON(nil); err != nil || !bytes.Equal(got, m.raw) {
					t.Errorf("%s differs: %v", o.GetName(), err)
				}
				if len(m.o.GetAnnotations()) != 3 || m.o.Labels().Get("app.kubernetes.io/name") == "" {
					t.Errorf("%s: annotations %v, labels %v", o.GetName(), m.o.GetAnnotations(), m.o.GetLabels())
				}
			}
		})
	}
	encoders.Wait()
	close(objects)
	readers.Wait()
}

// What was encoded with a retired dictionary can be read; nothing is encoded with it any more.
func TestRetiredDictionaries(t *testing.T) {
	d := NewDictionaries(nil)
	mine, other := NewCodecFor(d, "mine"), NewCodecFor(d, "other")
	encode := func(c *Codec) *Object {
		t.Helper()
		o, err := c.Encode([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"long-enough-for-a-dictionary":"to be of use"}}}`), nil, 7)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	var old, untouched *Object
	for range firstObjects + 1 {
		old, untouched = encode(mine), encode(other)
	}
	ids := d.Retire(func(resource string, _ uint32) bool { return resource == "mine" })
	if !slices.Contains(ids, old.Body().Dict) || !d.Retired(old.Body().Dict) || d.Retired(untouched.Body().Dict) {
		t.Fatalf("retired %d, the objects have %d and %d", ids, old.Body().Dict, untouched.Body().Dict)
	}
	if raw, err := old.AppendJSON(nil); err != nil || !bytes.Contains(raw, []byte(`"name":"a"`)) {
		t.Errorf("%s, %v", raw, err)
	}
	for range 3 * firstObjects {
		if o := encode(mine); d.Retired(o.Body().Dict) {
			t.Fatal("a retired dictionary is used")
		}
	}
	if o := encode(mine); o.Body().Dict <= dense {
		t.Error("no dictionary took its place")
	}
	fresh, err := mine.Refresh(old)
	if err != nil || d.Retired(fresh.Body().Dict) || fresh.Position() != 7 || fresh.GetName() != "a" {
		t.Errorf("%+v, %v", fresh, err)
	}
	if same, err := other.Refresh(untouched); err != nil || same != untouched {
		t.Errorf("encoded again for nothing, %v", err)
	}
}

// TestObjectOfABody makes an object of its JSON: with the body that is known, or one of its own.
func TestObjectOfABody(t *testing.T) {
	d := NewDictionaries(nil)
	raw := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"7","labels":{"x":"y"}},"spec":{"a":1}}`)
	for _, known := range []Body{{}, {Dict: noDictionary, RawLen: len(raw), Data: s2.Encode(nil, raw)}} {
		o, err := d.Object(raw, known)
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.AppendJSON(nil)
		if err != nil || string(got) != string(raw) || o.GetName() != "a" || o.GetResourceVersion() != "7" || o.GetLabels()["x"] != "y" {
			t.Errorf("%s, %v", got, err)
		}
	}
	for _, bad := range []string{"", "{", `[]`} {
		if _, err := d.Object([]byte(bad), Body{}); err == nil {
			t.Errorf("%q is an object", bad)
		}
	}
}
