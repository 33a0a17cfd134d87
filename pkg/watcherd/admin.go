package watcherd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/atapi"
	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/pipeline"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/query"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/reload"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/internal/store/inspect"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
	"github.com/watcherd/watcherd/pkg/event"
)

func (d *daemon) listenAdmin(ctx context.Context, p *parts) (*admin.Server, error) {
	a := p.st.Admin
	return admin.Listen(ctx, admin.Config{
		Listen: a.Listen, Probes: a.Probes, Local: d.local,
		Access: admin.Access{
			ReadTokenFile: a.ReadTokenFile, CommandTokenFile: a.CommandTokenFile, ReadNames: a.ReadNames, CommandNames: a.CommandNames,
		},
		CertFile: a.CertFile, KeyFile: a.KeyFile, ClientCAFile: a.ClientCAFile,
		Status: p.status, Configuration: p.configuration, Objects: p, Log: p, History: p, When: p.when, Rehearsal: p, Commands: p, Sinks: p, Letters: letters{p},
		At:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.past.ServeHTTP(w, r) }),
		Opened: p.opened, Stopping: p.stopping, Gatherer: d.Gatherer, Registerer: d.Registerer, Logger: d.log,
	})
}

// parts is what the admin listener asks and commands: the daemon's parts, in the
// admin's words.
type parts struct {
	d        *daemon
	st       *plan.State // the first; for what takes effect at a restart
	started  time.Time
	stopping <-chan struct{}
	opened   chan struct{} // closed once the store is open

	// Set before opened is closed.
	resolver *dynamicfactory.Resolver
	manager  *pipeline.Manager
	reader   *query.Reader
	*history.Reader
	past    *atapi.Server
	watcher *reload.Watcher
}

var (
	_ admin.Objects   = (*parts)(nil)
	_ admin.Log       = (*parts)(nil)
	_ admin.History   = (*parts)(nil)
	_ admin.Rehearsal = (*parts)(nil)
	_ admin.Commands  = (*parts)(nil)
	_ admin.Sinks     = (*parts)(nil)
	_ admin.Letters   = letters{}
)

func (p *parts) status() *status.Status {
	s := &status.Status{Version: p.d.Version, Cluster: p.d.cluster, Feed: p.d.feed, APIServer: p.d.REST.Host, Started: p.started}
	select {
	case <-p.opened:
		s.Config, s.Store, s.Pipeline = p.config(p.watcher), p.store(), p.reader.Status()
	default:
		if w := p.d.following.Load(); w != nil {
			s.Config = p.config(w)
		}
		s.Config.File, s.Config.Hash = p.d.ConfigFile, cmp.Or(s.Config.Hash, p.st.Hash)
		s.Store = status.Store{Path: p.st.Store.Path, Opening: true, DiskFree: -1, Journal: p.journal()}
		s.Undiscovered = true
		return s
	}
	s.Undiscovered = !p.resolver.Ready()
	if err := p.resolver.Err(); err != nil {
		s.DiscoveryError = err.Error()
	}
	select {
	case <-p.stopping:
		s.Stopping = true
	default:
	}
	return s
}

func (p *parts) config(w *reload.Watcher) status.Config {
	r := w.Status()
	c := status.Config{
		File: p.d.ConfigFile, Hash: r.Hash, LastSuccess: r.LastSuccess, LastAttempt: r.LastAttempt,
		NeedsRestart: r.NeedsRestart, Warnings: r.Warnings,
	}
	if r.LastError != nil {
		c.LastError = r.LastError.Error()
	}
	return c
}

func (p *parts) configuration() (admin.Configuration, error) {
	c := admin.Configuration{Path: p.d.ConfigFile, Problems: []admin.ConfigProblem{}}
	running := p.watcher.Status().Running
	if running != nil {
		c.Running = running.Masked
	}
	data, err := p.watcher.Read()
	var file *plan.State
	if err == nil {
		c.File = config.Masked(data)
		file, err = parse(c.Path, data, p.d.Kinds, p.d.Policy)
	}
	if problems, ok := errors.AsType[*config.Errors](err); ok {
		for _, x := range problems.List {
			c.Problems = append(c.Problems, admin.ConfigProblem{Line: x.Line, Column: x.Column, Key: x.Path, Message: x.Msg})
		}
	} else if err != nil {
		c.Problems = append(c.Problems, admin.ConfigProblem{Message: err.Error()})
	}
	c.Equal = file != nil && running != nil && file.Hash == running.Hash
	return c, nil
}

