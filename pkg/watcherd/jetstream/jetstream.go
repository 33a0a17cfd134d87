// Package jetstream keeps the journal of the daemon's store in a NATS JetStream stream. A program whose configuration may
// have store.journal sets watcherd.Options.Journal to Journal; one that does not links no NATS client.
package jetstream

import (
	"fmt"
	"os"

	"github.com/watcherd/watcherd/internal/journal"
	"github.com/watcherd/watcherd/internal/replica"
	"github.com/watcherd/watcherd/internal/standby"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Journal is a watcherd.Journal, for watcherd.Options.Journal.
func Journal(c replica.Config) (replica.Member, error) {
	j := &c.Journal
	var keys [][]byte
	for i, from := range append([]sinks.Secret{j.EncryptionKey}, j.OldEncryptionKeys...) {
		name := "encryptionKey"
		if i > 0 {
			name = fmt.Sprintf("oldEncryptionKeys[%d]", i-1)
		}
		key, err := from.In(c.Dir).Value()
		if err == nil && len(key) < journal.MinKey {
			err = fmt.Errorf("it has %d bytes, the minimum is %d", len(key), journal.MinKey)
		}
		if err != nil {
			return nil, fmt.Errorf("store.journal.%s: %w", name, err)
		}
		keys = append(keys, []byte(key))
	}
	sealed, err := journal.NewKeys(keys...)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this host: %w", err)
	}
	nats := j.NATS
	nats.Name, nats.Dir, nats.Log = "watcherd journal "+host, c.Dir, c.Log
	return standby.New(standby.Config{
		Journal: journal.Config{NATS: nats, Stream: j.Stream, Replicas: j.Replicas, MaxBytes: j.MaxBytes, Keys: sealed, Log: c.Log},
		Dir:     c.Path, Options: c.Options, Begin: c.First == "" || c.First == host, TakeOverAfter: j.TakeOverAfter, Host: host, Accept: c.Accept, Log: c.Log, Registerer: c.Registerer,
	})
}
