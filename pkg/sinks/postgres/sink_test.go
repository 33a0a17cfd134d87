package postgres_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	"github.com/watcherd/watcherd/pkg/sinks/postgres"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// start starts a server with the tables.
func start(t *testing.T, spec testservers.PostgresSpec) *testservers.Postgres {
	t.Helper()
	p := testservers.StartPostgres(t, spec)
	makeTables(t, p)
	return p
}

// objects are the rows of table objects: name, the last six digits of the uid, sequence, and whether it exists.
func objects(p *testservers.Postgres) (rows []string) {
	for _, row := range p.Exec("select name, right(uid, 6), sequence, deleted_at is null from watcherd.objects order by name") {
		rows = append(rows, strings.Join(row, " "))
	}
	return rows
}

func wantRows(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
}

// TestObjects: an object has its last state, in batches of any cut, in any order and as often as they come.
func TestObjects(t *testing.T) {
	p := start(t, testservers.PostgresSpec{})
	reg := prometheus.NewRegistry()
	s := sinktest.Open(t, configFor(t, p), func(o *sinks.Options) { o.Registerer = reg })
	life := sinktest.Recreated(0) // added, updated, deleted; added and updated under another uid
	life[4].UID = strings.TrimSuffix(life[4].UID, "000000") + "000009"
	mustWrite(t, s, life[:3]...)
	wantRows(t, objects(p), "web-0 000000 3 f")
	mustWrite(t, s, life[1:]...)
	wantRows(t, objects(p), "web-0 000009 5 t")
	for _, again := range [][]*event.Event{life[:1], life[:3], {life[4], life[0]}, {life[2]}} {
		mustWrite(t, s, again...)
		wantRows(t, objects(p), "web-0 000009 5 t")
	}
	if n := len(history(p)); n != 5 {
		t.Errorf("%d rows of history, want 5", n)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP watcherd_postgres_sink_repeated_total Events that table history had already.
# TYPE watcherd_postgres_sink_repeated_total counter
watcherd_postgres_sink_repeated_total 9
# HELP watcherd_postgres_sink_superseded_total States that table objects did not take, since it had the same or a later one of the object.
# TYPE watcherd_postgres_sink_superseded_total counter
watcherd_postgres_sink_superseded_total 4
`), "watcherd_postgres_sink_repeated_total", "watcherd_postgres_sink_superseded_total"); err != nil {
		t.Error(err)
	}

	left := sinktest.Event(5, 0)
	left.Selection = event.Left
	bare := sinktest.Event(6, 1)
	bare.Object = nil
	elsewhere := sinktest.Event(7, 1)
	elsewhere.Cluster = "other"
	gap := &event.Event{ID: "gap", Type: event.Gap, Time: left.Time, Sequence: 9, Cluster: "test", Resource: left.Resource, Gap: &event.GapData{Cause: "expired"}}
	mustWrite(t, s, gap)
	mustWrite(t, s, left, bare, elsewhere, gap)
	wantRows(t, objects(p), "web-0 000000 6 f", "web-1 000001 7 t", "web-1 000001 8 t")
	if got := p.Exec("select count(*), count(object) from watcherd.objects")[0]; got[0] != "3" || got[1] != "2" {
		t.Errorf("objects %v", got)
	}
	if n := len(history(p)); n != 9 {
		t.Errorf("%d rows of history, want 9", n)
	}
}

// TestRow: a row has what the event has.
func TestRow(t *testing.T) {
	p := start(t, testservers.PostgresSpec{})
	s := sinktest.Open(t, configFor(t, p), func(o *sinks.Options) { o.Format = sinks.CloudEventsBinary })
	e := sinktest.Event(3, 1)
	e.Time = time.Date(1999, 12, 31, 23, 59, 59, 123456789, time.UTC)
	e.Sequence = 1_780_000_000_000_000
	mustWrite(t, s, e)
	row := p.Exec(`set time zone 'UTC'; select id, sequence, time, type, selection, cluster, api_group, version, resource, kind, namespace, name, uid, resource_version,
		event #>> '{object,spec,replicas}', event ? 'specversion' from watcherd.history`)[0]
	wantRows(t, row, e.ID, "1780000000000000", "1999-12-31 23:59:59.123456+00", "updated", "", "test", "apps", "v1", "deployments", "Deployment", "prod", "web-1",
		e.UID, e.ResourceVersion, "3", "f")
	got := p.Exec("select time = timestamptz '1999-12-31 23:59:59.123456Z', version, kind, resource_version, object #>> '{spec,text}' from watcherd.objects")[0]
	wantRows(t, got, "t", "v1", "Deployment", e.ResourceVersion, `äöü "quoted" <tag>`)
}

// TestPoison: a value that jsonb cannot have is found among others, which are written. What follows it of its object is
// held. A column of type json takes it.
func TestPoison(t *testing.T) {
	p := start(t, testservers.PostgresSpec{})
	s := sinktest.Open(t, configFor(t, p))
	events := sinktest.Events(40, 10)
	nul, surrogate := 13, 21
	events[nul].Object = json.RawMessage(`{"data":"a\u0000b"}`)
	events[surrogate].Object = json.RawMessage(`{"data":"\ud800"}`)
	b, ok := errors.AsType[*sinks.BatchError](s.Write(t.Context(), events))
	if !ok {
		t.Fatal("the batch was accepted")
	}
	var failed []string
	for i := range events {
		if err := b.Failed[i]; err != nil {
			class, _ := sinks.Classify(err)
			failed = append(failed, fmt.Sprint(i, " ", class))
		}
	}
	wantRows(t, failed, "13 poison", "21 poison", "23 retry", "31 retry", "33 retry")
	if n := len(history(p)); n != 35 {
		t.Errorf("%d rows, want 35", n)
	}
	p.Exec("alter table watcherd.history alter event type json; alter table watcherd.objects alter object type json")
	mustWrite(t, sinktest.Open(t, configFor(t, p)), events...)
	if n := len(p.Exec("select 1 from watcherd.history")); n != 40 {
		t.Errorf("%d rows, want 40", n)
	}
}

// TestCreate makes the tables, once, from several connections, and with as few rights as they need. Where it is not to, the
// log has the SQL of the page.
func TestCreate(t *testing.T) {
	p := testservers.StartPostgres(t, testservers.PostgresSpec{})
	c := configFor(t, p)
	c.Create = false
	var log sinktest.Log
	s := sinktest.Open(t, c, log.Option)
	for range 2 {
		sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "create: true")
	}
	logged := regexp.MustCompile(`sql=("(?:[^"\\]|\\.)*")`).FindAllStringSubmatch(log.String(), -1)
	if len(logged) != 1 {
		t.Fatalf("the log says\n%s", &log)
	}
	if sql, err := strconv.Unquote(logged[0][1]); err != nil || sql != documented(t)[0] {
		t.Errorf("the log has %q, the page\n%s", sql, documented(t)[0])
	}
	c.Create = true
	s = sinktest.Open(t, c, log.Option)
	events := sinktest.Events(40, 40)
	var lanes sync.WaitGroup
	for lane := range 4 {
		lanes.Go(func() {
			if err := s.Write(t.Context(), events[lane*10:][:10]); err != nil {
				t.Error(err)
			}
		})
	}
	lanes.Wait()
	if got := p.Exec("select count(*) from pg_indexes where schemaname = 'watcherd'")[0][0]; got != "4" {
		t.Errorf("%s indexes, want 4", got)
	}
	if n := len(history(p)); n != 40 {
		t.Errorf("%d rows", n)
	}
	if !strings.Contains(log.String(), "tables created") {
		t.Errorf("the log says\n%s", &log)
	}
	p.Exec("drop schema watcherd cascade; revoke create on database watcherd from public; create schema watcherd; alter database watcherd owner to postgres; alter schema watcherd owner to watcherd")
	c.Tables = []postgres.Table{postgres.Objects}
	s = sinktest.Open(t, c)
	gap := &event.Event{ID: "gap", Type: event.Gap, Cluster: "test", Gap: &event.GapData{}}
	mustWrite(t, s, append(sinktest.Events(2, 2), gap)...)
	mustWrite(t, s, gap)
	wantRows(t, objects(p), "web-0 000000 1 t", "web-1 000001 2 t")
}

