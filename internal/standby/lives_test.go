package standby_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/standby"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

// lifeEnv makes the test binary a replica instead, which leads when it can, and works then until it is ended. Its value
// is a life.
const lifeEnv = "WATCHERD_TEST_LIFE"

type life struct {
	Dir      string
	URLs     []string
	MaxBytes int64
	TakeOver time.Duration
	Writer   int
}

// said is a line that a replica prints: one of these happened, at a time.
type said struct {
	At     time.Time
	Last   uint64 // sequence of the last entry in its directory
	Leads  bool   // since this line
	Term   uint64 // with which it leads
	Wrote  int    // so many records are committed
	Holds  bool   // a delivery asked at that time, and may begin
	Ended  bool   // the last line
	Stolen bool   // why: another leads
	Left   bool   // why: the directory and the stream have different pasts
	Error  string // why, in words; "": it was told to
}

func liveUntilKilled() bool {
	var l life
	if json.Unmarshal([]byte(os.Getenv(lifeEnv)), &l) != nil {
		return false
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it, or ends
	}()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(s said) {
		mu.Lock()
		defer mu.Unlock()
		if s.At.IsZero() {
			s.At = time.Now()
		}
		_ = out.Encode(s) // the test reads it, or ends
	}
	err := l.live(ctx, say)
	end := said{Ended: true, Stolen: errors.Is(err, store.ErrStolen), Left: errors.Is(err, journal.ErrDiverged) || errors.Is(err, journal.ErrTrimmed)}
	if err != nil && ctx.Err() == nil {
		end.Error = err.Error()
	}
	say(end)
	os.Exit(0)
	return true
}

// live returns why it ends.
func (l life) live(ctx context.Context, say func(said)) error {
	c, err := configOf(l.Dir, l.URLs, l.MaxBytes, l.TakeOver)
	if err != nil {
		return err
	}
	m, err := standby.New(c)
	if err != nil {
		return err
	}
	defer m.Close() //nolint:contextcheck // it ends without one
	const often = 20 * time.Millisecond
	var running sync.WaitGroup
	defer running.Wait()
	told := ctx
	ctx, stop := context.WithCancel(context.WithoutCancel(told)) // a stream that is full is trimmed until the last write
	defer stop()
	every := func(d time.Duration, do func()) {
		running.Go(func() {
			for ticker := time.NewTicker(d); ctx.Err() == nil; <-ticker.C {
				do()
			}
		})
	}
	every(often, func() { say(said{Last: m.State().Last}) })
	s, err := m.Lead(told)
	if err != nil {
		return err
	}
	say(said{Leads: true, Term: m.State().Term})
	running.Go(func() { _ = s.Run(ctx) })                   // its error is that of the store
	every(300*time.Millisecond, func() { _ = m.Keep(ctx) }) // as above
	every(often, func() {
		asked := time.Now()
		if m.Hold(ctx) == nil {
			say(said{At: asked, Holds: true})
		}
	})
	g := &group{writer: l.Writer}
	random := rand.New(rand.NewPCG(uint64(l.Writer), 1))
	for err == nil && told.Err() == nil {
		before := len(g.log)
		if err = g.work(s, random, 1); len(g.log) > before {
			say(said{Wrote: len(g.log)})
		}
	}
	stop()
	running.Wait()
	return errors.Join(err, s.Close())
}

// process is a replica in a process of its own.
type process struct {
	writer int
	in     io.Closer
	cmd    *exec.Cmd
	ended  chan struct{} // closed when it has ended
	killed bool          // by the test

	mu        sync.Mutex
	last      uint64    // guarded by mu
	wrote     int       // guarded by mu
	term      uint64    // guarded by mu; 0: it has not led
	led, held time.Time // guarded by mu; when it began to lead, and when a delivery could begin last
	end       *said     // guarded by mu; nil: it was killed
}

