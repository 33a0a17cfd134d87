package ledger

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/store"
	"github.com/watcherd/watcherd/pkg/compact"
)

// Store is what of the durable store is read here. *store.Store implements it.
type Store interface {
	State(partition, key string, dst []byte) ([]byte, bool, error)
	ScanStateAfter(partition, prefix, after string, f func(key string, value []byte) error) error
	Meta(key string) ([]byte, bool, error)
	ScanMeta(prefix string, f func(key string, value []byte) error) error
}

// Ledger reads the last recorded states of objects, and how far the feeds have come. Any
// goroutine may use it.
type Ledger struct {
	store Store
	codec *compact.Codec
}

// New returns the ledger of a store, whose entries need the dictionaries.
func New(store Store, dicts *compact.Dictionaries) *Ledger {
	return &Ledger{store, compact.NewCodec(dicts)}
}

// State returns a committed entry of the ledger, nil if there is none. The error is
// store.ErrUnreadable if the entry is damaged, any other is an [ErrStore].
func (l *Ledger) State(partition, key string) (*compact.Object, error) {
	value, ok, err := l.store.State(partition, key, nil)
	switch {
	case errors.Is(err, store.ErrUnreadable):
		return nil, fmt.Errorf("state of %s in %s: %w", key, partition, err)
	case err != nil:
		return nil, StoreError(err, "read state of %s in %s", key, partition)
	case !ok:
		return nil, nil
	}
	return l.decode(partition, key, value)
}

// decode decodes a ledger entry. What cannot be decoded is damaged as well.
func (l *Ledger) decode(partition, key string, value []byte) (*compact.Object, error) {
	o, err := l.codec.Decode(value)
	if err != nil {
		return nil, fmt.Errorf("%w: state of %s in %s: %w", store.ErrUnreadable, key, partition, err)
	}
	return o, nil
}

// Empty reports whether a partition has no committed entry whose key begins with prefix. What
// cannot be read counts as one.
func (l *Ledger) Empty(partition, prefix string) (bool, error) {
	errFound := errors.New("found one")
	err := l.store.ScanStateAfter(partition, prefix, "", func(string, []byte) error { return errFound })
	if errors.Is(err, errFound) || errors.Is(err, store.ErrUnreadable) {
		return false, nil
	}
	if err != nil {
		return false, StoreError(err, "scan %s", partition)
	}
	return true, nil
}

// ErrEnough ends a scan, which is continued later or has what it was for.
var ErrEnough = errors.New("enough for now")

// Scan calls fn for the committed entries of a partition whose keys begin with prefix and
// sort after a key, in their order. more: fn ended it with [ErrEnough]. Damaged entries are
// left out; the error then is store.ErrUnreadable. Any other is an [ErrStore], also one of fn.
func (l *Ledger) Scan(partition, prefix, after string, fn func(key string, o *compact.Object) error) (more bool, err error) {
	var damage, ended error // ended: by fn
	err = l.store.ScanStateAfter(partition, prefix, after, func(key string, value []byte) error {
		o, err := l.decode(partition, key, value)
		if err != nil {
			damage = err
			return nil //nolint:nilerr // the scan continues, and ends with it
		}
		ended = fn(key, o)
		return ended
	})
	more = errors.Is(ended, ErrEnough)
	switch {
	case ended != nil && !more:
		return false, StoreError(ended, "scan %s", partition)
	case errors.Is(err, store.ErrUnreadable):
		return more, errors.Join(err, damage)
	case err != nil && !more:
		return false, StoreError(err, "scan %s", partition)
	}
	return more, damage
}

// IgnoreUnreadable is err, or nil if err only means that something is damaged.
func IgnoreUnreadable(err error) error {
	if errors.Is(err, store.ErrUnreadable) {
		return nil
	}
	return err
}

// ErrStore marks an error of the durable store: nothing more can be promised and
// the process has to end.
var ErrStore = errors.New("the store failed")

// StoreError is nil without an error of the store, else an [ErrStore] that names what failed.
func StoreError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrStore, fmt.Sprintf(format, args...), err)
}

