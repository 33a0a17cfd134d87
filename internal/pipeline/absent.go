package pipeline

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"

	"github.com/watcherd/watcherd/internal/plan"
)

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
