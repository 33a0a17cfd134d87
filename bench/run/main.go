// Command run measures watcherd against the baseline program: CPU and throughput
// under updates, memory, the initial list, a restart, and latency. It runs the
// programs in turn, several times, and prints medians. Run it in the repository's
// root; `make bench` does.
//
//	go run ./bench/run                 # all of it, writes bench/RESULTS.md
//	go run ./bench/run -quick          # a look at everything in a few minutes
//	go run ./bench/run -only cpu -runs 1 -alone -profile cpu.prof
//	go run ./bench/run -only memory -runs 1 -alone -many 1000000
//	go run ./bench/run -only standby -out bench/STANDBY.md   # replicas beside NATS servers
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var (
	ours      = contender{name: "watcherd"}
	oursOld   = contender{name: "watcherd+old", old: true}
	theirs    = contender{name: "baseline", baseline: true}
	theirsOld = contender{name: "baseline+old", baseline: true, old: true}
)

func run(ctx context.Context) (err error) {
	runs := flag.Int("runs", 5, "how often everything is measured")
	quick := flag.Bool("quick", false, "fewer and smaller runs")
	only := flag.String("only", "cpu,latency,sync,memory", "what to measure, in this order; or standby")
	alone := flag.Bool("alone", false, "without the baseline")
	profile := flag.String("profile", "", "file for a CPU profile of watcherd under updates")
	out := flag.String("out", "", "file for the results (make bench: bench/RESULTS.md)")
	scratch := flag.String("scratch", "", "folder on the disk to measure with (default: the system's temporary one)")
	many := flag.Int("many", 0, "pods at the far end of the slope of memory, instead of 100000")
	flag.Parse()

	dir, err := os.MkdirTemp(*scratch, "watcherd-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	commit := command(ctx, "git", "describe", "--always", "--dirty")
	b := &bench{dir: dir, commit: commit, profile: *profile, results: newResults(), size: sizes{
		runs: *runs, pods: 1000, updates: 120_000, baselineUpdates: 12_000,
		few: 10_000, many: 100_000, sync: 50_000, latencySeconds: 20, takeOvers: 20,
	}}
	if *quick {
		b.size = sizes{
			runs: min(*runs, 2), pods: 1000, updates: 60_000, baselineUpdates: 6_000,
			few: 5_000, many: 30_000, sync: 20_000, latencySeconds: 5, takeOvers: 3,
		}
	}
	if *many > 0 {
		b.size.many = *many
	}
	if b.binaries, err = build(ctx, dir, *profile != ""); err != nil {
		return err
	}
	report := b.report
	if *only == standby {
		report = b.standbyReport
	}
	for part := range strings.SplitSeq(*only, ",") {
		if err := b.measure(ctx, part, *alone); err != nil {
			return err
		}
		if *out == "" {
			continue
		}
		if err := os.WriteFile(*out, []byte(report(ctx)), 0o644); err != nil {
			return err
		}
	}
	fmt.Print("\n", report(ctx))
	return nil
}

// measure does one part, the contenders in turn within each round.
func (b *bench) measure(ctx context.Context, part string, alone bool) error {
	switch part {
	case "cpu":
		return b.rounds(alone, func(c contender) error { return b.throughput(ctx, c) }, ours, theirs, oursOld, theirsOld)
	case "memory":
		err := b.rounds(alone, func(c contender) error {
			return errors.Join(b.memory(ctx, c, b.size.few), b.memory(ctx, c, b.size.many))
		}, ours, theirs)
		b.results.derive(ours, b.size)
		b.results.derive(theirs, b.size)
		return err
	case "sync":
		return b.rounds(alone, func(c contender) error { return b.memory(ctx, c, b.size.sync) }, ours, theirs)
	case "latency":
		return b.latencies(ctx, alone)
	case standby:
		return b.standby(ctx)
	default:
		return fmt.Errorf("-only: unknown part %q; known are cpu, latency, sync, memory, standby", part)
	}
}

func (b *bench) rounds(alone bool, do func(contender) error, contenders ...contender) error {
	for range b.size.runs {
		for _, c := range contenders {
			if alone && c.baseline {
				continue
			}
			if err := do(c); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) latencies(ctx context.Context, alone bool) (err error) {
	dir, err := os.MkdirTemp(b.dir, "latency-")
	if err != nil {
		return err
	}
	c, err := startCluster(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	contenders := []contender{ours, theirs}
	if alone {
		contenders = contenders[:1]
	}
	for round := range b.size.runs {
		if err := b.latency(ctx, c, contenders, round); err != nil {
			return err
		}
	}
	return nil
}
