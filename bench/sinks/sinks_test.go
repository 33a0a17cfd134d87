package sinks

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/minio-go/v7/pkg/signer"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/valkey-io/valkey-go"
	collogs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logs "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/elasticsearch"
	"github.com/watcherd/watcherd/pkg/sinks/file"
	"github.com/watcherd/watcherd/pkg/sinks/kafka"
	"github.com/watcherd/watcherd/pkg/sinks/nats"
	"github.com/watcherd/watcherd/pkg/sinks/object"
	"github.com/watcherd/watcherd/pkg/sinks/otlp"
	"github.com/watcherd/watcherd/pkg/sinks/plugin"
	"github.com/watcherd/watcherd/pkg/sinks/postgres"
	"github.com/watcherd/watcherd/pkg/sinks/redis"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/webhook"
)

// objects is how many objects the events are of. No batch holds two events of one.
const objects = 1024

// events makes the events of one round, each of another object.
func events() []*event.Event {
	out := make([]*event.Event, objects)
	for i := range out {
		out[i] = sinktest.Event(i, i)
		out[i].Object = fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%q,"namespace":"prod","uid":%q},"spec":{%s}}`,
			out[i].Name, out[i].UID, fields(1400))
	}
	return out
}

// fields are members of a JSON object, about size bytes of them.
func fields(size int) string {
	var s strings.Builder
	for i := 0; s.Len() < size; i++ {
		if i > 0 {
			s.WriteByte(',')
		}
		fmt.Fprintf(&s, `"field%d":"value of %016x"`, i, rand.Uint64())
	}
	return s.String()
}

// loop delivers one batch, durably.
type loop func(batch []*event.Event) error

// compare measures a sink and the plain loop with batches of that size.
func compare(b *testing.B, size int, sink, plain func(b *testing.B) loop) {
	all := events()
	for _, side := range []struct {
		name string
		open func(b *testing.B) loop
	}{{"plain", plain}, {"sink", sink}} {
		b.Run(side.name, func(b *testing.B) {
			deliver := side.open(b)
			if err := deliver(all[:size]); err != nil { // connections, files and buffers are made
				b.Fatal(err)
			}
			var sequence uint64
			next := func(n int) []*event.Event {
				at := int(sequence) % (objects - size + 1)
				batch := all[at : at+n]
				for _, e := range batch {
					sequence++
					e.Sequence = sequence
					e.ID = fmt.Sprintf("%032x", rand.Uint64())
				}
				return batch
			}
			b.ReportAllocs()
			b.ResetTimer()
			cpu := cpuTime(b)
			for left := b.N; left > 0; left -= size {
				if err := deliver(next(min(size, left))); err != nil {
					b.Fatal(err)
				}
			}
			cpu = cpuTime(b) - cpu
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(cpu.Nanoseconds())/1e3/float64(b.N), "cpu-µs/event")
		})
	}
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// open opens a sink for the benchmark.
func open(b *testing.B, c sinks.Config, batches bool) loop {
	b.Helper()
	if err := c.Validate(); err != nil {
		b.Fatal(err)
	}
	s, err := c.Open(b.Context(), sinks.Options{
		Name: "bench", Cluster: "bench", BatchMode: batches, Dir: b.TempDir(),
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	ctx := b.Context()
	return func(batch []*event.Event) error { return s.Write(ctx, batch) }
}

func BenchmarkWebhook(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			url := receiver(b, "webhook")
			sink := func(b *testing.B) loop {
				c := webhook.NewConfig()
				c.URL.Text = url
				return open(b, c, size > 1)
			}
			plain := func(b *testing.B) loop {
				b.Cleanup(http.DefaultClient.CloseIdleConnections)
				var body []byte
				return func(batch []*event.Event) error {
					body = body[:0]
					if size > 1 {
						body = event.AppendBatch(body, batch)
					} else {
						body = event.AppendCloudEvent(body, batch[0])
					}
					return post(url, event.ContentTypeCloudEvent, body)
				}
			}
			compare(b, size, sink, plain)
		})
	}
}

// post is the plainest delivery over HTTP.
func post(url, contentType string, body []byte) error {
	resp, err := http.Post(url, contentType, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	return resp.Body.Close()
}

func BenchmarkJetStream(b *testing.B) {
	const size = 256 // the sink's default
	url := receiver(b, "nats")
	nc, err := client.Connect(url)
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	_, err = js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "K8S", Subjects: []string{"k8s.>"}, MaxMsgs: 100_000, Duplicates: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	sink := func(b *testing.B) loop {
		c := nats.NewConfig()
		c.URL, c.JetStream = url, &nats.JetStream{Stream: "K8S"}
		return open(b, c, true)
	}
	plain := func(*testing.B) loop {
		return func(batch []*event.Event) error {
			futures := make([]jetstream.PubAckFuture, len(batch))
			for i, e := range batch {
				f, err := js.PublishAsync("k8s.test.apps.deployments.prod."+e.Name, event.AppendCloudEvent(nil, e), jetstream.WithMsgID(e.ID))
				if err != nil {
					return err
				}
				futures[i] = f
			}
			for _, f := range futures {
				select {
				case <-f.Ok():
				case err := <-f.Err():
					return err
				}
			}
			return nil
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkKafka(b *testing.B) {
	const size = 500 // the sink's default
	k := testservers.StartKafka(b, testservers.KafkaSpec{Discard: true, Partitions: 3})
	sink := func(b *testing.B) loop {
		c := kafka.NewConfig()
		c.Brokers, c.Create = []string{k.Addr}, &kafka.Create{}
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		c, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.AllowAutoTopicCreation(), kgo.ProducerLinger(0))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Close)
		ctx := b.Context()
		return func(batch []*event.Event) error {
			records := make([]*kgo.Record, len(batch))
			for i, e := range batch {
				records[i] = &kgo.Record{
					Topic: "plain", Key: []byte(e.PartitionKey()), Value: event.AppendCloudEvent(nil, e),
					Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte(event.ContentTypeCloudEvent)}},
				}
			}
			return c.ProduceSync(ctx, records...).FirstErr()
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkOTLP(b *testing.B) {
	const size = 256 // the sink's default
	url := receiver(b, "webhook")
	sink := func(b *testing.B) loop {
		c := otlp.NewConfig()
		c.Endpoint, c.Compress = url, "none"
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		b.Cleanup(http.DefaultClient.CloseIdleConnections)
		return func(batch []*event.Event) error {
			records := make([]*logs.LogRecord, len(batch))
			for i, e := range batch {
				records[i] = &logs.LogRecord{
					TimeUnixNano: uint64(e.Time.UnixNano()), EventName: e.Type.CloudEvent(),
					Body: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: string(event.AppendCloudEvent(nil, e))}},
				}
				for _, a := range event.Attributes(e) {
					records[i].Attributes = append(records[i].Attributes, &common.KeyValue{
						Key: a.Name, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: a.Value}},
					})
				}
			}
			body, err := proto.Marshal(&collogs.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{ScopeLogs: []*logs.ScopeLogs{{LogRecords: records}}}}})
			if err != nil {
				return err
			}
			return post(url+"/v1/logs", "application/x-protobuf", body)
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkObject(b *testing.B) {
	const size = 1000
	const secret = "open sesame"
	o := testservers.StartObject(b, testservers.ObjectSpec{Bucket: "lake", Access: "watcherd", Secret: secret})
	sink := func(b *testing.B) loop {
		b.Setenv("BENCH_SECRET", secret)
		c := object.NewConfig()
		c.S3 = object.S3{Bucket: "lake", Endpoint: "http://" + o.Addr, AccessKey: "watcherd", SecretKey: &sinks.Secret{Env: "BENCH_SECRET"}}
		c.Path = fmt.Sprintf("sink/%x/dt={date}/", rand.Uint64())
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		transport := &http.Transport{}
		b.Cleanup(transport.CloseIdleConnections)
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			b.Fatal(err)
		}
		var line []byte
		return func(batch []*event.Event) error {
			var content bytes.Buffer
			z.Reset(&content)
			for _, e := range batch {
				line = append(event.AppendCloudEvent(line[:0], e), '\n')
				if _, err := z.Write(line); err != nil {
					return err
				}
			}
			if err := z.Close(); err != nil {
				return err
			}
			put, err := http.NewRequestWithContext(b.Context(), http.MethodPut, fmt.Sprintf("http://%s/lake/plain/%x.jsonl.zst", o.Addr, rand.Uint64()), &content)
			if err != nil {
				return err
			}
			put.Header.Set("X-Amz-Content-Sha256", fmt.Sprintf("%x", sha256.Sum256(content.Bytes())))
			resp, err := transport.RoundTrip(signer.SignV4(*put, "watcherd", secret, "", "us-east-1"))
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
				err = errors.New(resp.Status)
			}
			return err
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkPlugin(b *testing.B) {
	const size = 100 // the sink's default
	url := receiver(b, "plugin")
	sink := func(b *testing.B) loop {
		c := plugin.NewConfig()
		c.URL = url
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		b.Cleanup(http.DefaultClient.CloseIdleConnections)
		var body []byte
		return func(batch []*event.Event) error {
			body = event.AppendBatch(body[:0], batch)
			resp, err := http.Post(url, event.ContentTypeBatch, bytes.NewReader(body))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var document struct{ Results []struct{ Status string } }
			if err := json.NewDecoder(resp.Body).Decode(&document); err != nil {
				return err
			}
			for _, r := range document.Results {
				if r.Status != "accepted" {
					return errors.New(r.Status)
				}
			}
			return nil
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkElasticsearch(b *testing.B) {
	const size = 512 // the sink's default
	server := func(b *testing.B) string {
		return "http://" + testservers.StartElasticsearch(b, testservers.ElasticsearchSpec{}).Addr
	}
	sink := func(b *testing.B) loop {
		c := elasticsearch.NewConfig()
		c.URL, c.Compress = server(b), "none"
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		url := server(b) + "/_bulk?filter_path=items.*.status"
		b.Cleanup(http.DefaultClient.CloseIdleConnections)
		var body []byte
		return func(batch []*event.Event) error {
			body = body[:0]
			for _, e := range batch {
				body = fmt.Appendf(body, `{"create":{"_index":"watcherd","_id":%q}}`+"\n", e.ID)
				body = fmt.Appendf(body, `{"@timestamp":%q,"sequence":%d,"id":%q,"type":%q,"cluster":%q,"api_group":%q,"version":%q,"resource":%q,"kind":%q,`,
					e.Time.UTC().Format(time.RFC3339Nano), e.Sequence, e.ID, e.Type, e.Cluster, e.Resource.Group, e.Resource.Version, e.Resource.Resource, e.Resource.Kind)
				body = fmt.Appendf(body, `"namespace":%q,"name":%q,"uid":%q,"resource_version":%q,"event":`, e.Namespace, e.Name, e.UID, e.ResourceVersion)
				body = append(event.AppendCloudEvent(body, e), "}\n"...)
			}
			resp, err := http.Post(url, "application/x-ndjson", bytes.NewReader(body))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var answer struct {
				Items []struct{ Create struct{ Status int } }
			}
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
				return err
			}
			for _, item := range answer.Items {
				if item.Create.Status != http.StatusCreated {
					return fmt.Errorf("status %d", item.Create.Status)
				}
			}
			return nil
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkPostgres(b *testing.B) {
	const size = 256 // the sink's default
	p := testservers.StartPostgres(b, testservers.PostgresSpec{Settings: map[string]string{"fsync": "on", "autovacuum": "on", "shared_buffers": "128MB"}})
	sink := func(b *testing.B) loop {
		b.Setenv("DATABASE_URL", p.URL()+"?sslmode=disable")
		c := postgres.NewConfig()
		c.URL, c.Create = sinks.Secret{Env: "DATABASE_URL"}, true
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		c, err := pgconn.Connect(b.Context(), p.URL()+"?sslmode=disable")
		if err != nil {
			b.Fatal(err)
		}
		ctx := context.WithoutCancel(b.Context())
		b.Cleanup(func() { _ = c.Close(ctx) })
		if _, err := c.Exec(ctx, `create table if not exists history (id text primary key, sequence bigint, time timestamptz, event jsonb);
			create table if not exists objects (name text primary key, sequence bigint, object jsonb)`).ReadAll(); err != nil {
			b.Fatal(err)
		}
		return func(batch []*event.Event) error {
			var all pgconn.Batch
			for _, e := range batch {
				sequence := strconv.AppendUint(nil, e.Sequence, 10)
				all.ExecParams("insert into history values ($1, $2, $3, $4) on conflict do nothing",
					[][]byte{[]byte(e.ID), sequence, []byte(e.Time.Format(time.RFC3339Nano)), event.AppendCloudEvent(nil, e)}, nil, nil, nil)
				all.ExecParams("insert into objects as t values ($1, $2, $3) on conflict (name) do update set sequence = excluded.sequence, object = excluded.object where t.sequence < excluded.sequence",
					[][]byte{[]byte(e.PartitionKey()), sequence, e.Object}, nil, nil, nil)
			}
			return c.ExecBatch(ctx, &all).Close()
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkRedis(b *testing.B) {
	const size = 256 // the sink's default
	r := testservers.StartRedis(b, testservers.RedisSpec{})
	sink := func(b *testing.B) loop {
		c := redis.NewConfig()
		c.URL, c.MaxLen = "redis://"+r.Addr, 10_000
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{r.Addr}, ForceSingleClient: true, DisableCache: true})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Close)
		ctx := context.WithoutCancel(b.Context())
		return func(batch []*event.Event) error {
			commands := make(valkey.Commands, len(batch))
			for i, e := range batch {
				commands[i] = c.B().Xadd().Key("plain").Maxlen().Almost().Threshold("10000").Id("*").FieldValue().
					FieldValue("id", e.ID).FieldValue("event", string(event.AppendCloudEvent(nil, e))).Build()
			}
			for _, result := range c.DoMulti(ctx, commands...) {
				if err := result.Error(); err != nil {
					return err
				}
			}
			return nil
		}
	}
	compare(b, size, sink, plain)
}

func BenchmarkFile(b *testing.B) {
	const size = 512 // the sink's default
	sink := func(b *testing.B) loop {
		c := file.NewConfig()
		c.Path = filepath.Join(b.TempDir(), "events.jsonl")
		return open(b, c, true)
	}
	plain := func(b *testing.B) loop {
		f, err := os.Create(filepath.Join(b.TempDir(), "events.jsonl"))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { f.Close() })
		out := bufio.NewWriterSize(f, 64<<10)
		var line []byte
		return func(batch []*event.Event) error {
			for _, e := range batch {
				line = append(event.AppendCloudEvent(line[:0], e), '\n')
				if _, err := out.Write(line); err != nil {
					return err
				}
			}
			if err := out.Flush(); err != nil {
				return err
			}
			return f.Sync()
		}
	}
	compare(b, size, sink, plain)
}
