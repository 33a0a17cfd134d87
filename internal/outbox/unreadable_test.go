package outbox

import (
	"bytes"
	"fmt"
	"testing"
)

// A Read whose entries are all unreadable goes on to those behind them: no items
// mean that nothing is left.
func TestReadPastARunOfDamage(t *testing.T) {
	fs := storeFiles(t, true)
	hit := 0
	for _, name := range dataFiles(t, fs, ".sst") {
		b := content(t, fs, name)
		for n := 20; n < 90; n++ {
			if at := bytes.Index(b, fmt.Appendf(nil, "%d:", n)); at >= 0 {
				b[at+50] ^= 0x55
				hit++
			}
		}
		overwrite(t, fs, name, b)
	}
	s := openTest(t, "store", Options{FS: fs})
	q, err := s.Queue("a")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for after := uint64(0); ; {
		items, err := q.Read(after, 10, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 0 {
			break
		}
		read += len(items)
		after = items[len(items)-1].Position
	}
	if dead := int(q.Stats().DeadLetters); dead < 50 || read+dead != damageRecords {
		t.Errorf("%d entries were read and %d are dead letters, of %d; %d were damaged", read, dead, damageRecords, hit)
	}
}
