package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/samples"
)

// Outcome is that of one check.
type Outcome struct {
	Check   string
	Err     error  // nil: passed, or skipped
	Skipped string // the reason
	Note    string
	Took    time.Duration
}

// Check runs the suite over the program at the block's URL, and reports each check when it is done. If the first one fails, the
// others are not run. The program gets about 400 events of a cluster named sinktest, some of them twice. The suite shows what a
// client sees; it does not show whether an accepted event is durable.
func Check(ctx context.Context, c *Config, report func(Outcome)) error {
	if err := c.Validate(); err != nil {
		return err
	}
	s, err := c.open(sinks.Options{Name: "sinktest", Cluster: cluster, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Dir: "."})
	if err != nil {
		return err
	}
	defer s.client.Close()
	r := &checks{sink: s, config: c, salt: fmt.Sprintf("%x", time.Now().UnixNano())}
	for i, check := range []struct {
		name string
		run  func(ctx context.Context, o *Outcome) error
	}{
		{"accepts an event", r.one},
		{"accepts a batch, with a result for each event", r.batch},
		{"accepts what comes again, cut in another way", r.again},
		{"takes every type of event and every member", r.types},
		{"takes the next object of a name", r.recreated},
		{"takes members that it does not know", r.unknown},
		{"takes or refuses odd values, each alone", r.odd},
		{"holds back what follows a refused event of its object", r.held},
		{"takes or refuses an event of 1 MiB alone", r.large},
		{"answers several requests at once", r.lanes},
		{"refuses a body that is not a batch, with 4xx", r.malformed},
		{"refuses a request without its credentials", r.credentials},
		{"answers after a request that broke off", r.brokenOff},
		{"answers after a request whose client left", r.left},
	} {
		o := Outcome{Check: check.name}
		began := time.Now()
		o.Err = check.run(ctx, &o)
		o.Took = time.Since(began)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		report(o)
		if i == 0 && o.Err != nil {
			return nil
		}
	}
	return nil
}

const cluster = "sinktest"

// checks are the state of a run.
type checks struct {
	sink    *sink
	config  *Config
	salt    string // of ids, so that a run is not the repeat of another
	made    int
	refused []json.RawMessage // objects, in the order in which they were sent
}

// own makes events the run's own.
func (c *checks) own(events []*event.Event) []*event.Event {
	for _, e := range events {
		c.made++
		e.Cluster, e.Sequence = cluster, uint64(time.Now().UnixMicro())+uint64(c.made)
		e.ID = fmt.Sprintf("sinktest-%s-%d", c.salt, c.made)
		e.Name = c.salt + "-" + e.Name
	}
	return events
}

// write sends events that must be accepted.
func (c *checks) write(ctx context.Context, events []*event.Event) error {
	err := c.sink.Write(ctx, events)
	b, ok := errors.AsType[*sinks.BatchError](err)
	if !ok {
		return err
	}
	first := slices.Min(slices.Collect(maps.Keys(b.Failed)))
	e := events[first]
	return fmt.Errorf("%d of %d events are not accepted, the first is event %d, %s of %s: %w", len(b.Failed), len(events), first+1, e.Type, e.PartitionKey(), b.Failed[first])
}

func (c *checks) one(ctx context.Context, _ *Outcome) error {
	return c.write(ctx, c.own(samples.Events(1, 1)))
}

func (c *checks) batch(ctx context.Context, _ *Outcome) error {
	return c.write(ctx, c.own(samples.Events(100, 7)))
}

