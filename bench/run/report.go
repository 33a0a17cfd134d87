package main

import (
	"context"
	"fmt"
)

// report is RESULTS.md.
func (b *bench) report(ctx context.Context) string {
	s := b.size
	atMost := func(limit float64, unit string) func(ours, theirs float64) (string, bool) {
		return func(ours, _ float64) (string, bool) { return fmt.Sprintf("at most %v %s", limit, unit), ours <= limit }
	}
	share := func(n float64) func(ours, theirs float64) (string, bool) {
		return func(ours, theirs float64) (string, bool) { return fmt.Sprintf("at most 1/%v", n), ours <= theirs/n }
	}
	times := func(n float64) func(ours, theirs float64) (string, bool) {
		return func(ours, theirs float64) (string, bool) { return fmt.Sprintf("at least %vx", n), ours >= theirs*n }
	}
	notMore := func(ours, theirs float64) (string, bool) { return "no more", ours <= theirs }
	peak := func(pods int) func(ours, theirs float64) (string, bool) {
		return func(got, _ float64) (string, bool) {
			settled, _ := b.results.median(metricSettled(pods), ours)
			return fmt.Sprintf("at most 1.5x settled + 64 = %.0f", 1.5*settled+64), got <= 1.5*settled+64
		}
	}
	rows := []row{
		{"CPU per update, µs", metricCPU, ours, theirs, share(8)},
		{"updates per second", metricRate, ours, theirs, times(6)},
		{"the same with oldObject: CPU per update, µs", metricCPU, oursOld, theirsOld, share(8)},
		{"the same with oldObject: updates per second", metricRate, oursOld, theirsOld, times(6)},
		{"peak resident memory under updates, MiB", metricLoadPeak, ours, theirs, nil},
		{fmt.Sprintf("resident memory per object, %d to %d pods, KiB", s.few, s.many), metricSlope, ours, theirs, atMost(1.2, "KiB")},
	}
	for _, pods := range []int{s.few, s.sync, s.many} {
		rows = append(rows,
			row{fmt.Sprintf("%d pods: settled, MiB", pods), metricSettled(pods), ours, theirs, nil},
			row{fmt.Sprintf("%d pods: peak of the initial list, MiB", pods), metricPeak(pods), ours, theirs, peak(pods)},
			row{fmt.Sprintf("%d pods: all delivered after, s", pods), metricSync(pods), ours, theirs, notMore},
			row{fmt.Sprintf("%d pods: CPU of that, s", pods), metricSyncCPU(pods), ours, theirs, nil},
		)
	}
	rows = append(rows,
		row{fmt.Sprintf("restart with %d pods unchanged, s to ready", s.sync), metricRestart, ours, theirs, atMost(3, "s")},
		row{"lists of pods made for that", metricRestartLists, ours, theirs, atMost(0, "lists")},
		row{"latency, write sent to line in the file, p50 ms", metricLatency50, ours, theirs, func(o, t float64) (string, bool) { return "at most 2 ms more", o <= t+2 }},
		row{"latency, write sent to line in the file, p99 ms", metricLatency99, ours, theirs, func(o, t float64) (string, bool) { return "at most 2x", o <= 2*t }},
		row{"latency, write answered to line in the file, p50 ms", metricAccepted50, ours, theirs, nil},
	)
	return fmt.Sprintf(`# Measured

What watcherd costs, against the program that most people would write: client-go's dynamic informer whose handler
marshals type and object with encoding/json into a file (bench/baseline). Written by %s; the programs ran
in turn, %d times, on the same machine; medians (smallest to largest).

watcherd is the real binary with its durable store (every commit fsynced) and a file sink (fsynced too), defaults
otherwise. The baseline has neither: it loses everything when it ends.

A load average well above the number of cores means that other programs were at work: then CPU times and memory still
hold, but rates, durations and, as every event waits for the disk, latencies do not.

%s
%s
Updates: %d pods of about 5.5 KB, %d MODIFIED events (baseline: %d) sent by bench/replayd as fast as they are read;
CPU is user and system time of the process, from before the first update until it rests again. Initial list: from the
start of the process until the last line is in the file. Latency: a real API server with etcd, %d writes a second
for %d s, both programs at once.

%sStages alone: go test -run '^$' -bench . ./pkg/compact ./internal/store ./internal/delivery ./internal/route; compare
two commits with benchstat (golang.org/x/perf/cmd/benchstat) on -count 10.
`, "`make bench`", s.runs, machine(ctx, b.dir, b.commit), b.results.render(rows), s.pods, s.updates, s.baselineUpdates, latencyRate, s.latencySeconds, b.million())
}

// million formats the slope per million objects.
func (b *bench) million() string {
	slope, ok := b.results.median(metricSlope, ours)
	settled, _ := b.results.median(metricSettled(b.size.many), ours)
	if !ok {
		return ""
	}
	const pods = 1_000_000
	return fmt.Sprintf("A million pods would settle at %.0f MiB by the slope measured (run -only memory -many 1000000 -alone to see).\n\n",
		settled+slope*float64(pods-b.size.many)/1024)
}
