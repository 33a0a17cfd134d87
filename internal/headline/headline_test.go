package headline

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
	if err := new(Reader).Read(joined, "", func(row *Row) error { got = append(got, *row); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
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
