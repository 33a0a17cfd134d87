package testservers

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
type Kafka struct {
	Addr string

	t      testing.TB
	spec   KafkaSpec
	cmd    *exec.Cmd
	input  io.WriteCloser
	output *bufio.Reader
}

// StartKafka starts a server that is killed at the end of the test.
func StartKafka(t testing.TB, spec KafkaSpec) *Kafka {
	t.Helper()
	k := &Kafka{t: t, spec: spec}
	t.Cleanup(k.Kill)
	if k.Start(); t.Failed() {
		t.FailNow()
	}
	return k
}

// Start starts the server again, with its data, at its address.
func (k *Kafka) Start() {
	k.t.Helper()
	if err := k.start(); err != nil {
		k.t.Errorf("Kafka server: %v", err)
	}
}

func (k *Kafka) start() error {
	program, err := kafkaProgram(k.t.Context())
	if err != nil {
		return err
	}
	spec, err := json.Marshal(k.spec)
	if err != nil {
		return err
	}
	k.cmd = exec.CommandContext(context.WithoutCancel(k.t.Context()), program, string(spec))
	k.cmd.Stderr = os.Stderr
	if k.input, err = k.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := k.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := k.cmd.Start(); err != nil {
		return err
	}
	k.output = bufio.NewReader(stdout)
	line, err := k.output.ReadString('\n')
	if err != nil {
		return err
	}
	k.Addr = strings.TrimSpace(line)
	_, port, err := net.SplitHostPort(k.Addr)
	if err == nil {
		k.spec.Port, err = strconv.Atoi(port)
	}
	return err
}

// kafkaProgram is the path of the server, which is built when it is not there.
func kafkaProgram(ctx context.Context) (string, error) {
	source, err := playground.ServersSource(".")
	if err != nil {
		return "", err
	}
	return playground.Kafka().Path(ctx, source, os.Stderr)
}

// Kill ends the process at once, if it still runs.
func (k *Kafka) Kill() {
	if k.cmd == nil || k.cmd.Process == nil {
		return
	}
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

// Restart kills the process and starts it again.
func (k *Kafka) Restart() {
	k.Kill()
	k.Start()
}

// Freeze stops the process, which keeps its connections and reads nothing.
func (k *Kafka) Freeze() {
	k.t.Helper()
	k.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(k.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		k.t.Errorf("the Kafka server is not stopped: %v, %v", status, err)
	}
}

// Thaw lets it continue.
func (k *Kafka) Thaw() { k.signal(syscall.SIGCONT) }

func (k *Kafka) signal(s syscall.Signal) {
	k.t.Helper()
	if err := k.cmd.Process.Signal(s); err != nil {
		k.t.Error(err)
	}
}

// Fail makes the broker answer count produce requests to a topic with an error code of Kafka.
func (k *Kafka) Fail(topic string, code int16, count int) {
	k.do(fmt.Sprintf(`{"do":"fail","topic":%q,"code":%d,"count":%d}`, topic, code, count))
}

// Heal ends Fail.
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
