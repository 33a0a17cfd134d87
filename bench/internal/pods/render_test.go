package pods

import (
	"bytes"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestMarksAreAsWideAsWhatReplacesThem(t *testing.T) {
	o := values(1, FirstVersion)
	for kind, text := range markTexts {
		if got := len(o.text(byte(kind))); got != len(text) {
			t.Errorf("%q has %d characters, its value %d", text, len(text), got)
		}
	}
}

func TestRender(t *testing.T) {
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	names, uids := map[string]bool{}, map[string]bool{}
	size := 0
	const pods = 20_000
	for n := range pods {
		raw := r.Append(nil, n, Version(n))
		if i := bytes.IndexByte(raw, '~'); i >= 0 {
			t.Fatalf("a mark is left in pod %d: %.80s", n, raw[i:])
		}
		size += len(raw)
		if n%97 != 0 {
			continue
		}
		var p corev1.Pod
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Fatalf("pod %d: %v\n%s", n, err, raw)
		}
		if key := p.Namespace + "/" + p.Name; names[key] || uids[string(p.UID)] {
			t.Fatalf("pod %d is like another one: %s %s", n, key, p.UID)
		}
		names[p.Namespace+"/"+p.Name], uids[string(p.UID)] = true, true
		var item corev1.Pod
		if err := json.Unmarshal(r.AppendItem(nil, n, Version(n)), &item); err != nil || item.Kind != "" || item.Name != p.Name {
			t.Fatalf("item %d: %v %q", n, err, item.Name)
		}
		if next := r.Append(nil, n, Version(n)+1000); bytes.Equal(next, raw) {
			t.Fatal("an update changes nothing")
		}
	}
	if mean := size / pods; mean < 5000 || mean > 6500 {
		t.Errorf("a pod has %d bytes, want 5 to 6.5 KB", mean)
	}
}

func BenchmarkRender(b *testing.B) {
	r, err := New()
	if err != nil {
		b.Fatal(err)
	}
	var dst []byte
	for n := 0; b.Loop(); n++ {
		dst = r.Append(dst[:0], n%MaxPods, Version(n))
	}
}