// Expiring reports whether a crash has cut an expiry of a feed's states short, so that they may be left without
// the checkpoint: the note by which they expire goes after them, and has the time that the expiry noted.
func (l *Ledger) Expiring(partition, feed string) (bool, error) {
	all := FeedID(partition, "")
	for _, keys := range [...][2]string{
		{ExpiredMeta + all, UnwatchedMeta + partition}, {ExpiredMeta + all, UnwatchedInMeta + all}, {ExpiredMeta + feed, UnwatchedInMeta + feed},
	} {
		var noted [2]time.Time
		for i, key := range keys {
			value, _, err := l.store.Meta(key)
			if IgnoreUnreadable(err) != nil {
				return false, StoreError(err, "note of %s", feed)
			}
			noted[i], _ = time.Parse(time.RFC3339, string(value)) // none, as a damaged one, is zero
		}
		if expired, unwatched := noted[0], noted[1]; !unwatched.IsZero() && expired.Equal(ExpiredAt(unwatched)) {
			return true, nil
		}
	}
	return false, nil
}

// ExpiredAt returns what an expiry notes of states that are unwatched since a time, rounded down.
func ExpiredAt(unwatched time.Time) time.Time { return unwatched.Add(time.Second) }

// Unwatched reports whether it is noted that no watch covers a part of the ledger.
func (l *Ledger) Unwatched(partition string) (bool, error) {
	_, noted, err := l.store.Meta(UnwatchedMeta + partition)
	return noted, StoreError(IgnoreUnreadable(err), "note of %s", partition)
}

// Expired calls f with the feeds whose recorded states have expired, and the times up to which they were read.
func (l *Ledger) Expired(f func(feed string, until time.Time)) error {
	err := l.store.ScanMeta(ExpiredMeta, func(key string, value []byte) error {
		until, err := time.Parse(time.RFC3339, string(value))
		if err != nil {
			return fmt.Errorf("%w: %s: %w", store.ErrUnreadable, key, err)
		}
		f(key[len(ExpiredMeta):], until)
		return nil
	})
	return StoreError(err, "scan notes of expired states")
}

// FeedIDs are the IDs of feeds in which keys of the store end that begin with prefix. The
// prefix ends in the ID of a feed of all namespaces.
func (l *Ledger) FeedIDs(prefix string) (map[string]bool, error) {
	skip := strings.IndexByte(prefix, '/') + 1
	ids := map[string]bool{}
	err := l.store.ScanMeta(prefix, func(key string, _ []byte) error {
		if !strings.Contains(key[len(prefix):], "#") { // or it is of a selector that holds one
			ids[key[skip:]] = true
		}
		return nil
	})
	return ids, StoreError(err, "scan %s", prefix)
}

// Writer commits batches. *store.Store implements it.
type Writer interface {
	NewBatch() *store.Batch
	Commit(b *store.Batch) error
}

// DeleteMeta deletes one value for good.
func DeleteMeta(store Writer, key string) error {
	b := store.NewBatch()
	defer b.Discard()
	b.DeleteMeta(key)
	return store.Commit(b)
}

// PutMeta makes one value durable.
func PutMeta(store Writer, key string, value []byte) error {
	b := store.NewBatch()
	defer b.Discard()
	b.PutMeta(key, value)
	return store.Commit(b)
}

// Encode is the form in which a value of text, numbers and times is stored.
func Encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("ledger: %T: %v", v, err)) // these always marshal
	}
	return b
}

// A feed has two names. Its partition is the part of the ledger that holds the
// states of its objects: the resource and its scope, which is what the API server
// selects by and the version that a watch insists on. Its id adds the namespace and
// names the checkpoint. What may change without another object being meant is no
// part of either: the version that the cluster prefers, and the edits. Those make up
// the form in which states are recorded.

// ScopeOf is what makes a feed's content differ from the default one. It begins the
// version parts of event IDs. pinned is the version that a watch names, if any.
func ScopeOf(pinned, labelSelector, fieldSelector string) string {
	scope := ""
	if pinned != "" {
		scope = "@" + pinned
	}
	if labelSelector != "" || fieldSelector != "" {
		scope += fmt.Sprintf("|l=%s;f=%s", labelSelector, fieldSelector)
	}
	return scope
}

