package dynamicfactory_test

import (
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
