//go:build race

package salvage

import (
	"os/exec"
	"testing"
)

// TestDamageBeforeChecksum runs the test of this name in a build without the race detector, whose checks of pointers end the process
// where Pebble makes one of a damaged index.
func TestDamageBeforeChecksum(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "test", "-count", "1", "-run", "^"+t.Name()+"$", ".").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
