package headline

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/pkg/event"
)

var resources = []event.Resource{
	{Version: "v1", Resource: "pods", Kind: "Pod"},
	{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
}

func randomRow(r *rand.Rand, after uint64) Row {
	return Row{
		Sequence: after + 1 + r.Uint64N(5), At: r.Int64N(1 << 60), Type: types[1+r.IntN(len(types)-1)],
		Flags: Flags(r.Uint32N(64)), Resource: resources[r.IntN(2)], Namespace: fmt.Sprint("ns", r.IntN(3)),
		Name: fmt.Sprint("name", r.IntN(20)), Manager: []string{"", "kubectl-edit", "kubelet"}[r.IntN(3)],
	}
}

func TestBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var want, got []Row
	var joined []byte
	var b Block
	sequence := uint64(1 << 50)
	for range 50 {
		b.Reset()
		for range 1 + r.IntN(30) {
			row := randomRow(r, sequence)
			sequence = row.Sequence
			b.Add(&row)
			want = append(want, row)
		}
		joined = append(joined, b.Bytes()...)
	}
	for _, bare := range []bool{false, true} {
		got = got[:0]
		classes := map[uint64]Row{}
		in := Reader{Bare: bare}
		if err := in.Read(joined, "", func(row *Row) error {
			of := Row{Resource: row.Resource, Type: row.Type, Flags: row.Flags}
			if known, ok := classes[row.Class]; ok && known != of {
				t.Errorf("class %x is of %+v and of %+v", row.Class, known, of)
			}
			classes[row.Class] = of
			got = append(got, *row)
			got[len(got)-1].Class = 0
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		kinds := map[Row]bool{}
		for _, of := range classes {
			kinds[of] = true
		}
		if len(kinds) != len(classes) {
			t.Errorf("%d classes of %d kinds", len(classes), len(kinds))
		}
		rows := slices.Clone(want)
		for i := range rows {
			if bare {
				rows[i].Namespace, rows[i].Name, rows[i].Manager = "", "", ""
			}
		}
		if diff := cmp.Diff(rows, got); diff != "" {
			t.Errorf("bare %t: %s", bare, diff)
		}
	}
	b.Reset()
	if b.Bytes() != nil {
		t.Error("an empty block has bytes")
	}
	stop := errors.New("stop")
	if err := new(Reader).Read(joined, "", func(*Row) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the error of the callback", err)
	}
}

func FuzzRead(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	var b Block
	for sequence := uint64(1); sequence < 40; {
		row := randomRow(r, sequence)
		sequence = row.Sequence
		b.Add(&row)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		rows := 0
		err := new(Reader).Read(data, "", func(*Row) error { rows++; return nil })
		bare := 0
		if other := (&Reader{Bare: true}).Read(data, "", func(*Row) error { bare++; return nil }); (err == nil) != (other == nil) || bare != rows {
			t.Fatalf("%d rows, %v; without texts %d, %v", rows, err, bare, other)
		}
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatal(err)
		}
		if rows > len(data) {
			t.Fatalf("%d rows of %d bytes", rows, len(data))
		}
	})
}

// BenchmarkRead reads a million rows of blocks of 256.
func BenchmarkRead(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	var blocks [][]byte
	var block Block
	sequence := uint64(1)
	for range 1_000_000 / 256 {
		block.Reset()
		for range 256 {
			row := randomRow(r, sequence)
			row.Name = fmt.Sprint("object-", r.IntN(5000))
			sequence = row.Sequence
			block.Add(&row)
		}
		blocks = append(blocks, append([]byte(nil), block.Bytes()...))
	}
	for b.Loop() {
		n := 0
		for _, x := range blocks {
			if err := new(Reader).Read(x, "", func(*Row) error { n++; return nil }); err != nil {
				b.Fatal(err)
			}
		}
	}
}