func (p *parts) store() status.Store {
	h, log := p.d.store.Health(), p.d.store.LogStats()
	s := status.Store{
		Path: p.st.Store.Path, Paused: h.Paused, Reason: h.Reason,
		Bytes: h.Bytes, MaxBytes: h.MaxBytes, DiskFree: h.DiskFree, MinFree: h.MinFree,
		LastCommit: h.LastCommit, CommitStuck: h.CommitStuck,
		FirstEvent: log.Oldest, LastEvent: log.Last, LoggedEvents: log.Records, LoggedBytes: log.Bytes,
		Journal: p.journal(),
	}
	if h.Failed != nil {
		s.Failed = h.Failed.Error()
	}
	return s
}

// journal is nil without one.
func (p *parts) journal() *status.Journal {
	if p.d.member == nil {
		return nil
	}
	now := p.d.member.State()
	j := &status.Journal{
		Stream: p.st.Store.Journal.Stream, Replica: now.Replica, Role: status.Follower, Leader: now.Leader, Term: now.Term, Last: now.Last, Lag: p.d.member.Lag(),
	}
	if now.Leads {
		j.Role = status.Leader
	}
	return j
}

func (p *parts) View(name string) (admin.View, error) {
	v, err := p.reader.View(name)
	return view{v, p.manager}, refuse(err)
}

// refuse marks the error of a View.
func refuse(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, dynamicfactory.ErrBadPattern):
		return admin.Refuse(http.StatusBadRequest, err)
	case errors.Is(err, dynamicfactory.ErrNotReady):
		return admin.Refuse(http.StatusServiceUnavailable, err)
	default:
		return admin.Refuse(http.StatusNotFound, err)
	}
}

// Recorded implements admin.Objects. What the cluster does not serve or the watches do not read may be of the time before.
func (p *parts) Recorded(name string) (resource event.Resource, namespaced bool, err error) {
	v, failure := p.reader.View(name)
	if failure == nil && v.Served() {
		resource, namespaced, _ = v.About()
		return resource, namespaced, nil
	}
	all, err := p.Resources()
	if err != nil {
		return resource, false, err
	}
	if found, err := p.resolver.Resolve(name); err == nil && len(found) == 1 {
		name = found[0].GVR.Resource + "." + found[0].GVR.Group // no other of the name
	}
	if k, unknown := named(all, name); unknown == nil {
		return k.Resource, k.Namespaced, nil
	}
	if failure == nil {
		resource, namespaced, _ = v.About()
	}
	return resource, namespaced, refuse(failure)
}

// Selectable implements admin.Objects.
func (p *parts) Selectable(resource event.Resource, namespace string, byLabel labels.Selector) error {
	all, err := p.reader.Recorded()
	if err != nil {
		return refuse(err)
	}
	gr := schema.GroupResource{Group: resource.Group, Resource: resource.Resource}
	for _, one := range all {
		if one.GVR.GroupResource() != gr {
			continue
		}
		reading := slices.DeleteFunc(one.Watches, func(by query.RecordedBy) bool { return namespace != "" && !by.Reads(namespace) })
		if err := query.Selectable(gr, reading, byLabel); err != nil {
			return admin.Refuse(http.StatusBadRequest, err)
		}
	}
	return nil
}

// view adds the printer columns, which the API server knows.
type view struct {
	*query.View
	manager *pipeline.Manager
}

// columnsTimeout bounds the request for a definition; without it a list has no columns.
const columnsTimeout = 2 * time.Second

func (v view) Columns(ctx context.Context) []columns.Column {
	about, _, _ := v.About()
	ctx, cancel := context.WithTimeout(ctx, columnsTimeout)
	defer cancel()
	definition, err := v.manager.Definition(ctx, schema.GroupResource{Group: about.Group, Resource: about.Resource})
	if err != nil || definition == nil {
		return nil
	}
	list, _ := columns.OfDefinition(definition, about.Version) // it is a definition
	return list
}

func (p *parts) Bounds() (first, last uint64) {
	s := p.d.store.LogStats()
	return s.First, s.Last
}

func (p *parts) Next() uint64 { return p.d.store.LogStats().Next }

const (
	readAhead = 256     // records that are read from the log at once
	readBytes = 4 << 20 // about what their events take at once, which may be a thousand times their records
)

func (p *parts) Read(after uint64, keep func(*event.Event, []string) bool) ([]admin.Logged, error) {
	items, err := p.d.store.ReadLog(after, readAhead)
	if err != nil {
		return nil, err
	}
	out, size := make([]admin.Logged, len(items)), 0
	for i, it := range items {
		if size > readBytes {
			return out[:i], nil
		}
		out[i].Sequence = it.Sequence
		if it.Unreadable {
			out[i].Err = store.ErrUnreadable
			continue
		}
		if out[i].Event, out[i].Err = p.reader.LogEvent(it, keep); out[i].Event != nil {
			size += out[i].Event.Size()
		}
	}
	return out, nil
}