// TestClasses: what the server answers decides what happens next, and each failure passes by itself.
func TestClasses(t *testing.T) {
	p := start(t, testservers.PostgresSpec{})
	c := configFor(t, p)
	c.Create = false
	s := sinktest.Open(t, c)
	sequence := 0
	next := func() []*event.Event { sequence++; return []*event.Event{sinktest.Event(sequence, sequence)} }
	mustWrite(t, s, next()...)
	for _, test := range []struct {
		name, fail, repair string
		class              sinks.Class
		text               string
	}{
		{"table", "alter table watcherd.objects rename to o", "alter table watcherd.o rename to objects", sinks.ClassPause, "42P01"},
		{"column", "alter table watcherd.objects rename uid to u", "alter table watcherd.objects rename u to uid", sinks.ClassPause, "42703"},
		{"permission", "alter table watcherd.history owner to postgres", "alter table watcherd.history owner to watcherd", sinks.ClassPause, "42501"},
		{"key", "alter table watcherd.objects drop constraint objects_pkey", "alter table watcherd.objects add primary key (cluster, api_group, resource, namespace, name)", sinks.ClassPause, "42P10"},
		{"own column", "alter table watcherd.history add x int not null default 1; alter table watcherd.history alter x drop default", "alter table watcherd.history drop x", sinks.ClassPause, "23502"},
		{"read only", "alter role watcherd set default_transaction_read_only = on; select pg_terminate_backend(pid) from pg_stat_activity where usename = 'watcherd'", "alter role watcherd reset all", sinks.ClassRetry, "read only"},
		{"json", "alter table watcherd.history alter event type bytea using ''", "alter table watcherd.history alter event type jsonb using '{}'", sinks.ClassPause, "jsonb"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p.Exec(test.fail)
			events := next()
			err := s.Write(t.Context(), events)
			if test.name == "read only" || test.name == "json" {
				err = s.Write(t.Context(), events) // the first finds the connection ended, or the table changed
			}
			sinktest.WantClass(t, err, test.class, test.text)
			p.Exec(test.repair)
			mustWrite(t, s, events...)
		})
	}
	c.Timeout = sinks.Duration(3 * time.Second)
	slow := sinktest.Open(t, c)
	mustWrite(t, slow, next()...)
	p.Exec("create function watcherd.wait() returns trigger language plpgsql as 'begin perform pg_sleep(60); return new; end'; create trigger wait before insert on watcherd.history for each row execute function watcherd.wait()")
	sinktest.WantClass(t, slow.Write(t.Context(), next()), sinks.ClassRetry, "no answer in time")
	p.Exec("drop trigger wait on watcherd.history") // which waits for the transaction that was given up
	t.Setenv("POSTGRES_TEST_URL", strings.TrimSuffix(p.URL(), "watcherd")+"nothing")
	sinktest.WantClass(t, sinktest.Open(t, c).Write(t.Context(), next()), sinks.ClassPause, "3D000")
}

