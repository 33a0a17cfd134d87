package rawjson

import (
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
)

// benchPods returns pods as they come and as they are stored, without managedFields.
func benchPods(b *testing.B, n int) (raw, edited [][]byte) {
	b.Helper()
	e, err := NewEditor(Rule{Path: "metadata.managedFields"})
	if err != nil {
		b.Fatal(err)
	}
	g := apitest.NewPods(1)
	for range n {
		p := g.Next()
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

func BenchmarkSplitWatchLine(b *testing.B) {
	line := append(append([]byte(`{"type":"MODIFIED","object":`), apitest.NewPods(1).Next()...), "}\n"...)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := SplitWatchLine(line); err != nil {
			b.Fatal(err)
		}
	}
}
