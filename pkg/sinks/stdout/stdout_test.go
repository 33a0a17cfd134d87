package stdout_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/stdout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is standard output that can be disturbed.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	fail func(p []byte) (n int, err error) // nil: take everything
	gate chan struct{}                     // closed: open; writes wait for it
}

func newOutput() *output {
	o := &output{gate: make(chan struct{})}
	close(o.gate)
	return o
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	gate := o.gate
	o.mu.Unlock()
	<-gate
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail == nil {
		return o.buf.Write(p)
	}
	n, err := o.fail(p)
	o.buf.Write(p[:n])
	return n, err
}

func (o *output) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// ids reads the whole lines back.
func ids(t *testing.T, text string) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(text) {
		var e struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			continue // a torn line
		}
		out = append(out, e.ID)
	}
	return out
}

func TestConformance(t *testing.T) {
	for _, format := range []sinks.Format{sinks.CloudEvents, sinks.JSON} {
		t.Run(string(format), func(t *testing.T) {
			sinktest.Run(t, func(*testing.T) sinktest.Destination {
				o := newOutput()
				hung := make(chan struct{})
				return sinktest.Destination{
					Config:   func() sinks.Config { return stdout.NewConfig() },
					Format:   format,
					Options:  func(opts *sinks.Options) { opts.Stdout = o },
					Received: func(t *testing.T) []string { return ids(t, o.String()) },
					Break: func(*testing.T) {
						o.set(func() { o.fail = func([]byte) (int, error) { return 0, io.ErrClosedPipe } })
					},
					Refuse: func(*testing.T) {
						o.set(func() { o.fail = func([]byte) (int, error) { return 0, syscall.EPIPE } })
					},
					Hang: func(*testing.T) { o.set(func() { o.gate = hung }) },
					Repair: func(*testing.T) {
						o.set(func() {
							o.fail = nil
							select {
							case <-hung:
							default:
								close(hung)
							}
						})
					},
				}
			})
		})
	}
}

func open(t *testing.T, c *stdout.Config, out io.Writer) sinks.Sink {
	t.Helper()
	s, err := c.Open(t.Context(), sinks.Options{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestShortWrite cuts a batch at every byte: what was written whole is accepted,
// the rest fails, and the next line is not glued to a torn one.
func TestShortWrite(t *testing.T) {
	events := sinktest.Events(3, 3)
	var whole []byte
	for _, e := range events {
		whole = sinks.CloudEvents.AppendLine(whole, e)
	}
	for cut := range len(whole) {
		o := newOutput()
		o.fail = func([]byte) (int, error) { return cut, io.ErrShortWrite }
		s := open(t, stdout.NewConfig(), o)
		again := append(slices.Clip(events), sinktest.Event(9, 9))
		err := s.Write(t.Context(), events)
		if err == nil {
			again = again[len(events):]
		} else if batch, partial := errors.AsType[*sinks.BatchError](err); partial {
			again = again[len(events)-len(batch.Failed):]
		}
		o.fail = nil
		if err := s.Write(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		if got := ids(t, o.String()); len(got) != len(events)+1 {
			t.Fatalf("cut at %d: %d whole lines, %d are wanted:\n%s", cut, len(got), len(events)+1, o)
		}
	}
}

// TestShortWriteOfAnotherSink cuts a batch, and another sink on the output writes next: one
// beside it, or the one that takes its place after a reload.
func TestShortWriteOfAnotherSink(t *testing.T) {
	first, other := sinktest.Event(0, 0), sinktest.Event(9, 9)
	line := sinks.CloudEvents.AppendLine(nil, first)
	for _, reopened := range []bool{false, true} {
		for _, cut := range []int{10, len(line) - 1} { // the last one lacks its newline only, and is accepted
			o := newOutput()
			s, next := open(t, stdout.NewConfig(), o), sinks.Sink(nil)
			if !reopened {
				next = open(t, stdout.NewConfig(), o)
			}
			o.fail = func([]byte) (int, error) { return cut, io.ErrShortWrite }
			want := []string{other.ID}
			if err := s.Write(t.Context(), []*event.Event{first}); err == nil {
				want = []string{first.ID, other.ID}
			}
			o.fail = nil
			if reopened {
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				next = open(t, stdout.NewConfig(), o)
			}
			if err := next.Write(t.Context(), []*event.Event{other}); err != nil {
				t.Fatal(err)
			}
			if got := ids(t, o.String()); !slices.Equal(got, want) {
				t.Errorf("reopened %t, cut at %d: lines of %v, want %v:\n%s", reopened, cut, got, want, o)
			}
		}
	}
}

// TestReaderGone: a pipe without a reader pauses the sink and harms nothing else. The
// process ignores SIGPIPE for a descriptor that is not its standard output; for that one
// the program has to.
func TestReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := open(t, stdout.NewConfig(), w)
	r.Close()
	err = s.Write(t.Context(), sinktest.Events(3, 3))
	if class, _ := sinks.Classify(err); err == nil || class != sinks.ClassPause {
		t.Errorf("error %v, class %s; pause is wanted", err, class)
	}
}

func TestOneLineForObjectsWithLineBreaks(t *testing.T) {
	e := sinktest.Event(0, 0)
	e.Object = json.RawMessage("{\n  \"a\": \"b\\n\",\n  \"c\": 1\n}")
	o := newOutput()
	if err := open(t, stdout.NewConfig(), o).Write(t.Context(), []*event.Event{e}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(o.String(), "\n"); n != 1 {
		t.Fatalf("%d lines: %q", n, o)
	}
	var decoded struct {
		Data struct{ Object map[string]any }
	}
	if err := json.Unmarshal([]byte(o.String()), &decoded); err != nil || decoded.Data.Object["a"] != "b\n" {
		t.Errorf("decoded %v, %v", decoded, err)
	}
	if string(e.Object[:2]) != "{\n" {
		t.Error("the event was changed")
	}
}

func TestPretty(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, test := range []struct {
		block  string
		pretty bool
	}{
		{`{}`, false}, {`{"pretty":false}`, false}, {`{"pretty":true}`, true}, {`{"pretty":"auto"}`, false},
	} {
		c := stdout.NewConfig()
		if err := json.Unmarshal([]byte(test.block), c); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", test.block, err)
		}
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if err := open(t, c, file).Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		if pretty := !json.Valid(written); pretty != test.pretty {
			t.Errorf("%s: pretty is %v: %s", test.block, pretty, written)
		}
	}
	var c stdout.Config
	if err := json.Unmarshal([]byte(`{"pretty":"yes"}`), &c); err == nil {
		t.Error("pretty: yes was accepted")
	}
}

func TestRefusesBinary(t *testing.T) {
	_, err := stdout.NewConfig().Open(t.Context(), sinks.Options{Stdout: io.Discard, Format: sinks.CloudEventsBinary})
	if err == nil {
		t.Error("binary mode on standard output was accepted")
	}
}
