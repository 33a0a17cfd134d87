package testservers

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/watcherd/watcherd/internal/testkit"
)

// RedisSpec is what a Redis server is started with.
type RedisSpec struct {
	Password string   // of the user watcherd; "": every client may do everything
	Cert     string   // PEM; TLS if not empty
	Key      string   // PEM
	Settings []string // lines of redis.conf
	Sentinel bool     // it is a sentinel
}

// Redis is a Redis server, which keeps what it accepts. Its methods may be called from any goroutine, one at a time.
type Redis struct {
	Addr string

	t      testing.TB
	dir    string
	bin    string
	mode   []string
	cmd    *exec.Cmd
	client valkey.Client // of an administrator
}

// StartRedis starts a server that is killed at the end of the test. Where Redis is not installed it skips the test
// or, in CI, fails it.
func StartRedis(t testing.TB, spec RedisSpec) *Redis {
	t.Helper()
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		const missing = "Redis is not installed: apt-get install -y --no-install-recommends redis-server"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	dir, err := os.MkdirTemp("", "watcherd-redis-") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	r := &Redis{t: t, dir: dir, bin: bin}
	t.Cleanup(func() {
		r.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := r.configure(&spec); err != nil {
		t.Fatalf("Redis server: %v", err)
	}
	if r.Start(); t.Failed() {
		t.FailNow()
	}
	return r
}

func (r *Redis) configure(spec *RedisSpec) error {
	r.Addr = testkit.Address(r.t)
	_, port, _ := net.SplitHostPort(r.Addr)
	lines := []string{"bind 127.0.0.1", "dir " + r.dir, "unixsocket " + r.socket(), "daemonize no", `logfile ""`}
	plain := port
	if spec.Cert != "" {
		plain = "0"
		lines = append(lines, "tls-port "+port, "tls-cert-file server.crt", "tls-key-file server.key", "tls-auth-clients no")
	}
	lines = append(lines, "port "+plain)
	if spec.Sentinel {
		r.mode = []string{"--sentinel"}
	} else {
		lines = append(lines, "appendonly yes", "appendfsync always", `save ""`)
	}
	if spec.Password != "" {
		// Administrators come over the socket as well: the default user has no password, and only this one may write.
		lines = append(lines, "user watcherd on >"+spec.Password+" ~* &* +@all")
		lines = append(lines, "user default on nopass ~* &* +@all")
	}
	lines = append(lines, spec.Settings...)
	for name, content := range map[string]string{"server.crt": spec.Cert, "server.key": spec.Key, "redis.conf": strings.Join(lines, "\n") + "\n"} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (r *Redis) socket() string { return filepath.Join(r.dir, "socket") }

// Start starts the server, with its data, at its address, if it does not run.
func (r *Redis) Start() {
	r.t.Helper()
	if r.cmd != nil {
		return
	}
	if err := r.start(); err != nil {
		r.t.Errorf("Redis server: %v", err)
	}
}

func (r *Redis) start() error {
	cmd := exec.CommandContext(context.WithoutCancel(r.t.Context()), r.bin, append([]string{"redis.conf"}, r.mode...)...)
	log, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.dir, log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd = cmd
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := r.connect()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(filepath.Join(r.dir, "log")) // the other error is the one to report
			return fmt.Errorf("%w\n%s", err, said)
		}
	}
}

// connect makes the administrator's client, once the server has read its data.
func (r *Redis) connect() error {
	c, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{"socket"}, ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1,
		DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", r.socket())
		},
	})
	if err != nil {
		return err
	}
	if err := c.Do(r.t.Context(), c.B().Arbitrary("PING").Build()).Error(); err != nil { // LOADING
		c.Close()
		return err
	}
	r.client = c
	return nil
}

// Freeze stops the process, which keeps its connections and reads nothing.
func (r *Redis) Freeze() { r.signal(syscall.SIGSTOP) }

// Thaw lets it continue.
func (r *Redis) Thaw() { r.signal(syscall.SIGCONT) }

func (r *Redis) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Errorf("signal the Redis server: %v", err)
	}
}

// Kill ends the process at once, if it runs.
func (r *Redis) Kill() {
	if r.cmd == nil {
		return
	}
	if r.client != nil {
		r.client.Close()
		r.client = nil
	}
	_ = r.cmd.Process.Kill() // it may have ended
	_ = r.cmd.Wait()
	r.cmd = nil
}

// Restart kills the server and starts it again.
func (r *Redis) Restart() {
	r.Kill()
	r.Start()
}

// Do runs a command as an administrator, and fails the test if it fails.
func (r *Redis) Do(command ...string) valkey.ValkeyResult {
	r.t.Helper()
	result := r.client.Do(context.WithoutCancel(r.t.Context()), r.client.B().Arbitrary(command...).Build())
	if err := result.Error(); err != nil && !valkey.IsValkeyNil(err) {
		r.t.Errorf("%s: %v", strings.Join(command, " "), err)
	}
	return result
}

// Entries are the fields of a stream's entries, in order.
func (r *Redis) Entries(stream string) []map[string]string {
	r.t.Helper()
	entries, err := r.Do("XRANGE", stream, "-", "+").AsXRange()
	if err != nil && !valkey.IsValkeyNil(err) {
		r.t.Errorf("read stream %s: %v", stream, err)
	}
	out := make([]map[string]string, len(entries))
	for i, e := range entries {
		out[i] = e.FieldValues
	}
	return out
}

// FormCluster makes the server, with cluster-enabled, a cluster of its own.
func (r *Redis) FormCluster() {
	r.t.Helper()
	r.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		info, err := r.Do("CLUSTER", "INFO").ToString()
		if strings.Contains(info, "cluster_state:ok") {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the cluster does not form: %s %v", info, err)
		}
	}
}
