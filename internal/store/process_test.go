package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/watcherd/watcherd/internal/store/inspect"
)

// childEnv makes the test binary a process that writes to the store it names.
const childEnv = "OUTBOX_TEST_STORE"

// childMain commits and acknowledges until it is killed, and says on stdout what
// was committed.
func childMain(dir string) error {
	s, err := Open(dir, Options{firstSequence: 1})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) }) // its error is that of the commits
	defer wg.Wait()
	defer cancel()
	q, err := s.EnsureSink("a", FromNow)
	if err != nil {
		return err
	}
	wg.Go(func() { ackForever(ctx, q) })
	last, _, err := s.Meta("checkpoint")
	if err != nil {
		return err
	}
	j := 0
	_, _ = fmt.Sscan(string(last), &j) // 0 in a new store
	for {
		j++
		b := s.NewBatch()
		for i := range perCommit {
			b.Append(Record{Time: time.Now(), Payload: []byte(payloadOf(j, i))}, []Route{{Sink: "a"}})
		}
		b.PutState("objects", fmt.Sprint(j%4), fmt.Append(nil, j))
		b.PutMeta("checkpoint", fmt.Append(nil, j))
		if err := s.Commit(b); err != nil {
			return err
		}
		fmt.Println(j)
	}
}

func ackForever(ctx context.Context, q *Queue) {
	after := uint64(0)
	for q.Wait(ctx, after) == nil {
		items, err := q.Read(after, 10, 1<<20)
		if err != nil {
			return
		}
		for _, item := range items {
			after = item.Position
			if q.Ack(after) != nil {
				return
			}
		}
	}
}

func startChild(t *testing.T, dir string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

func kill(t *testing.T, cmd *exec.Cmd, lines *bufio.Scanner) (last int) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // what it said before it died
		if n, err := fmt.Sscan(lines.Text(), &last); n != 1 {
			t.Fatalf("child said %q: %v", lines.Text(), err)
		}
	}
	_ = cmd.Wait() // killed
	return last
}

// TestKill kills a writing process again and again.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	said := 0
	for round := range 4 {
		cmd, lines := startChild(t, dir)
		for range 20 + 37*round {
			if !lines.Scan() {
				t.Fatal("the child ended by itself")
			}
		}
		if last := kill(t, cmd, lines); last > 0 {
			said = last
		}

		report, err := inspect.Check(dir)
		if err != nil || !report.OK() {
			t.Fatalf("round %d: %v %q", round, err, report.Problems)
		}
		s, err := Open(dir, Options{firstSequence: 1})
		if err != nil {
			t.Fatal(err)
		}
		v, _, err := s.Meta("checkpoint")
		if err != nil {
			t.Fatal(err)
		}
		last := 0
		if _, err := fmt.Sscan(string(v), &last); err != nil || last < said {
			t.Fatalf("round %d: the last commit is %d, %d was acknowledged (%v)", round, last, said, err)
		}
		verifyState(t, s, last)
		if st := s.LogStats(); st.Records != int64(last*perCommit) {
			t.Errorf("round %d: %d records after %d commits", round, st.Records, last)
		}
		q, err := s.Queue("a")
		if err != nil {
			t.Fatal(err)
		}
		items := read(t, q, 0, 1<<20)
		t.Logf("round %d: %d commits, %d entries left", round, last, len(items))
		if n := len(items); n > 0 && items[n-1].Sequence != uint64(last*perCommit) {
			t.Errorf("round %d: the queue ends at %d", round, items[n-1].Sequence)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSecondProcessIsLockedOut(t *testing.T) {
	dir := t.TempDir()
	cmd, lines := startChild(t, dir)
	if !lines.Scan() {
		t.Fatal("the child ended by itself")
	}
	for what, open := range map[string]func() error{
		"open": func() error { _, err := Open(dir, Options{firstSequence: 1}); return err },
		"check": func() error {
			_, err := inspect.Check(dir)
			return err
		},
		"export": func() error { return inspect.Export(dir, io.Discard, nil) },
	} {
		if err := open(); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) {
			t.Errorf("%s: %v; it names the process %d", what, err, cmd.Process.Pid)
		}
	}
	kill(t, cmd, lines)
	openTest(t, dir, Options{firstSequence: 1})
}

// lockless is a filesystem whose locks exclude nobody.
type lockless struct{ vfs.FS }

func (lockless) Lock(string) (io.Closer, error) { return io.NopCloser(strings.NewReader("")), nil }

func TestStolen(t *testing.T) {
	fs := lockless{vfs.NewMem()}
	old, err := Open("store", Options{firstSequence: 1, FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	appendN(t, old, 3)
	thief, err := Open("store", Options{firstSequence: 1, FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	b := old.NewBatch()
	b.PutMeta("k", []byte("old"))
	if err := old.Commit(b); !errors.Is(err, ErrStolen) || !errors.Is(err, ErrFailed) {
		t.Fatalf("commit of the old owner: %v", err)
	}
	<-old.Failed()
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	appendN(t, thief, 3)
	if err := thief.Close(); err != nil {
		t.Error(err)
	}
	s := openTest(t, "store", Options{firstSequence: 1, FS: fs})
	if st := s.LogStats(); st.Records != 6 {
		t.Errorf("log %+v", st)
	}
}
