package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/internal/selector"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// sampleFor is the first sample that a route to a sink takes, the first one if none does.
func sampleFor(st *plan.State, sink string) (*event.Event, error) {
	var first *event.Event
	for _, text := range samples {
		for _, change := range variants {
			e, err := event.Parse([]byte(text))
			if err != nil {
				return nil, fmt.Errorf("sample event: %w", err)
			}
			if change(e); first == nil {
				first = e
			}
			decisions, err := decide(st, sink, e)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(decisions, taken) {
				return e, nil
			}
		}
	}
	return first, nil
}

func taken(d route.Decision) bool { return d.Verdict == route.Taken }

// untaken is the reason why no route to a sink takes an event, by route. It is empty if one
// does, and of events that lack what routes decide by.
func untaken(st *plan.State, sink string, e *event.Event) (string, error) {
	decisions, err := decide(st, sink, e)
	if err != nil || len(decisions) == 0 || slices.ContainsFunc(decisions, taken) {
		return "", err
	}
	var reasons []string
	for _, d := range decisions {
		reason := "route " + d.Route + ": " + routeWords(d.Verdict)
		if d.Error != "" {
			reason += ": " + d.Error
		}
		reasons = append(reasons, reason)
	}
	return strings.Join(reasons, "; "), nil
}

// decide returns the verdicts of the routes to a sink on an event, none for events that lack
// what routes decide by. Namespaces and selectors of watches, and the sample of a route, do
// not count: they decide by the event's names, labels and id.
func decide(st *plan.State, sink string, e *event.Event) ([]route.Decision, error) {
	if e.Gap != nil || len(e.Object) == 0 {
		return nil, nil
	}
	var specs []route.Spec
	lasting := []string{}
	for _, spec := range st.Routes {
		if !slices.Contains(spec.Sinks, sink) {
			continue
		}
		if spec.Sample = 0; spec.For > 0 {
			lasting = append(lasting, spec.Name)
		}
		if e.Type == event.Updated && len(e.OldObject) == 0 && readsOld(spec.When) {
			return nil, nil
		}
		specs = append(specs, spec)
	}
	router, err := route.Compile(specs)
	if err != nil {
		return nil, err
	}
	c := route.Change{
		ID: e.ID, Type: e.Type, Resource: e.Resource, Cluster: e.Cluster, Time: e.Time,
		Changed: e.ChangedBy != nil, ChangedBy: e.ChangedBy, Uncounted: true,
	}
	if e.For != nil {
		c.Lasted = lasting
	}
	codec := compact.NewCodec(compact.NewDictionaries(nil))
	object, err := codec.Encode(e.Object, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("the event's object: %w", err)
	}
	if e.Type == event.Deleted {
		c.Old = object
	} else {
		c.New = object
	}
	if e.Type == event.Updated && len(e.OldObject) > 0 {
		if c.Old, err = codec.Encode(e.OldObject, nil, 0); err != nil {
			return nil, fmt.Errorf("the event's oldObject: %w", err)
		}
	}
	for i := range st.Watches {
		if w := &st.Watches[i]; names(w.Resources, e.Resource) && !names(w.ExcludeResources, e.Resource) {
			c.Watches = append(c.Watches, route.Hit{Watch: w.Name, Selection: e.Selection})
		}
	}
	return router.Decisions(&c), nil
}

func readsOld(when string) bool {
	if when == "" {
		return false
	}
	condition, faults := route.CompileCondition(when)
	return len(faults) == 0 && condition.ReadsOld()
}

// names reports whether one of the patterns names a resource.
func names(patterns []string, r event.Resource) bool {
	return slices.ContainsFunc(patterns, func(text string) bool {
		p, err := selector.ParseResource(text)
		return err == nil && p.Matches(r)
	})
}

// variants make another event of a sample, which is an update.
var variants = []func(e *event.Event){
	func(*event.Event) {},
	func(e *event.Event) { e.Type, e.OldObject = event.Added, nil },
	func(e *event.Event) { e.Type, e.OldObject, e.ChangedBy = event.Deleted, nil, nil },
	func(e *event.Event) { // of a route with a for
		e.OldObject, e.ChangedBy = nil, nil
		e.For = &event.For{Since: e.Time.Add(-10 * time.Minute)}
	},
}

