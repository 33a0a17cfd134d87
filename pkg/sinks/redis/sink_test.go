package redis_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/internal/waittest"
	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/redis"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// configFor is a block for a server without TLS and password.
func configFor(r *testservers.Redis) *redis.Config {
	c := redis.NewConfig()
	c.URL = "redis://" + r.Addr
	return c
}

// mustWrite writes events that must be accepted.
func mustWrite(t *testing.T, s sinks.Sink, events ...*event.Event) {
	t.Helper()
	if err := s.Write(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

// objects are the fields of the hash, and the sequences of the events in them.
func objects(t *testing.T, r *testservers.Redis) map[string]uint64 {
	t.Helper()
	all, err := r.Do("HGETALL", "{watcherd}:objects").AsStrMap()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for key, value := range all {
		e, err := event.Parse([]byte(value))
		if err != nil {
			t.Fatal(err)
		}
		out[key] = e.Sequence
	}
	return out
}

// TestState compares the hash with a model, over batches of any cut, in any order and as often as they come.
func TestState(t *testing.T) {
	r := testservers.StartRedis(t, testservers.RedisSpec{})
	c := configFor(r)
	c.State = true
	c.Dedupe = 0 // the hash by itself
	reg := prometheus.NewRegistry()
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Registerer = reg })
	var events []*event.Event
	for object := range 5 {
		for _, e := range sinktest.Recreated(object) { // added, updated, deleted; added and updated under another uid
			e.Sequence += 1<<53 + uint64(object)*100 // beyond what a number of Lua holds exactly
			events = append(events, e)
		}
	}
	gap := sinktest.Event(1, 1)
	gap.Type = event.Gap
	events = append(events, gap)
	random := rand.New(rand.NewPCG(1, 2))
	last := map[string]*event.Event{}
	superseded := 0
	for range 300 {
		var batch []*event.Event
		for range 1 + random.IntN(4) {
			e := events[random.IntN(len(events))]
			batch = append(batch, e)
			key := e.Cluster + "/" + e.PartitionKey()
			switch before := last[key]; {
			case e.Type == event.Gap:
			case before == nil || before.Sequence < e.Sequence:
				last[key] = e
			default:
				superseded++
			}
		}
		mustWrite(t, s, batch...)
		want := map[string]uint64{}
		for key, e := range last {
			if e.Type != event.Deleted {
				want[key] = e.Sequence
			}
		}
		if got := objects(t, r); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("the hash has %v, want %v", got, want)
		}
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP watcherd_redis_sink_superseded_total States that the hash did not take, since it had the same or a later one of the object.
# TYPE watcherd_redis_sink_superseded_total counter
watcherd_redis_sink_superseded_total `+strconv.Itoa(superseded)+"\n"), "watcherd_redis_sink_superseded_total"); err != nil {
		t.Error(err)
	}

	left := *events[4]
	left.Sequence, left.Selection = 1<<60, event.Left
	mustWrite(t, s, &left)
	if _, ok := objects(t, r)[left.Cluster+"/"+left.PartitionKey()]; ok {
		t.Error("an object that left the selection is in the hash")
	}
}

// TestTombstones: the sequence of a deleted object goes after its time, one of an object that is there does not.
func TestTombstones(t *testing.T) {
	r := testservers.StartRedis(t, testservers.RedisSpec{})
	c := configFor(r)
	c.State, c.Tombstones = true, sinks.Duration(time.Millisecond)
	s := sinktest.Open(t, c)
	mustWrite(t, s, sinktest.Recreated(1)...)
	mustWrite(t, s, sinktest.Recreated(2)[:3]...)
	deadline := time.Now().Add(time.Minute)
	for i := 3; ; i++ {
		mustWrite(t, s, sinktest.Event(i, i))
		n, err := r.Do("HLEN", "{watcherd}:sequences").AsInt64()
		kept, _ := r.Do("ZCARD", "{watcherd}:deletions").AsInt64()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d sequences, %d deletions, %v", n, kept, err)
		}
		if n == int64(len(objects(t, r))) && kept == 0 {
			break
		}
	}
	if n := len(objects(t, r)); n < 2 {
		t.Errorf("%d objects", n)
	}
}

// TestStreams: a stream for each resource, with all that belongs to it in one slot of a cluster, and about so
// many entries as it may have.
func TestStreams(t *testing.T) {
	r := testservers.StartRedis(t, testservers.RedisSpec{Settings: []string{"cluster-enabled yes", "stream-node-max-entries 10"}})
	r.FormCluster()
	c := configFor(r)
	c.Cluster, c.Stream, c.MaxLen, c.State = true, "k8s:{cluster}:{group}:{resource}", 20, true
	s := sinktest.Open(t, c)
	events := sinktest.Events(60, 6)
	for i, e := range events {
		e.Cluster = "a{b}c"
		if i%2 == 0 {
			e.Resource.Group, e.Resource.Resource = "", "pods"
		}
	}
	mustWrite(t, s, events...)
	odd := fmt.Sprintf("k8s:a_b_c:%s:%s", events[1].Resource.Group, events[1].Resource.Resource)
	for stream, want := range map[string]*event.Event{"k8s:a_b_c:core:pods": events[58], odd: events[59]} {
		got := r.Entries(stream)
		if n := len(got); n < 20 || n > 30 {
			t.Fatalf("stream %s has %d entries of 30 that it got; about 20 are wanted", stream, n)
		}
		last := got[len(got)-1]
		if last["id"] != want.ID || last["sequence"] != strconv.FormatUint(want.Sequence, 10) || last["type"] != string(want.Type) || last["key"] != want.Cluster+"/"+want.PartitionKey() {
			t.Errorf("the last entry of %s: %v", stream, last)
		}
		if n, err := r.Do("EXISTS", "{"+stream+"}:objects").AsInt64(); err != nil || n != 1 {
			t.Errorf("no hash beside %s: %v", stream, err)
		}
	}
}

// TestDedupe: an event that is written again over a restart of both sides is in the stream once, and later twice.
func TestDedupe(t *testing.T) {
	r := testservers.StartRedis(t, testservers.RedisSpec{})
	c := configFor(r)
	mustWrite(t, sinktest.Open(t, c), sinktest.Events(5, 2)...)
	r.Restart()
	s := sinktest.Open(t, c)
	mustWrite(t, s, sinktest.Events(6, 2)...)
	if n := len(r.Entries("watcherd")); n != 6 {
		t.Errorf("%d entries, want 6", n)
	}
	c.Dedupe = 0
	mustWrite(t, sinktest.Open(t, c), sinktest.Events(6, 2)...)
	if n := len(r.Entries("watcherd")); n != 12 {
		t.Errorf("%d entries without dedupe, want 12", n)
	}
}

// TestClasses: what only an operator changes pauses the sink, and what passes is tried again; nothing of it is in the stream.
func TestClasses(t *testing.T) {
	r := testservers.StartRedis(t, testservers.RedisSpec{Password: canary})
	dir := t.TempDir()
	testkit.Write(t, filepath.Join(dir, "password"), []byte(canary))
	c := configFor(r)
	c.Username, c.Password, c.Timeout = "watcherd", &sinks.Secret{File: "password"}, sinks.Duration(3*time.Second)
	inDir := func(o *sinks.Options) { o.Dir = dir }
	s := sinktest.Open(t, c, inDir)
	sequence := 0
	next := func() *event.Event { sequence++; return sinktest.Event(sequence, sequence) }
	mustWrite(t, s, next())
	for _, test := range []struct {
		name         string
		fail, repair []string
		class        sinks.Class
		text         string
	}{
		{"memory", []string{"CONFIG", "SET", "maxmemory", "1mb"}, []string{"CONFIG", "SET", "maxmemory", "0"}, sinks.ClassRetry, "OOM"},
		{"replicas of the server", []string{"CONFIG", "SET", "min-replicas-to-write", "1"}, []string{"CONFIG", "SET", "min-replicas-to-write", "0"}, sinks.ClassRetry, "NOREPLICAS"},
		{"permission", []string{"ACL", "SETUSER", "watcherd", "-xadd"}, []string{"ACL", "SETUSER", "watcherd", "+xadd"}, sinks.ClassPause, "user"},
		{"scripts", []string{"ACL", "SETUSER", "watcherd", "-@scripting"}, []string{"ACL", "SETUSER", "watcherd", "+@scripting"}, sinks.ClassPause, "user"},
		{"type", []string{"RENAME", "watcherd", "kept"}, []string{"DEL", "watcherd"}, sinks.ClassPause, "WRONGTYPE"},
		{"lost scripts", []string{"SCRIPT", "FLUSH"}, []string{"PING"}, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(r.Entries("watcherd"))
			r.Do(test.fail...)
			if test.name == "type" {
				r.Do("SET", "watcherd", "text")
			}
			batch := []*event.Event{next(), next()}
			err := s.Write(t.Context(), batch)
			if test.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			sinktest.WantClass(t, err, test.class, test.text)
			r.Do(test.repair...)
			if test.name == "type" {
				r.Do("RENAME", "kept", "watcherd")
			}
			if after := len(r.Entries("watcherd")); after != before {
				t.Errorf("%d entries of a refused batch", after-before)
			}
			mustWrite(t, s, batch...)
			if after := len(r.Entries("watcherd")); after != before+2 {
				t.Errorf("%d entries of a batch that was written again", after-before)
			}
		})
	}
	var failures []error
	for content, text := range map[string]string{"canary-wrong": "WRONGPASS", "": "password"} {
		testkit.Write(t, filepath.Join(dir, "password"), []byte(content))
		err := sinktest.Open(t, c, inDir).Write(t.Context(), []*event.Event{next()})
		sinktest.WantClass(t, err, sinks.ClassPause, text)
		failures = append(failures, err)
	}
	testkit.Write(t, filepath.Join(dir, "password"), []byte(canary))
	for url, class := range map[string]sinks.Class{c.URL + "/99": sinks.ClassPause, "redis://127.0.0.1:1": sinks.ClassRetry} {
		wrong := *c
		wrong.URL = url
		err := sinktest.Open(t, &wrong, inDir).Write(t.Context(), []*event.Event{next()})
		sinktest.WantClass(t, err, class)
		failures = append(failures, err)
	}
	if strings.Contains(fmt.Sprintf("%v %+v", failures, failures), "canary") {
		t.Errorf("a secret shows up: %v", failures)
	}
}

// TestTLS: the server is verified.
func TestTLS(t *testing.T) {
	ca, other := testca.New(t, "first"), testca.New(t, "other")
	cert, key := ca.Pair("127.0.0.1", nil)
	r := testservers.StartRedis(t, testservers.RedisSpec{Cert: string(cert), Key: string(key)})
	dir := t.TempDir()
	testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
	testkit.Write(t, filepath.Join(dir, "other.pem"), other.PEM)
	for _, test := range []struct {
		tls  sinks.TLS
		text string // "": it is accepted
	}{
		{sinks.TLS{CAFile: "ca.pem"}, ""},
		{sinks.TLS{CAFile: "other.pem"}, "certificate"},
		{sinks.TLS{CAFile: "ca.pem", ServerName: "elsewhere"}, "elsewhere"},
		{sinks.TLS{CAFile: "no.pem"}, "no.pem"},
		{sinks.TLS{}, "certificate"},
	} {
		c := configFor(r)
		c.URL, c.TLS = "rediss://"+r.Addr, test.tls
		err := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir }).Write(t.Context(), sinktest.Events(1, 1))
		if test.text != "" {
			sinktest.WantClass(t, err, sinks.ClassPause, test.text)
		} else if err != nil {
			t.Error(err)
		}
	}
}

// TestWarnings: a server that may lose what it accepted is warned about, once.
func TestWarnings(t *testing.T) {
	for _, test := range []struct{ setting, says string }{
		{"appendonly no", "last snapshot"},
		{"appendfsync everysec", "last second"},
		{"rename-command CONFIG none", "CONFIG is not permitted"},
		{"maxmemory 100mb; maxmemory-policy allkeys-lru", "removes what it accepted"},
		{"maxmemory 100mb; maxmemory-policy volatile-ttl", "removes what it accepted"},
	} {
		r := testservers.StartRedis(t, testservers.RedisSpec{Settings: strings.Split(test.setting, "; ")})
		var log sinktest.Log
		s := sinktest.Open(t, configFor(r), log.Option)
		mustWrite(t, s, sinktest.Event(1, 1))
		r.Do("RENAME", "watcherd", "kept")
		r.Do("SET", "watcherd", "text")
		sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(2, 1)[1:]), sinks.ClassPause) // it connects again
		r.Do("DEL", "watcherd")
		mustWrite(t, s, sinktest.Event(2, 1))
		if strings.Count(log.String(), test.says) != 1 || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("%q is not said once:\n%s", test.says, &log)
		}
	}
}

// TestSentinel: the sink follows the server that takes writes to another one, and what counts as accepted is there.
func TestSentinel(t *testing.T) {
	first := testservers.StartRedis(t, testservers.RedisSpec{})
	host, port, err := net.SplitHostPort(first.Addr)
	if err != nil {
		t.Fatal(err)
	}
	second := testservers.StartRedis(t, testservers.RedisSpec{Settings: []string{"replicaof " + host + " " + port}})
	sentinel := testservers.StartRedis(t, testservers.RedisSpec{Sentinel: true, Settings: []string{
		"sentinel monitor main " + host + " " + port + " 1", "sentinel down-after-milliseconds main 500", "sentinel failover-timeout main 5000",
	}})
	c := redis.NewConfig()
	c.URL, c.Sentinel, c.Replicas, c.Timeout = "redis://"+sentinel.Addr, &redis.Sentinel{Master: "main"}, 1, sinks.Duration(3*time.Second)
	s := sinktest.Open(t, c)
	events := sinktest.Events(40, 4)
	deliver := func(e *event.Event) {
		t.Helper()
		var err error
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			if err = s.Write(t.Context(), []*event.Event{e}); err == nil {
				return
			}
		}
		t.Fatal(err)
	}
	for _, e := range events[:20] {
		deliver(e)
	}
	first.Kill()
	second.Do("CONFIG", "SET", "min-replicas-to-write", "0")
	c.Replicas = 0 // there is none any more
	s = sinktest.Open(t, c)
	for _, e := range events[20:] {
		deliver(e)
	}
	var got []string
	for _, entry := range second.Entries("watcherd") {
		got = append(got, entry["id"])
	}
	if !slices.Equal(got, sinktest.IDs(events)) {
		t.Errorf("the server that took over has %d entries of %d: %v", len(got), len(events), got)
	}
}

// TestReplicas: an event that the replicas do not have is not accepted.
func TestReplicas(t *testing.T) {
	r := testservers.StartRedis(t, testservers.RedisSpec{})
	c := configFor(r)
	c.Replicas, c.Timeout = 1, sinks.Duration(500*time.Millisecond)
	sinktest.WantClass(t, sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry)
}

// TestLaggingReplica: an event that the stream has already is not accepted before the replicas have it, in a new process neither:
// servers from Redis 7.2 on wait for what the connection has written alone.
func TestLaggingReplica(t *testing.T) {
	r := testservers.StartRedis(t, testservers.RedisSpec{Settings: []string{"repl-diskless-sync-delay 0"}})
	host, port, err := net.SplitHostPort(r.Addr)
	if err != nil {
		t.Fatal(err)
	}
	replica := testservers.StartRedis(t, testservers.RedisSpec{Settings: []string{"replicaof " + host + " " + port}})
	waittest.Until(t, "the replica follows", func() bool {
		info, err := r.Do("INFO", "replication").ToString()
		return err == nil && strings.Contains(info, "state=online")
	})
	c := configFor(r)
	c.Replicas, c.Timeout = 1, sinks.Duration(500*time.Millisecond)
	replica.Freeze()
	for range 2 {
		sinktest.WantClass(t, sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry)
	}
	replica.Thaw()
	s := sinktest.Open(t, c)
	waittest.Until(t, "it is accepted", func() bool { return s.Write(t.Context(), sinktest.Events(1, 1)) == nil })
	if n := len(r.Entries("watcherd")); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

// TestPasswordUnencrypted: a server of this machine names one at an address beyond loopback, to which the password would go in plain text.
func TestPasswordUnencrypted(t *testing.T) {
	beyond := beyondLoopback(t)
	t.Setenv("REDIS_TEST_PASSWORD", canary)
	open := []string{"bind 127.0.0.1 " + beyond, "protected-mode no"}
	node := testservers.StartRedis(t, testservers.RedisSpec{Password: canary, Settings: append(open, "cluster-enabled yes", "cluster-announce-ip "+beyond)})
	node.FormCluster()
	master := testservers.StartRedis(t, testservers.RedisSpec{Password: canary, Settings: open})
	_, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	sentinel := testservers.StartRedis(t, testservers.RedisSpec{Sentinel: true, Settings: []string{"sentinel monitor main " + beyond + " " + port + " 1"}})
	inCluster, byName := configFor(node), configFor(sentinel)
	inCluster.Cluster, byName.Sentinel = true, &redis.Sentinel{Master: "main"}
	for _, c := range []*redis.Config{inCluster, byName} {
		c.Username, c.Password = "watcherd", &sinks.Secret{Env: "REDIS_TEST_PASSWORD"}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		sinktest.WantClass(t, sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "insecure: true")
		c.Insecure = true
		s := sinktest.Open(t, c)
		waittest.Until(t, "it is accepted", func() bool { return s.Write(t.Context(), sinktest.Events(1, 1)) == nil })
	}
}

// beyondLoopback returns an address of this machine that is not one of loopback.
func beyondLoopback(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range all {
		if at, ok := address.(*net.IPNet); ok && at.IP.IsGlobalUnicast() && at.IP.To4() != nil {
			return at.IP.String()
		}
	}
	t.Skip("this machine has no address but those of loopback")
	return ""
}

// TestConfig: each problem names its key.
func TestConfig(t *testing.T) {
	for _, test := range []struct {
		path   string
		change func(c *redis.Config)
	}{
		{"url", func(c *redis.Config) { c.URL = "" }},
		{"url", func(c *redis.Config) { c.URL = "http://redis:6379" }},
		{"url", func(c *redis.Config) { c.URL = "redis://user:secret@redis" }},
		{"url", func(c *redis.Config) { c.URL = "redis://redis:6379/first" }},
		{"url", func(c *redis.Config) { c.URL = "redis://a:1,b:2" }},
		{"url", func(c *redis.Config) { c.URL, c.Cluster = "redis://a:1,b:2/1", true }},
		{"cluster", func(c *redis.Config) { c.Cluster, c.Sentinel = true, &redis.Sentinel{Master: "m"} }},
		{"url", func(c *redis.Config) { c.URL = "redis://a:port" }},
		{"url", func(c *redis.Config) { c.Password = &sinks.Secret{Env: "P"} }}, // in plain text
		{"username", func(c *redis.Config) { c.Username = "u" }},
		{"password", func(c *redis.Config) { c.Password = &sinks.Secret{} }},
		{"tls", func(c *redis.Config) { c.TLS = sinks.TLS{CAFile: "x"} }},
		{"sentinel.master", func(c *redis.Config) { c.Sentinel = &redis.Sentinel{} }},
		{"sentinel.username", func(c *redis.Config) { c.Sentinel = &redis.Sentinel{Master: "m", Username: "u"} }},
		{"stream", func(c *redis.Config) { c.Stream = "" }},
		{"stream", func(c *redis.Config) { c.Stream = "{name}" }},
		{"maxLen", func(c *redis.Config) { c.MaxLen = -1 }},
		{"replicas", func(c *redis.Config) { c.Replicas = -1 }},
		{"timeout", func(c *redis.Config) { c.Timeout = 0 }},
	} {
		c := redis.NewConfig()
		c.URL = "redis://redis:6379"
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		test.change(c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), test.path+": ") || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: %v", test.path, err)
		}
	}
}

// TestDocumentedRights: the user of the page may do what the sink does.
func TestDocumentedRights(t *testing.T) {
	page, err := os.ReadFile("../../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile("(?m)^ACL SETUSER watcherd .*$").FindString(string(page))
	replica := testservers.RedisSpec{Password: canary}
	r := testservers.StartRedis(t, testservers.RedisSpec{Password: canary})
	host, port, _ := net.SplitHostPort(r.Addr)
	replica.Settings = []string{"replicaof " + host + " " + port}
	testservers.StartRedis(t, replica)
	r.Do("ACL", "DELUSER", "watcherd")
	r.Do(strings.Fields(strings.ReplaceAll(line, "PASSWORD", canary))...)
	t.Setenv("REDIS_TEST_PASSWORD", canary)
	c := configFor(r)
	c.Username, c.Password, c.Replicas = "watcherd", &sinks.Secret{Env: "REDIS_TEST_PASSWORD"}, 1
	c.State, c.Tombstones, c.Stream = true, sinks.Duration(time.Nanosecond), "k8s:{resource}"
	var log sinktest.Log
	s := sinktest.Open(t, c, log.Option)
	for deadline := time.Now().Add(time.Minute); ; { // the replica connects
		err := s.Write(t.Context(), sinktest.Recreated(1))
		if err == nil {
			break
		}
		if sinktest.WantClass(t, err, sinks.ClassRetry); time.Now().After(deadline) || t.Failed() {
			t.Fatal(err)
		}
	}
	mustWrite(t, s, sinktest.Events(10, 3)...)
	if log.String() != "" {
		t.Errorf("the log has %s", &log)
	}
}
