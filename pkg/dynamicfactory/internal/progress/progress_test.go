package progress

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func num(n int) Version { return ParseVersion(fmt.Sprint(n)) }

// Whatever comes in whatever order: a checkpoint never names a version of which an
// event has a later position, nor one that may still have more.
func TestCheckpointIsNeverAhead(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := New()
		type handed struct {
			position uint64
			version  int
		}
		var all []handed
		v := 10
		open := 0 // the version that may have more events
		p.List(num(v), 0)
		for range 100 {
			switch r.IntN(7) {
			case 0:
				v += r.IntN(3)
				p.Bookmark(num(v))
				open = 0
			case 1:
				p.Quiet(p.Position(), num(v+r.IntN(3)), time.Now()) // events up to that version may still come
				continue
			case 2:
				if open == 0 {
					v++
				}
				fallthrough
			default:
				if open == 0 || r.IntN(3) > 0 {
					v++
				}
				p.Event(num(v), r.Uint64())
				all = append(all, handed{p.Position(), v})
				open = v
			}
			safe := uint64(r.IntN(int(p.Position()) + 1))
			got := ParseVersion(p.Checkpoint(safe))
			for _, h := range all {
				if h.position > safe && uint64(h.version) <= got.number {
					t.Fatalf("seed %d: checkpoint(%d) = %v, but version %d has an event at %d", seed, safe, got, h.version, h.position)
				}
			}
			if open != 0 && got.number >= uint64(open) {
				t.Fatalf("seed %d: checkpoint(%d) = %v, but version %d may have more events", seed, safe, got, open)
			}
			if r.IntN(10) == 0 {
				p.Acknowledged(safe)
				if again := ParseVersion(p.Checkpoint(safe)); again != got {
					t.Fatalf("seed %d: checkpoint(%d) was %v and is %v after Acknowledged", seed, safe, got, again)
				}
			}
		}
	}
}

// Without anybody who acknowledges, what is remembered stays bounded, and right.
func TestMarksAreBounded(t *testing.T) {
	p := New()
	p.List(num(1), 0)
	for i := range 10 * maxMarks {
		p.Event(num(i+2), 1)
	}
	if n := len(p.marks); n > maxMarks {
		t.Errorf("%d marks", n)
	}
	at := uint64(5 * maxMarks)
	got := ParseVersion(p.Checkpoint(at)).number
	if got > at+1 || got < at-at/4 {
		t.Errorf("checkpoint(%d) = %d", at, got)
	}
}

func TestRepeatedEvents(t *testing.T) {
	p := New()
	p.List(num(1), 1)
	a, b := p.EventID("DELETED", []byte("a"), nil, nil), p.EventID("DELETED", []byte("b"), nil, nil)
	p.Event(num(5), a)
	for _, tc := range []struct {
		version int
		id      uint64
		want    bool
	}{
		{5, a, true},
		{5, b, false},
		{6, a, false},
		{5, p.EventID("ADDED", []byte("a"), nil, nil), false},
		{5, p.EventID("DELETED", []byte("a"), []byte("ns"), []byte("of the same uid")), false},
	} {
		if got := p.Repeated(num(tc.version), tc.id); got != tc.want {
			t.Errorf("version %d, event %x: got %v", tc.version, tc.id, got)
		}
	}
	p.Event(num(6), b)
	if p.Repeated(num(5), a) {
		t.Error("an event of a version that is complete")
	}
	if got := p.Resume(); got != "5" {
		t.Errorf("resumes from %s", got)
	}
}

func TestVersions(t *testing.T) {
	for _, s := range []string{"", "0", "1", "42", "007", "9223372036854775807", "18446744073709551615", "99999999999999999999999", "+1", "-1", "a1", "1a"} {
		if got := ParseVersion(s).String(); got != s {
			t.Errorf("ParseVersion(%q) = %q", s, got)
		}
		if got := VersionOf([]byte(s)).String(); got != s {
			t.Errorf("VersionOf(%q) = %q", s, got)
		}
	}
	for _, tc := range []struct {
		a, b string
		want bool
	}{{"1", "2", true}, {"2", "1", false}, {"2", "2", false}, {"9", "10", true}, {"a", "b", false}, {"1", "b", false}, {"", "1", false}} {
		if got := Older(tc.a, tc.b); got != tc.want {
			t.Errorf("Older(%q, %q) = %v", tc.a, tc.b, got)
		}
	}
}
