package pipeline

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/watcherd/watcherd/internal/commit"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// namespaceKey selects the objects of the informer for watches that select namespaces by
// label.
var namespaceKey = dynamicfactory.Key{GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}}

// errNamespacesUnknown keeps a watch that selects namespaces by label from judging
// objects before the labels are known. Until then the selection that it had stays.
var errNamespacesUnknown = errors.New("the watch selects namespaces by label, and they are not listed yet (it needs list and watch on namespaces); until then a selection that it had stays in force")

// namespaces is the informer of namespaces, while a watch needs their labels. It is the
// owner's, but for sub, which others load.
type namespaces struct {
	sub     atomic.Pointer[dynamicfactory.DurableSubscription] // nil: it does not run
	stopped chan struct{}
	waiting sync.WaitGroup
}

// followNamespaces starts or stops the informer as the state needs. It does not
// wait for its first list: Committer.NamespacesKnown reports it.
//
// It is called after the state's feeds have started: what their watches had
// selected in an earlier life goes by the labels of that time, and a label that
// changed since is a change like any other.
func (m *Manager) followNamespaces(ctx context.Context, st *plan.State) error {
	n := &m.namespaces
	needed := slices.ContainsFunc(st.Watches, func(w plan.Watch) bool { return w.Filter.NeedsNamespaces() })
	switch {
	case needed && n.sub.Load() == nil:
		stopped := make(chan struct{})
		h := m.committer.NamespaceHandler(stopped)
		sub, err := m.factory.SubscribeDurable(context.WithoutCancel(ctx), namespaceKey, h, dynamicfactory.DurableOptions{
			MetadataOnly: true, Codec: compact.NewCodecFor(m.dicts, "namespaces metadata"), Window: window,
		})
		if err != nil {
			return err
		}
		h.Subscribed(sub)
		n.sub.Store(sub)
		n.stopped = stopped
		n.waiting.Go(func() {
			select {
			case <-sub.Synced():
				h.Synced()
			case <-stopped:
			}
		})
	case !needed && (n.sub.Load() != nil || m.committer.NamespacesReady()):
		n.close()
		m.committer.Flush() // nothing of the informer is pending
		var err error
		ended := m.committer.AtBarrier(func(b commit.Barrier) { err = b.ForgetNamespaces(st.Watches) })
		return errors.Join(err, ended)
	}
	return nil
}

func (n *namespaces) close() {
	sub := n.sub.Load()
	if sub == nil {
		return
	}
	close(n.stopped)
	n.waiting.Wait()
	sub.Close()
	n.sub.Store(nil)
}

const (
	// absentRetry is how soon a namespace is looked for again that does not exist.
	absentRetry = 10 * time.Second

	// presentRetry is how soon one is looked for again that is not known to be missing.
	presentRetry = 5 * time.Minute
)

// lookForNamespaces returns which of the namespaces that watches name do not exist, with those watches.
// What a client may not ask, or gets no answer to, is as it was before, and so is what existed unless all is
// set. The error is that of ctx.
func lookForNamespaces(ctx context.Context, client dynamic.ResourceInterface, watches []plan.Watch, before map[string][]string, all bool) (map[string][]string, error) {
	named := map[string][]string{}
	for i := range watches {
		for _, ns := range watches[i].Namespaces {
			named[ns] = append(named[ns], watches[i].Name)
		}
	}
	maps.DeleteFunc(named, func(ns string, _ []string) bool {
		if !all && before[ns] == nil {
			return true
		}
		// Unlike a get, a list distinguishes a namespace that does not exist from a path that is not served.
		list, err := client.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", ns).String(), Limit: 1})
		if err != nil {
			return before[ns] == nil
		}
		return len(list.Items) > 0
	})
	return named, ctx.Err()
}

// followAbsent notes which namespaces that watches name do not exist, and logs when one is
// missing and when it exists. It returns when ctx is done.
func (m *Manager) followAbsent(ctx context.Context) {
	client := m.client.Resource(namespaceKey.GVR)
	var looked time.Time // for all of them
	for {
		retry := presentRetry
		if st := m.currentState(); st != nil {
			all := time.Since(looked) >= presentRetry
			if all {
				looked = time.Now()
			}
			absent, err := lookForNamespaces(ctx, client, st.Watches, m.absent, all) // only this goroutine writes it
			if err != nil {
				return
			}
			if m.noteAbsent(st, absent); len(absent) > 0 {
				retry = absentRetry
			}
		}
		timer := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-m.absentDue:
			timer.Stop()
			looked = time.Time{}
		case <-timer.C:
		}
	}
}

func (m *Manager) noteAbsent(st *plan.State, absent map[string][]string) {
	m.mu.Lock()
	before := m.absent
	m.absent = absent
	m.mu.Unlock()
	for ns, watches := range absent {
		if before[ns] == nil {
			m.log.Warn("a namespace does not exist: nothing is read from it until it does", "namespace", ns, "watches", strings.Join(watches, ", "))
		}
	}
	for ns := range before {
		watched := slices.ContainsFunc(st.Watches, func(w plan.Watch) bool { return slices.Contains(w.Namespaces, ns) })
		if watched && absent[ns] == nil {
			m.log.Info("the namespace exists", "namespace", ns)
		}
	}
}
