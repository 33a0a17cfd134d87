package compact

import (
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func meanLen(all [][]byte) int64 {
	var n int
	for _, b := range all {
		n += len(b)
	}
	return int64(n / len(all))
}

func BenchmarkEncode(b *testing.B) {
	edited := editedPods(b, apitest.NewPods(1), 2000)
	codec := NewCodec(NewDictionaries(nil))
	metas := make([]rawjson.Meta, len(edited))
	for i, p := range edited {
		m, err := rawjson.Scan(p)
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
	edited := editedPods(b, apitest.NewPods(1), 500)
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
