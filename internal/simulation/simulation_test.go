package simulation

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) {
	if os.Getenv(seedVariable) != "" {
		account.live = os.Stderr
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(account, nil)))
	// What sync.Pools refer to, here whole histories, lives for one collection more, so that
	// the heap would grow with each. Pages that are used again cost less than new ones.
	debug.SetGCPercent(800)
	debug.SetMemoryLimit(256 << 20)
	goleak.VerifyTestMain(m)
}

// account is what happens in the history that is played, to be shown if that fails. Any goroutine may use it.
var account = &log{}

type log struct {
	live io.Writer // shows all of it at once; nil: nothing. Set before the tests
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live != nil {
		return l.live.Write(text)
	}
	return l.text.Write(text)
}

// take returns the text and begins again.
func (l *log) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// tell adds a line of the simulation itself.
func (l *log) tell(text ...any) {
	fmt.Fprintln(l, append([]any{time.Now().Format("15:04:05.000")}, text...)...)
}

// seedVariable names the variable that asks for one history.
const seedVariable = "WATCHERD_SIM_SEED"

// steps is how long a history is.
const steps = 100

// TestHistories plays histories of the whole pipeline.
func TestHistories(t *testing.T) {
	histories(t, func(t *testing.T, seed uint64) { newWorld(t, seed).run(steps) })
}

// TestDeliveries plays histories of the store and the delivery alone.
func TestDeliveries(t *testing.T) {
	histories(t, func(t *testing.T, seed uint64) { newDepot(t, seed).run(steps) })
}

// ageing is how far a bubble's time is set forward: it begins with the year 2000, which
// the store takes for a clock that was not set.
const ageing = 27 * 366 * 24 * time.Hour

// histories plays one history a seed: for half a minute, for two hours in a soak, or
// as many as the environment asks for.
func histories(t *testing.T, play func(t *testing.T, seed uint64)) {
	one := func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(ageing)
			play(t, seed)
		})
	}
	if os.Getenv(seedVariable) != "" {
		one(t, number(t, seedVariable, 0))
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
		ok := t.Run("seed="+strconv.FormatUint(seed, 10), func(t *testing.T) { one(t, seed) })
		if told := account.take(); !ok {
			t.Logf("%s=%d plays this history again, but for the order of goroutines. This one:\n%s", seedVariable, seed, told)
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