func (p *parts) Event(sequence uint64) (e *event.Event, routes []string, err error) {
	item, ok, err := p.d.store.ReadRecord(sequence)
	if err != nil || !ok {
		return nil, nil, ledger.IgnoreUnreadable(err)
	}
	e, err = p.reader.LogEvent(item, func(_ *event.Event, took []string) bool {
		routes = took
		return true
	})
	if err != nil {
		return nil, nil, nil //nolint:nilerr // like one that is gone
	}
	return e, routes, nil
}

func (p *parts) Wait(ctx context.Context, after uint64) error { return p.d.store.WaitLog(ctx, after) }

func (p *parts) TimeOf(sequence uint64) (t time.Time, at uint64, ok bool) {
	items, err := p.d.store.ReadLog(sequence-1, 1)
	if err != nil || len(items) == 0 {
		return t, 0, false // a failed store shows at the next read
	}
	return items[0].Time, items[0].Sequence, true
}

func (p *parts) Blame(ctx context.Context, o history.Object) (*history.Blame, error) {
	b, err := p.Reader.Blame(ctx, o)
	if err != nil || !b.Open() {
		return b, err
	}
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	uid, managed, err := p.reader.ManagedFields(ctx, o)
	if err != nil {
		b.Unmanaged = err.Error()
		return b, nil
	}
	b.Manage(uid, managed)
	return b, nil
}

// liveTimeout bounds a request to the API server that an answer waits for.
const liveTimeout = 5 * time.Second

func (p *parts) Replay(ctx context.Context, r admin.ReplayRequest, progress func(int)) (int, error) {
	n, err := p.manager.Replay(ctx, r.Sink, store.ReplayRange{
		FromSequence: r.FromSequence, ToSequence: r.ToSequence, FromTime: r.FromTime, ToTime: r.ToTime,
	}, progress)
	return n, translate(err)
}

func (p *parts) Explain(ctx context.Context, name string) (*retrace.Explanation, error) {
	x, err := p.manager.Explain(ctx, name)
	return x, translate(err)
}

func (p *parts) when(text string) (*history.Test, error) { return p.manager.Past().When(text) }

func (p *parts) Backtest(ctx context.Context, r *admin.BacktestRequest, progress func(int)) (*retrace.Backtest, error) {
	b, err := p.manager.Backtest(ctx, &r.Proposal, r.From, r.To, progress)
	return b, translate(err)
}

func (p *parts) Snapshot(ctx context.Context, r admin.SnapshotRequest, progress func(int)) (int, error) {
	n, err := p.manager.Snapshot(ctx, r.Sink, r.Watch, progress)
	return n, translate(err)
}

func (p *parts) Backup(ctx context.Context, dir string) (int, error) {
	own, err := filepath.Abs(p.st.Store.Path)
	if err != nil {
		return 0, err
	}
	if within, err := filepath.Rel(resolved(own), resolved(dir)); err == nil && filepath.IsLocal(within) {
		return 0, admin.Refuse(http.StatusConflict, fmt.Errorf("%s is in the folder of the store", dir))
	}
	switch err := p.d.store.Backup(ctx, dir); {
	case errors.Is(err, fs.ErrExist):
		return 0, admin.Refuse(http.StatusConflict, fmt.Errorf("%s exists already; name a new folder, which the backup makes", dir))
	case errors.Is(err, store.ErrCopying), errors.Is(err, store.ErrRepairing), errors.Is(err, fs.ErrPermission):
		return 0, admin.Refuse(http.StatusConflict, err)
	case err != nil:
		return 0, err
	}
	report, err := inspect.Check(dir) //nolint:contextcheck // a copy that is made is checked
	if err == nil && !report.OK() {
		err = fmt.Errorf("the copy in %s is damaged, as the store is: %s", dir, strings.Join(report.Problems, "; "))
	}
	return int(report.Records), err
}

// resolved is an absolute path without links, as far as it exists.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil || filepath.Dir(path) == path {
		return cmp.Or(real, path)
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}

const (
	reloadTimeout = 25 * time.Second
	reloadPoll    = 20 * time.Millisecond
)

var errReloading = errors.New("the reload is still running; see the status")

func (p *parts) Reload(ctx context.Context) (status.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	before := p.watcher.Status().LastAttempt
	p.watcher.Trigger()
	poll := time.NewTicker(reloadPoll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return p.config(p.watcher), admin.Refuse(http.StatusServiceUnavailable, errReloading)
		case <-poll.C:
			if p.watcher.Status().LastAttempt.After(before) {
				return p.config(p.watcher), nil
			}
		}
	}
}