// TestOtherKey: an event that another key of the table refuses is not taken for one that the table has, also if the key comes to be
// while the sink is connected.
func TestOtherKey(t *testing.T) {
	p := start(t, testservers.PostgresSpec{})
	s := sinktest.Open(t, configFor(t, p))
	mustWrite(t, s, sinktest.Event(1, 1))
	p.Exec("create unique index other on watcherd.history (namespace, name)")
	events := []*event.Event{sinktest.Event(2, 1), sinktest.Event(3, 3)} // the first is of the object of before
	for _, s := range []sinks.Sink{s, sinktest.Open(t, configFor(t, p))} {
		err := s.Write(t.Context(), events)
		if n := len(history(p)); err == nil && n != 3 {
			t.Fatalf("%d of 3 events are there, and all were accepted", n)
		}
		sinktest.WantClass(t, err, sinks.ClassPause, "23505")
	}
	p.Exec("drop index watcherd.other")
	mustWrite(t, s, events...)
	// Keys that have the id and more, as of a table with partitions, do as well.
	p.Exec("alter table watcherd.history drop constraint history_pkey, add primary key (id, time)")
	for range 2 {
		_ = s.Write(t.Context(), events) // the first finds that the key is another one
	}
	mustWrite(t, s, events...)
	if n := len(history(p)); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

// TestWarnings: a server that may lose what it committed is warned about, once.
func TestWarnings(t *testing.T) {
	for _, test := range []struct {
		settings map[string]string
		says     string
	}{
		{map[string]string{"synchronous_commit": "off", "fsync": "on"}, "synchronous_commit is off"},
		{map[string]string{}, "fsync is off"}, // as tests have it
	} {
		p := testservers.StartPostgres(t, testservers.PostgresSpec{Settings: test.settings})
		var log sinktest.Log
		s := sinktest.Open(t, configFor(t, p), log.Option)
		mustWrite(t, s, sinktest.Events(1, 1)...)
		p.Exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'watcherd'")
		sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry)
		mustWrite(t, s, sinktest.Events(1, 1)...)
		if strings.Count(log.String(), test.says) != 1 || strings.Count(log.String(), "level=WARN") != 1 {
			t.Errorf("%q is not said once:\n%s", test.says, &log)
		}
	}
}

