package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	latencyRate    = 200 // writes a second
	latencyObjects = 50
	latencySpace   = "default"
	writeMark      = "bench-write-" // and the number of the write
)

// cluster is a running playground: a real API server.
type cluster struct {
	*process
	kubeconfig string
	maps       dynamic.ResourceInterface
}

// startCluster starts the playground, which is built if necessary.
func startCluster(ctx context.Context, dir string) (*cluster, error) {
	path := exec.CommandContext(ctx, "go", "run", "./hack/playground")
	path.Stderr = os.Stderr
	out, err := path.Output()
	if err != nil {
		return nil, fmt.Errorf("build the playground: %w", err)
	}
	state := filepath.Join(dir, "cluster")
	p, err := start(dir, strings.TrimSpace(string(out)), "serve", "--dir", state)
	if err != nil {
		return nil, err
	}
	c := &cluster{process: p, kubeconfig: filepath.Join(state, "admin.kubeconfig")}
	if err := p.awaitLog(ctx, "ready "); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	c.maps = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(latencySpace)
	for n := range latencyObjects {
		if _, err := c.maps.Create(ctx, configMap(n), metav1.CreateOptions{}); err != nil {
			return nil, errors.Join(err, p.stop())
		}
	}
	return c, nil
}

// configMap is one of the objects that are written, of about 5 KB.
func configMap(n int) *unstructured.Unstructured {
	data := map[string]any{}
	for i := range 40 {
		data[fmt.Sprintf("setting-%02d.properties", i)] = strings.Repeat(fmt.Sprintf("key%d=%d ", i, n), 10)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": latencyName(n)}, "data": data,
	}}
}

func latencyName(n int) string { return fmt.Sprintf("latency-%02d", n) }

// latency measures the time from a write to the line in the file, at a steady rate,
// of all contenders at once, each of which sees the same writes.
func (b *bench) latency(ctx context.Context, c *cluster, contenders []contender, round int) (err error) {
	dir, err := os.MkdirTemp(b.dir, "run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	writes := latencyRate * b.size.latencySeconds
	var stopTails sync.WaitGroup
	tails := make([]*tail, len(contenders))
	tailing, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		stopTails.Wait()
	}()
	for i, each := range contenders {
		home := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(home, 0o700); err != nil {
			return err
		}
		p, err := b.start(each, home, c.kubeconfig, "configmaps", latencySpace, true)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.stop()) }() //nolint:revive // of the two programs, both end with the round
		file := filepath.Join(home, outFile)
		if err := p.await(ctx, "the first lines", func() (bool, error) {
			n, err := newCounter(file).count()
			return n >= latencyObjects, err
		}); err != nil {
			return err
		}
		tails[i] = &tail{seen: make([]time.Time, writes), round: round}
		stopTails.Go(func() { tails[i].follow(tailing, file) })
	}
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	sent, accepted, err := c.write(ctx, round, writes)
	if err != nil {
		return err
	}
	if err := pause(ctx, 3*time.Second); err != nil {
		return err
	}
	stop()
	stopTails.Wait()
	for i, each := range contenders {
		if tails[i].err != nil {
			return tails[i].err
		}
		var total, after []float64
		for n, at := range tails[i].seen {
			if at.IsZero() {
				return fmt.Errorf("%s: write %d of %d did not arrive", each.name, n, writes)
			}
			total = append(total, at.Sub(sent[n]).Seconds()*1000)
			after = append(after, at.Sub(accepted[n]).Seconds()*1000)
		}
		b.results.add(metricLatency50, each, quantile(total, 0.50))
		b.results.add(metricLatency99, each, quantile(total, 0.99))
		b.results.add(metricAccepted50, each, quantile(after, 0.50))
	}
	return nil
}

// write makes the writes at the rate, and returns when each was sent and answered.
func (c *cluster) write(ctx context.Context, round, writes int) (sent, accepted []time.Time, err error) {
	sent, accepted = make([]time.Time, writes), make([]time.Time, writes)
	tick := time.NewTicker(time.Second / latencyRate)
	defer tick.Stop()
	for n := range writes {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"bench": writeLabel(round, n)}}})
		if err != nil {
			return nil, nil, err
		}
		sent[n] = time.Now()
		if _, err := c.maps.Patch(ctx, latencyName(n%latencyObjects), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, nil, err
		}
		accepted[n] = time.Now()
	}
	return sent, accepted, nil
}

func writeLabel(round, n int) string { return fmt.Sprintf("%s%d-%d.", writeMark, round, n) }

// tail notes when which write shows in a file.
type tail struct {
	round int
	seen  []time.Time // by write
	err   error
}

// follow reads the file until ctx is done.
func (t *tail) follow(ctx context.Context, path string) {
	f, err := os.Open(path)
	if err != nil {
		t.err = err
		return
	}
	defer f.Close()
	buf := make([]byte, 0, 1<<20)
	poll := time.NewTicker(200 * time.Microsecond)
	defer poll.Stop()
	for ctx.Err() == nil {
		if len(buf) == cap(buf) {
			t.err = errors.New("a line of more than 1 MiB")
			return
		}
		n, err := f.Read(buf[len(buf):cap(buf)])
		if err != nil && !errors.Is(err, io.EOF) {
			t.err = err
			return
		}
		if n == 0 {
			<-poll.C
			continue
		}
		now := time.Now()
		buf = buf[:len(buf)+n]
		end := bytes.LastIndexByte(buf, '\n') + 1
		t.note(buf[:end], now)
		buf = buf[:copy(buf, buf[end:])]
	}
}

// note looks for the writes of this round in whole lines.
func (t *tail) note(lines []byte, now time.Time) {
	prefix := fmt.Appendf(nil, "%s%d-", writeMark, t.round)
	for {
		i := bytes.Index(lines, prefix)
		if i < 0 {
			return
		}
		lines = lines[i+len(prefix):]
		digits, _, _ := bytes.Cut(lines, []byte("."))
		if n, err := strconv.Atoi(string(digits)); err == nil && n < len(t.seen) && t.seen[n].IsZero() {
			t.seen[n] = now
		}
	}
}

func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
