package feed

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory"
)

// RedactKeyMeta is where the store keeps the key of the hashes that stand for redacted
// values. With it, short values can be found out.
const RedactKeyMeta = "redact-key"

const redactKeyLen = 32

// Keys of what else the store remembers besides checkpoints.
const (
	dictionaryMeta = "dictionary/" // and the id
	clusterMeta    = "cluster-uid"
)

// loadDictionaries returns the dictionaries of earlier lives. A new one is
// durable before anything is compressed with it.
func loadDictionaries(store *outbox.Store) (*compact.Dictionaries, error) {
	dicts := compact.NewDictionaries(func(id uint32, content []byte) error {
		return putMeta(store, dictionaryKey(id), content)
	})
	err := store.ScanMeta(dictionaryMeta, func(key string, content []byte) error {
		id, err := strconv.ParseUint(strings.TrimPrefix(key, dictionaryMeta), 10, 32)
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

func dictionaryKey(id uint32) string { return dictionaryMeta + strconv.FormatUint(uint64(id), 10) }

// loadRedactKey returns the key of the hashes that stand for redacted values. It
// is made once for a store: a value's hash must stay the same, or every restart
// would look like a change.
func loadRedactKey(store *outbox.Store) ([]byte, error) {
	key, ok, err := store.Meta(RedactKeyMeta)
	if err != nil {
		return nil, fmt.Errorf("load redaction key: %w", err)
	}
	if ok {
		return key, nil
	}
	key = make([]byte, redactKeyLen)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make redaction key: %w", err)
	}
	return key, putMeta(store, RedactKeyMeta, key)
}

func putMeta(store *outbox.Store, key string, value []byte) error {
	b := store.NewBatch()
	defer b.Discard()
	b.PutMeta(key, value)
	return store.Commit(b)
}

// checkCluster is called at the first contact with the API server. A store must
// never be continued with another cluster: every object would look deleted.
func (m *Manager) checkCluster(_ context.Context, uid string) error {
	known, ok, err := m.store.Meta(clusterMeta)
	if err != nil {
		return err
	}
	switch {
	case uid == "":
		return nil // not allowed to know; the rollback check is all there is
	case !ok:
		return putMeta(m.store, clusterMeta, []byte(uid))
	case string(known) == uid:
		return nil
	}
	err = fmt.Errorf("%w: it was filled from the cluster whose kube-system namespace has uid %s, this one's has %s; use another store.path, or correct the kubeconfig", ErrForeignCluster, known, uid)
	m.fail(err)
	return err
}

// snapshotFor gives a starting informer what the ledger knows, with the version
// to resume from, so that it needs no list. Where a part of the ledger is not of that
// version, or cannot be read, it lists the resource as it was at that version. An object
// that such a list cannot read begins with its recorded state.
func (m *Manager) snapshotFor(_ context.Context, k dynamicfactory.Key) (*dynamicfactory.Snapshot, error) {
	s := m.source(k)
	if s == nil {
		return nil, nil
	}
	defer s.begun.Store(true)
	listed := &dynamicfactory.Snapshot{Relist: true, Known: m.recordedFor(s)}
	if s.start != cold {
		listed.ResourceVersion, listed.Time = s.resume.listVersion(), s.resume.Time
	}
	if s.start != warm {
		return listed, nil
	}
	snap := &dynamicfactory.Snapshot{ResourceVersion: s.resume.ResourceVersion, Time: s.resume.Time}
	floor := s.resume.recordedUpTo()
	err := m.scan(s, func(o *compact.Object) error {
		snap.Objects = append(snap.Objects, o)
		if v := o.GetResourceVersion(); newer(v, floor) {
			floor = v
		}
		return nil
	})
	switch {
	case errors.Is(err, outbox.ErrUnreadable):
		s.log.Error("a part of the recorded states cannot be read: the watch starts with a list", "error", err)
		s.start, s.floor, s.listed = relist, floor, map[uint64]struct{}{}
		return listed, nil
	case err != nil:
		return nil, err
	}
	s.warmObjects, s.floor = snap.Objects, floor
	return snap, nil
}

// recordedFor returns the recorded states of the source's objects, in the form of now.
func (m *Manager) recordedFor(s *Feed) func(namespace, name string) *compact.Object {
	var codec *compact.Codec
	return func(namespace, name string) *compact.Object {
		key := stateKey(namespace, name)
		o, err := m.loadState(s.partition, key)
		if err == nil {
			o, err = m.formed(s, &codec, o)
		}
		if err != nil {
			s.log.Error("the recorded state of an object that cannot be listed cannot be read either", "object", key, "error", err)
			return nil
		}
		return o
	}
}

// editFor gives an informer the edit that its watches ask for.
func (m *Manager) editFor(k dynamicfactory.Key) dynamicfactory.EditFunc {
	s := m.source(k)
	if s == nil {
		return nil
	}
	return s.edit
}

// onGap hands a loss of history to the committer.
func (m *Manager) onGap(k dynamicfactory.Key, g dynamicfactory.Gap) {
	if s := m.source(k); s != nil {
		m.send(s.stopped, &gapFound{src: s, gap: &g, at: m.cfg.Now()})
	}
}

func (m *Manager) source(k dynamicfactory.Key) *Feed {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sources[k]
}

func (m *Manager) sourceList() []*Feed {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*Feed, 0, len(m.sources))
	for _, s := range m.sources {
		list = append(list, s)
	}
	return list
}
