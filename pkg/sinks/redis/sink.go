package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/solo"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
	"github.com/watcherd/watcherd/pkg/sinks/internal/wire"
)

// sink appends to streams over one client, which has its connections.
type sink struct {
	config   Config
	name     string
	server   server
	stream   template.Template
	format   sinks.Format
	metrics  *metrics
	sent     post.Sent
	warnings wire.Warnings

	connecting *solo.Runner
	making     sync.WaitGroup // clients

	mu     sync.Mutex // guards what follows
	client valkey.Client
	closed bool
}

var _ sinks.Sink = (*sink)(nil)

// Write appends the batch: with one script for each stream that its events go to.
func (s *sink) Write(ctx context.Context, batch []*event.Event) (err error) {
	defer func() { err = s.sent.Error(err) }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	client, err := s.connection(ctx)
	if err != nil {
		return s.classify(ctx, fmt.Errorf("connect: %w", err))
	}
	var names []string // an object's events are all of one stream
	streams := map[string][]int{}
	var name []byte
	for i, e := range batch {
		name = s.stream.Append(name[:0], e, appendValue)
		if streams[string(name)] == nil {
			names = append(names, string(name))
		}
		streams[string(name)] = append(streams[string(name)], i)
	}
	failed := map[int]error{}
	for _, name := range names {
		if err == nil {
			err = s.append(ctx, client, name, batch, streams[name])
		}
		for _, i := range streams[name] {
			if err != nil {
				failed[i] = err
			}
		}
	}
	if err == nil {
		return nil
	}
	if class, _ := sinks.Classify(err); class == sinks.ClassPause {
		s.discard(client)
	}
	if len(failed) == len(batch) {
		return err
	}
	return &sinks.BatchError{Failed: failed}
}

// append appends the events with these indexes to a stream.
func (s *sink) append(ctx context.Context, client valkey.Client, stream string, batch []*event.Event, at []int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.config.Timeout.Std(), wire.ErrNoAnswer)
	defer cancel()
	keys, args := s.arguments(stream, batch, at)
	var results []int64
	var err error
	if s.config.Replicas == 0 {
		results, err = run(ctx, client, keys, args)
	} else {
		err = client.Dedicated(func(c valkey.DedicatedClient) (err error) { // the replicas' answers are about one connection
			if results, err = run(ctx, c, keys, args); err == nil {
				err = s.await(ctx, c)
			}
			return err
		})
	}
	if err != nil {
		return s.classify(ctx, fmt.Errorf("append to stream %s: %w", stream, err))
	}
	if len(results) != len(at) {
		return fmt.Errorf("append to stream %s: %d results for %d events", stream, len(results), len(at))
	}
	for _, r := range results {
		switch r {
		case repeated:
			s.metrics.repeated.Inc()
		case superseded:
			s.metrics.superseded.Inc()
		}
	}
	return nil
}

// arguments are those of the script. All keys are in the slot of the stream.
func (s *sink) arguments(stream string, batch []*event.Event, at []int) (keys, args []string) {
	now := time.Now()
	expired := "0"
	if s.config.Tombstones > 0 {
		expired = strconv.FormatInt(now.Add(-s.config.Tombstones.Std()).UnixMilli(), 10)
	}
	beside := "{" + stream + "}:"
	keys = append(keys, stream, beside+"objects", beside+"sequences", beside+"deletions")
	args = append(args, strconv.Itoa(s.config.MaxLen), strconv.FormatInt(s.config.Dedupe.Std().Milliseconds(), 10), strconv.FormatInt(now.UnixMilli(), 10), expired)
	for _, i := range at {
		e := batch[i]
		keys = append(keys, beside+"id:"+e.ID)
		args = append(args, e.ID, strconv.FormatUint(e.Sequence, 10), string(e.Type), e.Cluster+"/"+e.PartitionKey(), string(s.format.Append(nil, e)), s.change(e))
	}
	return keys, args
}

// change is what the script does with the state of an event's object.
func (s *sink) change(e *event.Event) string {
	switch {
	case !s.config.State || e.Type == event.Gap:
		return ""
	case e.Type == event.Deleted || e.Selection == event.Left:
		return "del"
	default:
		return "set"
	}
}

// await waits for the replicas.
func (s *sink) await(ctx context.Context, c valkey.DedicatedClient) error {
	n, err := c.Do(ctx, c.B().Wait().Numreplicas(int64(s.config.Replicas)).Timeout(s.config.Timeout.Std().Milliseconds()).Build()).AsInt64()
	if err == nil && n < int64(s.config.Replicas) {
		err = fmt.Errorf("%d of %d replicas have acknowledged in time", n, s.config.Replicas)
	}
	return err
}

// appendValue appends a value as a part of a stream's name: braces would be its slot in a cluster.
func appendValue(dst []byte, value string) []byte {
	for _, c := range []byte(value) {
		if c == '{' || c == '}' {
			c = '_'
		}
		dst = append(dst, c)
	}
	return dst
}

// operators are what the errors begin with, or have in them, that only an operator changes.
var operators = []string{"AUTH", "WRONGPASS", "NOPERM", "NOPROTO", "WRONGTYPE", "CROSSSLOT", "The user executing the script", "DB index", "unknown command"}

func (s *sink) classify(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return wire.Caused(ctx, err)
	}
	if class, _ := sinks.Classify(err); class != sinks.ClassRetry {
		return err
	}
	if answer, ok := errors.AsType[*valkey.ValkeyError](err); ok {
		if slices.ContainsFunc(operators, func(text string) bool { return strings.Contains(answer.Error(), text) }) {
			return sinks.Pause(err)
		}
		return err
	}
	if wire.Untrusted(err) {
		return sinks.Pause(err)
	}
	return err
}
