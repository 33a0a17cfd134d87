package object_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/object"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-key-4711"

// configFor is the block for a server.
func configFor(t *testing.T, o *testservers.Object) *object.Config {
	t.Helper()
	t.Setenv("OBJECT_TEST_SECRET", canary)
	c := object.NewConfig()
	c.S3 = object.S3{Bucket: "lake", Endpoint: "http://" + o.Addr, AccessKey: "watcherd", SecretKey: &sinks.Secret{Env: "OBJECT_TEST_SECRET"}}
	c.Timeout = sinks.Duration(5 * time.Second)
	return c
}

func start(t *testing.T) *testservers.Object {
	t.Helper()
	return testservers.StartObject(t, testservers.ObjectSpec{Bucket: "lake", Access: "watcherd", Secret: canary})
}

// ids are those of all lines, in the order of the keys.
func ids(t *testing.T, o *testservers.Object) (ids []string) {
	t.Helper()
	keys, lines := o.Lines(".")
	for _, key := range keys {
		for _, line := range lines[key] {
			var event struct{ ID string }
			if err := json.Unmarshal(line, &event); err != nil {
				t.Errorf("%v: %.100s", err, line)
			}
			ids = append(ids, event.ID)
		}
	}
	return ids
}

// TestConformance runs the suite against a server with TLS that is killed, stopped and restarted.
func TestConformance(t *testing.T) {
	ca := testca.New(t, "object")
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		dir := t.TempDir()
		cert, key := ca.Pair("127.0.0.1", nil)
		testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
		o := testservers.StartObject(t, testservers.ObjectSpec{Bucket: "lake", Access: "watcherd", Secret: canary, Cert: string(cert), Key: string(key)})
		frozen := false
		restart := func(secret string) {
			o.SetSecret(secret)
			o.Restart()
		}
		return sinktest.Destination{
			Config: func() sinks.Config {
				c := configFor(t, o)
				c.S3.Endpoint, c.S3.TLS = "https://"+o.Addr, sinks.TLS{CAFile: "ca.pem"}
				return c
			},
			Options:  func(o *sinks.Options) { o.Dir = dir },
			Received: func(t *testing.T) []string { return ids(t, o) },
			Break:    func(*testing.T) { o.Kill() },
			Hang:     func(*testing.T) { o.Freeze(); frozen = true },
			Refuse:   func(*testing.T) { restart("another") },
			Repair: func(*testing.T) {
				if frozen {
					o.Thaw()
				}
				frozen = false
				restart(canary)
			},
			Restart:    func(*testing.T) { o.Restart() },
			Idempotent: true,
			Secrets:    []string{canary},
			Stop:       o.Kill,
		}
	})
}
