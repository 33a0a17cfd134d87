package stdout_test

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
	"github.com/watcherd/watcherd/pkg/sinks/stdout"
)

// openTerminal returns the two ends of a pseudo-terminal.
func openTerminal(t *testing.T) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("there are no pseudo-terminals here: ", err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Skip("the pseudo-terminal cannot be unlocked: ", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Skip("the pseudo-terminal has no number: ", err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("the pseudo-terminal cannot be opened: ", err)
	}
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}

// TestOnTerminal: auto is for people there, in colour unless they decline.
func TestOnTerminal(t *testing.T) {
	screen, terminal := openTerminal(t)
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
