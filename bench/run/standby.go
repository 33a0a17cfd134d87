package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// standby is the part that measures replicas.
const standby = "standby"

// The metrics of replicas.
const (
	metricFollower = "follower"
	metricKilled   = "killed"
	metricStopped  = "stopped"
	metricElection = "election"
)

var journaled = contender{name: "watcherd+journal"}

// servers are three NATS servers, which sync each message before they confirm it.
type servers struct {
	dir       string
	binary    string
	addresses []string // for clients
	running   []*process
}

func (b *bench) startServers(ctx context.Context, dir string) (s *servers, err error) {
	s = &servers{dir: filepath.Join(dir, "nats"), binary: b.nats, running: make([]*process, 3)}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, err
	}
	ports, err := freeAddresses(ctx, 6)
	if err != nil {
		return nil, err
	}
	s.addresses = ports[:3]
	for i := range s.running {
		text := fmt.Sprintf(`server_name: n%d
listen: %s
jetstream: {store_dir: %q, sync_interval: always}
cluster: {name: bench, listen: %s, routes: ["nats://%s"]}
`, i, ports[i], filepath.Join(s.dir, fmt.Sprint(i)), ports[3+i], strings.Join(ports[3:], `", "nats://`))
		if err := os.WriteFile(s.config(i), []byte(text), 0o600); err != nil {
			return nil, err
		}
		if err := s.start(ctx, i); err != nil {
			return nil, errors.Join(err, s.stop())
		}
	}
	return s, nil
}

func (s *servers) config(i int) string { return filepath.Join(s.dir, fmt.Sprintf("n%d.conf", i)) }

func (s *servers) start(ctx context.Context, i int) (err error) {
	if s.running[i], err = start(s.dir, s.binary, "-c", s.config(i)); err != nil {
		return err
	}
	return s.running[i].awaitLog(ctx, "Server is ready")
}

func (s *servers) stop() (err error) {
	for _, p := range s.running {
		if p != nil {
			err = errors.Join(err, p.stop())
		}
	}
	return err
}

// leader is the server that leads the journal's stream.
func (s *servers) leader(ctx context.Context) (int, error) {
	nc, err := nats.Connect(strings.Join(s.addresses, ","))
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	stream, err := js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	var i int
	_, err = fmt.Sscanf(stream.CachedInfo().Cluster.Leader, "n%d", &i)
	return i, err
}

// freeAddresses are of loopback; a program that starts soon can have them.
func freeAddresses(ctx context.Context, n int) (all []string, err error) {
	for range n {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() //nolint:revive // all of them, so that they differ
		all = append(all, l.Addr().String())
	}
	return all, nil
}

const stream = "BENCH"

// replicas are two processes with a store each; only one writes to its file.
type replicas struct {
	b       *bench
	c       contender
	homes   [2]string
	running [2]*process
	leads   int
	api     *replay
	nats    *servers
}