// TestPassword: a wrong one pauses the sink; the next one is read at the next attempt. None shows up.
func TestPassword(t *testing.T) {
	p := start(t, testservers.PostgresSpec{Password: canary})
	dir := t.TempDir()
	c := configFor(t, p)
	c.Password = &sinks.Secret{File: "password"}
	var log sinktest.Log
	s := sinktest.Open(t, c, log.Option, func(o *sinks.Options) { o.Dir = dir })
	var failures []error
	for content, texts := range map[string][]string{"": {"password", "empty"}, "canary-wrong": {"28P01"}} {
		testkit.Write(t, filepath.Join(dir, "password"), []byte(content))
		err := s.Write(t.Context(), sinktest.Events(1, 1))
		sinktest.WantClass(t, err, sinks.ClassPause, texts...)
		failures = append(failures, err)
	}
	testkit.Write(t, filepath.Join(dir, "password"), []byte(canary+"\n"))
	mustWrite(t, s, sinktest.Events(1, 1)...)

	c.Password = nil
	settings := filepath.Join(dir, "settings") // of a program whose files the configuration may not name
	testkit.Write(t, settings, []byte("[other]\ntoken=canary\n"))
	for _, test := range []struct {
		url   string
		class sinks.Class
		text  string
	}{
		{"postgres://watcherd:canary-wrong@" + p.Addr + "/watcherd", sinks.ClassPause, "28P01"},
		{"postgres://watcherd:canary wrong@[" + p.Addr, sinks.ClassPause, "not like postgres://"},
		{"postgres://watcherd:canary:x@" + p.Addr + "/watcherd?sslrootcert=/nothing.pem&sslmode=verify-full", sinks.ClassPause, "/nothing.pem"},
		{"postgres://watcherd:canary@127.0.0.1:1/watcherd", sinks.ClassRetry, "refused"},
		{"postgres://watcherd:" + canary + "@" + p.Addr + "/watcherd?service=other&%73ervicefile=" + settings, sinks.ClassPause, "names a servicefile"},
		{"user=watcherd password=" + canary + " host=127.0.0.1 service=other servicefile=" + settings, sinks.ClassPause, "names a servicefile"},
		{"host=127.0.0.1 service=other servicefile=" + settings + " application_name=?x", sinks.ClassPause, "names a servicefile"},
	} {
		t.Setenv("POSTGRES_TEST_URL", test.url)
		err := sinktest.Open(t, c, log.Option).Write(t.Context(), sinktest.Events(1, 1))
		sinktest.WantClass(t, err, test.class, test.text)
		failures = append(failures, err)
	}
	t.Setenv("POSTGRES_TEST_URL", strings.Replace(p.URL(), "@", ":"+url.QueryEscape(canary)+"@", 1))
	mustWrite(t, sinktest.Open(t, c, log.Option), sinktest.Events(1, 1)...)
	if all := fmt.Sprintf("%s %v %+v", &log, failures, failures); strings.Contains(all, "canary") {
		t.Errorf("a secret shows up: %s", all)
	}
}

