package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

const (
	loadRate = 10_000 // changes a second
	loadPods = 2000
	maxHeap  = 16 << 20 // of 4 MB, whatever the length of a run
)

var loadSeconds = flag.Int("load.seconds", 15, "how long TestLoad changes pods")

// replay is the bench's server of pods that change.
type replay struct{ url, kubeconfig string }

// startReplayed starts that server and a daemon of its pods.
func startReplayed(t *testing.T) (*replay, *daemon) {
	t.Helper()
	r := startReplay(t)
	return r, startWith(t, "", r.kubeconfig, "cluster: {name: load}\nadmin: {listen: ADDRESS}\nwatches: [{name: pods, resources: [pods]}]\n")
}

func startReplay(t *testing.T) *replay {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "replayd")
	if _, err := inRoot(t.Context(), "build", "-o", program, "./bench/replayd"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-pods", strconv.Itoa(loadPods))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("the replay server: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ready := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if err != nil || !ready {
		t.Fatalf("the replay server prints %q: %v", line, err)
	}
	r := &replay{url: url, kubeconfig: filepath.Join(dir, "kubeconfig")}
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: %q}}]\nusers: [{name: x, user: {}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n", url)
	if err := os.WriteFile(r.kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// change has the pods change a number of times.
func (r *replay) change(t *testing.T, events int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("%s/_start?events=%d&rate=%d", r.url, events, loadRate), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, err)
	}
}

var changes = regexp.MustCompile(`^watcherd_watch_changes_total{.*} (\S+)$`)

// recorded is how many changes the daemon has recorded.
func (d *daemon) recorded() (all int) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.base+"/metrics", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if m := changes.FindStringSubmatch(lines.Text()); m != nil {
			n, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				d.t.Fatal(err)
			}
			all += int(n)
		}
	}
	return all
}

// cpu is the time that the daemon has used.
func (d *daemon) cpu() time.Duration {
	d.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields, ticks := strings.Fields(rest), 0
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second: proc(5)
		n, err := strconv.Atoi(f)
		if err != nil {
			d.t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// watchFrames has the page count its frames by the milliseconds that they took, and the time
// of its long tasks.
const watchFrames = `void (() => {
	const m = window.measured = { gaps: new Array(2000).fill(0), blocked: 0, began: performance.now() };
	let last = m.began;
	const tick = (now) => { m.gaps[Math.min(1999, Math.max(0, Math.round(now - last)))]++; last = now; requestAnimationFrame(tick); };
	requestAnimationFrame(tick);
	new PerformanceObserver((l) => { for (const e of l.getEntries()) m.blocked += e.duration; }).observe({ type: "longtask" });
})()`

// work is the CPU time of the page's main thread, by what it was for.
func (p *tab) work() map[string]float64 {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, performance.Enable, performance.EnableParams{TimeDomain: "threadTicks"}); err != nil {
		p.t.Fatal(err)
	}
	metrics, err := chromedp.Call(p.ctx, performance.GetMetrics, cdp.Empty{})
	if err != nil {
		p.t.Fatal(err)
	}
	all := map[string]float64{}
	for _, m := range metrics.Metrics {
		all[m.Name] = m.Value
	}
	return all
}

// TestLoad shows 10,000 changes a second for a quarter of a minute, or with WATCHERD_SOAK=1 for an
// hour: the counts are exact, and what the page keeps is bounded. The figures of bench/UI.md are in
// its output.
func TestLoad(t *testing.T) {
	seconds := *loadSeconds
	if os.Getenv("WATCHERD_SOAK") != "" {
		seconds = 3600
	}
	r, d := startReplayed(t)
	run := func(seconds int) (cpu time.Duration) {
		t.Helper()
		before, events := d.recorded(), seconds*loadRate
		used := d.cpu()
		r.change(t, events)
		for end := time.Now().Add(time.Duration(4*seconds)*time.Second + patience); d.recorded() < before+events; {
			if time.Now().After(end) {
				t.Fatalf("%d of %d changes are recorded", d.recorded()-before, events)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatal(t.Context().Err())
			}
		}
		return d.cpu() - used
	}
	alone := run(10)

	p := open(t, d, "#/feed?lens=all")
	p.sees(".dot.live", "live")
	p.do(chromedp.Reload()) // from the cache of the browser
	p.sees(".dot.live", "live")
	var paint float64
	until(t, "the page is painted", func() bool { // the frame may follow the document's elements
		paint = eval[float64](p, `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0`)
		return paint > 0
	})
	p.sees(".row:first-child", "Pod")
	eval[chromedp.Void](p, watchFrames)
	before := p.work()
	shown := run(seconds)
	after := p.work()
	p.sees(".counts", fmt.Sprintf(`^%s changes since`, grouped(seconds*loadRate)))

	type figures struct {
		Gaps           []int
		Blocked, Began float64
	}
	m := eval[figures](p, `measured`)
	total := eval[float64](p, `performance.now()`) - m.Began
	frames, sum, p99 := 0, 0, 0
	for _, n := range m.Gaps {
		frames += n
	}
	for ms, n := range m.Gaps {
		if sum += n; sum*100 >= frames*99 {
			p99 = ms
			break
		}
	}
	if _, err := chromedp.Call(p.ctx, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	heap, err := chromedp.Call(p.ctx, runtime.GetHeapUsage, cdp.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	rows := eval[int](p, `document.querySelectorAll(".row").length`)
	if heap.UsedSize > maxHeap || rows > 200 {
		t.Errorf("the page has %.1f MB and %d rows", heap.UsedSize/1e6, rows)
	}
	main := ""
	for _, what := range []string{"Task", "Script", "RecalcStyle", "Layout"} {
		main += fmt.Sprintf("%s %.1f %% ", what, (after[what+"Duration"]-before[what+"Duration"])/(after["Timestamp"]-before["Timestamp"])*100)
	}
	each := float64(shown)/float64(seconds*loadRate) - float64(alone)/float64(10*loadRate) // ns a change
	t.Logf("%d changes in %.0f s: first paint %.0f ms, %d frames, the 99th of a hundred %d ms, blocked %.1f %%, main thread %s, heap %.1f MB, the daemon %.1f %% of a core for the stream (%.0f %% in all)",
		seconds*loadRate, total/1000, paint, frames, p99, 100*m.Blocked/total, main, heap.UsedSize/1e6, each*loadRate/1e7, shown.Seconds()/(total/1000)*100)
}

// grouped is a number with commas.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
