package store

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/layout"
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

// A dead letter whose record became unreadable while its event was with the sink says
// so, and is not retried as an event without content.
func TestDeadLetterOfALostRecord(t *testing.T) {
	s := openTest(t, "store", Options{FS: vfs.NewMem(), firstSequence: 1})
	q := ensure(t, s, "a")
	appendN(t, s, 2, "a")
	read(t, q, 0, 10)
	record, _, err := s.get(layout.AppendLogKey(nil, 1))
	if err == nil {
		err = s.db.Delete(layout.AppendLogKey(nil, 1), nil)
	}
	if err = errors.Join(err, q.DeadLetter(1, Letter{Reason: "refused: 400", Time: testEpoch})); err != nil {
		t.Fatal(err)
	}
	letters, err := q.DeadLetters(0, 10)
	if err != nil || len(letters) != 1 || !letters[0].Unreadable || !strings.Contains(letters[0].Reason, "refused: 400") {
		t.Fatalf("%+v, %v", letters, err)
	}
	if n, err := q.RetryDeadLetters(0, 1); n != 0 || err != nil {
		t.Errorf("%d retried without content, %v", n, err)
	}
	if err := s.db.Set(layout.AppendLogKey(nil, 1), record, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := q.RetryDeadLetters(0, 1); n != 1 || err != nil {
		t.Errorf("%d retried, %v", n, err)
	}
	if items := read(t, q, 2, 10); len(items) != 1 || string(items[0].Payload) != "payload 1" {
		t.Errorf("%+v", items)
	}
}

// TestDamagedBacklogHoldsNoLog: entries whose records cannot be read stay in the count of a
// queue, and do not hold back what others have been given since.
func TestDamagedBacklogHoldsNoLog(t *testing.T) {
	fs := storeFiles(t, true)
	for _, name := range dataFiles(t, fs, ".sst") {
		b := content(t, fs, name)
		if at := bytes.Index(b, []byte("40:")); at >= 0 {
			b[at+50] ^= 0x55
		}
		overwrite(t, fs, name, b)
	}
	s := openTest(t, "store", Options{FS: fs})
	live := ensure(t, s, "live")
	limits := Limits{MaxBytes: 64 << 20, RetentionMaxBytes: 1}
	for i := range 10 {
		minutes(t, s, 100+10*i, 10, 256<<10, "live")
		for items := read(t, live, 0, 100); len(items) > 0; items = read(t, live, 0, 100) {
			for _, item := range items {
				if err := live.Ack(item.Position); err != nil {
					t.Fatal(err)
				}
			}
		}
		relieve(t, s, testEpoch, limits, 1<<40)
	}
	if st, bound := s.LogStats(), limits.holdBound(); st.Bytes > 3*bound {
		t.Errorf("log %+v, more than %d bytes", st, 3*bound)
	}
}

// TestUnreadableDuringAnAck finds a record unreadable while an acknowledgement of entries
// before it is being written, and ends the process then: no entry is counted that is not
// read again.
func TestUnreadableDuringAnAck(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openTest(t, "store", Options{FS: fs, firstSequence: 1})
	q := ensure(t, s, "a")
	appendN(t, s, 3, "a")
	items := read(t, q, 0, 10)
	q.settling.RLock() // as Ack does
	ack := s.db.NewBatch()
	q.take(ack, []uint64{items[0].Position, items[1].Position})
	done := make(chan error, 1)
	go func() { done <- q.setUnreadable(items[2].Position) }()
	written := false
	for waits := false; !waits && !written; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			written = true
		default:
			if waits = !q.settling.TryRLock(); !waits {
				q.settling.RUnlock()
				runtime.Gosched()
			}
		}
	}
	appendN(t, s, 1) // makes it durable
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := s.applyLazily(ack); err != nil {
		t.Fatal(err)
	}
	q.settling.RUnlock()
	if !written {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	q = ensure(t, openTest(t, "store", Options{FS: crashed, firstSequence: 1}), "a")
	if n, length := len(read(t, q, 0, 10)), q.Stats().Length; int64(n) != length {
		t.Errorf("%d entries are counted, %d can be read", length, n)
	}
}