// samples are updates, the first one of the kind that most routes are about. Patches and
// summaries are made of their states.
var samples = []string{
	`{"specversion":"1.0","id":"3f9c2a7be1d04c58a1b6e0f2d7c98541","source":"/clusters/demo","type":"dev.watcherd.resource.updated",` +
		`"subject":"/apis/apps/v1/namespaces/prod/deployments/web","time":"2026-03-01T12:00:00.25Z","sequence":"00000000000000000042","partitionkey":"deployments.apps/prod/web","datacontenttype":"application/json",` +
		`"data":{"resource":{"group":"apps","version":"v1","resource":"deployments","kind":"Deployment"},"namespace":"prod","name":"web","uid":"0d6d5c1e-4a57-4f0e-9a4e-2f1c7b1f5a10","resourceVersion":"1042",` +
		`"object":` + deploymentAfter + `,"oldObject":` + deploymentBefore + `,` +
		`"changedBy":{"manager":"kubectl-set","operation":"Update","subresource":"","time":"2026-03-01T12:00:00Z"}}}`,

	`{"specversion":"1.0","id":"9b1f0c5d7a2e4836b4c7d1e0f8a36259","source":"/clusters/demo","type":"dev.watcherd.resource.updated",` +
		`"subject":"/api/v1/namespaces/prod/pods/migrate-x7k2p","time":"2026-03-01T12:00:00.25Z","sequence":"00000000000000000043","partitionkey":"pods/prod/migrate-x7k2p","datacontenttype":"application/json",` +
		`"data":{"resource":{"group":"","version":"v1","resource":"pods","kind":"Pod"},"namespace":"prod","name":"migrate-x7k2p","uid":"7e2b9d34-58c1-4d0a-8f6b-c3a1e5d7f920","resourceVersion":"1052",` +
		`"object":` + podAfter + `,"oldObject":` + podBefore + `,` +
		`"owner":{"apiVersion":"batch/v1","kind":"Job","name":"migrate","uid":"1c9e7a30-4b5d-4f82-96a1-d8c0e2b4f753","chain":[{"apiVersion":"batch/v1","kind":"Job","name":"migrate","uid":"1c9e7a30-4b5d-4f82-96a1-d8c0e2b4f753"}]},"changedBy":{"manager":"kubelet","operation":"Update","subresource":"status","time":"2026-03-01T12:00:00Z"}}}`,

	`{"specversion":"1.0","id":"c40d8e1f26b94a7d93e5a0b7f1d2c868","source":"/clusters/demo","type":"dev.watcherd.resource.updated",` +
		`"subject":"/api/v1/namespaces/prod/events/web-6d5f9-abcde.18a1b2c3","time":"2026-03-01T12:00:00.25Z","sequence":"00000000000000000044","partitionkey":"events/prod/web-6d5f9-abcde.18a1b2c3","datacontenttype":"application/json",` +
		`"data":{"resource":{"group":"","version":"v1","resource":"events","kind":"Event"},"namespace":"prod","name":"web-6d5f9-abcde.18a1b2c3","uid":"4c8a6f02-9d3e-4b71-a5c0-e7f1b2d3a649","resourceVersion":"1062",` +
		`"object":` + eventAfter + `,"oldObject":` + eventBefore + `,` +
		`"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"prod","name":"web-6d5f9-abcde","uid":"5a0d7c91-2e4f-4836-b1c7-d9e8f0a3b264","labels":{"app":"web","team":"shop"},"owner":{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"0d6d5c1e-4a57-4f0e-9a4e-2f1c7b1f5a10","chain":[` +
		`{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-6d5f9","uid":"e6b0f4d2-7a19-4c35-8d2e-b9a1c3f5e708"},{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"0d6d5c1e-4a57-4f0e-9a4e-2f1c7b1f5a10"}]}},"changedBy":{"manager":"kubelet","operation":"Update","subresource":"","time":"2026-03-01T12:00:00Z"}}}`,
}

const (
	deploymentMeta   = `"metadata":{"name":"web","namespace":"prod","uid":"0d6d5c1e-4a57-4f0e-9a4e-2f1c7b1f5a10","labels":{"app":"web","team":"shop"},"creationTimestamp":"2026-01-15T08:30:00Z",`
	deploymentBefore = `{"apiVersion":"apps/v1","kind":"Deployment",` + deploymentMeta + `"resourceVersion":"1041","generation":3},"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"web","image":"registry.example.com/web:1.4"}]}}},"status":{"readyReplicas":3}}`
	deploymentAfter  = `{"apiVersion":"apps/v1","kind":"Deployment",` + deploymentMeta + `"resourceVersion":"1042","generation":4},"spec":{"replicas":5,"template":{"spec":{"containers":[{"name":"web","image":"registry.example.com/web:1.5"}]}}},"status":{"readyReplicas":3}}`

	podMeta   = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"migrate-x7k2p","namespace":"prod","uid":"7e2b9d34-58c1-4d0a-8f6b-c3a1e5d7f920","labels":{"app":"migrate","team":"shop"},"creationTimestamp":"2026-03-01T11:58:00Z",`
	podSpec   = `"spec":{"nodeName":"node-1","restartPolicy":"Never","containers":[{"name":"migrate","image":"registry.example.com/migrate:1.5"}]},`
	podBefore = podMeta + `"resourceVersion":"1051"},` + podSpec + `"status":{"phase":"Running","podIP":"10.0.0.7"}}`
	podAfter  = podMeta + `"resourceVersion":"1052"},` + podSpec + `"status":{"phase":"Failed","podIP":"10.0.0.7"}}`

	eventMeta   = `{"apiVersion":"v1","kind":"Event","metadata":{"name":"web-6d5f9-abcde.18a1b2c3","namespace":"prod","uid":"4c8a6f02-9d3e-4b71-a5c0-e7f1b2d3a649","creationTimestamp":"2026-03-01T11:50:00Z",`
	eventAbout  = `"involvedObject":{"apiVersion":"v1","kind":"Pod","namespace":"prod","name":"web-6d5f9-abcde","uid":"5a0d7c91-2e4f-4836-b1c7-d9e8f0a3b264"},"type":"Warning","reason":"BackOff","message":"Back-off restarting failed container web in pod web-6d5f9-abcde",`
	eventBefore = eventMeta + `"resourceVersion":"1061"},` + eventAbout + `"source":{"component":"kubelet","host":"node-1"},"firstTimestamp":"2026-03-01T11:50:00Z","lastTimestamp":"2026-03-01T11:59:00Z","count":4}`
	eventAfter  = eventMeta + `"resourceVersion":"1062"},` + eventAbout + `"source":{"component":"kubelet","host":"node-1"},"firstTimestamp":"2026-03-01T11:50:00Z","lastTimestamp":"2026-03-01T12:00:00Z","count":5}`
)
