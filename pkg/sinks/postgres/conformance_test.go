package postgres_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/postgres"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-password-4711"

// TestConformance runs the suite against a server with TLS and SCRAM that is killed, stopped and restarted.
func TestConformance(t *testing.T) {
	ca := testca.New(t, "postgres")
	sinktest.Run(t, func(t *testing.T) sinktest.Destination {
		dir := t.TempDir()
		t.Setenv("POSTGRES_TEST_PASSWORD", canary)
		cert, key := ca.Pair("127.0.0.1", nil)
		p := testservers.StartPostgres(t, testservers.PostgresSpec{Password: canary, Cert: string(cert), Key: string(key)})
		testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
		t.Setenv("POSTGRES_TEST_URL", p.URL())
		makeTables(t, p)
		frozen := false
		return sinktest.Destination{
			Config: func() sinks.Config {
				c := postgres.NewConfig()
				c.URL, c.Password = sinks.Secret{Env: "POSTGRES_TEST_URL"}, &sinks.Secret{Env: "POSTGRES_TEST_PASSWORD"}
				c.TLS, c.Timeout = &sinks.TLS{CAFile: "ca.pem"}, sinks.Duration(30*time.Second) // one is of 24 MiB
				return c
			},
			Options:  func(o *sinks.Options) { o.Dir = dir },
			Received: func(*testing.T) []string { return history(p) },
			Break:    func(*testing.T) { p.Kill() },
			Hang:     func(*testing.T) { p.Freeze(); frozen = true },
			Refuse:   func(*testing.T) { p.Exec("alter role watcherd nologin") },
			Reject: func(_ *testing.T, id string) {
				p.Exec("alter table watcherd.history add constraint refuse check (id <> '" + id + "') not valid")
			},
			Repair: func(*testing.T) {
				if frozen {
					p.Thaw()
				}
				frozen = false
				p.Start()
				p.Exec("alter role watcherd login; alter table watcherd.history drop constraint if exists refuse")
			},
			Restart:    func(*testing.T) { p.Restart() },
			Idempotent: true,
			Secrets:    []string{canary},
			Stop:       p.Kill,
		}
	})
}

// documented are the blocks of SQL of the kind's page.
func documented(t *testing.T) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// makeTables makes the tables as an operator does.
func makeTables(t *testing.T, p *testservers.Postgres) {
	t.Helper()
	p.Exec("set role watcherd;" + documented(t)[0])
}

// history are the ids of the events in table history, as their JSON has them, in the order of their insertion: by transaction, then by place, as
// nothing is ever removed.
func history(p *testservers.Postgres) (ids []string) {
	for _, row := range p.Exec("select coalesce(event ->> 'id', id) from watcherd.history order by xmin::text::bigint, ctid") {
		ids = append(ids, row[0])
	}
	return ids
}

// configFor is a block for a server that trusts its clients.
func configFor(t *testing.T, p *testservers.Postgres) *postgres.Config {
	t.Helper()
	t.Setenv("POSTGRES_TEST_URL", p.URL()+"?sslmode=disable")
	c := postgres.NewConfig()
	c.URL, c.Create = sinks.Secret{Env: "POSTGRES_TEST_URL"}, true
	return c
}

// mustWrite writes events that must be accepted.
func mustWrite(t *testing.T, s sinks.Sink, events ...*event.Event) {
	t.Helper()
	if err := s.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}
