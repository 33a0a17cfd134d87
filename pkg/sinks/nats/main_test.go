package nats_test

import (
	"testing"

	"github.com/watcherd/watcherd/internal/testservers/natstest"
)

func TestMain(m *testing.M) { natstest.VerifyMain(m) }
