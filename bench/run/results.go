package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// The metrics.
const (
	metricCPU          = "cpu"
	metricRate         = "rate"
	metricLoadPeak     = "loadPeak"
	metricRestart      = "restart"
	metricRestartLists = "restartLists"
	metricLatency50    = "latency50"
	metricLatency99    = "latency99"
	metricAccepted50   = "accepted50"
)

func metricSync(pods int) string    { return fmt.Sprintf("sync%d", pods) }
func metricSyncCPU(pods int) string { return fmt.Sprintf("syncCPU%d", pods) }
func metricSettled(pods int) string { return fmt.Sprintf("settled%d", pods) }
func metricPeak(pods int) string    { return fmt.Sprintf("peak%d", pods) }

// results holds every single value.
type results struct {
	values map[string][]float64 // by metric and contender
}

func newResults() *results { return &results{values: map[string][]float64{}} }

func (r *results) add(metric string, c contender, value float64) {
	fmt.Printf("%-14s %-22s %12.2f\n", metric, c.name, value)
	key := metric + " " + c.name
	r.values[key] = append(r.values[key], value)
}

func (r *results) get(metric string, c contender) []float64 { return r.values[metric+" "+c.name] }

// median is that of a metric; ok is false if it was not measured.
func (r *results) median(metric string, c contender) (value float64, ok bool) {
	v := r.get(metric, c)
	if len(v) == 0 {
		return 0, false
	}
	return quantile(v, 0.5), true
}

// row is a line of the table: how a metric of ours compares with the baseline's.
type row struct {
	text         string
	metric       string
	ours, theirs contender
	target       func(ours, theirs float64) (text string, met bool)
}

// render writes a table of the rows that were measured.
func (r *results) render(rows []row) string {
	var b strings.Builder
	b.WriteString("| | watcherd | baseline | ratio | target | met |\n|---|---|---|---|---|---|\n")
	for _, w := range rows {
		ours, ok := r.median(w.metric, w.ours)
		if !ok {
			continue
		}
		theirs, compared := r.median(w.metric, w.theirs)
		other, ratio := "", ""
		if compared {
			other, ratio = spread(r.get(w.metric, w.theirs)), fmt.Sprintf("%.2f", ours/theirs)
			if ours < theirs {
				ratio = fmt.Sprintf("1/%.1f", theirs/ours)
			}
		}
		target, met := "", ""
		if w.target != nil {
			text, is := w.target(ours, theirs)
			if target, met = text, "no"; is {
				met = "yes"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", w.text, spread(r.get(w.metric, w.ours)), other, ratio, target, met)
	}
	return b.String()
}

// spread is a median with the smallest and largest value.
func spread(v []float64) string {
	low, mid, high := quantile(v, 0), quantile(v, 0.5), quantile(v, 1)
	if len(v) == 1 || low == high {
		return number(mid)
	}
	return fmt.Sprintf("**%s** (%s to %s)", number(mid), number(low), number(high))
}

func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// derive computes what follows from other medians.
func (r *results) derive(c contender, s sizes) {
	few, ok := r.median(metricSettled(s.few), c)
	many, ok2 := r.median(metricSettled(s.many), c)
	if ok && ok2 {
		r.add(metricSlope, c, (many-few)*1024/float64(s.many-s.few))
	}
}

const metricSlope = "slope"

// machine describes where and with what it was measured.
func machine(ctx context.Context, dir, commit string) string {
	var b strings.Builder
	cpu := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(info), "model name"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			cpu = strings.Trim(line, "\t :")
		}
	}
	var fs syscall.Statfs_t
	kind := "?"
	if syscall.Statfs(dir, &fs) == nil {
		kind = fmt.Sprintf("type %#x", fs.Type)
	}
	var load string
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	fmt.Fprintf(&b, "- %s, %d cores, %s/%s, kernel %s\n", cpu, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, command(ctx, "uname", "-r"))
	fmt.Fprintf(&b, "- %s; file system %s (fsync is real); load average at the end %s\n", runtime.Version(), kind, load)
	fmt.Fprintf(&b, "- watcherd at %s; baseline with %s\n", commit, command(ctx, "go", "list", "-m", "k8s.io/client-go"))
	fmt.Fprintf(&b, "- %s\n", time.Now().UTC().Format("2006-01-02"))
	return b.String()
}

func command(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
