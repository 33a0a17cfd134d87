package compact

import (
	"testing"
)

// benchPods returns pods as they come and as they are stored, without managedFields.
func benchPods(b *testing.B, n int) (raw, edited [][]byte) {
	b.Helper()
	e, err := NewEditor(Rule{Path: "metadata.managedFields"})
	if err != nil {
		b.Fatal(err)
	}
	g := newPodGen(1)
	for range n {
		p := g.pod()
		out, err := e.Append(nil, p)
		if err != nil {
			b.Fatal(err)
		}
		raw, edited = append(raw, p), append(edited, out)
	}
	return raw, edited
}

func meanLen(all [][]byte) int64 {
	var n int
	for _, b := range all {
		n += len(b)
	}
	return int64(n / len(all))
}

func BenchmarkScan(b *testing.B) {
	raw, edited := benchPods(b, 500)
	for name, pods := range map[string][][]byte{"asSent": raw, "edited": edited} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(meanLen(pods))
			for i := 0; b.Loop(); i++ {
				if _, err := Scan(pods[i%len(pods)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkScanHead(b *testing.B) {
	_, edited := benchPods(b, 500)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := ScanHead(edited[i%len(edited)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEdit(b *testing.B) {
	raw, _ := benchPods(b, 500)
	e, err := NewEditor(Rule{Path: "metadata.managedFields"}, Rule{Path: `metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]`})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(meanLen(raw))
	var dst []byte
	for i := 0; b.Loop(); i++ {
		if dst, err = e.Append(dst[:0], raw[i%len(raw)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	_, edited := benchPods(b, 2000)
	codec := NewCodec(NewDictionaries(nil))
	metas := make([]Meta, len(edited))
	for i, p := range edited {
		m, err := Scan(p)
		if err != nil {
			b.Fatal(err)
		}
		metas[i] = m
	}
	b.ReportAllocs()
	b.SetBytes(meanLen(edited))
	var size, n int
	for i := 0; b.Loop(); i++ {
		o, err := codec.Encode(edited[i%len(edited)], &metas[i%len(edited)], 0)
		if err != nil {
			b.Fatal(err)
		}
		size, n = size+o.Size(), n+1
	}
	b.ReportMetric(float64(size)/float64(n), "B/object")
}

func BenchmarkInflate(b *testing.B) {
	_, edited := benchPods(b, 500)
	codec := NewCodec(NewDictionaries(nil))
	var objects []*Object
	for _, p := range edited {
		o, err := codec.Encode(p, nil, 0)
		if err != nil {
			b.Fatal(err)
		}
		objects = append(objects, o)
	}
	b.ReportAllocs()
	b.SetBytes(meanLen(edited))
	var dst []byte
	for i := 0; b.Loop(); i++ {
		var err error
		if dst, err = objects[i%len(objects)].AppendJSON(dst[:0]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSplitWatchLine(b *testing.B) {
	line := append(append([]byte(`{"type":"MODIFIED","object":`), newPodGen(1).pod()...), "}\n"...)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := SplitWatchLine(line); err != nil {
			b.Fatal(err)
		}
	}
}