func (p *process) hear(s said) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.wrote = max(p.last, s.Last), max(p.wrote, s.Wrote)
	switch {
	case s.Leads:
		p.led, p.term = s.At, s.Term
	case s.Holds:
		p.held = s.At
	case s.Ended:
		p.end = &s
	}
}

// heard is what a process has said.
type heard struct {
	last      uint64
	wrote     int
	term      uint64
	led, held time.Time
	end       *said
}

func (p *process) heard() heard {
	p.mu.Lock()
	defer p.mu.Unlock()
	return heard{p.last, p.wrote, p.term, p.led, p.held, p.end}
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// lives are two replicas, each with the network between it and the servers, and all processes that they were.
type lives struct {
	*group
	js      []jetstream.JetStream // of each server: one may be stopped, or parted from the others
	journal *journal.Client
	nets    [2][]*testkit.Proxy
	now     [2]*process
	all     []*process
	torn    map[int]bool // writers whose last records were lost with the stream
	stolen  []*process   // which ended because another leads, by their word
}

func (l *lives) start(i int) *process {
	l.t.Helper()
	p := &process{writer: len(l.all), ended: make(chan struct{})}
	spec := life{Dir: l.replicas[i].dir, MaxBytes: l.maxBytes, TakeOver: l.takeOver, Writer: p.writer}
	for _, n := range l.nets[i] {
		spec.URLs = append(spec.URLs, "nats://"+n.Addr)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		l.t.Fatal(err)
	}
	p.cmd = exec.CommandContext(context.WithoutCancel(l.t.Context()), os.Args[0])
	p.cmd.Env = append(os.Environ(), lifeEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		l.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { l.kill(p) })
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var s said
			if json.Unmarshal(lines.Bytes(), &s) == nil { // the last may be cut off
				p.hear(s)
			}
		}
		_ = p.cmd.Wait()
	}()
	l.now[i], l.all = p, append(l.all, p)
	return p
}

func (l *lives) kill(p *process) {
	p.killed = true
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (l *lives) signal(p *process, s syscall.Signal) {
	l.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		l.t.Fatal(err)
	}
}

// await returns when a condition holds. Replicas that have ended by themselves must have had a reason.
func (l *lives) await(what string, ok func() bool) {
	l.t.Helper()
	for end := time.Now().Add(2 * patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			if l.journal != nil {
				x, err := l.journal.Extent(l.t.Context())
				s, serr := l.journal.Snapshot(l.t.Context())
				l.t.Logf("the stream: %+v, %v; the snapshot: %+v, %v", x, err, s, serr)
			}
			l.servers()
			for _, p := range l.now {
				_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it prints where it is
				<-p.ended
			}
			l.t.Fatalf("%s: not within %v", what, 2*patience)
		}
	}
}

// leader is the replica that led last, and when it began.
func (l *lives) leader() (i int, since time.Time) {
	i = -1
	for k, p := range l.now {
		if led := p.heard().led; led.After(since) {
			i, since = k, led
		}
	}
	return i, since
}

// lead starts what has ended, and returns when a replica leads that began after a time and has committed something.
func (l *lives) lead(after time.Time) (leader int) {
	l.t.Helper()
	l.await("nobody leads", func() bool {
		l.restart()
		i, since := l.leader()
		leader = i
		return i >= 0 && since.After(after) && l.now[i].running() && l.now[i].heard().wrote > 0
	})
	return leader
}

// restart starts replicas that have ended: killed by the test, in order, or because another leads.
func (l *lives) restart() {
	l.t.Helper()
	for i, p := range l.now {
		if !p.running() {
			l.verdict(p)
			l.start(i)
		}
	}
}