// Plan compares a configuration with the one that runs, as a reload does.
func (p *parts) Plan(configuration string) (string, error) {
	next, err := parse(p.d.ConfigFile, []byte(configuration), p.d.Kinds, p.d.Policy)
	if err != nil {
		return "", admin.Refuse(http.StatusBadRequest, err)
	}
	running := p.manager.Running().State
	if running == nil {
		return "", translate(pipeline.ErrNotApplied)
	}
	return plan.Diff(running, next).String(), nil
}

func (p *parts) Pause(ctx context.Context, sink string) error {
	return translate(p.manager.PauseSink(ctx, sink))
}

func (p *parts) Resume(ctx context.Context, sink string) error {
	return translate(p.manager.ResumeSink(ctx, sink))
}

func (p *parts) Skip(ctx context.Context, sink string, sequence uint64) (admin.Skipped, error) {
	s, err := p.manager.SkipEvent(ctx, sink, sequence)
	return admin.Skipped(s), translate(err)
}

func (p *parts) Purge(ctx context.Context, sink string) error {
	return translate(p.manager.PurgeSink(ctx, sink))
}

// letterBytes is about how much the events of dead letters take that are listed at once.
const letterBytes = 4 << 20

// letters are the dead letters in the admin's words.
type letters struct{ p *parts }

// queue is that of a sink that is configured, or was.
func (l letters) queue(sink string) (*store.Queue, error) {
	queue, err := l.p.d.store.Queue(sink)
	if errors.Is(err, store.ErrUnknownSink) {
		err = &pipeline.UnknownError{What: "sink", Name: sink, Known: l.p.d.store.Sinks()}
	}
	return queue, translate(err)
}

func (l letters) List(sink string, after uint64, most int, events bool) ([]admin.DeadLetter, error) {
	queue, err := l.queue(sink)
	if err != nil {
		return nil, err
	}
	kept, err := queue.DeadLetters(after, most)
	if err != nil {
		return nil, err
	}
	out, size := make([]admin.DeadLetter, len(kept)), 0
	for i := range kept {
		if size > letterBytes {
			return out[:i], nil
		}
		k := &kept[i]
		out[i] = admin.DeadLetter{
			Sink: sink, Position: k.Position, Sequence: k.Sequence, Reason: l.p.reader.LetterReason(k), Attempts: k.Attempts,
			First: k.First, Last: k.Letter.Time, Time: k.Item.Time,
		}
		if e, err := l.p.reader.LetterEvent(sink, k.Item); err == nil { // otherwise its reason has the cause
			out[i].Type, out[i].Subject, out[i].ID = string(e.Type), e.Subject(), e.ID
			out[i].Resource, out[i].Namespace, out[i].Name = &e.Resource, e.Namespace, e.Name
			if events {
				out[i].Event = event.AppendCloudEvent(nil, e)
				size += len(out[i].Event)
			}
		}
	}
	return out, nil
}

func (l letters) Retry(sink string, positions []uint64) (int, error) {
	queue, err := l.queue(sink)
	if err != nil {
		return 0, err
	}
	// They come behind later events of their objects.
	return queue.RetryDeadLetters(uint32(record.Replay), positions...)
}

func (l letters) Drop(sink string, positions []uint64) (int, error) {
	queue, err := l.queue(sink)
	if err != nil {
		return 0, err
	}
	return queue.DropDeadLetters(positions...)
}

// translate marks the errors that a request is to blame for.
func translate(err error) error {
	var unknown *pipeline.UnknownError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown), errors.Is(err, store.ErrUnknownSink):
		return admin.Refuse(http.StatusNotFound, err)
	case errors.Is(err, delivery.ErrNothingToSkip), errors.Is(err, delivery.ErrNotSkippable):
		return admin.Refuse(http.StatusNotFound, err)
	case errors.Is(err, pipeline.ErrConfigured), errors.Is(err, delivery.ErrNotDelivering), errors.Is(err, delivery.ErrInFlight),
		errors.Is(err, store.ErrDeadLettersFull), errors.Is(err, store.ErrNotJoined), errors.Is(err, pipeline.ErrNamespacesUnknown):
		return admin.Refuse(http.StatusConflict, err)
	case errors.Is(err, retrace.ErrNotFound):
		return admin.Refuse(http.StatusNotFound, err)
	case errors.Is(err, retrace.ErrProposal):
		return admin.Refuse(http.StatusBadRequest, err)
	case errors.Is(err, commit.ErrEnded), errors.Is(err, pipeline.ErrNotApplied):
		return admin.Refuse(http.StatusServiceUnavailable, err)
	default:
		return err
	}
}
