// Package standby makes one of several replicas of a store lead: the others follow its journal, and take over when it
// resigns or falls silent.
//
// No clock has to be right. The time-out decides only when a replica tries to take over; the journal decides who
// does. A leader that was replaced learns it at its next append, and begins no delivery once its last
// append is older than half the time-out (see [Member.Hold]).
package standby

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/prom"
	"github.com/watcherd/watcherd/internal/replica"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/wait"
)

// Config is what a Member needs; all fields but Begin and Accept are required.
type Config struct {
	Journal journal.Config
	// Dir is the directory of the store, Options are those of the store.
	Dir     string
	Options store.Options
	// Begin lets this replica begin a journal with an empty store. Where it is not set, the replica waits for one that
	// has records, or may begin.
	Begin bool
	// TakeOverAfter is how long a leader may be silent; that of the leader, if it is longer. It writes each second.
	TakeOverAfter time.Duration
	Host          string // names the replica for people
	Accept        replica.Accept
	Log           *slog.Logger
	Registerer    prometheus.Registerer
}

// Member is a [replica.Member].
type Member struct {
	cfg     Config
	id      string
	metrics *prom.Group
	client  *journal.Client // nil until connected
	writer  *journal.Writer // nil until this replica leads
	store   *store.Store    // as above
	saving  chan struct{}   // holds a token while a snapshot is made
	retry   time.Time       // of a snapshot that failed; of Run
	room    uint64          // of the stream, in bytes; of Run, which learns it in its first round

	seedPatience time.Duration

	mu    sync.Mutex
	state replica.State // guarded by mu
}

// New makes a Member; it connects in Lead.
func New(c Config) (*Member, error) {
	c.Journal.Silence = c.TakeOverAfter
	m := &Member{cfg: c, metrics: prom.NewGroup(c.Registerer), saving: make(chan struct{}, 1), seedPatience: seedPatience}
	err := m.metrics.RegisterAll(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "watcherd_journal_leader", Help: "Whether this replica leads: 1, or 0 if it follows.",
		}, func() float64 {
			if m.State().Leads {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "watcherd_journal_term", Help: "Number of the leader, counted from 1; 0 until an entry is read.",
		}, func() float64 { return float64(m.State().Term) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "watcherd_journal_lag_seconds", Help: "Time since this replica had all entries of the journal, +Inf if it never had; of the leader, since its last append.",
		}, func() float64 {
			if lag := m.Lag(); lag >= 0 {
				return lag.Seconds()
			}
			return math.Inf(1)
		}))
	if err != nil {
		return nil, fmt.Errorf("register metrics of the journal: %w", err)
	}
	return m, nil
}

// State is the replica's now.
func (m *Member) State() replica.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	if s.Leads {
		s.Last = m.store.JournalPosition().Last
	}
	return s
}

func (m *Member) note(f func(*replica.State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.state)
}

// Lag is how long ago the replica last had everything, by what it knows, negative if it never had; of the leader,
// the age of its last append.
func (m *Member) Lag() time.Duration {
	s := m.State()
	if s.Leads {
		return m.writer.Age()
	}
	if s.Heard.IsZero() {
		return -1
	}
	return time.Since(s.Heard)
}

// Hold returns nil when a delivery may begin: no other replica leads, even if this process or its machine was
// stopped for a while.
func (m *Member) Hold(ctx context.Context) error {
	const poll = 100 * time.Millisecond
	for m.writer.Age() > m.cfg.TakeOverAfter/2 {
		if err := wait.For(ctx, poll); err != nil {
			return err
		}
	}
	return nil
}

// identity names the directory, so that a process knows whether the last leader was in it. A copy of it is another.
func identity(dir, host string) (string, error) {
	path := filepath.Join(dir, "REPLICA")
	place, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("identity of the replica: %w", err)
	}
	text, err := os.ReadFile(path)
	id, was, _ := strings.Cut(string(text), " ")
	if id == "" || was != "" && was != place {
		id = strings.ToLower(rand.Text()[:12])
	}
	if was != place && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		err = os.WriteFile(path, []byte(id+" "+place), 0o600) //nolint:gosec // the directory is the operator's
	}
	if err != nil {
		return "", fmt.Errorf("identity of the replica: %w", err)
	}
	return host + "/" + id, nil
}

