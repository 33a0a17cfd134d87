package pipeline

import (
	"encoding/json"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/event"
)

var heartbeats = event.Resource{Group: "watcherd.dev", Version: "v1", Resource: "heartbeats", Kind: "Heartbeat"}

// heartbeatObject is what a heartbeat is about, in the form of an object.
type heartbeatObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"` // of the sink
	} `json:"metadata"`
	Status struct {
		Through     string     `json:"through"`     // every event for the sink up to this sequence is delivered, or a dead letter
		Recorded    string     `json:"recorded"`    // sequence of the newest event of the log
		Pending     int64      `json:"pending"`     // events
		DeadLetters int64      `json:"deadLetters"` // that are kept
		Informers   int        `json:"informers"`
		Contact     *time.Time `json:"contact,omitempty"` // until when the API server was heard by each of them
	} `json:"status"`
}

// heartbeat makes the heartbeat of a sink; nil if the store does not answer.
func (m *Manager) heartbeat(sink string, q *store.Queue) *event.Event {
	o := heartbeatObject{APIVersion: heartbeats.APIVersion(), Kind: heartbeats.Kind}
	o.Metadata.Name = sink
	// In this order: what is recorded later is not counted as delivered.
	recorded := m.store.LogStats().Last
	stats := q.Stats()
	through := recorded
	if stats.Length > 0 {
		oldest, err := q.Read(0, 1, 1)
		if err != nil {
			return nil
		}
		if len(oldest) > 0 && oldest[0].Sequence <= through { // a replay has an old one
			through = oldest[0].Sequence - 1
		}
	}
	o.Status.Through, o.Status.Recorded = event.SequenceText(through), event.SequenceText(recorded)
	o.Status.Pending, o.Status.DeadLetters = stats.Length, stats.DeadLetters
	list := m.informerList()
	o.Status.Informers = len(list)
	contact := m.cfg.Now()
	for _, s := range list {
		if sub := s.sub.Load(); sub == nil {
			contact = time.Time{}
		} else if at := sub.Status().LastContact; at.Before(contact) {
			contact = at
		}
	}
	if len(list) > 0 && !contact.IsZero() {
		contact = contact.UTC()
		o.Status.Contact = &contact
	}
	object, err := json.Marshal(o)
	if err != nil {
		return nil
	}
	now := m.cfg.Now().UTC()
	return &event.Event{
		ID:   event.ID(m.cfg.Cluster, event.Heartbeat, heartbeats, m.cfg.Feed+"/"+sink, m.knownClusterUID(), now.Format(time.RFC3339Nano)),
		Type: event.Heartbeat, Time: now, Sequence: through, Cluster: m.cfg.Cluster, Feed: m.cfg.Feed, ClusterUID: m.knownClusterUID(),
		Resource: heartbeats, Name: sink, Object: object,
	}
}