// inReplicas starts two replicas, of which the first leads and has delivered so many pods.
func (b *bench) inReplicas(ctx context.Context, pods int, do func(*replicas) error) error {
	return b.in(ctx, pods, journaled, func(dir string, api *replay) (err error) {
		s, err := b.startServers(ctx, dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		key := filepath.Join(dir, "key")
		if err := os.WriteFile(key, []byte("the key of the benchmark"), 0o600); err != nil {
			return err
		}
		r := &replicas{b: b, c: journaled, api: api, nats: s}
		r.c.journal = fmt.Sprintf(`{nats: {urls: ["nats://%s"]}, stream: %s, encryptionKey: {file: %q}}`,
			strings.Join(s.addresses, `", "nats://`), stream, key)
		defer func() {
			for _, p := range r.running {
				if p != nil {
					err = errors.Join(err, p.stop())
				}
			}
		}()
		for i, text := range []string{"this replica leads", "this replica follows"} {
			r.homes[i] = filepath.Join(dir, fmt.Sprint("replica", i))
			if err := os.Mkdir(r.homes[i], 0o700); err != nil {
				return err
			}
			if err := r.begin(ctx, i, text); err != nil {
				return err
			}
		}
		if err := r.running[0].awaitLines(ctx, newCounter(r.file(0)), pods); err != nil {
			return err
		}
		return do(r)
	})
}

func (r *replicas) file(i int) string { return filepath.Join(r.homes[i], outFile) }

// begin starts a replica, and waits for a text in its log.
func (r *replicas) begin(ctx context.Context, i int, text string) (err error) {
	if r.running[i], err = r.b.start(r.c, r.homes[i], r.api.kubeconfig, "pods", "", false); err != nil {
		return err
	}
	return r.running[i].awaitLog(ctx, text)
}

// rest waits until both replicas have nothing to do.
func (r *replicas) rest(ctx context.Context) error {
	for _, p := range r.running {
		if _, err := p.awaitRest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// standby measures all of it, with and without a journal in turn.
func (b *bench) standby(ctx context.Context) error {
	for range b.size.runs {
		if err := b.throughput(ctx, ours); err != nil {
			return err
		}
		if err := b.inReplicas(ctx, b.size.pods, func(r *replicas) error { return r.throughput(ctx) }); err != nil {
			return err
		}
	}
	if err := b.inReplicas(ctx, b.size.sync, func(r *replicas) error { return r.takeOvers(ctx) }); err != nil {
		return err
	}
	return b.inReplicas(ctx, b.size.pods, func(r *replicas) error { return r.elections(ctx) })
}

func (r *replicas) throughput(ctx context.Context) error {
	var before time.Duration
	err := r.b.underUpdates(ctx, journaled, r.running[0], r.file(0), r.api, func() (err error) {
		before, err = r.running[1].awaitRest(ctx)
		return err
	})
	if err != nil {
		return err
	}
	after, err := r.running[1].awaitRest(ctx)
	r.b.results.add(metricFollower, journaled, perUpdate(after-before, r.b.size.updates))
	return err
}

// takeOvers ends the leader, in order and by SIGKILL in turn, and measures the time from then until a change that is made in that
// moment is in the other's file.
func (r *replicas) takeOvers(ctx context.Context) error {
	for n := range 2 * r.b.size.takeOvers {
		if err := r.rest(ctx); err != nil {
			return err
		}
		old, next := r.leads, 1-r.leads
		if err := os.RemoveAll(r.file(next)); err != nil {
			return err
		}
		began, metric := time.Now(), metricKilled
		if n%2 == 1 {
			metric = metricStopped
		}
		end := make(chan error, 1)
		go func() {
			if metric == metricStopped {
				end <- r.running[old].stop()
				return
			}
			err := r.running[old].cmd.Process.Kill()
			<-r.running[old].done
			end <- err
		}()
		if err := errors.Join(r.api.updates(ctx, 1, 0), r.delivered(ctx, next, 1)); err != nil {
			return errors.Join(err, <-end)
		}
		r.b.results.add(metric, journaled, time.Since(began).Seconds())
		if err := <-end; err != nil {
			return err
		}
		r.leads = next
		if err := r.begin(ctx, old, "this replica follows"); err != nil {
			return err
		}
	}
	return nil
}

// delivered returns when a replica has written so many lines or more.
func (r *replicas) delivered(ctx context.Context, i, lines int) error {
	c := newCounter(r.file(i))
	return r.running[i].await(ctx, "the first line", func() (bool, error) {
		n, err := c.count()
		return n >= lines, err
	})
}

// elections kills the server that leads the stream, amid updates, and measures the longest time without a line.
func (r *replicas) elections(ctx context.Context) error {
	const rate, seconds = 200, 30
	total := r.b.size.pods
	for range r.b.size.runs {
		if err := r.rest(ctx); err != nil {
			return err
		}
		victim, err := r.nats.leader(ctx)
		if err != nil {
			return err
		}
		lines := newCounter(r.file(0))
		if _, err := lines.count(); err != nil {
			return err
		}
		if err := r.api.updates(ctx, rate*seconds, rate); err != nil {
			return err
		}
		if err := r.delivered(ctx, 0, total+rate); err != nil { // for a second
			return err
		}
		if err := r.nats.running[victim].cmd.Process.Kill(); err != nil {
			return err
		}
		total += rate * seconds
		last, longest, before := time.Now(), time.Duration(0), lines.lines
		err = r.running[0].await(ctx, fmt.Sprintf("%d lines", total), func() (bool, error) {
			n, err := lines.count()
			if n > before {
				longest, last, before = max(longest, time.Since(last)), time.Now(), n
			}
			return n >= total, err
		})
		if err != nil {
			return err
		}
		r.b.results.add(metricElection, journaled, longest.Seconds())
		if err := r.nats.start(ctx, victim); err != nil {
			return err
		}
	}
	return nil
}

// standbyReport is STANDBY.md.
func (b *bench) standbyReport(ctx context.Context) string {
	s, one := b.size, ""
	get := func(metric string, c contender) string {
		if v := b.results.get(metric, c); len(v) > 0 {
			return spread(v)
		}
		return ""
	}
	with, ok := b.results.median(metricCPU, journaled)
	without, ok2 := b.results.median(metricCPU, ours)
	if ok && ok2 {
		one = fmt.Sprintf("%+.0f %%", 100*(with/without-1))
	}
	p95 := func(metric string) string {
		v := b.results.get(metric, journaled)
		if len(v) == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f s (median %.1f, at most %.1f)", quantile(v, 0.95), quantile(v, 0.5), quantile(v, 1))
	}
	return fmt.Sprintf(`# What a standby costs

Two replicas of the real binary, three nats-server processes that sync each message (sync_interval: always), and the
replay server, all on this one machine. Medians (smallest to largest) of %d runs; written by

`+"```\ngo run ./bench/run -only standby -out bench/STANDBY.md\n```"+`

%s
| | without a journal | with a journal | target |
|---|---|---|---|
| CPU per update of the process that leads, µs | %s | %s: %s | at most +10 %% |
| CPU per update of the follower, µs | | %s | |
| updates per second, all of it on this machine | %s | %s | |
| peak resident memory under updates, MiB | %s | %s | |
| %d pods, leader killed: a change is delivered after, p95 of %d | | %s | at most 10 s |
| %d pods, leader stopped in order: the same | | %s | at most 2 s |
| the NATS server that leads the stream is killed: longest time without a delivery, s | | %s | |

CPU is user and system time of the process, from before the first update until it rests again: %d updates of %d pods of about
5.5 KB, as fast as they are read. A take-over is measured from the end of the leader, with a change that is made in that moment, to the line
in the other's file; 5 s of it (takeOverAfter) are the silence that the follower waits for when no leader resigned. During an election
of NATS nothing is lost and no replica takes over: updates, 200 a second here, wait.
`, s.runs, machine(ctx, b.dir, b.commit),
		get(metricCPU, ours), get(metricCPU, journaled), one, get(metricFollower, journaled), get(metricRate, ours), get(metricRate, journaled),
		get(metricLoadPeak, ours), get(metricLoadPeak, journaled),
		s.sync, s.takeOvers, p95(metricKilled), s.sync, p95(metricStopped), get(metricElection, journaled), s.updates, s.pods)
}