func (c *checks) again(ctx context.Context, _ *Outcome) error {
	events := c.own(samples.Events(20, 3))
	for _, batch := range [][]*event.Event{events[:15], events[:15], events, events[5:10]} {
		if err := c.write(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

func (c *checks) types(ctx context.Context, _ *Outcome) error {
	events := samples.Events(7, 7)
	for i, kind := range []event.Type{event.Added, event.Updated, event.Deleted, event.Sync} {
		events[i].Type = kind
	}
	events[1].OldObject, events[1].Patch, events[1].Summary = events[1].Object, json.RawMessage(`[]`), "web updated"
	events[1].ChangedBy = &event.ChangedBy{Manager: "kubectl", Operation: "Update", Time: events[1].Time}
	events[2].FinalStateUnknown = true
	events[3].Replay, events[3].Coalesced = true, 3
	events[4].Selection = event.Left
	events[5].Namespace = "" // of the cluster
	events = c.own(events)
	r := events[6].Resource
	events[6] = &event.Event{ID: events[6].ID, Type: event.Gap, Time: events[6].Time, Sequence: events[6].Sequence, Cluster: cluster, Resource: r, Gap: &event.GapData{Watch: "w", Resource: r, Cause: "expired"}}
	return c.write(ctx, events)
}

func (c *checks) recreated(ctx context.Context, _ *Outcome) error {
	return c.write(ctx, c.own(samples.Recreated(0)))
}

func (c *checks) unknown(ctx context.Context, _ *Outcome) error {
	e := c.own(samples.Events(1, 1))[0]
	line := event.AppendCloudEvent(nil, e)
	line = append(line[:len(line)-2], `,"later":{"a":[1]}},"laterextension":"x"}`...)
	return c.sink.post(ctx, event.ContentTypeBatch, slices.Concat([]byte("["), line, []byte("]")), 1)
}

// refusals are the failed events of a Write, all of which must be the fault of the event.
func refusals(err error, events []*event.Event) (map[int]error, error) {
	b, ok := errors.AsType[*sinks.BatchError](err)
	switch {
	case err == nil:
		return nil, nil
	case !ok:
		return nil, err
	}
	for _, i := range slices.Sorted(maps.Keys(b.Failed)) {
		if class, _ := sinks.Classify(b.Failed[i]); class != sinks.ClassPoison {
			return nil, fmt.Errorf("event %d of %d, with object %.60q: %w; poison is wanted for what will never be accepted", i+1, len(events), events[i].Object, b.Failed[i])
		}
	}
	return b.Failed, nil
}

func (c *checks) odd(ctx context.Context, o *Outcome) error {
	events := c.own(append(samples.Odd(), samples.Event(100, 100)))
	failed, err := refusals(c.sink.Write(ctx, events), events)
	if err != nil {
		return err
	}
	last := len(events) - 1
	if failed[last] != nil {
		return fmt.Errorf("an event that is not odd is refused beside others: %w", failed[last])
	}
	for _, i := range slices.Sorted(maps.Keys(failed)) {
		c.refused = append(c.refused, events[i].Object)
	}
	o.Note = fmt.Sprintf("%d of %d refused", len(failed), last)
	return nil
}

func (c *checks) held(ctx context.Context, o *Outcome) error {
	if len(c.refused) == 0 {
		o.Skipped = "no odd value was refused"
		return nil
	}
	for _, object := range c.refused {
		events := c.own(samples.Events(3, 1))
		events[1].Object = object
		err := c.sink.send(ctx, events)
		b, ok := errors.AsType[*sinks.BatchError](err)
		if class, _ := sinks.Classify(err); err != nil && !ok && class == sinks.ClassPoison {
			continue // the request is refused as a whole: the sink sends halves, and holds back itself
		}
		switch {
		case !ok:
			return errors.Join(errors.New("the refused event is not named"), err)
		case b.Failed[0] != nil:
			return fmt.Errorf("the event before the refused one: %w", b.Failed[0])
		case b.Failed[1] == nil:
			return errors.New("the event is accepted that was refused before")
		case b.Failed[2] == nil:
			return errors.New("the event behind a refused one of its object is accepted: answer held")
		}
		return nil
	}
	o.Skipped = "each refused value has the request refused as a whole"
	return nil
}

func (c *checks) large(ctx context.Context, o *Outcome) error {
	events := c.own([]*event.Event{samples.Event(0, 0), samples.Large(1, 1, 1<<20), samples.Event(2, 2)})
	failed, err := refusals(c.sink.Write(ctx, events), events)
	if err != nil {
		return err
	}
	if failed[1] != nil {
		o.Note = "refused"
	}
	return errors.Join(failed[0], failed[2])
}

func (c *checks) lanes(ctx context.Context, _ *Outcome) error {
	const lanes, each = 4, 10
	events := c.own(samples.Events(lanes*each*3, lanes))
	errs := make([]error, lanes)
	var running sync.WaitGroup
	for lane := range lanes {
		running.Go(func() {
			var mine []*event.Event
			for i := lane; i < len(events); i += lanes {
				mine = append(mine, events[i])
			}
			for batch := range slices.Chunk(mine, each) {
				if errs[lane] = c.write(ctx, batch); errs[lane] != nil {
					return
				}
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *checks) malformed(ctx context.Context, _ *Outcome) error {
	for _, body := range []string{`[{"specversion": "1.0", "id`, `{"not": "a batch"}`} {
		a, err := c.sink.client.Limit(sinks.ResultsLimit(1)).Do(ctx, http.MethodPost, c.sink.url, event.ContentTypeBatch, []byte(body))
		if err != nil {
			return err
		}
		if a.Status/100 != 4 {
			return fmt.Errorf("status %d for %s; 400 is wanted", a.Status, body)
		}
	}
	return nil
}

func (c *checks) credentials(ctx context.Context, o *Outcome) error {
	bare := *c.config
	if bare.Headers = nil; len(c.config.Headers) == 0 {
		o.Skipped = "there are none"
		return nil
	}
	s, err := bare.open(sinks.Options{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Dir: "."})
	if err != nil {
		return err
	}
	defer s.client.Close()
	err = s.Write(ctx, c.own(samples.Events(1, 1)))
	switch class, _ := sinks.Classify(err); {
	case err == nil:
		return errors.New("the event is accepted: answer 401 or 403")
	case class != sinks.ClassPause:
		return fmt.Errorf("answer 401 or 403, which pause the sink: %w", err)
	}
	return nil
}

var errHalf = errors.New("half of the request is sent")

// broken is the rest of a body that never comes.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errHalf }

// brokenOff sends half of a request.
func (c *checks) brokenOff(ctx context.Context, _ *Outcome) error {
	trust, err := c.config.TLS.In(".").Load()
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if c.sink.client.Socket != "" {
			network, address = "unix", c.sink.client.Socket
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	short, cancel := context.WithTimeout(ctx, c.config.Timeout.Std())
	defer cancel()
	body := io.MultiReader(strings.NewReader("[{"), broken{})
	req, err := http.NewRequestWithContext(short, http.MethodPost, c.sink.url.String(), body)
	if err != nil {
		return err
	}
	req.ContentLength = 1000
	req.Header.Set("Content-Type", event.ContentTypeBatch)
	for name, header := range c.config.Headers {
		v, err := header.Value(".")
		if err != nil {
			return fmt.Errorf("headers.%s: %w", name, err)
		}
		req.Header.Set(name, v)
	}
	// The program may answer without the body or close the connection. The Write below shows whether it still answers.
	if resp, err := transport.RoundTrip(req); err == nil {
		_ = resp.Body.Close()
	}
	return c.write(ctx, c.own(samples.Events(2, 2)))
}

// left sends requests and does not wait for the answer. The next Write has the same events.
func (c *checks) left(ctx context.Context, _ *Outcome) error {
	events := c.own(samples.Events(50, 5))
	for _, wait := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond} {
		short, cancel := context.WithTimeout(ctx, wait)
		_ = c.sink.Write(short, events) // any outcome
		cancel()
	}
	return c.write(ctx, events)
}
