package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// ScrubMeta is where the store keeps how far the rewriting of its contents has come.
const ScrubMeta = "scrub"

// Scrub is a scrub: the task to rewrite what the store holds of some resources as
// the accepted edits want it, and how far it has come. It goes through its stages in
// order, and through what a stage covers by name and position.
type Scrub struct {
	Resources []string  `json:"resources"` // group resources of which more is hidden than before
	Began     time.Time `json:"began"`
	Done      time.Time `json:"done,omitzero"`

	// Retired are the dictionaries of those resources, taken out of use. They go
	// when nothing refers to them.
	Retired      []uint32 `json:"retired,omitempty"`
	Dictionaries bool     `json:"dictionaries"` // Retired is complete

	Stage string `json:"stage,omitempty"`
	Name  string `json:"name,omitempty"`  // the sink or the part of the ledger
	After uint64 `json:"after,omitempty"` // its position, or the log's sequence
	Key   string `json:"key,omitempty"`   // in the ledger

	Rewritten int64 `json:"rewritten"`
	Failed    int64 `json:"failed,omitempty"` // could not be read or edited, and stay as they are
}

// Pending reports whether the scrub is not done.
func (s *Scrub) Pending() bool { return !s.Began.IsZero() && s.Done.IsZero() }

// Concerns reports whether the scrub is about a resource.
func (s *Scrub) Concerns(resource string) bool { return slices.Contains(s.Resources, resource) }

// Encode is the form in which the scrub is stored.
func (s Scrub) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil { // text, numbers and times always marshal
		panic(fmt.Sprintf("feed: marshal scrub: %v", err))
	}
	return b
}

// AcceptedMeta is where the store keeps the edits of the configuration that was
// applied last.
const AcceptedMeta = "edits"
