// Command mqtt is an MQTT broker for tests, in a process of its own that can be killed or stopped. Its argument is a
// JSON document (spec). It prints its address and ends with its input. What is published it appends to a file, a JSON
// document a line, before it acknowledges it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	broker "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/watcherd/watcherd/internal/testservers/servers/program"
)

// spec is what internal/testservers calls MQTTSpec.
type spec struct {
	Dir  string // accepted has what was published
	Port int
}

// message is one that was published.
type message struct {
	Topic   string
	QoS     byte
	Payload []byte
}

func main() { program.Main(run) }

func run(_ context.Context, s *spec) error {
	address, err := program.Address(s.Port)
	if err != nil {
		return err
	}
	accepted, err := os.OpenFile(filepath.Join(s.Dir, "accepted"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	b := broker.New(&broker.Options{Logger: slog.New(slog.DiscardHandler)}) // it would log to the output
	err = errors.Join(
		b.AddHook(new(auth.AllowHook), nil), b.AddHook(&journal{file: accepted}, nil),
		b.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: address})),
	)
	if err != nil {
		return err
	}
	if err := b.Serve(); err != nil {
		return err
	}
	fmt.Println(address)
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, b.Close())
}

// journal notes what is published. The broker calls it from the goroutine of each client.
type journal struct {
	broker.HookBase
	mu   sync.Mutex
	file io.Writer
}

// ID implements the broker's Hook.
func (*journal) ID() string { return "journal" }

// Provides implements the broker's Hook.
func (*journal) Provides(b byte) bool { return bytes.Contains([]byte{broker.OnPublish}, []byte{b}) }

// OnPublish implements the broker's Hook.
func (j *journal) OnPublish(_ *broker.Client, p packets.Packet) (packets.Packet, error) {
	line, err := json.Marshal(message{Topic: p.TopicName, QoS: p.FixedHeader.Qos, Payload: p.Payload})
	if err != nil {
		return p, packets.ErrRejectPacket
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return p, packets.ErrRejectPacket
	}
	return p, nil
}