// verdict checks how a process ended. One that was replaced had another after it, and began no delivery since.
func (l *lives) verdict(p *process) {
	l.t.Helper()
	h := p.heard()
	switch {
	case p.killed:
	case h.end == nil:
		l.t.Fatalf("writer %d ended without a word", p.writer)
	case h.end.Stolen:
		l.stolen = append(l.stolen, p)
	case h.end.Error != "":
		l.t.Fatalf("writer %d: %s", p.writer, h.end.Error)
	}
	if next := l.next(p); next != nil && h.held.After(next.heard().led) {
		l.t.Errorf("writer %d could begin a delivery at %v, writer %d led since %v", p.writer, h.held, next.writer, next.heard().led)
	}
}

// succeeded checks that another replica has begun a term after each process that ended because of that. It may not know yet: the answer
// to its first entry hangs.
func (l *lives) succeeded() {
	l.t.Helper()
	var last struct{ Term uint64 }
	l.await("the stream has no last entry", func() bool {
		return l.ask(func(js jetstream.JetStream) error {
			s, err := js.Stream(l.t.Context(), "J")
			if err != nil {
				return err
			}
			m, err := s.GetLastMsgForSubject(l.t.Context(), "watcherd.journal.J")
			if err != nil {
				return err
			}
			return json.Unmarshal([]byte(m.Header.Get("Watcherd-Entry")), &last)
		}) == nil
	})
	for _, p := range l.stolen {
		if term := p.heard().term; last.Term <= term && !l.torn[p.writer] { // else the entry is gone with its stream
			l.t.Errorf("writer %d ended because another leads; its own term, %d, is the last", p.writer, term)
		}
	}
	l.stolen = nil
}

// next is the first process that led after another did.
func (l *lives) next(p *process) (next *process) {
	led := p.heard().led
	if led.IsZero() {
		return nil
	}
	for _, q := range l.all {
		if at := q.heard().led; at.After(led) && (next == nil || at.Before(next.heard().led)) {
			next = q
		}
	}
	return next
}

// deposed returns when a process that was replaced has ended because of that.
func (l *lives) deposed(p *process) {
	l.t.Helper()
	l.await(fmt.Sprintf("writer %d does not end", p.writer), func() bool { return !p.running() })
	if h := p.heard(); h.end == nil || !h.end.Stolen {
		l.t.Fatalf("the writer %d that was replaced: %+v", p.writer, h.end)
	}
	l.stolen = append(l.stolen, p)
}

// covered returns when there is a snapshot that the journal continues, and both replicas have what the stream has.
func (l *lives) covered() {
	l.t.Helper()
	l.await("there is no snapshot", l.continued)
	end := l.stream().State.LastSeq
	l.await("a replica does not follow", func() bool {
		l.restart()
		return l.now[0].heard().last >= end && l.now[1].heard().last >= end
	})
}

// continued reports whether there is a snapshot that the journal continues.
func (l *lives) continued() bool {
	s, err := l.journal.Snapshot(l.t.Context())
	if err != nil || s == nil {
		return false
	}
	has, err := l.journal.Has(l.t.Context(), s.Position)
	return err == nil && has
}

// stream is what the servers say of it, once they do.
func (l *lives) stream() (info *jetstream.StreamInfo) {
	l.t.Helper()
	l.await("the stream does not answer", func() bool {
		return l.ask(func(js jetstream.JetStream) error {
			s, err := js.Stream(l.t.Context(), "J")
			if err == nil {
				info = s.CachedInfo()
			}
			return err
		}) == nil
	})
	return info
}

// ask returns when a server has done what it is asked for, or with an error of the last.
func (l *lives) ask(do func(jetstream.JetStream) error) (err error) {
	for _, js := range l.js {
		if err = do(js); err == nil {
			return nil
		}
	}
	return err
}

// healthy returns when all servers have what the streams have: another may be wiped next.
func (l *lives) healthy() {
	l.t.Helper()
	for _, name := range streams {
		l.await("the servers of the stream "+name+" do not recover", func() bool {
			var c *jetstream.ClusterInfo
			err := l.ask(func(js jetstream.JetStream) error {
				s, err := js.Stream(l.t.Context(), name)
				if err == nil {
					c = s.CachedInfo().Cluster
				}
				return err
			})
			return name != "J" && errors.Is(err, jetstream.ErrStreamNotFound) || c != nil && c.Leader != "" && len(c.Replicas) == 2 &&
				!slices.ContainsFunc(c.Replicas, func(r *jetstream.PeerInfo) bool { return !r.Current || r.Offline })
		})
	}
}

