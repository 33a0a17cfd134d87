package nats_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"
)

// nodeEnv makes the test binary a server instead, so that it can be killed, or stopped,
// as a server is: without a word. Its value is a spec.
const nodeEnv = "WATCHERD_TEST_NATS_NODE"

func TestMain(m *testing.M) {
	if text := os.Getenv(nodeEnv); text != "" {
		if err := runNode(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// spec is what a server in a process of its own is told.
type spec struct {
	Name, Dir      string
	Port           int // of clients; -1: any
	User, Password string
	MaxPayload     int32
	ClusterPort    int    // 0: no cluster
	Routes         string // of the cluster
}

// runNode runs a server until its standard input ends, which it does with its parent.
func runNode(text string) error {
	var n spec
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return err
	}
	o := &server.Options{
		ServerName: n.Name, Host: "127.0.0.1", Port: n.Port, NoLog: true, NoSigs: true, JetStream: true, StoreDir: n.Dir,
		Username: n.User, Password: n.Password, MaxPayload: n.MaxPayload,
	}
	if n.ClusterPort != 0 {
		o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: n.ClusterPort}
		o.Routes = server.RoutesFromStr(n.Routes)
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		return fmt.Errorf("server %s does not start", n.Name)
	}
	fmt.Println(s.ClientURL())
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	return nil
}

// node is a server in a process of its own.
type node struct {
	t    *testing.T
	spec spec
	name string
	url  string
	cmd  *exec.Cmd
}

// startNode starts a server that is killed at the end of the test.
func startNode(t *testing.T, s spec) *node {
	t.Helper()
	n := &node{t: t, spec: s, name: s.Name}
	n.start()
	t.Cleanup(n.kill)
	return n
}

func (n *node) start() {
	text, err := json.Marshal(n.spec)
	if err != nil {
		n.t.Error(err)
		return
	}
	n.cmd = exec.CommandContext(context.WithoutCancel(n.t.Context()), os.Args[0])
	n.cmd.Env = append(os.Environ(), nodeEnv+"="+string(text))
	n.cmd.Stderr = os.Stderr
	_, err = n.cmd.StdinPipe() // closed by Wait
	if err != nil {
		n.t.Error(err)
		return
	}
	stdout, err := n.cmd.StdoutPipe()
	if err == nil {
		err = n.cmd.Start()
	}
	if err != nil {
		n.t.Error(err)
		return
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		n.t.Errorf("server %s: %v", n.name, err)
		return
	}
	n.url = strings.TrimSpace(line)
}

// kill ends the process at once, if it still runs.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// restart kills the process and starts it again with its data, at its address.
func (n *node) restart() {
	n.kill()
	n.spec.Port = portOf(n.url)
	n.start()
}

// freeze stops the process, which keeps its connections and reads nothing any more.
func (n *node) freeze() {
	n.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(n.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		n.t.Errorf("server %s is not stopped: %v, %v", n.name, status, err)
	}
}

// thaw lets it go on.
func (n *node) thaw() { n.signal(syscall.SIGCONT) }

func (n *node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Error(err)
	}
}

func portOf(text string) (port int) {
	if u, err := url.Parse(text); err == nil {
		_, _ = fmt.Sscan(u.Port(), &port)
	}
	return port
}

// startCluster starts three servers that know each other.
func startCluster(t *testing.T) []*node {
	t.Helper()
	var ports []int
	var routes []string
	for range 3 { // the servers must know each other's ports beforehand
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		route := (&url.URL{Scheme: "nats", Host: l.Addr().String()}).String()
		ports, routes = append(ports, portOf(route)), append(routes, route)
		l.Close()
	}
	var nodes []*node
	for i, port := range ports {
		nodes = append(nodes, startNode(t, spec{
			Name: fmt.Sprintf("n%d", i), Dir: t.TempDir(), Port: -1, ClusterPort: port, Routes: strings.Join(routes, ","),
		}))
	}
	return nodes
}
