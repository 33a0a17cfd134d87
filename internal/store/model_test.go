package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/watcherd/watcherd/internal/store/inspect"
)

// model is the obvious implementation of a store.
type model struct {
	Log    []modelEntry // all there ever was
	Low    uint64       // retention may have removed records below
	Queues map[string]*modelQueue
	State  map[string]string // "partition/key"
	Meta   map[string]string
}

type modelQueue struct {
	Entries []modelEntry
	Letters []modelEntry
	Note    string

	State byte   // of its membership
	New   bool   // filled for the first time, without an interruption
	After uint64 // what is not queued for a sink that is not there begins behind it
	Left  uint64 // the end of the log when it left
	Hole  bool   // records were deleted before they could be filled
	Given bool   // some were deleted behind a fill that was interrupted, which cannot be told from a Hole
}

type modelEntry struct {
	Position, Sequence uint64
	Flags              uint32
	Payload            string
	Reason             string // of a dead letter
}

func newModel() *model {
	return &model{Queues: map[string]*modelQueue{}, State: map[string]string{}, Meta: map[string]string{}}
}

func (m *model) clone() *model {
	c := &model{Log: slices.Clone(m.Log), Low: m.Low, Queues: map[string]*modelQueue{}, State: maps.Clone(m.State), Meta: maps.Clone(m.Meta)}
	for name, q := range m.Queues {
		c.Queues[name] = &modelQueue{}
		*c.Queues[name] = *q
		c.Queues[name].Entries, c.Queues[name].Letters = slices.Clone(q.Entries), slices.Clone(q.Letters)
	}
	return c
}

// needed is the smallest sequence some queue refers to. A retried dead letter
// and a detached entry carry their payload, which shows in Reason here.
func (m *model) needed() uint64 {
	low := ^uint64(0)
	for _, q := range m.Queues {
		for _, e := range q.Entries {
			if e.Reason == "" {
				low = min(low, e.Sequence)
			}
		}
	}
	return low
}

// machine is a store, its model, and the models it may fall back to when the
// power fails: acks are not synced, so any number of the last of them may go.
type machine struct {
	fs    *vfs.MemFS
	disk  faulty // of fs, to the store
	s     *Store
	m     *model
	since []*model // snapshots from the last synced write on; the last equals m
	next  uint64
	seed  uint64
	clock time.Time

	letters int // the bound of dead letters; 0: none

	journal *testJournal // nil: without
	standby *vfs.MemFS   // of the journal's other directory
}

func newMachine(t *rapid.T) *machine {
	x := &machine{fs: vfs.NewCrashableMem(), m: newModel(), next: 1, clock: testEpoch}
	if rapid.Bool().Draw(t, "journal") {
		x.journal, x.standby = &testJournal{}, vfs.NewCrashableMem()
	}
	x.reopen(t)
	x.synced()
	return x
}

func (x *machine) reopen(t *rapid.T) {
	x.letters = 0
	if x.journal != nil {
		x.takeOver(t)
		return
	}
	x.open(t, nil)
}

// open opens the store, at times on a full disk at first: it then fails with the reason, and has lost nothing.
func (x *machine) open(t *rapid.T, j *testJournal) {
	full := rapid.IntRange(0, 19).Draw(t, "open on a full disk") == 0
	for {
		o := Options{firstSequence: 1, FS: errorfs.Wrap(x.fs, &x.disk)}
		if j != nil {
			o.Journal = j.writer()
		}
		if full {
			x.fill("", rapid.IntRange(0, 30).Draw(t, "writes"))
		}
		s, err := Open("store", o)
		x.free()
		if err == nil {
			x.s = s
			return
		}
		if !full || !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrDamaged) {
			t.Fatalf("open: %v", err)
		}
		full = false
	}
}