// streams are those that the replicas use.
var streams = []string{"J", "J-SNAPSHOT"}

// servers logs how they are, and what each says of the streams.
func (l *lives) servers() {
	for i, n := range l.nodes {
		l.t.Logf("server %s is %s", n.Name, n.State)
		if i >= len(l.js) {
			continue
		}
		for _, name := range streams {
			s, err := l.js[i].Stream(context.WithoutCancel(l.t.Context()), name)
			if err != nil {
				l.t.Logf("server %s of %s: %v", n.Name, name, err)
				continue
			}
			cluster, _ := json.Marshal(s.CachedInfo().Cluster)
			l.t.Logf("server %s of %s: %+v, %s", n.Name, name, s.CachedInfo().State, cluster)
		}
	}
}

// troubles are what happens to the replica that leads, or to the stream. Each returns when it is over.
var troubles = []struct {
	name string
	do   func(l *lives, random *rand.Rand, leader int)
}{
	{"kill", func(l *lives, _ *rand.Rand, leader int) { l.kill(l.now[leader]) }},
	{"kill and wipe", func(l *lives, _ *rand.Rand, leader int) {
		l.kill(l.now[leader])
		l.wipe(leader)
	}},
	{"kill both and wipe", func(l *lives, _ *rand.Rand, leader int) {
		for whole := false; !whole; { // without the disks there is nothing but the snapshot and what continues it
			l.covered()
			l.signal(l.now[leader], syscall.SIGSTOP)
			if whole = l.continued(); !whole {
				l.signal(l.now[leader], syscall.SIGCONT)
			}
		}
		for _, i := range []int{1 - leader, leader} {
			l.kill(l.now[i])
			l.wipe(i)
		}
	}},
	{"stop in order", func(l *lives, _ *rand.Rand, leader int) {
		p := l.now[leader]
		p.in.Close()
		l.await("it does not stop", func() bool { return !p.running() })
	}},
	{"pause", func(l *lives, _ *rand.Rand, leader int) {
		p := l.now[leader]
		l.signal(p, syscall.SIGSTOP)
		l.replaced(leader)
		l.signal(p, syscall.SIGCONT)
		l.deposed(p)
	}},
	{"cut off", func(l *lives, _ *rand.Rand, leader int) { l.cutOff(leader, (*testkit.Proxy).Cut) }},
	{"hang", func(l *lives, _ *rand.Rand, leader int) { l.cutOff(leader, (*testkit.Proxy).Hang) }},
	{"answers hang", func(l *lives, _ *rand.Rand, leader int) { l.cutOff(leader, (*testkit.Proxy).HangAnswers) }},
	{"cut off the follower", func(l *lives, random *rand.Rand, leader int) {
		how := []func(*testkit.Proxy){(*testkit.Proxy).Cut, (*testkit.Proxy).Hang, (*testkit.Proxy).HangAnswers}[random.IntN(3)]
		for _, n := range l.nets[1-leader] {
			how(n)
		}
		time.Sleep(time.Duration(random.Int64N(int64(2 * l.takeOver))))
		for _, n := range l.nets[1-leader] {
			n.Restore()
		}
		l.covered()
	}},
	{"purge", func(l *lives, random *rand.Rand, _ int) {
		state := l.stream().State
		before := state.FirstSeq + random.Uint64N(state.LastSeq-state.FirstSeq+1)
		l.await("the stream is not purged", func() bool {
			return l.ask(func(js jetstream.JetStream) error {
				s, err := js.Stream(l.t.Context(), "J")
				if err != nil {
					return err
				}
				return s.Purge(l.t.Context(), jetstream.WithPurgeSequence(before))
			}) == nil
		})
		l.covered()
	}},
	{"recreate", (*lives).recreate},
}

