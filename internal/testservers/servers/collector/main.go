// Command collector is the OTLP receiver of the OpenTelemetry Collector for tests, over HTTP, in a process of
// its own that can be killed or stopped. Its argument is a JSON document (spec). It prints its
// address and ends with its input. What it accepts it appends to a file, a JSON document a line.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/watcherd/watcherd/internal/testservers/servers/program"
)

// spec is what internal/testservers calls CollectorSpec.
type spec struct {
	Dir  string // accepted has what it accepted; refuse, if it is there, the text that no record may hold
	Port int
	Cert string // PEM; TLS if not empty
	Key  string
}

func main() { program.Main(run) }

func run(ctx context.Context, s *spec) error {
	address, err := program.Address(s.Port)
	if err != nil {
		return err
	}
	factory := otlpreceiver.NewFactory()
	config, ok := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	if !ok {
		return errors.New("the receiver's config is of another type")
	}
	http := config.Protocols.HTTP.GetOrInsertDefault()
	http.ServerConfig.NetAddr.Endpoint = address
	if s.Cert != "" {
		http.ServerConfig.TLS = configoptional.Some(configtls.ServerConfig{
			Config: configtls.Config{CertPem: configopaque.String(s.Cert), KeyPem: configopaque.String(s.Key)},
		})
	}
	accepted, err := os.OpenFile(filepath.Join(s.Dir, "accepted"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	logs, err := consumer.NewLogs(func(_ context.Context, l plog.Logs) error { return s.accept(l, accepted) })
	if err != nil {
		return err
	}
	receiver, err := factory.CreateLogs(ctx, receivertest.NewNopSettings(factory.Type()), config, logs)
	if err != nil {
		return err
	}
	if err := receiver.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	fmt.Println(address)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// record is what is noted of a log record.
type record struct {
	Resource, Attributes map[string]any
	EventName, Severity  string
	Time, Observed       int64
	Body                 any
}

// accept notes the records, or refuses all of them.
func (s *spec) accept(l plog.Logs, accepted io.Writer) error {
	var lines bytes.Buffer
	for _, resource := range l.ResourceLogs().All() {
		for _, scope := range resource.ScopeLogs().All() {
			for _, r := range scope.LogRecords().All() {
				line, err := json.Marshal(record{
					Resource: resource.Resource().Attributes().AsRaw(), Attributes: r.Attributes().AsRaw(), EventName: r.EventName(),
					Severity: r.SeverityText(), Time: int64(r.Timestamp()), Observed: int64(r.ObservedTimestamp()), Body: r.Body().AsRaw(),
				})
				if err != nil {
					return consumererror.NewPermanent(err)
				}
				lines.Write(append(line, '\n'))
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(s.Dir, "refuse")); err == nil && strings.Contains(lines.String(), string(text)) {
		return consumererror.NewPermanent(status.Error(codes.InvalidArgument, "a record is refused")) // else it answers 500
	}
	_, err := accepted.Write(lines.Bytes())
	return err
}
