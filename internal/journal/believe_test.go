package journal

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestBelieve: a server that is behind is not believed because another was, long before: the entries that came between
// have shown that the stream lacks nothing. What servers insist on is believed, and stays so.
func TestBelieve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &Client{}
		j.knows(10)
		if err := j.believe(8, j.had()); !errors.Is(err, errBehind) {
			t.Errorf("the first time: %v", err)
		}
		asked := j.had()
		j.saw(11)
		if err := j.believe(10, asked); err != nil {
			t.Errorf("a server that answered before entry 11 was appended: %v", err)
		}
		time.Sleep(time.Hour)
		if err := j.believe(8, j.had()); !errors.Is(err, errBehind) {
			t.Errorf("an hour later, after entry 11 was read: %v", err)
		}
		j.knows(11) // as a reader does that begins anew
		time.Sleep(lostAfter + time.Second)
		for _, last := range []uint64{8, 9} {
			if err := j.believe(last, j.had()); err != nil {
				t.Errorf("%d, which servers insist on: %v", last, err)
			}
		}
	})
}

// TestBelieveOther: servers that insist on lacking one entry, as the last of another journal's snapshot, are not believed at once when one
// lacks what all have had.
func TestBelieveOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &Client{}
		j.saw(10)
		_ = j.believe(10, 100)
		time.Sleep(lostAfter + time.Second)
		if err := j.believe(10, 100); err != nil {
			t.Errorf("100, which servers insist on: %v", err)
		}
		for n := range uint64(5) {
			j.saw(11 + n)
			time.Sleep(time.Second)
		}
		began := time.Now()
		for _, had := range []uint64{15, 100, 15} { // and the other is asked for, too
			if err := j.believe(14, had); !errors.Is(err, errBehind) {
				t.Errorf("%d, %v after it was there: %v", had, time.Since(began), err)
			}
			time.Sleep(lostAfter / 2)
		}
		if err := j.believe(14, 15); err != nil {
			t.Errorf("15, which servers insist on: %v", err)
		}
	})
}
