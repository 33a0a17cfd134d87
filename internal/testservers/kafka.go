package testservers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

// KafkaSpec is what a Kafka server is started with.
type KafkaSpec struct {
	Dir           string            // of its data, which outlives it; "": in memory
	Port          int               // 0: any
	Partitions    int               // of a new topic; 0: one
	Config        map[string]string // of the broker
	Mechanism     string            // PLAIN or SCRAM; "": no authentication
	User          string
	Password      string
	Unprivileged  bool   // User may write to topics and describe them, and nothing else; admin has the same password
	Accept        string // OAUTHBEARER or AWS_MSK_IAM, whose credentials are looked at by Expect
	Expect        string // what the credentials of Accept must hold
	Cert          string // PEM; TLS if not empty
	Key           string
	ClientCA      string // PEM; client certificates are demanded if not empty
	Discard       bool   // acknowledge records and keep none
	CutAfterBytes int64  // each connection ends after so many bytes from the client
}

// Kafka is a server with one broker. Its methods may be called from any goroutine, one at a time.
type Kafka struct{ *process }

// StartKafka starts a server that is killed at the end of the test.
func StartKafka(t testing.TB, spec KafkaSpec) *Kafka {
	t.Helper()
	return &Kafka{run(t, playground.Kafka(), func(port int) any {
		if spec.Port == 0 {
			spec.Port = port
		}
		return spec
	})}
}

// Fail makes the broker answer count produce requests to a topic with an error code of Kafka.
func (k *Kafka) Fail(topic string, code int16, count int) {
	k.do(fmt.Sprintf(`{"do":"fail","topic":%q,"code":%d,"count":%d}`, topic, code, count))
}

// Stall keeps the broker from answering fetches.
func (k *Kafka) Stall() { k.do(`{"do":"stall"}`) }

// Heal ends Fail and Stall.
func (k *Kafka) Heal() { k.do(`{"do":"heal"}`) }

// Compact compacts the topics that are to be compacted.
func (k *Kafka) Compact() { k.do(`{"do":"compact"}`) }

func (k *Kafka) do(command string) {
	k.t.Helper()
	if _, err := io.WriteString(k.input, command+"\n"); err != nil {
		k.t.Errorf("command to the Kafka server: %v", err)
		return
	}
	if line, err := k.output.ReadString('\n'); err != nil || line != "ok\n" {
		k.t.Errorf("command to the Kafka server: %q, %v", line, err)
	}
}

// DataDir is a folder for a server's data.
func DataDir(t testing.TB) string { return filepath.Join(t.TempDir(), "kafka") }

// KafkaRecord is a record as a consumer of another library has read it.
type KafkaRecord struct {
	Partition int
	Balanced  int // the partition of the key by that library's version of Java's partitioner
	Key       string
	Value     []byte
	Headers   map[string]string
}

// Consume reads so many records of a topic with another library than watcherd's.
func (k *Kafka) Consume(topic string, records int) (read []KafkaRecord) {
	k.t.Helper()
	consumer := playground.Consumer()
	source, err := consumer.Source(".")
	if err != nil {
		k.t.Fatal(err)
	}
	path, err := consumer.Path(k.t.Context(), source, os.Stderr)
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := exec.CommandContext(k.t.Context(), path, fmt.Sprintf(`{"Broker":%q,"Topic":%q,"Records":%d}`, k.Addr, topic, records))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		k.t.Fatal(err)
	}
	for line := range bytes.Lines(out) {
		var r KafkaRecord
		if err := json.Unmarshal(line, &r); err != nil {
			k.t.Fatal(err)
		}
		read = append(read, r)
	}
	return read
}