// fill makes the disk full after so many more writes of files whose names end so.
func (x *machine) fill(suffix string, writes int) {
	var n atomic.Int64
	x.disk.set(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpCreate, errorfs.OpLink, errorfs.OpMkdirAll, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpFileWrite, errorfs.OpFileWriteAt,
			errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			if strings.HasSuffix(op.Path, suffix) && n.Add(1) > int64(writes) {
				return syscall.ENOSPC
			}
		}
		return nil
	})
}

func (x *machine) free() { x.disk.fail.Store(nil) }

func (x *machine) must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (x *machine) synced()   { x.since = []*model{x.m.clone()} }
func (x *machine) unsynced() { x.since = append(x.since, x.m.clone()) }

func (x *machine) sink(t *rapid.T) (string, *Queue) {
	if len(x.m.Queues) == 0 {
		t.Skip("no sinks")
	}
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(x.m.Queues))).Draw(t, "sink")
	q, err := x.s.Queue(name)
	x.must(t, err)
	return name, q
}

func (x *machine) ensure(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	from, state := FromNow, byte(memberJoined)
	if rapid.Bool().Draw(t, "from the start") {
		from, state = FromLogStart, memberFilling
	}
	_, err := x.s.EnsureSink(name, from)
	x.must(t, err)
	if x.m.Queues[name] == nil {
		x.m.Queues[name] = &modelQueue{State: state, New: state == memberFilling}
		x.synced()
	}
}

func (m *model) tail() uint64 {
	if len(m.Log) == 0 {
		return 0
	}
	return m.Log[len(m.Log)-1].Sequence
}

func (x *machine) leave(t *rapid.T) {
	name, q := x.sink(t)
	mq, before := x.m.Queues[name], q.member
	x.must(t, x.s.LeaveSink(name))
	if mq.State == memberJoined {
		mq.State, mq.After, mq.Left, mq.Hole = memberLeft, x.m.tail(), x.m.tail(), false
	}
	mq.Given = mq.Given || mq.State == memberFilling && x.deletedSince(mq.Left)
	if q.member != before {
		mq.Left = max(mq.Left, mq.After)
		mq.New = false
		x.synced()
	}
}

// deletedSince reports whether records behind a sequence are deleted.
func (x *machine) deletedSince(sequence uint64) bool {
	low := x.s.LogStats().First
	return slices.ContainsFunc(x.m.Log, func(e modelEntry) bool { return e.Sequence > sequence && e.Sequence < low })
}

// taken is what a fill selects.
func taken(e modelEntry) bool { return e.Sequence%4 != 0 }

// given is what a fill or a replay selects, as copies or not.
func given(copies bool, flags uint32, all bool) Selector {
	return func(it *Item) (Selected, bool, error) {
		s := Selected{Flags: flags}
		if copies {
			s.Payload = []byte("copy of " + string(it.Payload))
		}
		return s, all || taken(modelEntry{Sequence: it.Sequence}), nil
	}
}

// copied is an entry that has a copy of its record.
func (e modelEntry) copied() modelEntry {
	e.Payload, e.Reason = "copy of "+e.Payload, "copied"
	return e
}

func (x *machine) fillSink(t *rapid.T) {
	name, q := x.sink(t)
	mq, low := x.m.Queues[name], x.s.LogStats().First
	if mq.State == memberJoined {
		t.Skip("it is there")
	}
	from := rapid.SampledFrom([]Start{FromNow, FromLogStart}).Draw(t, "from")
	x.must(t, x.s.RejoinSink(name, from))
	if mq.State == memberLeft {
		mq.State = memberFilling
		if from == FromLogStart {
			mq.After = 0
		}
		x.synced()
	}
	copies := rapid.Bool().Draw(t, "copies")
	n, err := x.s.Fill(context.Background(), name, given(copies, 5, false))
	x.must(t, err)
	if n > 0 {
		defer x.synced()
	}
	for _, e := range x.m.Log {
		mq.Hole = mq.Hole || !mq.New && e.Sequence > max(mq.After, mq.Left) && e.Sequence < low
		if e.Sequence >= low && e.Sequence > mq.After && taken(e) {
			e.Position, e.Flags = x.next, 5
			if copies {
				e = e.copied()
			}
			x.next++
			mq.Entries = append(mq.Entries, e)
			mq.After = e.Sequence
			n--
		}
	}
	if n != 0 {
		t.Fatalf("%d more are filled than expected", n)
	}
	if a, _ := q.Absence(); mq.Hole && !a.Lost {
		t.Fatalf("records since %d are missing, the log begins at %d: %+v", mq.Left, low, a)
	} else if a.Lost && !mq.Hole && !mq.Given && !x.deletedSince(mq.Left) {
		t.Fatalf("no record since %d is missing, the log begins at %d: %+v", mq.Left, low, a)
	}
	if rapid.Bool().Draw(t, "filled") {
		x.must(t, x.s.Filled(name))
		mq.State, mq.New, mq.After, mq.Left, mq.Hole, mq.Given = memberJoined, false, 0, 0, false, false
		x.synced()
	}
}