// bootFile is, in a directory, the boot of the machine on which it led last.
func bootFile(dir string) string { return filepath.Join(dir, "BOOT") }

// boot identifies this machine since its start; "" if that is not known.
func boot() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // of Linux
	return string(id)
}

// ledHere reports whether the directory led last on this machine since its start: it is locked, so that leader has ended. A volume may
// be taken from a machine that only seems to be lost, where its leader lives.
func ledHere(dir string) bool {
	last, err := os.ReadFile(bootFile(dir))
	return err == nil && len(last) > 0 && string(last) == boot()
}

// noteBoot is called when the directory leads. If it fails, the next leader in it waits for the time-out.
func noteBoot(dir string) {
	if !ledHere(dir) && os.RemoveAll(bootFile(dir)) == nil { // first, as a full disk may take no more
		_ = os.WriteFile(bootFile(dir), []byte(boot()), 0o600) // as above
	}
}

// Lead follows the journal until this replica leads, and returns the open store. A directory that is empty, has lost keys, or lacks
// entries that the journal has no longer, is seeded with the journal's snapshot before. Errors are final: the
// directory is not of this journal, cannot be opened or fails; or ctx is done.
func (m *Member) Lead(ctx context.Context) (*store.Store, error) {
	for {
		at, s, err := m.follow(ctx)
		switch {
		case errors.Is(err, errEmpty), errors.Is(err, journal.ErrTrimmed), errors.Is(err, store.ErrLoss):
			if err := m.seed(ctx, at, err); err != nil {
				return nil, m.advise(err)
			}
			continue
		case err != nil:
			return nil, m.advise(err)
		}
		m.store = s
		m.note(func(s *replica.State) { s.Leads, s.Leader, s.Term = true, m.id, at.Term })
		m.cfg.Log.Info("this replica leads", "replica", m.id, "term", at.Term)
		return s, nil
	}
}

// newFile is in a directory that was empty, until it has had everything, or has records of its own.
func newFile(dir string) string { return filepath.Join(dir, "NEW") }

// noteOld removes that.
func (m *Member) noteOld() error {
	if !exists(newFile(m.cfg.Dir)) {
		return nil
	}
	return errors.Join(os.Remove(newFile(m.cfg.Dir)), syncDir(m.cfg.Dir)) // a power cut may not bring it back
}

// errEmpty: the directory is empty, or has nothing that the journal needs, and there is a snapshot or a leader that makes one.
var errEmpty = errors.New("the store is empty")

// follow opens the directory, and follows until this replica has begun a term: then the store is open. It returns where
// the directory came to.
func (m *Member) follow(ctx context.Context) (at store.Past, s *store.Store, err error) {
	folder, err := store.OpenReplica(m.cfg.Dir, m.cfg.Options) //nolint:contextcheck // a repair that has begun is completed
	if err != nil {
		return at, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, folder.Close())
		}
	}()
	if m.id, err = identity(m.cfg.Dir, m.cfg.Host); err != nil {
		return at, nil, err
	}
	if at, err = folder.Past(); err != nil {
		return at, nil, err
	}
	m.note(func(s *replica.State) { s.Replica, s.Term, s.Last = m.id, at.Term, at.Last })
	if m.client == nil {
		if m.client, err = m.connect(ctx); err == nil {
			err = m.client.Answer(m.present)
		}
		if err != nil {
			return at, nil, err
		}
	}
	f := follower{Member: m, folder: folder, reader: m.client.Read(at.Position)}
	defer f.reader.Close()
	follow := f.follow
	switch {
	case at.Last > 0:
		err := os.RemoveAll(adoptFile(m.cfg.Dir)) // that is done
		if err == nil {
			err = f.findLoss(ctx, at.Position)
		}
		if err != nil {
			return at, nil, err
		}
	case folder.Fresh():
		err := os.WriteFile(newFile(m.cfg.Dir), nil, 0o600)
		if err == nil {
			err = f.findSnapshot(ctx)
		}
		if err != nil {
			return at, nil, err
		}
	default:
		if err := m.noteOld(); err != nil {
			return at, nil, err
		}
		follow = f.begin
	}
	m.writer, err = follow(ctx)
	at, unread := folder.Past()
	switch {
	case errors.Join(err, unread) == nil:
		noteBoot(m.cfg.Dir)
		s, err = folder.Lead(m.writer) //nolint:contextcheck // a repair that has begun is completed
	case exists(newFile(m.cfg.Dir)) && errors.Is(err, journal.ErrBegins): // all that it has is of the journal before
		return store.Past{}, nil, fmt.Errorf("%w: %w", errEmpty, err)
	}
	return at, s, errors.Join(err, unread)
}

