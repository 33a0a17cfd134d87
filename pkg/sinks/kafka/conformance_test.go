package kafka_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/kafka"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

const canary = "canary-password-4711"

// TestConformance runs the suite against a server with TLS and SCRAM that is killed, stopped and
// restarted.
func TestConformance(t *testing.T) {
	ca := testca.New(t, "kafka")
	for _, mode := range []struct {
		name   string
		format sinks.Format
		change func(c *kafka.Config)
	}{
		{"structured", sinks.CloudEvents, nil},
		{"binary", sinks.CloudEventsBinary, func(c *kafka.Config) { c.Compression = "zstd" }},
		{"json, not idempotent", sinks.JSON, func(c *kafka.Config) { c.Idempotent, c.Acks = false, "leader" }},
		{"state", sinks.CloudEventsBinary, func(c *kafka.Config) { c.Mode = kafka.State }},
	} {
		t.Run(mode.name, func(t *testing.T) {
			sinktest.Run(t, func(t *testing.T) sinktest.Destination {
				dir := t.TempDir()
				cert, key := certificates(t, dir, ca)
				t.Setenv("KAFKA_TEST_PASSWORD", canary)
				k := testservers.StartKafka(t, testservers.KafkaSpec{
					Dir: testservers.DataDir(t), Mechanism: "SCRAM-SHA-512", User: "me", Password: canary, Cert: cert, Key: key,
				})
				o := observe(t, k.Addr, secured(ca, "me", canary)...)
				makeTopic := func() { o.makeTopic(topic, 1, "max.message.bytes", "262144") }
				makeTopic()
				broken, frozen, gone := false, false, false
				return sinktest.Destination{
					Config: func() sinks.Config {
						c := configFor(k.Addr)
						c.Topic = topic // of several, each has a limit of its own
						c.Timeout = sinks.Duration(2 * time.Second)
						c.TLS = &sinks.TLS{CAFile: "ca.pem"}
						c.SASL = &kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "me", Password: &sinks.Secret{Env: "KAFKA_TEST_PASSWORD"}}
						if mode.change != nil {
							mode.change(c)
						}
						return c
					},
					Options: func(o *sinks.Options) { o.Dir = dir },
					Format:  mode.format,
					Received: func(*testing.T) []string {
						return idsOf(t, o.stored(topic))
					},
					Break:  func(*testing.T) { k.Kill(); broken = true },
					Hang:   func(*testing.T) { k.Freeze(); frozen = true },
					Refuse: func(*testing.T) { o.deleteTopic(topic); gone = true },
					Repair: func(*testing.T) {
						if frozen {
							k.Thaw()
						}
						if broken {
							k.Start()
						}
						if gone {
							makeTopic()
						}
						broken, frozen, gone = false, false, false
					},
					Restart: func(*testing.T) { k.Restart() },
					Secrets: []string{canary},
					Stop:    k.Kill,
				}
			})
		})
	}
}

// idsOf are the ids of the events in records.
func idsOf(t *testing.T, records []*kgo.Record) []string {
	t.Helper()
	out := make([]string, len(records))
	for i, r := range records {
		if out[i] = header(r, "ce_id"); out[i] != "" {
			continue
		}
		var e struct{ ID string }
		if err := json.Unmarshal(r.Value, &e); err != nil {
			t.Error(err)
		}
		out[i] = e.ID
	}
	return out
}
