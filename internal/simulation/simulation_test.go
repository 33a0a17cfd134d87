package simulation

import (
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) {
	if os.Getenv(seedVariable) == "" {
		klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // client-go tells of every broken connection
	}
	// What sync.Pools refer to, here whole histories, lives for one collection more, so that
	// the heap would grow with each. Pages that are used again cost less than new ones.
	debug.SetGCPercent(800)
	debug.SetMemoryLimit(256 << 20)
	goleak.VerifyTestMain(m)
}

// seedVariable names the variable that asks for one history.
const seedVariable = "WATCHERD_SIM_SEED"

// steps is how long a history is.
const steps = 100

// TestHistories plays histories of the whole pipeline.
func TestHistories(t *testing.T) {
	histories(t, func(t *testing.T, seed uint64, verbose bool) { newWorld(t, seed, verbose).run(steps) })
}

// TestDeliveries plays histories of the store and the delivery alone.
func TestDeliveries(t *testing.T) {
	histories(t, func(t *testing.T, seed uint64, verbose bool) { newDepot(t, seed, verbose).run(steps) })
}

// ageing is how far a bubble's time is set forward: it begins with the year 2000, which
// the store takes for a clock that was not set.
const ageing = 27 * 366 * 24 * time.Hour

// histories plays one history a seed: for half a minute, for two hours in a soak, or
// as many as the environment asks for.
func histories(t *testing.T, play func(t *testing.T, seed uint64, verbose bool)) {
	one := func(t *testing.T, seed uint64, verbose bool) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(ageing)
			play(t, seed, verbose)
		})
	}
	if os.Getenv(seedVariable) != "" {
		one(t, number(t, seedVariable, 0), true)
		return
	}
	most, first, begin := number(t, "WATCHERD_SIM_HISTORIES", 0), number(t, "WATCHERD_SIM_FIRST", 1), time.Now()
	length := 30 * time.Second
	if os.Getenv("WATCHERD_SOAK") != "" {
		length = 2 * time.Hour
	}
	played := uint64(0)
	for ; played < most || most == 0 && time.Since(begin) < length; played++ {
		seed := first + played
		ok := t.Run("seed="+strconv.FormatUint(seed, 10), func(t *testing.T) { one(t, seed, false) })
		if !ok {
			t.Logf("%s=%d plays this history again", seedVariable, seed)
		}
	}
	t.Logf("%d histories of %d steps in %v", played, steps, time.Since(begin).Round(time.Second))
}

// number is the value of an environment variable.
func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}
