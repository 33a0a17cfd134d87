package testservers

import (
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

// StartBento starts Bento with a configuration, in which its own address takes the place of that of the input. It is
// killed at the end of the test.
func StartBento(t testing.TB, config, address string) *Bento {
	t.Helper()
	type spec struct {
		Config, Address string
		Port            int
	}
	return &Bento{run(t, playground.Bento(), func(port int) any { return spec{config, address, port} })}
}

// Bento is Bento, which takes over a webhook's events and has many outputs. Its methods may be called from any
// goroutine, one at a time.
type Bento struct{ *process }

// MQTT is a broker. Its methods may be called from any goroutine, one at a time.
type MQTT struct {
	*process
	dir string
}

// Message is one that an MQTT broker has accepted.
type Message struct {
	Topic   string
	QoS     byte
	Payload []byte
}

// StartMQTT starts a broker that is killed at the end of the test.
func StartMQTT(t testing.TB) *MQTT {
	t.Helper()
	type spec struct {
		Dir  string
		Port int
	}
	dir := t.TempDir()
	return &MQTT{dir: dir, process: run(t, playground.MQTT(), func(port int) any { return spec{dir, port} })}
}

// Accepted are the messages so far, in their order.
func (m *MQTT) Accepted() []Message { return accepted[Message](m.t, m.dir) }
