package stdout_test

import (
	"bufio"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/stdout"
)

// TestOnTerminal: auto is for people there, in colour unless they decline.
func TestOnTerminal(t *testing.T) {
	screen, terminal := testkit.OpenTerminal(t)
	lines := bufio.NewReader(screen)
	t.Setenv("TERM", "xterm")
	for _, test := range []struct {
		noColor string
		colored bool
	}{{"", true}, {"1", false}} {
		t.Setenv("NO_COLOR", test.noColor)
		c := stdout.NewConfig()
		c.Pretty = stdout.Auto
		if err := open(t, c, terminal).Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if colored := strings.Contains(line, "\x1b["); colored != test.colored || !strings.Contains(line, "prod/web-0") {
			t.Errorf("NO_COLOR=%q: %q", test.noColor, line)
		}
	}
}
