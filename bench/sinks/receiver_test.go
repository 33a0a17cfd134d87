package sinks

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// receiverEnv tells the test's program to be a receiver: webhook, plugin or nats.
const receiverEnv = "BENCH_RECEIVER"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(receiverEnv) {
	case "webhook":
		err = serveHTTP(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				w.WriteHeader(http.StatusBadRequest)
			}
		})
	case "plugin":
		err = serveHTTP(acceptAll)
	case "nats":
		err = serveNATS(os.Getenv("BENCH_DIR"))
	default:
		m.Run()
		return
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// serveHTTP answers requests.
func serveHTTP(handler http.HandlerFunc) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: handler}
	return s.Serve(l)
}

// acceptAll answers with a result for each event.
func acceptAll(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	const accepted = `,{"status":"accepted"}`
	results := strings.Repeat(accepted, bytes.Count(body, []byte(`"specversion"`)))
	_, _ = io.WriteString(w, `{"results":[`+strings.TrimPrefix(results, ",")+`]}`) // the client notices
}

// serveNATS runs a server whose streams are kept in dir.
func serveNATS(dir string) error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: dir})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return fmt.Errorf("the NATS server does not start")
	}
	fmt.Println(s.ClientURL())
	s.WaitForShutdown()
	return nil
}

// receiver starts a receiver of that kind and returns its URL. It ends with the
// benchmark.
func receiver(b *testing.B, kind string) string {
	b.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), receiverEnv+"="+kind, "BENCH_DIR="+b.TempDir())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}
