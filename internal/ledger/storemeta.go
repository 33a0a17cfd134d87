package ledger

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
)

// RedactKeyMeta is where the store keeps the key of the hashes that stand for redacted
// values. With it, short values can be found out.
const RedactKeyMeta = "redact-key"

// RedactKeyLen is the key's length in bytes.
const RedactKeyLen = 32

// Keys of single values in the store.
const (
	DictionaryMeta = "dictionary/" // and the id
	ClusterMeta    = "cluster-uid"
)

// LoadDictionaries returns the dictionaries of earlier lives. A new one is
// durable before anything is compressed with it.
func LoadDictionaries(st *store.Store) (*compact.Dictionaries, error) {
	dicts := compact.NewDictionaries(func(id uint32, content []byte) error {
		return PutMeta(st, DictionaryKey(id), content)
	})
	err := st.ScanMeta(DictionaryMeta, func(key string, content []byte) error {
		id, err := strconv.ParseUint(strings.TrimPrefix(key, DictionaryMeta), 10, 32)
		if err != nil {
			return fmt.Errorf("dictionary %q: %w", key, err)
		}
		return dicts.Load(uint32(id), bytes.Clone(content)) // content is the store's
	})
	if err != nil {
		return nil, fmt.Errorf("load dictionaries: %w", err)
	}
	return dicts, nil
}

// DictionaryKey is the key of a dictionary.
func DictionaryKey(id uint32) string { return DictionaryMeta + strconv.FormatUint(uint64(id), 10) }

// LoadRedactKey returns the key of the hashes that stand for redacted values. It
// is made once for a store: a value's hash must stay the same, or every restart
// would look like a change. A configured key takes its place: the store's own is deleted.
func LoadRedactKey(st *store.Store, configured []byte) ([]byte, error) {
	key, ok, err := st.Meta(RedactKeyMeta)
	if err != nil {
		return nil, fmt.Errorf("load redaction key: %w", err)
	}
	if configured != nil {
		if ok {
			b := st.NewBatch()
			defer b.Discard()
			b.DeleteMeta(RedactKeyMeta)
			err = st.Commit(b)
		}
		return configured, err
	}
	if ok {
		return key, nil
	}
	key = make([]byte, RedactKeyLen)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make redaction key: %w", err)
	}
	return key, PutMeta(st, RedactKeyMeta, key)
}

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

// AcceptedMeta is where the store keeps the edits of the configuration that was
// applied last.
const AcceptedMeta = "edits"