func (l *lives) wipe(i int) {
	l.t.Helper()
	if err := os.RemoveAll(l.replicas[i].dir); err != nil {
		l.t.Fatal(err)
	}
}

// replaced returns when another leads than a replica which is alive.
func (l *lives) replaced(leader int) {
	l.t.Helper()
	since := l.now[leader].heard().led
	l.await("nobody takes over", func() bool {
		if other := l.now[1-leader]; !other.running() { // it was replaced just before
			l.verdict(other)
			l.start(1 - leader)
		}
		return l.now[1-leader].heard().led.After(since)
	})
}

// cutOff parts a leader from the servers until the other leads.
func (l *lives) cutOff(leader int, how func(*testkit.Proxy)) {
	l.t.Helper()
	p := l.now[leader]
	for _, n := range l.nets[leader] {
		how(n)
	}
	l.replaced(leader)
	for _, n := range l.nets[leader] {
		n.Restore()
	}
	l.deposed(p)
}

// recreate makes the stream again, empty: both replicas refuse it, until one has adopted it.
func (l *lives) recreate(*rand.Rand, int) {
	l.t.Helper()
	again := l.stream().Config
	l.await("the stream is not deleted", func() bool {
		err := l.js[0].DeleteStream(l.t.Context(), "J")
		return err == nil || errors.Is(err, jetstream.ErrStreamNotFound)
	})
	l.await("the stream is not made", func() bool {
		_, err := l.js[0].CreateStream(l.t.Context(), again)
		return err == nil
	})
	for _, p := range l.now {
		l.torn[p.writer] = true
		l.await(fmt.Sprintf("writer %d does not end", p.writer), func() bool { return !p.running() })
		if h := p.heard(); h.end == nil || !h.end.Left && !h.end.Stolen {
			l.t.Fatalf("a replica without its stream: %+v", h.end)
		}
	}
	furthest := 0
	if last(l.t, l.replicas[1].dir).Last > last(l.t, l.replicas[0].dir).Last {
		furthest = 1
	}
	if err := standby.Adopt(l.replicas[furthest].dir); err != nil {
		l.t.Fatal(err)
	}
	l.wipe(1 - furthest)
	l.start(furthest)
	// A replica without a store refuses a stream that ends before the snapshot, until the adopted one has continued it.
	l.await("the adopted one does not lead", func() bool { return !l.now[furthest].heard().led.IsZero() })
	l.start(1 - furthest)
	l.covered()
}

// check ends both replicas, and compares their directories with each other and with what was committed.
func (l *lives) check() {
	t := l.t
	t.Helper()
	leader, _ := l.leader()
	for _, i := range []int{1 - leader, leader} {
		p := l.now[i]
		p.in.Close()
		l.await("it does not stop", func() bool { return !p.running() })
		l.verdict(p)
	}
	l.succeeded()
	first, second := l.replicas[leader], l.replicas[1-leader]
	if err := l.group.lead(first); err != nil {
		t.Fatal(err)
	}
	got := payloads(t, first.store)
	l.histories(got)
	l.log = got
	l.same(first, second)
}