// present is the answer to a leader that asks.
func (m *Member) present() journal.Present {
	s := m.State()
	return journal.Present{Replica: s.Replica, Last: s.Last}
}

// connect tries until the servers answer; a stream that must not be used ends it.
func (m *Member) connect(ctx context.Context) (*journal.Client, error) {
	said := false
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		j, err := journal.Open(ctx, m.cfg.Journal)
		if err == nil || errors.Is(err, journal.ErrStream) {
			return j, err
		}
		if !said && ctx.Err() == nil {
			said = true
			m.cfg.Log.Warn("the journal does not answer; this replica waits for it", "error", err)
		}
		if wait.For(ctx, pause) != nil {
			return nil, ctx.Err()
		}
	}
}

// follower is the state of Lead.
type follower struct {
	*Member
	folder *store.Replica
	reader *journal.Reader

	alive    time.Time // last sign of a leader, or of a journal that has none itself
	seen     uint64    // sequence of the last message read
	asked    time.Time // when keepUp asked for the stream's end last
	goal     uint64    // that end, until it is reached or idle has asked, too; else 0
	resigned bool
	failing  bool // the last read failed
	full     bool // the stream takes no entry that begins a term; since the last entry
}

const (
	readWait  = 200 * time.Millisecond
	syncEvery = 10 * time.Second
	// lookEvery is how often a follower that reads nothing asks whether that is all: a leader writes as often.
	lookEvery = time.Second
)

// follow applies entries until this replica has begun a term.
func (f *follower) follow(ctx context.Context) (*journal.Writer, error) {
	f.alive = time.Now()
	synced, pause := time.Now(), readWait
	for ctx.Err() == nil {
		e, err := f.reader.Next(ctx, pause)
		pause = readWait
		if seen := f.reader.Seen(); seen > f.seen { // the parts of a large entry may take longer than the time-out
			f.seen, f.alive = seen, time.Now()
		}
		switch {
		case ctx.Err() != nil:
		case final(err):
			return nil, err
		case err != nil:
			f.fails(err)
			_ = wait.For(ctx, readWait/2) // the context is looked at next
		case e != nil:
			if err := f.apply(ctx, e); err != nil {
				return nil, err
			}
			if f.resigned { // nothing follows, as a rule
				pause = 0
			}
			if err := f.keepUp(ctx); err != nil {
				return nil, err
			}
		default:
			if w, err := f.idle(ctx); w != nil || final(err) {
				return w, err
			} else if err != nil {
				f.fails(err)
			}
		}
		if time.Since(synced) > syncEvery {
			synced = time.Now()
			if err := f.folder.Sync(); err != nil {
				return nil, err
			}
		}
	}
	return nil, ctx.Err()
}

// errLed: a directory was adopted while the journal is written.
var errLed = errors.New("another replica leads and writes the journal")

