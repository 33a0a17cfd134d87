package ledger

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/watcherd/watcherd/internal/outbox"
	"github.com/watcherd/watcherd/pkg/compact"
)

// RedactKeyMeta is where the store keeps the key of the hashes that stand for redacted
// values. With it, short values can be found out.
const RedactKeyMeta = "redact-key"

// RedactKeyLen is the key's length in bytes.
const RedactKeyLen = 32

// Keys of what else the store remembers besides checkpoints.
const (
	DictionaryMeta = "dictionary/" // and the id
	ClusterMeta    = "cluster-uid"
)

// LoadDictionaries returns the dictionaries of earlier lives. A new one is
// durable before anything is compressed with it.
func LoadDictionaries(store *outbox.Store) (*compact.Dictionaries, error) {
	dicts := compact.NewDictionaries(func(id uint32, content []byte) error {
		return PutMeta(store, DictionaryKey(id), content)
	})
	err := store.ScanMeta(DictionaryMeta, func(key string, content []byte) error {
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
// would look like a change.
func LoadRedactKey(store *outbox.Store) ([]byte, error) {
	key, ok, err := store.Meta(RedactKeyMeta)
	if err != nil {
		return nil, fmt.Errorf("load redaction key: %w", err)
	}
	if ok {
		return key, nil
	}
	key = make([]byte, RedactKeyLen)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make redaction key: %w", err)
	}
	return key, PutMeta(store, RedactKeyMeta, key)
}