// histories checks the log: each writer's records are there from its first, without gaps, at least up to the last that it
// has committed, whole batches, in the order in which they led.
func (l *lives) histories(got []string) {
	l.t.Helper()
	kept := map[int]int{}
	var order []int
	for _, text := range got {
		var writer, n, end int
		if _, err := fmt.Sscan(text, &writer, &n, &end); err != nil {
			l.t.Fatal(err)
		}
		if kept[writer] == 0 {
			order = append(order, writer)
		}
		if n != kept[writer] || order[len(order)-1] != writer {
			l.t.Fatalf("record %d of writer %d follows %d of its own, and writer %d", n, writer, kept[writer], order[len(order)-1])
		}
		kept[writer]++
	}
	var led []*process
	for _, p := range l.all {
		if !p.heard().led.IsZero() {
			led = append(led, p)
		}
	}
	slices.SortFunc(led, func(a, b *process) int { return a.heard().led.Compare(b.heard().led) })
	var want []int
	for _, p := range led {
		if kept[p.writer] > 0 {
			want = append(want, p.writer)
		}
		committed := p.heard().wrote
		if more := kept[p.writer] - committed; more > 20 || more < 0 && !l.torn[p.writer] {
			l.t.Errorf("writer %d has committed %d records, %d are there", p.writer, committed, kept[p.writer])
		}
	}
	if diff := cmp.Diff(want, order); diff != "" {
		l.t.Errorf("order of the writers:\n%s", diff)
	}
}

// TestLives has two replicas in processes of their own lead and write through whatever ends a leader, cuts it off or
// damages the stream, with NATS servers that are killed, stopped or wiped: no record that was committed is lost, none is
// there twice or in another place, a leader that was replaced writes and delivers nothing more, and both directories are
// the same again and again.
func TestLives(t *testing.T) {
	t.Parallel()
	count := len(troubles)
	if os.Getenv("WATCHERD_SOAK") != "" {
		count = 200
	}
	l := &lives{group: newGroup(t, natstest.StartClusterBehind(t)), torn: map[int]bool{}}
	l.maxBytes = 512 << 10 // it is trimmed in some lives
	l.takeOver = 2 * time.Second
	for _, n := range l.nodes {
		for i := range l.nets {
			l.nets[i] = append(l.nets[i], testkit.NewProxy(t, strings.TrimPrefix(n.URL, "nats://")))
		}
	}
	for _, n := range l.nodes {
		nc, err := nats.Connect(n.URL, nats.MaxReconnects(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		l.js = append(l.js, js)
	}
	l.await("the servers do not answer", func() (ok bool) {
		c, err := configOf("", l.urls(), l.maxBytes, 0)
		if err == nil {
			l.journal, err = journal.Open(t.Context(), c.Journal)
		}
		return err == nil
	})
	t.Cleanup(l.journal.Close)
	random := rand.New(rand.NewPCG(5, 5))
	l.start(0)
	l.start(1)
	leader := l.lead(time.Time{})
	var order []int
	ends := map[string]int{}
	for n := range count {
		if n%len(troubles) == 0 {
			order = random.Perm(len(troubles))
		}
		trouble := troubles[order[n%len(troubles)]]
		t.Logf("life %d: %s, writer %d leads", n, trouble.name, l.now[leader].writer)
		node := l.nodes[random.IntN(len(l.nodes))]
		servers := random.IntN(10) // most often nothing
		if trouble.name == "recreate" {
			servers = 10 // one that misses it could bring the old stream back: a matter of NATS
			l.healthy()
		}
		switch servers {
		case 0, 1:
			node.Kill()
		case 2:
			node.Freeze()
		case 3:
			node.Part()
		}
		t.Logf("server %s is %s", node.Name, node.State)
		since := l.now[leader].heard().led
		if trouble.name == "cut off the follower" || trouble.name == "purge" {
			since = since.Add(-1) // it leads on
		}
		trouble.do(l, random, leader)
		ends[trouble.name]++
		switch servers {
		case 1:
			node.Wipe()
			fallthrough
		case 0:
			node.Start()
		case 2:
			node.Thaw()
		case 3:
			node.Join()
		}
		if servers <= 3 {
			l.healthy()
		}
		leader = l.lead(since)
		l.succeeded()
		if n%10 == 9 || n == count-1 {
			l.check()
			l.start(0)
			l.start(1)
			leader = l.lead(l.now[leader].heard().led)
		}
	}
	t.Logf("%d lives, %d processes, %d records: %v", count, len(l.all), len(l.log), ends)
	if left, err := filepath.Glob(filepath.Join(l.replicas[0].dir, "db.*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
