package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// bench is a run of all measurements.
type bench struct {
	binaries
	dir     string // scratch; everything of a single measurement is removed after it
	commit  string // that is measured; asked before the results change the work tree
	size    sizes
	profile string // file for a CPU profile of watcherd under updates; "" for none
	results *results
}

// sizes is how much is measured.
type sizes struct {
	runs                     int // of everything, the programs in turn
	pods                     int // that the updates are spread over
	updates, baselineUpdates int
	few, many                int // pods, for the slope of memory
	sync                     int // pods, for the initial list and the restart
	latencySeconds           int
	takeOvers                int // of each kind
}

// in runs one measurement of a contender in a folder of its own.
func (b *bench) in(ctx context.Context, pods int, c contender, do func(dir string, r *replay) error) (err error) {
	dir, err := os.MkdirTemp(b.dir, "run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r, err := b.startReplay(ctx, dir, pods)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := do(dir, r); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// throughput measures updates at full speed.
func (b *bench) throughput(ctx context.Context, c contender) error {
	return b.in(ctx, b.size.pods, c, func(dir string, r *replay) (err error) {
		p, err := b.start(c, dir, r.kubeconfig, "pods", "", false)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.stop()) }()
		return b.underUpdates(ctx, c, p, filepath.Join(dir, outFile), r, func() error { return nil })
	})
}

// underUpdates measures a program that has started, and calls warm when it is about to begin.
func (b *bench) underUpdates(ctx context.Context, c contender, p *process, file string, r *replay, warm func() error) error {
	lines := newCounter(file)
	if err := p.awaitLines(ctx, lines, b.size.pods); err != nil {
		return err
	}
	// The first round of updates warms up: dictionaries, pools, the heap.
	if err := r.updates(ctx, b.size.pods, 0); err != nil {
		return err
	}
	if err := p.awaitLines(ctx, lines, 2*b.size.pods); err != nil {
		return err
	}
	before, err := p.awaitRest(ctx)
	if err == nil {
		err = warm()
	}
	if err != nil {
		return err
	}
	updates := b.updatesOf(c)
	stopProfile := b.startProfile(ctx, c)
	began := time.Now()
	if err := r.updates(ctx, updates, 0); err != nil {
		return err
	}
	if err := p.awaitLines(ctx, lines, 2*b.size.pods+updates); err != nil {
		return err
	}
	took := time.Since(began)
	if err := stopProfile(); err != nil {
		return err
	}
	after, err := p.awaitRest(ctx)
	if err != nil {
		return err
	}
	b.results.add(metricCPU, c, perUpdate(after-before, updates))
	b.results.add(metricRate, c, float64(updates)/took.Seconds())
	_, peak, err := p.memory()
	b.results.add(metricLoadPeak, c, peak/mebi)
	return err
}

func (b *bench) updatesOf(c contender) int {
	if c.baseline {
		return b.size.baselineUpdates
	}
	return b.size.updates
}

// perUpdate is in microseconds.
func perUpdate(used time.Duration, updates int) float64 {
	return float64(used.Microseconds()) / float64(updates)
}

// startProfile takes a CPU profile until the returned function is called.
func (b *bench) startProfile(ctx context.Context, c contender) (stop func() error) {
	if b.profile == "" || c.baseline {
		return func() error { return nil }
	}
	const seconds = 5
	done := make(chan error, 1)
	go func() {
		done <- fetch(ctx, fmt.Sprintf("http://127.0.0.1:6060/debug/pprof/profile?seconds=%d", seconds), b.profile)
	}()
	return func() error { return <-done }
}

func fetch(ctx context.Context, url, file string) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = f.ReadFrom(resp.Body)
	return errors.Join(err, f.Close())
}

// memory measures the initial list of so many pods: how long it takes until all is
// delivered, and the memory it needs, at its highest and afterwards.
func (b *bench) memory(ctx context.Context, c contender, pods int) error {
	return b.in(ctx, pods, c, func(dir string, r *replay) (err error) {
		began := time.Now()
		p, err := b.start(c, dir, r.kubeconfig, "pods", "", false)
		if err != nil {
			return err
		}
		stopped := false
		defer func() {
			if !stopped {
				err = errors.Join(err, p.stop())
			}
		}()
		if err := p.awaitLines(ctx, newCounter(filepath.Join(dir, outFile)), pods); err != nil {
			return err
		}
		b.results.add(metricSync(pods), c, time.Since(began).Seconds())
		used, err := p.awaitRest(ctx)
		if err != nil {
			return err
		}
		b.results.add(metricSyncCPU(pods), c, used.Seconds())
		settled, peak, err := p.awaitSettled(ctx)
		if err != nil {
			return err
		}
		b.results.add(metricSettled(pods), c, settled/mebi)
		b.results.add(metricPeak(pods), c, peak/mebi)
		if c.baseline || pods != b.size.sync {
			return nil
		}
		stopped = true
		if err := p.stop(); err != nil {
			return err
		}
		return b.restart(ctx, c, dir, r)
	})
}

// restart measures how long a watcherd that has everything recorded takes until it
// watches again, and that it lists nothing for it.
func (b *bench) restart(ctx context.Context, c contender, dir string, r *replay) (err error) {
	before, err := r.requests(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	p, err := b.start(c, dir, r.kubeconfig, "pods", "", false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.awaitLog(ctx, "watch synced"); err != nil {
		return err
	}
	b.results.add(metricRestart, c, time.Since(began).Seconds())
	after, err := r.requests(ctx)
	if err != nil {
		return err
	}
	const list = "get /api/v1/pods"
	b.results.add(metricRestartLists, c, float64(after[list]-before[list]))
	return nil
}

const mebi = 1 << 20
