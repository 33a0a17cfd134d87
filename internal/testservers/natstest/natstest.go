// Package natstest runs NATS servers with JetStream, each in a process of its own, so that it can be killed or
// stopped as a server is: without a word. The process is the test's own program: see Main.
package natstest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/watcherd/watcherd/internal/testkit"
)

// nodeEnv makes the test binary a server instead, so that it can be killed, or stopped,
// as a server is: without a word. Its value is a spec.
const nodeEnv = "WATCHERD_TEST_NATS_NODE"

// Main runs a server instead of the tests, and reports true, in a process that [Start] has begun. TestMain calls it.
func Main() bool {
	text := os.Getenv(nodeEnv)
	if text == "" {
		return false
	}
	if err := runNode(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // it is the main function of this process
	}
	return true
}

// VerifyMain is a TestMain of tests that must leave no goroutine.
func VerifyMain(m *testing.M) {
	if !Main() {
		goleak.VerifyTestMain(m)
	}
}

// patience is for what takes a moment on an idle machine.
const patience = time.Minute

// Spec is what a server in a process of its own gets.
type Spec struct {
	Name, Dir      string
	Port           int // of clients; 0: any
	User, Password string
	Users          []User // instead of User and Password
	Config         string // a file with what is not given here
	MaxPayload     int32
	ClusterPort    int    // 0: no cluster
	Routes         string // of the cluster
	Advertise      string // to the cluster, in place of the address; "": that
	NoAdvertise    bool   // clients learn no addresses of the cluster but those that they have
}

// User is a user with what it may publish and subscribe to; nil: everything.
type User struct {
	Name, Password     string
	Publish, Subscribe []string
}

func (u *User) option() *server.User {
	p := &server.Permissions{}
	if u.Publish != nil {
		p.Publish = &server.SubjectPermission{Allow: u.Publish}
	}
	if u.Subscribe != nil {
		p.Subscribe = &server.SubjectPermission{Allow: u.Subscribe}
	}
	return &server.User{Username: u.Name, Password: u.Password, Permissions: p}
}

// runNode runs a server until its standard input ends, which it does with its parent.
func runNode(text string) error {
	var n Spec
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return err
	}
	o := &server.Options{}
	if n.Config != "" {
		if err := o.ProcessConfigFile(n.Config); err != nil {
			return err
		}
	}
	o.ServerName, o.Host, o.Port, o.NoLog, o.NoSigs, o.JetStream, o.StoreDir = n.Name, "127.0.0.1", n.Port, true, true, true, n.Dir
	o.JetStreamMaxStore = 1 << 40 // streams reserve what they may take, not what the disk of a test has
	o.Username, o.Password, o.MaxPayload = n.User, n.Password, n.MaxPayload
	o.AuthTimeout = patience.Seconds() // of clients on a machine that has much else to do
	for i := range n.Users {
		o.Users = append(o.Users, n.Users[i].option())
	}
	if n.ClusterPort != 0 {
		o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: n.ClusterPort, NoAdvertise: n.NoAdvertise, Advertise: n.Advertise}
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
	fmt.Println(s.ClientURL()) //nolint:forbidigo // for the process that began this one
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	return nil
}

// Node is a server in a process of its own.
type Node struct {
	Name  string
	URL   string
	State string // up, killed, stopped, or parted from the others; for logs

	t     testing.TB
	spec  Spec
	cmd   *exec.Cmd
	links []*testkit.Proxy // to the other servers, and from them
}

// Start starts a server that is killed at the end of the test.
func Start(t testing.TB, s Spec) *Node {
	t.Helper()
	if s.Port == 0 {
		s.Port = testkit.Port(t)
	}
	n := &Node{Name: s.Name, t: t, spec: s}
	n.Start()
	t.Cleanup(n.Kill)
	return n
}

// Start starts the process again with its data, at its address.
func (n *Node) Start() {
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
		n.t.Errorf("server %s: %v", n.Name, err)
		return
	}
	n.URL, n.State = strings.TrimSpace(line), "up"
}

// Kill ends the process at once, if it still runs.
func (n *Node) Kill() {
	n.State = "killed"
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// Restart kills the process and starts it again with its data, at its address.
func (n *Node) Restart() {
	n.Kill()
	n.Start()
}

// Wipe removes the data of a server that does not run.
func (n *Node) Wipe() {
	if err := os.RemoveAll(n.spec.Dir); err != nil {
		n.t.Error(err)
	}
}

// Freeze stops the process, which keeps its connections and reads nothing any more.
func (n *Node) Freeze() {
	n.State = "stopped"
	n.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(n.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		n.t.Errorf("server %s is not stopped: %v, %v", n.Name, status, err)
	}
}

// Thaw continues it.
func (n *Node) Thaw() {
	n.State = "up"
	n.signal(syscall.SIGCONT)
}

func (n *Node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Error(err)
	}
}

// StartCluster starts three servers that know each other.
func StartCluster(t testing.TB) []*Node {
	t.Helper()
	return startCluster(t, Spec{})
}

// StartClusterBehind starts three servers whose clients learn no addresses but those that they are given: proxies. Between
// the servers are proxies, too.
func StartClusterBehind(t testing.TB) []*Node {
	t.Helper()
	return startCluster(t, Spec{NoAdvertise: true})
}

func startCluster(t testing.TB, s Spec) []*Node {
	t.Helper()
	var ports []int
	var taken []net.Listener // until all ports are known
	for range 3 {            // the servers must know each other's ports beforehand
		l := testkit.Listen(t)
		taken = append(taken, l)
		ports = append(ports, testkit.PortOf(t, l.Addr().String()))
	}
	for _, l := range taken {
		l.Close()
	}
	nodes := make([]*Node, len(ports))
	links := make([][]*testkit.Proxy, len(ports)) // of each node
	for i := range ports {
		var routes []string
		for k, port := range ports {
			addr := net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
			if s.NoAdvertise && k != i {
				p := testkit.NewProxy(t, addr)
				links[i], links[k] = append(links[i], p), append(links[k], p)
				addr = p.Addr
			}
			routes = append(routes, "nats://"+addr)
		}
		s.Name, s.Dir, s.Port, s.ClusterPort, s.Routes = fmt.Sprintf("n%d", i), t.TempDir(), 0, ports[i], strings.Join(routes, ",")
		if s.NoAdvertise {
			s.Advertise = "127.0.0.1:1" // no server listens there: what the others learn of a server is no way around the proxies
		}
		nodes[i] = Start(t, s)
	}
	for i, n := range nodes {
		n.links = links[i]
	}
	return nodes
}

// Part cuts the server off from the others of a cluster that is behind proxies, but not from its clients, until Join.
func (n *Node) Part() {
	n.State = "parted"
	for _, p := range n.links {
		p.Cut()
	}
}

// Join ends Part.
func (n *Node) Join() {
	n.State = "up"
	for _, p := range n.links {
		p.Restore()
	}
}

// Connect returns a client of the server, until the test ends: for what others do to a stream.
func (n *Node) Connect() jetstream.JetStream {
	n.t.Helper()
	nc, err := nats.Connect(n.URL)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		n.t.Fatal(err)
	}
	return js
}
