package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/watcherd/watcherd/playground/internal/statedir"
)

const dialLimit = 5 * time.Second

// Compact removes the history older than revision from the etcd that runs on the
// state directory; revision 0 stands for the current one. It returns the revision
// compacted at, when the space is free.
//
// A reader who then asks for an older version is answered 410 Gone, except where
// the API server's watch cache still knows it.
func Compact(ctx context.Context, layout statedir.Layout, revision int64) (int64, error) {
	endpoint, err := os.ReadFile(layout.EtcdEndpoint())
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("%s: no playground runs here", layout.Root)
	}
	if err != nil {
		return 0, err
	}
	client, err := clientv3.New(clientv3.Config{
		Context:     ctx,
		Endpoints:   []string{strings.TrimSpace(string(endpoint))},
		DialTimeout: dialLimit,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	if revision == 0 {
		if revision, err = current(ctx, client); err != nil {
			return 0, err
		}
	}
	_, err = client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	return revision, err
}

// current is the store's revision, which every answer carries.
func current(ctx context.Context, kv clientv3.KV) (int64, error) {
	answer, err := kv.Get(ctx, "any key", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}