func (x *machine) purge(t *rapid.T) {
	name, _ := x.sink(t)
	x.must(t, x.s.PurgeSink(name))
	delete(x.m.Queues, name)
	x.synced()
}

func (x *machine) commit(t *rapid.T) {
	b := x.s.NewBatch()
	defer b.Discard()
	discard := rapid.IntRange(0, 9).Draw(t, "discard") == 0
	before, beforeNext := x.m.clone(), x.next
	for range rapid.IntRange(0, 5).Draw(t, "records") {
		x.clock = x.clock.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
		payload := fmt.Sprintf("%d:%x", x.next, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload"))
		e := modelEntry{Position: x.next, Sequence: x.next, Payload: payload}
		var routes []Route
		for _, name := range slices.Sorted(maps.Keys(x.m.Queues)) {
			if flags := uint32(rapid.IntRange(0, 3).Draw(t, "flags")); flags != 0 && x.m.Queues[name].State == memberJoined {
				routes = append(routes, Route{Sink: name, Flags: flags})
				e.Flags = flags
				x.m.Queues[name].Entries = append(x.m.Queues[name].Entries, e)
			}
		}
		e.Flags = 0
		x.m.Log = append(x.m.Log, e)
		if got := b.Append(Record{Time: x.clock, Payload: []byte(payload)}, routes); got != x.next {
			t.Fatalf("sequence %d, want %d", got, x.next)
		}
		x.next++
	}
	for range rapid.IntRange(0, 3).Draw(t, "states") {
		p, k := rapid.SampledFrom([]string{"p", "q"}).Draw(t, "p"), rapid.SampledFrom([]string{"", "k", "kk"}).Draw(t, "k")
		if rapid.Bool().Draw(t, "delete") {
			b.DeleteState(p, k)
			delete(x.m.State, p+"/"+k)
			continue
		}
		v := rapid.StringN(0, 5, 9).Draw(t, "v")
		b.PutState(p, k, []byte(v))
		x.m.State[p+"/"+k] = v
	}
	v := fmt.Sprint(x.next)
	b.PutMeta("m", []byte(v))
	x.m.Meta["m"] = v
	if discard {
		x.m, x.next = before, beforeNext
		return
	}
	full := x.journal == nil && rapid.IntRange(0, 19).Draw(t, "full disk") == 0 // a journal has the batch all the same
	if full {
		x.fill(".log", rapid.IntRange(0, 2).Draw(t, "writes"))
	}
	err := x.s.Commit(b)
	x.free()
	if full && errors.Is(err, ErrFailed) && errors.Is(err, syscall.ENOSPC) {
		x.unsynced() // it may be on the disk
		x.must(t, x.s.Close())
		x.resume(t, "a failed commit")
		x.next = x.s.next
		return
	}
	x.must(t, err)
	x.synced()
}

func (x *machine) deletePartition(t *rapid.T) {
	p := rapid.SampledFrom([]string{"p", "q"}).Draw(t, "p")
	known := slices.Contains(x.s.Partitions(), p)
	x.must(t, x.s.DeletePartition(p))
	if !known {
		return
	}
	maps.DeleteFunc(x.m.State, func(k, _ string) bool { return k[:1] == p })
	x.synced()
}

// inFlight reads a part of the queue and picks some of it.
func (x *machine) inFlight(t *rapid.T) (string, *Queue, []uint64) {
	name, q := x.sink(t)
	if x.m.Queues[name].State == memberFilling {
		t.Skip("it must not be used")
	}
	items, err := q.Read(0, rapid.IntRange(1, 8).Draw(t, "max"), rapid.IntRange(1, 200).Draw(t, "bytes"))
	x.must(t, err)
	var picked []uint64
	for _, item := range items {
		if rapid.Bool().Draw(t, "pick") {
			picked = append(picked, item.Position)
		}
	}
	return name, q, picked
}

func (x *machine) ack(t *rapid.T) {
	name, q, picked := x.inFlight(t)
	// A second time, and one never read.
	x.must(t, q.Ack(append(slices.Clone(picked), append(picked, 1<<40)...)...))
	mq := x.m.Queues[name]
	mq.Entries = slices.DeleteFunc(mq.Entries, func(e modelEntry) bool { return slices.Contains(picked, e.Position) })
	x.unsynced()
}

func (x *machine) deadLetter(t *rapid.T) {
	name, q, picked := x.inFlight(t)
	mq := x.m.Queues[name]
	for _, position := range picked {
		i := slices.IndexFunc(mq.Entries, func(e modelEntry) bool { return e.Position == position })
		l := mq.Entries[i]
		err := q.DeadLetter(position, Letter{Reason: "r", Attempts: 2, First: testEpoch, Time: x.clock})
		if !x.m.roomForLetter(name, len(l.Payload), x.letters) {
			if !errors.Is(err, ErrDeadLettersFull) {
				t.Fatalf("a dead letter of %d bytes beyond the bound of %d: %v", len(l.Payload), x.letters, err)
			}
			return
		}
		x.must(t, err)
		l.Reason = "r"
		mq.Entries = slices.Delete(mq.Entries, i, i+1)
		mq.Letters = append(mq.Letters, l)
		slices.SortFunc(mq.Letters, func(a, b modelEntry) int { return int(a.Position) - int(b.Position) })
		x.unsynced()
	}
}

// roomForLetter reports whether a sink may have one more dead letter within so many bytes, of which half are divided among all.
func (m *model) roomForLetter(sink string, size, most int) bool {
	bytes := func(name string) (n int) {
		for _, l := range m.Queues[name].Letters {
			n += len(l.Payload)
		}
		return n
	}
	part, total := most/(2*len(m.Queues)), size
	for name := range m.Queues {
		if n := bytes(name); name == sink {
			total += n
		} else {
			total += max(n, part)
		}
	}
	own := bytes(sink)
	return most == 0 || own == 0 || own+size <= part || total <= most
}

// limit changes the bound of dead letters.
func (x *machine) limit(t *rapid.T) {
	x.letters = rapid.SampledFrom([]int{0, 30, 200}).Draw(t, "letters")
	x.s.SetLimits(Limits{DeadLetterMaxBytes: int64(x.letters)})
}

// backup compares a copy of the store with the model.
func (x *machine) backup(t *rapid.T) {
	if x.journal != nil {
		t.Skip("acknowledgements wait for the journal")
	}
	x.must(t, x.fs.RemoveAll("/backup"))
	x.must(t, x.s.Backup(context.Background(), "/backup"))
	report, err := inspect.CheckFS(x.fs, "/backup")
	x.must(t, err)
	if !report.OK() {
		t.Fatalf("check of the backup: %q", report.Problems)
	}
	s, err := Open("/backup", Options{firstSequence: 1, FS: x.fs})
	x.must(t, err)
	if diff := x.diff(x.m, (&machine{s: s}).observe(t)); diff != "" {
		t.Errorf("the backup differs from the model:\n%s", diff)
	}
	x.must(t, s.Close())
	x.must(t, x.fs.RemoveAll("/backup"))
}

func (x *machine) settle(t *rapid.T) {
	name, q := x.sink(t)
	mq := x.m.Queues[name]
	retry := rapid.Bool().Draw(t, "retry")
	positions := []uint64{1 << 40}
	var kept []modelEntry
	for _, l := range mq.Letters {
		if !rapid.Bool().Draw(t, "settle") {
			kept = append(kept, l)
			continue
		}
		positions = append(positions, l.Position)
		if retry {
			l.Position, l.Reason = x.next, "retried"
			x.next++
			mq.Entries = append(mq.Entries, l)
		}
	}
	f := q.DropDeadLetters
	if retry {
		f = func(positions ...uint64) (int, error) { return q.RetryDeadLetters(0, positions...) }
	}
	n, err := f(positions...)
	x.must(t, err)
	if n != len(positions)-1 {
		t.Fatalf("settled %d of %d", n, len(positions)-1)
	}
	mq.Letters = kept
	if n > 0 {
		x.synced()
	}
}

func (x *machine) replay(t *rapid.T) {
	name, _ := x.sink(t)
	r := ReplayRange{
		FromSequence: uint64(rapid.IntRange(0, int(x.next)).Draw(t, "from")),
		ToSequence:   uint64(rapid.IntRange(0, int(x.next)).Draw(t, "to")),
	}
	low := x.s.LogStats().First
	if x.m.Queues[name].State != memberJoined {
		if _, err := x.s.Replay(context.Background(), name, r, always(9)); err != nil && !errors.Is(err, ErrNotJoined) {
			t.Fatal(err)
		}
		return
	}
	copies := rapid.Bool().Draw(t, "copies")
	n, err := x.s.Replay(context.Background(), name, r, given(copies, 9, true))
	x.must(t, err)
	if n > 0 {
		defer x.synced()
	}
	mq := x.m.Queues[name]
	for _, e := range x.m.Log {
		if e.Sequence >= max(low, r.FromSequence) && (r.ToSequence == 0 || e.Sequence <= r.ToSequence) {
			e.Position, e.Flags = x.next, 9
			if copies {
				e = e.copied()
			}
			x.next++
			mq.Entries = append(mq.Entries, e)
			n--
		}
	}
	if n != 0 {
		t.Fatalf("replayed %d more than expected", n)
	}
}

// rewrite edits the log, or what a sink's queue or dead letters carry.
func (x *machine) rewrite(t *rapid.T) {
	edit := func(payload string) string { return payload[:len(payload)-1] + string(payload[len(payload)-1]^1) }
	which := rapid.SampledFrom([]string{"log", "queue", "letters"}).Draw(t, "which")
	f, queues := x.s.RewriteLog, x.m.Queues
	var mq *modelQueue
	if which != "log" {
		name, q := x.sink(t)
		f, mq, queues = q.RewriteQueue, x.m.Queues[name], nil
		if which == "letters" {
			f = q.RewriteDeadLetters
		}
	}
	rewritten := 0
	for after, end := uint64(0), false; !end; {
		var err error
		after, rewritten, end, err = f(after, func(p []byte) ([]byte, bool) { return []byte(edit(string(p))), true })
		x.must(t, err)
	}
	for _, q := range queues { // entries that refer to the log
		for i := range q.Entries {
			if e := &q.Entries[i]; e.Reason == "" {
				e.Payload = edit(e.Payload)
			}
		}
	}
	switch which {
	case "log":
		for i := range x.m.Log {
			x.m.Log[i].Payload = edit(x.m.Log[i].Payload)
		}
	case "queue":
		for i := range mq.Entries {
			if e := &mq.Entries[i]; e.Reason != "" {
				e.Payload = edit(e.Payload)
			}
		}
	case "letters":
		for i := range mq.Letters {
			mq.Letters[i].Payload = edit(mq.Letters[i].Payload)
		}
		if rewritten > 0 {
			x.synced()
		}
	}
	x.unsynced()
}

func (x *machine) note(t *rapid.T) {
	name, q := x.sink(t)
	v := rapid.StringN(1, 5, 9).Draw(t, "v")
	x.must(t, q.PutNote([]byte(v)))
	x.m.Queues[name].Note = v
	x.unsynced()
}

func (x *machine) retain(t *rapid.T) {
	limits := Limits{RetentionMaxAge: time.Duration(rapid.IntRange(0, 600).Draw(t, "age")) * time.Second}
	_, err := x.s.retain(x.clock, limits, int64(rapid.IntRange(0, 200).Draw(t, "excess")))
	x.must(t, err)
	low := x.s.LogStats().First
	if low < x.m.Low || low > x.m.needed() {
		t.Fatalf("the log begins at %d; it was %d, %d is needed", low, x.m.Low, x.m.needed())
	}
	x.m.Low = low
	x.unsynced()
}

// detach copies the first entries of a queue, in flight or not, out of the log.
func (x *machine) detach(t *rapid.T) {
	name, q := x.sink(t)
	if q.filling.Load() {
		t.Skip("it holds the log")
	}
	if rapid.Bool().Draw(t, "read") {
		_, err := q.Read(0, rapid.IntRange(1, 8).Draw(t, "max"), 1<<20)
		x.must(t, err)
	}
	_, _, err := q.detach()
	x.must(t, err)
	for i := range x.m.Queues[name].Entries {
		if e := &x.m.Queues[name].Entries[i]; e.Reason == "" && e.Position <= q.detached.High {
			e.Reason = "detached"
		}
	}
	x.unsynced()
}

func (x *machine) flush(t *rapid.T) {
	x.must(t, x.s.reclaim(context.Background(), 0, reclaimable{queues: true}))
}

func (x *machine) syncLazy(t *rapid.T) {
	x.must(t, x.s.syncLazy())
	x.synced()
}

func (x *machine) close(t *rapid.T) {
	x.must(t, x.s.Close())
	x.reopen(t)
	x.synced()
}

// crash cuts the power, or kills the process when all that reached the
// filesystem survives.
func (x *machine) crash(t *rapid.T) {
	x.seed++
	percent := rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "percent")
	fs := x.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(x.seed, 1))})
	x.must(t, x.s.Close())
	x.fs = fs
	x.resume(t, fmt.Sprintf("a crash with %d%% of unsynced data", percent))
}