// begin begins a journal with a directory that has records and is in none: in an empty stream, or where that was asked
// for, or has been done but for the directory, and no replica leads.
func (f *follower) begin(ctx context.Context) (*journal.Writer, error) {
	var last uint64
	var since time.Time // that the stream ends with last; zero: that is not known
	var silence time.Duration
	may := exists(adoptFile(f.cfg.Dir))
	for ctx.Err() == nil {
		x, err := f.client.Extent(ctx)
		if err == nil && x.Last > 0 && (!may || since.IsZero()) {
			var begun bool
			begun, silence, err = f.client.Begun(ctx, f.id, x.Last)
			if may && final(err) { // an adopted store reads nothing of what it follows
				err = nil
			}
			may = may || begun
		}
		switch {
		case err != nil:
			since = time.Time{}
		case x.Last > 0 && !may:
			return nil, fmt.Errorf("%w: the store has records and is in no journal, the stream %s has %d messages", journal.ErrDiverged, f.client.Stream, x.Last)
		case x.Last > last && !since.IsZero():
			return nil, fmt.Errorf("%w: the stream %s has grown to %d messages", errLed, f.client.Stream, x.Last)
		case since.IsZero():
			last, since = x.Last, time.Now()
			continue
		case x.Last > 0 && time.Since(since) < max(f.cfg.TakeOverAfter, silence): // until then the leader may deliver
		default:
			var term []byte
			if term, err = f.folder.Term(); err != nil {
				return nil, err
			}
			var w *journal.Writer
			var e *journal.Entry
			if w, e, err = f.client.Begin(ctx, f.id, x.Last, term); err == nil {
				if err = f.apply(ctx, e); err == nil {
					err = f.folder.Sync()
				}
				if err == nil {
					err = os.RemoveAll(adoptFile(f.cfg.Dir))
				}
				if err != nil { // the next start begins again: a resignation would be in the way, and no other replica has the records
					return nil, err
				}
				return w, nil
			}
			if errors.Is(err, journal.ErrFull) { // of what no replica reads again
				err = f.client.Trim(ctx, x.Last)
			}
		}
		if final(err) {
			return nil, err
		}
		if err != nil {
			f.fails(err)
		}
		_ = wait.For(ctx, readWait) // as above
	}
	return nil, ctx.Err()
}

// advise adds what to do about an error that ends a replica.
func (m *Member) advise(err error) error {
	without := fmt.Sprintf("delete the streams %s and %[1]s-SNAPSHOT if no store has records", m.cfg.Journal.Stream)
	switch {
	case errors.Is(err, journal.ErrTrimmed) && !errors.Is(err, journal.ErrDiverged), errors.Is(err, errNoSnapshot):
		return fmt.Errorf("%w; a leader makes a snapshot within a minute, which seeds this replica: see the leader's log; "+
			"if no replica leads, as after a purge by hand, run watcherd store adopt on the one that is furthest, or %s", err, without)
	case errors.Is(err, errLed):
		return fmt.Errorf("%w; stop it if this store shall replace its own, or remove this one, which is seeded then", err)
	case errors.Is(err, journal.ErrSnapshot):
		return fmt.Errorf("%w; delete that stream: the leader makes another snapshot", err)
	case errors.Is(err, store.ErrDamaged):
		return fmt.Errorf("%w; if another replica leads, nothing of this one is needed: `mv %s %s.old`, and it is seeded when it starts again", err, m.cfg.Dir, m.cfg.Dir)
	case errors.Is(err, journal.ErrNewer):
		return fmt.Errorf("%w; upgrade this replica, too", err)
	case errors.Is(err, journal.ErrOlder):
		return fmt.Errorf("%w; when all replicas are of this release, give them another stream (store.journal.stream) and empty folders: every watch then starts like a new one", err)
	case errors.Is(err, journal.ErrDiverged):
		return fmt.Errorf("%w; compare the replicas (watcherd store check prints their positions), run watcherd store adopt on the one that is furthest, and remove the stores of the others, which are seeded then; or %s", err, without)
	}
	return err
}

func adoptFile(dir string) string { return filepath.Join(dir, "ADOPT") }

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Adopt has the store in a directory, which no process uses, begin a new journal when it is opened next, behind what the
// stream has. Other replicas do not follow until they have a copy of it.
func Adopt(dir string) error {
	if err := store.LeaveJournal(dir, store.Options{}); err != nil {
		return err
	}
	return os.WriteFile(adoptFile(dir), nil, 0o600)
}