// TestTLS: the block demands TLS, verifies the server and presents a certificate, independent of the URL.
func TestTLS(t *testing.T) {
	ca, other := testca.New(t, "first"), testca.New(t, "other")
	cert, key := ca.Pair("127.0.0.1", nil)
	p := start(t, testservers.PostgresSpec{Cert: string(cert), Key: string(key), ClientCA: string(ca.PEM)})
	plain := start(t, testservers.PostgresSpec{})
	dir := t.TempDir()
	testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
	testkit.Write(t, filepath.Join(dir, "other.pem"), other.PEM)
	cert, key = ca.Pair("watcherd", nil)
	testkit.Write(t, filepath.Join(dir, "cert.pem"), cert)
	testkit.Write(t, filepath.Join(dir, "key.pem"), key)
	for _, test := range []struct {
		name   string
		server *testservers.Postgres
		tls    *sinks.TLS
		class  sinks.Class
		text   string // "": it is accepted
	}{
		{"right", p, &sinks.TLS{CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem"}, 0, ""},
		{"other authority", p, &sinks.TLS{CAFile: "other.pem", CertFile: "cert.pem", KeyFile: "key.pem"}, sinks.ClassPause, "certificate"},
		{"other name", p, &sinks.TLS{CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem", ServerName: "elsewhere"}, sinks.ClassPause, "elsewhere"},
		{"no client certificate", p, &sinks.TLS{CAFile: "ca.pem"}, sinks.ClassPause, "28000"},
		{"no such file", p, &sinks.TLS{CAFile: "no.pem"}, sinks.ClassPause, "no.pem"},
		{"system authorities", p, &sinks.TLS{}, sinks.ClassPause, "certificate"},
		{"server without TLS", plain, &sinks.TLS{CAFile: "ca.pem"}, sinks.ClassRetry, "refused TLS"},
		{"no block", p, nil, sinks.ClassPause, "28000"}, // pg_hba.conf wants TLS
	} {
		t.Run(test.name, func(t *testing.T) {
			c := configFor(t, test.server) // sslmode=disable
			c.TLS = test.tls
			err := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir }).Write(t.Context(), sinktest.Events(1, 1))
			if test.text != "" {
				sinktest.WantClass(t, err, test.class, test.text)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	if got := len(history(p)); got != 1 {
		t.Errorf("%d rows", got)
	}
}

// TestFailover: of several servers the one that takes writes is used.
func TestFailover(t *testing.T) {
	first, second := start(t, testservers.PostgresSpec{}), start(t, testservers.PostgresSpec{})
	c := configFor(t, first)
	t.Setenv("POSTGRES_TEST_URL", "postgres://watcherd@127.0.0.1:1,"+first.Addr+","+second.Addr+"/watcherd?sslmode=disable")
	s := sinktest.Open(t, c)
	events := sinktest.Events(4, 4)
	mustWrite(t, s, events[0])
	first.Exec("alter system set default_transaction_read_only = on")
	first.Exec("select pg_reload_conf()")
	deadline := time.Now().Add(20 * time.Second)
	for i := 1; len(history(second)) == 0; i++ {
		e := sinktest.Event(i, i)
		err := s.Write(t.Context(), []*event.Event{e})
		if err != nil {
			sinktest.WantClass(t, err, sinks.ClassRetry, "25006")
		}
		if time.Now().After(deadline) {
			t.Fatal("no event came to the second server")
		}
	}
}

// until waits for a row of a query.
func until(t *testing.T, p *testservers.Postgres, sql string) {
	t.Helper()
	waittest.Until(t, "a row of "+sql, func() bool { return len(p.Exec(sql)) > 0 })
}

func setStandbys(t *testing.T, p *testservers.Postgres, names string) {
	t.Helper()
	p.Exec("alter system set synchronous_standby_names = '" + names + "'")
	p.Exec("select pg_reload_conf()")
	until(t, p, "select where current_setting('synchronous_standby_names') = '"+names+"'")
}

// TestStandby: what a standby has to have is not accepted before, nor when it comes again and is committed without it.
func TestStandby(t *testing.T) {
	for _, tables := range [][]postgres.Table{{postgres.History}, {postgres.Objects}, {postgres.History, postgres.Objects}} {
		p := start(t, testservers.PostgresSpec{})
		c := configFor(t, p)
		c.Tables = tables
		s := sinktest.Open(t, c)
		events := sinktest.Events(2, 2)
		mustWrite(t, s, events[0])
		setStandbys(t, p, "standby")
		hasty := *c
		hasty.Timeout = sinks.Duration(time.Second)
		waits := sinktest.Open(t, &hasty)
		for range 2 {
			sinktest.WantClass(t, waits.Write(t.Context(), events), sinks.ClassRetry, "no answer in time")
		}
		setStandbys(t, p, "")
		mustWrite(t, s, events...)
		mustWrite(t, s, events...)
	}
}

// TestCancelledStandby: a commit whose wait for standbys is cancelled is not accepted. The server warns, and reports success.
func TestCancelledStandby(t *testing.T) {
	p := start(t, testservers.PostgresSpec{})
	s := sinktest.Open(t, configFor(t, p))
	events := sinktest.Events(2, 2)
	mustWrite(t, s, events[0])
	setStandbys(t, p, "standby")
	failed := make(chan error, 1)
	go func() { failed <- s.Write(t.Context(), events) }()
	until(t, p, "select pg_cancel_backend(pid) from pg_stat_activity where usename = 'watcherd' and wait_event = 'SyncRep'")
	sinktest.WantClass(t, <-failed, sinks.ClassRetry, "standbys")
	setStandbys(t, p, "")
	mustWrite(t, s, events...)
	if got := len(history(p)); got != 2 {
		t.Errorf("%d rows", got)
	}
}

// TestDocumentation runs the SQL of the page, in its order. Its queries answer what they are there for.
func TestDocumentation(t *testing.T) {
	blocks := documented(t)
	if len(blocks) != 7 {
		t.Fatalf("%d blocks of SQL", len(blocks))
	}
	p := testservers.StartPostgres(t, testservers.PostgresSpec{})
	p.Exec(blocks[0])
	p.Exec(blocks[1])
	c := configFor(t, p)
	c.Create = false
	s := sinktest.Open(t, c)
	events := sinktest.Events(6, 3) // web-0, web-1 and web-2 are added, then updated, from 12:00:00 on
	events[3].Time = events[3].Time.Add(time.Minute)
	events[4].Type = event.Deleted
	events[4].ChangedBy = &event.ChangedBy{Manager: "kubectl"}
	mustWrite(t, s, events...)
	p.Exec("update watcherd.history set time = now() where name = 'web-1' and type = 'deleted'")
	flat := func(rows [][]string) (out []string) {
		for _, row := range rows {
			out = append(out, strings.Join(row[max(0, len(row)-4):], " "))
		}
		return out
	}
	changed := p.Exec(blocks[2])
	if len(changed) != 1 || strings.Join(changed[0][1:], " ") != "deleted prod web-1 kubectl" {
		t.Errorf("what changed: %v", changed)
	}
	wantRows(t, flat(p.Exec(blocks[3])), "prod web-0 3", "prod web-2 5")
	wantRows(t, flat(p.Exec(blocks[4])), "prod web-0 0", "prod web-1 1", "prod web-2 5")
	p.Exec(blocks[5])
	p.Exec(blocks[6]) // from here on history has partitions
	p.Exec(blocks[1])
	for range 2 {
		mustWrite(t, sinktest.Open(t, c), events...)
	}
	if n := len(p.Exec("select 1 from watcherd.history")); n != 6 {
		t.Errorf("%d rows in the table with partitions, want 6", n)
	}
}

// TestConfig: each problem names its key.
func TestConfig(t *testing.T) {
	for _, test := range []struct {
		path   string
		change func(c *postgres.Config)
	}{
		{"url", func(c *postgres.Config) { c.URL = sinks.Secret{} }},
		{"password", func(c *postgres.Config) { c.Password = &sinks.Secret{} }},
		{"tls", func(c *postgres.Config) { c.TLS = &sinks.TLS{CertFile: "x"} }},
		{"schema", func(c *postgres.Config) { c.Schema = `a"b` }},
		{"tables", func(c *postgres.Config) { c.Tables = nil }},
		{"tables[0]", func(c *postgres.Config) { c.Tables = []postgres.Table{"events"} }},
		{"tables[1]", func(c *postgres.Config) { c.Tables = []postgres.Table{postgres.History, postgres.History} }},
		{"timeout", func(c *postgres.Config) { c.Timeout = 0 }},
	} {
		c := postgres.NewConfig()
		c.URL = sinks.Secret{Env: "X"}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		test.change(c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), test.path+": ") {
			t.Errorf("%s: %v", test.path, err)
		}
	}
}