// resume opens the store, which is in one of the states since the last that is durable.
func (x *machine) resume(t *rapid.T, what string) {
	x.reopen(t)
	got := x.observe(t)
	var diffs []string
	for _, m := range slices.Backward(x.since) {
		diff := x.diff(m, got)
		if diff == "" {
			x.m = m.clone()
			x.m.Low = got.Low
			x.attach(t)
			x.synced()
			return
		}
		diffs = append(diffs, diff)
	}
	t.Fatalf("after %s the store is in none of %d states:\n%s", what, len(diffs), diffs[0])
}

// attach has the entries refer to the log again whose detachment a crash has undone.
func (x *machine) attach(t *rapid.T) {
	for name, mq := range x.m.Queues {
		q, err := x.s.Queue(name)
		x.must(t, err)
		for i := range mq.Entries {
			if e := &mq.Entries[i]; e.Reason == "detached" && e.Position > q.detached.High {
				e.Reason = ""
			}
		}
	}
}

// observe reads the whole store through its interface.
func (x *machine) observe(t *rapid.T) *model {
	m := newModel()
	items, err := x.s.ReadLog(0, 1<<20)
	x.must(t, err)
	m.Low = x.s.LogStats().First
	for _, item := range items {
		m.Log = append(m.Log, modelEntry{Position: item.Position, Sequence: item.Sequence, Payload: string(item.Payload)})
	}
	for _, name := range x.s.Sinks() {
		q, err := x.s.Queue(name)
		x.must(t, err)
		mq := &modelQueue{}
		items, err := q.Read(0, 1<<20, 1<<30)
		x.must(t, err)
		bytes := int64(0)
		for _, item := range items {
			mq.Entries = append(mq.Entries, modelEntry{Position: item.Position, Sequence: item.Sequence, Flags: item.Flags, Payload: string(item.Payload)})
			bytes += int64(len(item.Payload))
		}
		letters, err := q.DeadLetters(0, 1<<20)
		x.must(t, err)
		for _, l := range letters {
			mq.Letters = append(mq.Letters, modelEntry{Position: l.Position, Sequence: l.Sequence, Flags: l.Flags, Payload: string(l.Payload), Reason: l.Reason})
		}
		note, _, err := q.Note()
		x.must(t, err)
		mq.Note = string(note)
		mq.State, mq.After = q.member.state, q.member.after
		if mq.State == memberFilling {
			from, err := q.fillFrom()
			x.must(t, err)
			mq.After = from - 1
		}
		m.Queues[name] = mq
		st := q.Stats()
		if st.Length != int64(len(items)) || st.Bytes != bytes || st.DeadLetters != int64(len(letters)) ||
			(len(items) > 0 && (st.Head != items[0].Position || !st.OldestTime.Equal(items[0].Time))) {
			t.Fatalf("stats of %s are %+v; there are %d entries with %d bytes, %d dead letters", name, st, len(items), bytes, len(letters))
		}
	}
	for _, p := range x.s.Partitions() {
		x.must(t, x.s.ScanState(p, "", func(k string, v []byte) error {
			m.State[p+"/"+k] = string(v)
			return nil
		}))
	}
	x.must(t, x.s.ScanMeta("", func(k string, v []byte) error {
		m.Meta[k] = string(v)
		return nil
	}))
	return m
}

