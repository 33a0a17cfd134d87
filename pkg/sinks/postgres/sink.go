package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/halves"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// sink writes events over a connection for each Write at a time.
type sink struct {
	name             string
	format           sinks.Format
	log              *slog.Logger
	metrics          *metrics
	url              sinks.Secret
	password         *sinks.Secret
	sent             post.Sent
	tls              *sinks.TLS
	schema           string
	history, objects bool // tables to write
	create           bool
	timeout          time.Duration
	warnings         wire.Warnings
	network          func(ctx context.Context, network, address string) (net.Conn, error)
	open             sync.WaitGroup // lines

	mu     sync.Mutex // guards what follows
	idle   []*session
	lines  map[*line]bool
	closed bool
}

var _ sinks.Sink = (*sink)(nil)

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	connections prometheus.Gauge
	repeated    prometheus.Counter
	superseded  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	r := sinks.NewMetrics(reg, "postgres")
	m := &metrics{
		connections: r.Gauge("connections", "Open connections to servers."),
		repeated:    r.Counter("repeated_total", "Events that table history had already."),
		superseded:  r.Counter("superseded_total", "States that table objects did not take, since it had the same or a later one of the object."),
	}
	return m, r.Err()
}

// Write writes the batch in one transaction or, where the server refuses one of its events, in several.
func (s *sink) Write(ctx context.Context, batch []*event.Event) (err error) {
	defer func() { err = s.sent.Error(err) }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c, err := s.session(ctx)
	if err != nil {
		return s.classify(ctx, fmt.Errorf("connect: %w", err))
	}
	broken := false
	err = halves.Write(batch, func(events []*event.Event) error {
		err := s.transact(ctx, c, events)
		switch {
		case err == nil:
			return nil
		case refused(err):
			return sinks.Poison(err)
		}
		broken = true
		return s.classify(ctx, err)
	})
	s.release(ctx, c, broken)
	return err
}

// transact writes events in one transaction. The statements go out together with the end of
// the transaction: one round trip, and nothing is committed in part.
func (s *sink) transact(ctx context.Context, c *session, events []*event.Event) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, wire.ErrNoAnswer)
	defer cancel()
	p := c.StartPipeline(ctx)
	var counts []counted
	send := func(table Table, r rows, skipped prometheus.Counter) {
		values, types, formats := r.values()
		p.SendQueryParams(c.insert[table], values, types, formats, nil)
		counts = append(counts, counted{rows: r[0].rows, skipped: skipped})
	}
	if s.history {
		send(History, historyRows(events, s.format), s.metrics.repeated)
	}
	if s.objects {
		if r := objectRows(events); r != nil {
			send(Objects, r, s.metrics.superseded)
		}
	}
	if len(counts) == 0 {
		return p.Close()
	}
	err := p.Sync()
	if err == nil {
		err = results(p, counts)
	}
	if end := p.Close(); err == nil {
		err = end
	}
	if err == nil && c.TxStatus() != 'I' {
		err = errors.New("the server has not ended the transaction")
	}
	written := 0
	for _, n := range counts {
		written += n.written
	}
	if err == nil && written == 0 {
		err = c.exec(ctx, awaitStandbys)
	}
	if err == nil && c.CustomData()[alone] != nil {
		err = errors.New("the commit was cancelled while it waited for synchronous standbys")
	}
	if err != nil {
		return fmt.Errorf("write: %w", wire.Caused(ctx, err))
	}
	for _, n := range counts {
		n.skipped.Add(float64(n.rows - n.written))
	}
	return nil
}

// awaitStandbys writes to the log where the server has synchronous standbys, and nothing else. A transaction that writes
// nothing does not wait for them, and what it found may have been committed by one that was cut off while it waited.
const awaitStandbys = "select pg_logical_emit_message(true, 'watcherd', '') where current_setting('synchronous_standby_names') <> ''"

// counted is what a statement was to write, and wrote.
type counted struct {
	rows, written int
	skipped       prometheus.Counter
}

// results reads the answers up to the commit.
func results(p *pgconn.Pipeline, counts []counted) error {
	for at := 0; ; {
		result, err := p.GetResults()
		if err != nil {
			return err
		}
		switch result := result.(type) {
		case *pgconn.ResultReader:
			if at == len(counts) {
				return errRows
			}
			tag, err := result.Close()
			if err != nil {
				return err
			}
			counts[at].written = int(tag.RowsAffected())
			at++
		case *pgconn.PipelineSync:
			return nil
		default:
			return errors.New("the server ended the answer before the commit")
		}
	}
}

// refused reports whether the server refuses the values of an event: what is not valid for the type
// (22), too large or too deep (54), or against a check of the table (23514; without a name it is a partition
// that is missing).
func refused(err error) bool {
	p, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(p.Code, "22") || strings.HasPrefix(p.Code, "54") || p.Code == "23514" && p.ConstraintName != "")
}

// operators are the classes of SQLSTATE that only an operator changes: features and roles, constraints that the
// table should not have, authorization, the database, the schema, and what a statement names.
const operators = " 0A 0L 0P 23 28 3D 3F 42 "

func (s *sink) classify(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return wire.Caused(ctx, err)
	}
	if class, _ := sinks.Classify(err); class != sinks.ClassRetry {
		return err
	}
	if p, ok := errors.AsType[*pgconn.PgError](err); ok {
		if len(p.Code) == 5 && strings.Contains(operators, " "+p.Code[:2]+" ") {
			return sinks.Pause(err)
		}
		return err
	}
	if wire.Untrusted(err) {
		return sinks.Pause(err)
	}
	return err
}