// final reports whether reading again is of no use.
func final(err error) bool {
	for _, e := range []error{
		journal.ErrDiverged, journal.ErrTrimmed, journal.ErrKey, journal.ErrNewer, journal.ErrOlder, journal.ErrSnapshot, journal.ErrStream,
		store.ErrFailed, store.ErrClosed, replica.ErrForeign,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// fails notes that the journal itself does not answer, which is no silence of its writer.
func (f *follower) fails(err error) {
	if !f.failing {
		f.cfg.Log.Warn("the journal cannot be read", "error", err)
	}
	f.failing, f.alive = true, time.Now()
}

// apply applies an entry. It fails with [store.ErrLoss] when another replica leads than this one, whose directory has lost keys.
func (f *follower) apply(ctx context.Context, e *journal.Entry) (err error) {
	if e.Replica != f.id {
		if err := f.folder.Loss(); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = cmp.Or(f.folder.Loss(), err)
			}
		}()
	}
	if e.Kind == journal.Erase { // before the position has it: a crash repeats it
		f.cfg.Log.Info("what the leader's scrub has removed is erased from the files of this replica")
		if err := f.folder.Erase(ctx); err != nil {
			return err
		}
	}
	if err := f.folder.Apply(ctx, e.Position, e.Batch); err != nil {
		return err
	}
	f.alive, f.resigned, f.full = time.Now(), e.Kind == journal.Resign, false
	f.note(func(s *replica.State) {
		if s.Leader != e.Replica {
			f.cfg.Log.Info("this replica follows", "leader", e.Replica, "term", e.Term)
		}
		s.Leader, s.Term, s.Last = e.Replica, e.Term, e.Last
	})
	return nil
}

// complete notes that the directory had everything at a moment. It fails if that is the store of another cluster.
func (f *follower) complete(at time.Time) error {
	if err := f.noteOld(); err != nil {
		return err
	}
	if f.cfg.Accept != nil {
		if err := f.cfg.Accept(f.folder.Meta); err != nil {
			return err
		}
	}
	f.goal = 0
	f.note(func(s *replica.State) { s.Heard = at })
	return nil
}

// keepUp notes when the directory had everything while entries come without a pause: what the stream had when it was asked.
func (f *follower) keepUp(ctx context.Context) error {
	if f.goal > 0 && f.reader.At().Last >= f.goal {
		if err := f.complete(f.asked); err != nil {
			return err
		}
	}
	if f.goal > 0 || time.Since(f.asked) < lookEvery || time.Since(f.State().Heard) < lookEvery {
		return nil
	}
	f.asked = time.Now()
	if x, err := f.client.Extent(ctx); err == nil { // else it is asked again; a failure to read is another's
		f.goal = x.Last
	}
	return nil
}

// idle contends if there is a reason to; the writer is nil if there is none, or another was faster.
func (f *follower) idle(ctx context.Context) (*journal.Writer, error) {
	patience := max(f.cfg.TakeOverAfter, f.reader.Silence()) // until then the leader may deliver
	switch {
	case f.resigned, f.reader.Replica() == f.id && ledHere(f.cfg.Dir):
		patience = 0
	case f.reader.At().Last == 0:
		patience *= 2 // the first term is of a replica that has records, if there is one
	}
	if time.Since(f.alive) < patience && !f.failing && time.Since(f.State().Heard) < lookEvery {
		return nil, nil //nolint:nilnil // as documented
	}
	done, err := f.reader.CaughtUp(ctx)
	if err != nil {
		return nil, err
	}
	if !done { // the subscription has missed something
		f.reader.Close()
		return nil, nil //nolint:nilnil // as documented
	}
	if f.failing {
		f.failing = false
		f.cfg.Log.Info("the journal is read again")
	}
	if err := f.complete(time.Now()); err != nil {
		return nil, err
	}
	if time.Since(f.alive) < patience || f.reader.At().Last == 0 && !f.cfg.Begin {
		return nil, nil //nolint:nilnil // as documented
	}
	term, err := f.folder.Term()
	if err != nil {
		return nil, err
	}
	w, e, err := f.reader.Contend(ctx, f.id, term)
	if errors.Is(err, store.ErrStolen) {
		f.alive, f.resigned = time.Now(), false
		return nil, nil //nolint:nilnil // as documented
	}
	if errors.Is(err, journal.ErrFull) {
		return nil, f.makeRoom(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	return w, f.apply(ctx, e)
}

// closeWait bounds how long Close waits for the journal to take a resignation.
const closeWait = 2 * time.Second

// Close ends the connection. It resigns if the store could not be opened; a store that is closed has resigned.
func (m *Member) Close() {
	m.metrics.Close()
	if m.client == nil {
		return
	}
	if m.writer != nil && m.store == nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		if err := m.writer.Resign(ctx); err != nil {
			m.cfg.Log.Warn("another replica takes over only after the time-out", "error", err)
		}
	}
	m.client.Close()
}
