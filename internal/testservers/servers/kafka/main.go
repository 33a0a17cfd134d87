// Command kafka is a Kafka server for tests: kfake, in a process of its own that can be killed or
// stopped. Its argument is a JSON document (spec). It prints its address, obeys one command a
// line of its standard input, each answered by a line, and ends with its input.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watcherd/watcherd/internal/testservers/servers/program"
)

// spec is what internal/testservers calls KafkaSpec.
type spec struct {
	Dir           string
	Port          int
	Partitions    int
	Config        map[string]string
	Mechanism     string
	User          string
	Password      string
	Unprivileged  bool   // User may write to topics and describe them, and nothing else
	Accept        string // a mechanism that kfake does not know
	Expect        string // what the credentials of Accept must hold
	Cert          string // PEM; TLS if not empty
	Key           string
	ClientCA      string // PEM; client certificates are demanded if not empty
	Discard       bool   // acknowledge records and keep none
	CutAfterBytes int64  // each connection ends after so many bytes from the client
}

// command is a line of the input.
type command struct {
	Do    string // fail, stall, heal or compact
	Topic string
	Code  int16
	Count int
}

func main() { program.Main(run) }

func run(_ context.Context, s *spec) error {
	options, err := s.options()
	if err != nil {
		return err
	}
	c, err := kfake.NewCluster(options...)
	if err != nil {
		return err
	}
	defer c.Close()
	if s.Accept != "" {
		s.accept(c)
	}
	fmt.Println(c.ListenAddrs()[0])
	return obey(c)
}

func (s *spec) options() ([]kfake.Opt, error) {
	options := []kfake.Opt{
		kfake.NumBrokers(1), kfake.Ports(s.Port), kfake.DefaultNumPartitions(max(s.Partitions, 1)),
		kfake.BrokerConfigs(s.Config), kfake.ListenFn(s.listen), kfake.AllowAutoTopicCreation(),
	}
	if s.Discard {
		options = append(options, kfake.BlackholeProduce())
	}
	if s.Dir != "" {
		options = append(options, kfake.DataDir(s.Dir))
	}
	switch {
	case s.Unprivileged:
		allow := func(resource kmsg.ACLResourceType, name string, operation kmsg.ACLOperation) kfake.ACL {
			return kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: operation, Allow: true}
		}
		options = append(options, kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser(s.Mechanism, "admin", s.Password),
			kfake.User(s.Mechanism, s.User, s.Password,
				allow(kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationWrite),
				allow(kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationDescribe)))
	case s.Mechanism != "":
		options = append(options, kfake.EnableSASL(), kfake.Superuser(s.Mechanism, s.User, s.Password))
	}
	if s.Cert == "" {
		return options, nil
	}
	pair, err := tls.X509KeyPair([]byte(s.Cert), []byte(s.Key))
	if err != nil {
		return nil, err
	}
	trust := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if s.ClientCA != "" {
		trust.ClientCAs, trust.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		trust.ClientCAs.AppendCertsFromPEM([]byte(s.ClientCA))
	}
	return append(options, kfake.TLS(trust)), nil
}

// listen listens on loopback, for connections that end early if the spec wants that.
func (s *spec) listen(network, address string) (net.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen(network, net.JoinHostPort("127.0.0.1", port))
	if err != nil || s.CutAfterBytes == 0 {
		return l, err
	}
	return &cutter{Listener: l, after: s.CutAfterBytes}, nil
}

type cutter struct {
	net.Listener
	after int64
}

func (l *cutter) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &cut{Conn: conn, left: l.after}, err
}

type cut struct {
	net.Conn
	left int64
}

func (c *cut) Read(b []byte) (int, error) {
	if c.left <= 0 {
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b)
	c.left -= int64(n)
	return n, err
}

// accept answers for a mechanism that kfake does not know, by what the credentials hold.
func (s *spec) accept(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.SupportedMechanisms = []string{s.Accept}
		if r.(*kmsg.SASLHandshakeRequest).Mechanism != s.Accept {
			resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
		}
		return resp, nil, true
	})
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		given := r.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes
		if !bytes.Contains(given, []byte(s.Expect)) {
			resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
			resp.ErrorMessage = new("refused: " + string(given)) // no server is this careless; no client may repeat it
		} else if s.Accept == "AWS_MSK_IAM" {
			resp.SASLAuthBytes = []byte(`{"version":"2020_10_22"}`)
		}
		return resp, nil, true
	})
}

// obey reads commands until the input ends.
func obey(c *kfake.Cluster) error {
	var faults []*kfake.FaultHandle
	healed := make(chan struct{})
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var cmd command
		if err := json.Unmarshal(in.Bytes(), &cmd); err != nil {
			return err
		}
		switch cmd.Do {
		case "fail":
			code, _ := errors.AsType[*kerr.Error](kerr.ErrorForCode(cmd.Code))
			faults = append(faults, c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: cmd.Topic, Err: code, Count: cmd.Count}))
		case "stall":
			until := healed
			c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
				c.SleepControl(func() { <-until })
				return nil, nil, false
			})
		case "heal":
			for _, f := range faults {
				f.Remove()
			}
			faults = nil
			close(healed)
			healed = make(chan struct{})
		case "compact":
			c.Compact()
		default:
			return fmt.Errorf("unknown command %s", strings.TrimSpace(cmd.Do))
		}
		fmt.Println("ok")
	}
	return in.Err()
}
