package watcherd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/columns"
	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/redact"
	"github.com/watcherd/watcherd/internal/retrace"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// ReadStore calls f with an api that answers in this process, at http://localhost, what the
// store in dir knows of the past: history, changes, states, differences. No daemon may run on the store
// meanwhile. Nothing is trimmed, and what the configuration that was accepted last hides stays hidden. Answers about times
// after the last checkpoint of a watch, and after until, are not complete.
func ReadStore(ctx context.Context, dir string, until time.Time, log *slog.Logger, f func(ctx context.Context, api http.RoundTripper) error) (err error) {
	if err := store.Exists(dir); err != nil { // Open would make one
		return fmt.Errorf("%w: %w", ErrStoreOpen, err)
	}
	st, err := store.Open(dir, store.Options{Logger: log}) //nolint:contextcheck // a repair that has begun is completed
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreOpen, err)
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	a, err := openArchive(st, until)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreOpen, err)
	}
	metrics, local, opened := prometheus.NewRegistry(), admin.NewLocal(), make(chan struct{})
	close(opened)
	server, err := admin.Listen(ctx, admin.Config{
		Local: local, Status: func() *status.Status { return &status.Status{} }, Objects: a, History: a.Reader, When: a.past.When,
		Opened: opened, Stopping: ctx.Done(), Gatherer: metrics, Registerer: metrics, Logger: log,
	})
	if err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	sctx, stop := context.WithCancel(gctx)
	group.Go(func() error { return server.Run(sctx) })
	group.Go(func() error {
		defer stop()
		return f(gctx, local.Transport())
	})
	return group.Wait()
}

// archive is the past of a store without a daemon.
type archive struct {
	*history.Reader
	past      *retrace.Reader
	resources []history.Known
}

func openArchive(st *store.Store, until time.Time) (*archive, error) {
	dicts, err := ledger.LoadDictionaries(st)
	if ledger.IgnoreUnreadable(err) != nil {
		return nil, err
	}
	stored, ok, err := st.Meta(ledger.AcceptedMeta)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("no daemon has run on it")
	}
	accepted, err := redact.Parse(stored)
	if err != nil {
		return nil, err
	}
	key, ok, err := st.Meta(ledger.RedactKeyMeta)
	if !ok && err == nil { // the hashes then differ from those that were recorded
		key = make([]byte, ledger.RedactKeyLen)
		_, err = rand.Read(key)
	}
	if err != nil {
		return nil, err
	}
	table, err := redact.Compile(accepted, nil, key)
	if err != nil {
		return nil, err
	}
	in, l := &record.Inflater{Dictionaries: dicts, Edit: table.Edit}, ledger.New(st, dicts)
	a := &archive{Reader: history.New(st, l, in), past: retrace.New(st, in, func() *redact.Table { return table })}
	if err := a.ends(st, l, until); err != nil {
		return nil, err
	}
	a.resources, err = a.Resources()
	return a, err
}

// ends has answers about times after the checkpoint of a feed that ran, and after a time, be incomplete.
func (a *archive) ends(st *store.Store, l *ledger.Ledger, end time.Time) error {
	feeds := map[string]history.Unread{}
	err := l.Checkpoints(func(feed string, c ledger.Checkpoint) error {
		partition, _ := ledger.SplitFeed(feed)
		left, err := l.Unwatched(partition)
		if err != nil || left {
			return err
		}
		if _, left, err = st.Meta(ledger.UnwatchedInMeta + feed); ledger.IgnoreUnreadable(err) != nil || left {
			return ledger.IgnoreUnreadable(err)
		}
		if c.Time.Before(end) {
			c.Time = end
		}
		feeds[feed] = history.Unread{Since: c.Time, Cause: "the store ends there"}
		return nil
	})
	a.Reading(func(func(string) bool, time.Time) (map[string]history.Unread, bool) { return feeds, true })
	return err
}

// shortNames are those of resources that every cluster serves.
var shortNames = map[string]string{
	"cm": "configmaps", "ev": "events", "ep": "endpoints", "ns": "namespaces", "no": "nodes", "po": "pods", "pv": "persistentvolumes",
	"pvc": "persistentvolumeclaims", "rc": "replicationcontrollers", "sa": "serviceaccounts", "svc": "services", "deploy": "deployments",
	"ds": "daemonsets", "rs": "replicasets", "sts": "statefulsets", "hpa": "horizontalpodautoscalers", "cj": "cronjobs",
	"ing": "ingresses", "netpol": "networkpolicies", "pdb": "poddisruptionbudgets", "crd": "customresourcedefinitions", "sc": "storageclasses",
}

// View implements admin.Objects.
func (a *archive) View(name string) (admin.View, error) {
	k, err := named(a.resources, name)
	return past(k), err
}

// Recorded implements admin.Objects.
func (a *archive) Recorded(name string) (resource event.Resource, namespaced bool, err error) {
	k, err := named(a.resources, name)
	return k.Resource, k.Namespaced, err
}

// Selectable implements admin.Objects. No watch is known here, nor what it did not record.
func (a *archive) Selectable(event.Resource, string, labels.Selector) error { return nil }

// named returns the resource of a name. Of several it is the one that a cluster takes a name without a group for: that of the
// core group, else of another group of Kubernetes.
func named(all []history.Known, name string) (history.Known, error) {
	p, err := selector.ParseResource(name)
	if err != nil {
		return history.Known{}, admin.Refuse(http.StatusBadRequest, err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(k history.Known) bool {
		for _, called := range []string{k.Resource.Resource, strings.ToLower(k.Kind)} {
			if r := (event.Resource{Group: k.Group, Version: k.Version, Resource: called}); p.Matches(r) {
				return false
			}
		}
		return shortNames[strings.ToLower(name)] != k.Resource.Resource || rank(k) == custom
	})
	if len(all) == 0 {
		return history.Known{}, admin.Refuse(http.StatusNotFound, fmt.Errorf("the store has no change and no state of %q", name))
	}
	return slices.MinFunc(all, func(a, b history.Known) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Group, b.Group))
	}), nil
}

// rank orders resources of one name by their groups: the core group, other groups of Kubernetes, and custom ones.
func rank(k history.Known) int {
	switch {
	case k.Group == "":
		return 0
	case scheme.Scheme.IsGroupRegistered(k.Group):
		return 1
	}
	return custom
}

const custom = 2

// past is a resource of which nothing is current.
type past history.Known

func (p past) About() (resource event.Resource, namespaced bool, unsynced string) {
	return p.Resource, p.Namespaced, ""
}
func (p past) Columns(context.Context) []columns.Column       { return nil }
func (p past) List(string, labels.Selector) []*compact.Object { return nil }
func (p past) Get(string, string) *compact.Object             { return nil }
