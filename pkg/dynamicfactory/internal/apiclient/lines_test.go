package apiclient

import (
	"bufio"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 3*readBuffer)
	exact := strings.Repeat("y", readBuffer-1)
	for name, tc := range map[string]struct {
		stream string
		want   []string
	}{
		"nothing":           {"", nil},
		"one":               {"a\n", []string{"a"}},
		"an end missing":    {"a\nb", []string{"a", "b"}},
		"empty lines":       {"\n\r\na\r\n\n", []string{"a"}},
		"long ones":         {long + "\nb\n" + long, []string{long, "b", long}},
		"as long as can be": {exact + "\n" + exact + "z\n", []string{exact, exact + "z"}},
	} {
		for kind, r := range map[string]io.Reader{
			"whole": strings.NewReader(tc.stream), "by bytes": iotest.OneByteReader(strings.NewReader(tc.stream)),
		} {
			l := NewLines(r)
			for _, want := range tc.want {
				line, err := l.Next()
				if err != nil || string(line) != want {
					t.Fatalf("%s, %s: got %.20q, %v, want %.20q", name, kind, line, err, want)
				}
			}
			if line, err := l.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("%s, %s: at the end: %q, %v", name, kind, line, err)
			}
		}
	}
}

// A line that breaks off because the connection did is no line.
func TestLineBreaksOff(t *testing.T) {
	broken := errors.New("connection reset")
	l := NewLines(io.MultiReader(strings.NewReader("a\nhalf of "), iotest.ErrReader(broken)))
	if line, err := l.Next(); err != nil || string(line) != "a" {
		t.Fatalf("got %q, %v", line, err)
	}
	if line, err := l.Next(); !errors.Is(err, broken) || line != nil {
		t.Errorf("got %q, %v", line, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestLineWithoutEnd(t *testing.T) {
	l := NewLines(endless{})
	l.max = 1 << 20
	if line, err := l.Next(); err == nil || cap(l.long) > 4<<20 {
		t.Errorf("got a line of %d bytes", len(line))
	}
}

// FuzzLines: however a stream arrives, its lines are what lies between line ends.
func FuzzLines(f *testing.F) {
	for _, stream := range []string{"", "a\nb\n", "a\r\n\r\n\nb", "\r\r\n", strings.Repeat("long", 20) + "\n" + strings.Repeat("x", 16)} {
		f.Add(stream)
	}
	f.Fuzz(func(t *testing.T, stream string) {
		var want []string
		for line := range strings.SplitSeq(stream, "\n") {
			if line = strings.TrimRight(line, "\r"); line != "" {
				want = append(want, line)
			}
		}
		for name, r := range map[string]io.Reader{
			"whole": strings.NewReader(stream), "by bytes": iotest.OneByteReader(strings.NewReader(stream)), "with its end": iotest.DataErrReader(strings.NewReader(stream)),
		} {
			l := &Lines{r: bufio.NewReaderSize(r, 16), max: maxLine}
			var got []string
			for {
				line, err := l.Next()
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
					break
				}
				got = append(got, string(line))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	})
}

func TestItemType(t *testing.T) {
	for head, want := range map[string]string{
		`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"kind":"no"`: "v1 Pod 1",
		`{"metadata":{},"apiVersion":"apps/v1","kind":"DeploymentList","items":null}`:                  "apps/v1 Deployment ",
		`{"apiVersion":"example.com/v1","items":[{"kind":"WidgetList"`:                                 "  ",
		`{"kind":"List","apiVersion":"v1","items":[`:                                                   "  ",
		`{"kind":"Status","apiVersion":"v1"}`:                                                          "  ",
		`{"metadata":{"resourceVersion":"7"},"kind":"List","items":[`:                                  "  7",
		`[]`:                  "  ",
		``:                    "  ",
		`{"kind":`:            "  ",
		`{"kind":7,"items":[`: "  ",
	} {
		apiVersion, kind, version := ItemType([]byte(head))
		if got := apiVersion + " " + kind + " " + version; got != want {
			t.Errorf("%s: got %q, want %q", head, got, want)
		}
	}
}