// diff compares what the model says with what was seen.
func (x *machine) diff(m, got *model) string {
	want := m.clone()
	want.Log = slices.DeleteFunc(want.Log, func(e modelEntry) bool { return e.Sequence < got.Low })
	if got.Low > m.needed() {
		return fmt.Sprintf("the log begins at %d, %d is needed", got.Low, m.needed())
	}
	want.Low = got.Low
	for _, q := range want.Queues {
		for i := range q.Entries {
			q.Entries[i].Reason = ""
		}
	}
	for _, m := range []*model{want, got} {
		if len(m.Log) == 0 {
			m.Log = nil
		}
		for _, q := range m.Queues {
			q.New, q.Left, q.Hole, q.Given = false, 0, false, false
			if len(q.Entries) == 0 {
				q.Entries = nil
			}
			if len(q.Letters) == 0 {
				q.Letters = nil
			}
		}
	}
	return cmp.Diff(want, got)
}

func (x *machine) check(t *rapid.T) {
	if diff := x.diff(x.m, x.observe(t)); diff != "" {
		t.Fatalf("the store differs from the model:\n%s", diff)
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newMachine(t)
		defer func() {
			x.must(t, x.s.Close())
			if x.journal != nil {
				x.checkStandby(t)
			}
			report, err := inspect.CheckFS(x.fs, "store")
			x.must(t, err)
			if !report.OK() {
				t.Fatalf("check: %q", report.Problems)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"":                x.check,
			"ensure":          x.ensure,
			"purge":           x.purge,
			"leave":           x.leave,
			"leave2":          x.leave,
			"fill":            x.fillSink,
			"fill2":           x.fillSink,
			"commit":          x.commit,
			"commit2":         x.commit,
			"commit3":         x.commit,
			"ack":             x.ack,
			"ack2":            x.ack,
			"deadLetter":      x.deadLetter,
			"settle":          x.settle,
			"replay":          x.replay,
			"rewrite":         x.rewrite,
			"note":            x.note,
			"retain":          x.retain,
			"deletePartition": x.deletePartition,
			"detach":          x.detach,
			"detach2":         x.detach,
			"flush":           x.flush,
			"syncLazy":        x.syncLazy,
			"limit":           x.limit,
			"backup":          x.backup,
			"close":           x.close,
			"crash":           x.crash,
		})
	})
}
