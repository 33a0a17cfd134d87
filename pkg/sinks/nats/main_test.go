package nats_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

func TestMain(m *testing.M) {
	if !natstest.Main() {
		goleak.VerifyTestMain(m)
	}
}