// Partition names the part of the ledger that a resource's objects in a scope
// belong to. Two running feeds share one only if their namespaces differ.
func Partition(gr schema.GroupResource, scope string) string { return gr.String() + scope }

// SplitPartition is the inverse of Partition.
func SplitPartition(partition string) (gr schema.GroupResource, scope string) {
	name := partition
	if i := strings.IndexAny(partition, "@|"); i >= 0 {
		name, scope = partition[:i], partition[i:]
	}
	return schema.ParseGroupResource(name), scope
}

// FeedID names a feed in the store; namespace is empty for all namespaces.
func FeedID(partition, namespace string) string { return partition + "#" + namespace }

// Key names an object within its partition. Cluster-scoped objects have an
// empty namespace.
func Key(namespace, name string) string { return namespace + "/" + name }

// SplitFeed is the inverse of FeedID.
func SplitFeed(id string) (partition, namespace string) {
	i := strings.LastIndexByte(id, '#')
	return id[:max(i, 0)], id[i+1:]
}

// RedactKeyMeta is where the store keeps the key of the hashes that stand for redacted
// values. With it, short values can be found out.
const RedactKeyMeta = "redact-key"

// RedactKeyLen is the key's length in bytes.
const RedactKeyLen = 32

// Keys of single values in the store.
const (
	DictionaryMeta = "dictionary/" // and the id
	ClusterMeta    = "cluster-uid"
	NamespaceMeta  = "namespace/" // and the name, of a namespace as watches select by it
	UnwatchedMeta  = "unwatched/" // and a part of the ledger, of the time since when no watch covers it
	// UnwatchedInMeta and a feed's id have that of a namespace, of which watches have been taken; without a namespace, of those
	// that never had a feed of their own.
	UnwatchedInMeta = "unwatched-in/"
	ExpiredMeta     = "expired/"  // and a feed's id, of the time up to which its objects were read whose states have expired
	FarewellMeta    = "farewell/" // and a part of the ledger whose objects are all reported as deleted, but for damaged ones
	SetBackMeta     = "set-back"  // since when all feeds are to be checked, as the cluster was set back
)

// LoadDictionaries returns the dictionaries of earlier lives. A new one is
// durable before anything is compressed with it. If some are damaged, the others are there, and the
// error is store.ErrUnreadable: states and records that need one of those are damaged, too.
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
		err = fmt.Errorf("load dictionaries: %w", err)
	}
	return dicts, err
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
			err = DeleteMeta(st, RedactKeyMeta)
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

// redactKeysMeta is where the store keeps RedactKeys.
const redactKeysMeta = "redact-keys"

// RedactKeys are the keys with which hashes were made, the oldest first. Hashes of two keys cannot be compared.
type RedactKeys []redactKey

type redactKey struct {
	ID    string `json:"id"`
	After uint64 `json:"after,omitempty"` // the last record before those with its hashes; 0: it is the first key
}

// NoteRedactKey notes which key hashes of the records that follow are made with.
func NoteRedactKey(st *store.Store, id string) error {
	const most = 100
	var keys RedactKeys
	if err := readRedactKeys(st, &keys); err != nil {
		return err
	}
	key := redactKey{ID: id}
	if n := len(keys); n > 0 {
		if keys[n-1].ID == id {
			return nil
		}
		key.After = st.LogStats().Last
	}
	keys = append(keys, key)
	value, err := json.Marshal(keys[max(0, len(keys)-most):])
	if err != nil {
		return err
	}
	return PutMeta(st, redactKeysMeta, value)
}

func readRedactKeys(st Store, into *RedactKeys) error {
	value, ok, err := st.Meta(redactKeysMeta)
	if err == nil && ok {
		err = json.Unmarshal(value, into)
	}
	if err != nil {
		return fmt.Errorf("load the ids of redaction keys: %w", err)
	}
	return nil
}

// RedactKeys are those that were noted.
func (l *Ledger) RedactKeys() (keys RedactKeys, err error) {
	return keys, readRedactKeys(l.store, &keys)
}

// Changed reports whether the key changed between two records.
func (k RedactKeys) Changed(a, b uint64) bool {
	for _, key := range k {
		if min(a, b) <= key.After && key.After < max(a, b) {
			return true
		}
	}
	return false
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
