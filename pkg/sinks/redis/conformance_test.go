package redis_test

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
	"github.com/watcherd/watcherd/pkg/sinks/redis"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) {
	// The client of a cluster that is closed while it waits to look at its nodes again does so for another second.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valkey-io/valkey-go.(*call).DelayDo.func1"))
}

const canary = "canary-password-4711"

// TestConformance runs the suite against a server with TLS and a password that is killed, stopped and restarted.
func TestConformance(t *testing.T) {
	ca := testca.New(t, "redis")
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		dir := t.TempDir()
		t.Setenv("REDIS_TEST_PASSWORD", canary)
		cert, key := ca.Pair("127.0.0.1", nil)
		r := testservers.StartRedis(t, testservers.RedisSpec{Password: canary, Cert: string(cert), Key: string(key)})
		testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
		frozen := false
		return sinktest.Destination{
			Config: func() sinks.Config {
				c := redis.NewConfig()
				c.URL, c.Username, c.Password = "rediss://"+r.Addr, "watcherd", &sinks.Secret{Env: "REDIS_TEST_PASSWORD"}
				c.TLS, c.Timeout = sinks.TLS{CAFile: "ca.pem"}, sinks.Duration(5*time.Second)
				return c
			},
			Options: func(o *sinks.Options) { o.Dir = dir },
			Received: func(*testing.T) (ids []string) {
				for _, entry := range r.Entries("watcherd") {
					var of struct{ ID string }
					if err := json.Unmarshal([]byte(entry["event"]), &of); err != nil {
						t.Error(err)
					}
					ids = append(ids, of.ID)
				}
				return ids
			},
			Break: func(*testing.T) { r.Kill() },
			Hang:  func(*testing.T) { r.Freeze(); frozen = true },
			Refuse: func(*testing.T) {
				r.Do("ACL", "SETUSER", "watcherd", "off")
				r.Do("CLIENT", "KILL", "USER", "watcherd")
			},
			Repair: func(*testing.T) {
				if frozen {
					r.Thaw()
				}
				frozen = false
				r.Start()
				r.Do("ACL", "SETUSER", "watcherd", "on")
			},
			Restart:    func(*testing.T) { r.Restart() },
			Idempotent: true,
			Secrets:    []string{canary},
			Stop:       r.Kill,
		}
	})
}
