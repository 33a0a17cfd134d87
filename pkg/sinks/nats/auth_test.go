package nats_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/nats"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

func user(t *testing.T) (nkeys.KeyPair, string, []byte) {
	t.Helper()
	return keyPair(t, nkeys.CreateUser)
}

func keyPair(t *testing.T, create func() (nkeys.KeyPair, error)) (kp nkeys.KeyPair, public string, seed []byte) {
	t.Helper()
	kp, err := create()
	if err == nil {
		public, err = kp.PublicKey()
	}
	if err == nil {
		seed, err = kp.Seed()
	}
	if err != nil {
		t.Fatal(err)
	}
	return kp, public, seed
}

// TestAuthentication connects in every way there is, with files relative to the
// configuration's folder.
func TestAuthentication(t *testing.T) {
	t.Setenv("NATS_AUTH_TEST", "s3cret")
	_, public, seed := user(t)
	operator, account, creds := decentral(t)
	for _, test := range []struct {
		name   string
		server func(o *server.Options)
		file   []byte
		change func(c *nats.Config)
	}{
		{"user", func(o *server.Options) { o.Username, o.Password = "me", "s3cret" }, nil, func(c *nats.Config) {
			c.User, c.Password = "me", &sinks.Secret{Env: "NATS_AUTH_TEST"}
		}},
		{"token", func(o *server.Options) { o.Authorization = "s3cret" }, []byte("s3cret\n"), func(c *nats.Config) {
			c.Token = &sinks.Secret{File: "auth"}
		}},
		{"nkey", func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} }, seed, func(c *nats.Config) { c.NkeySeedFile = "auth" }},
		{"credentials", func(o *server.Options) {
			o.JetStream = false
			o.TrustedKeys = []string{operator}
			resolver := &server.MemAccResolver{}
			public, token := account()
			if err := resolver.Store(public, token); err != nil {
				t.Fatal(err)
			}
			o.AccountResolver = resolver
		}, creds, func(c *nats.Config) { c.CredentialsFile = "auth" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startServer(t, test.server)
			defer stopServer(s)
			dir := t.TempDir()
			testkit.Write(t, filepath.Join(dir, "auth"), test.file)
			c := configFor(s.ClientURL(), false)
			test.change(c)
			sink := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir })
			if err := sink.Write(t.Context(), sinktest.Events(2, 2)); err != nil {
				t.Error(err)
			}
		})
	}
}

// decentral makes an operator, an account and a user's credentials.
func decentral(t *testing.T) (operator string, account func() (public, token string), creds []byte) {
	t.Helper()
	operatorKey, operatorPublic, _ := keyPair(t, nkeys.CreateOperator)
	accountKey, accountPublic, _ := keyPair(t, nkeys.CreateAccount)
	_, userPublic, userSeed := user(t)
	accountToken, err := jwt.NewAccountClaims(accountPublic).Encode(operatorKey)
	if err != nil {
		t.Fatal(err)
	}
	userToken, err := jwt.NewUserClaims(userPublic).Encode(accountKey)
	if err != nil {
		t.Fatal(err)
	}
	creds, err = jwt.FormatUserConfig(userToken, userSeed)
	if err != nil {
		t.Fatal(err)
	}
	return operatorPublic, func() (string, string) { return accountPublic, accountToken }, creds
}

// TestPasswordRotation changes the password on both sides: the connection, which
// the server ends, is made again with the new one.
func TestPasswordRotation(t *testing.T) {
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	testkit.Write(t, password, []byte("first"))
	with := func(pass string, port int) func(o *server.Options) {
		return func(o *server.Options) { o.Username, o.Password, o.JetStream, o.Port = "me", pass, false, port }
	}
	s := startServer(t, with("first", -1))
	c := configFor(s.ClientURL(), false)
	c.User, c.Password = "me", &sinks.Secret{File: "password"}
	sink := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir })
	if err := sink.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	port := s.Addr().(*net.TCPAddr).Port
	stopServer(s)
	s = startServer(t, with("second", port))
	defer stopServer(s)
	eventually(t, "the sink pauses for want of the new password", func() bool {
		class, _ := sinks.Classify(sink.Write(t.Context(), sinktest.Events(1, 1)))
		return class == sinks.ClassPause
	})
	testkit.Write(t, password, []byte("second"))
	eventually(t, "the new password is used", func() bool {
		return sink.Write(t.Context(), sinktest.Events(1, 1)) == nil
	})
}

// TestTLS connects over TLS with a client certificate, and again with another one
// from another authority after the server has changed both.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	first, second := testca.New(t, "first"), testca.New(t, "second")
	present := func(a *testca.Authority) {
		cert, key := a.Pair("watcherd", nil)
		testkit.Write(t, filepath.Join(dir, "ca.pem"), a.PEM)
		testkit.Write(t, filepath.Join(dir, "cert.pem"), cert)
		testkit.Write(t, filepath.Join(dir, "key.pem"), key)
	}
	with := func(a *testca.Authority, port int) func(o *server.Options) {
		return func(o *server.Options) {
			o.TLS, o.TLSVerify, o.TLSConfig, o.JetStream, o.Port = true, true, a.Server("127.0.0.1", a, nil), false, port
		}
	}
	present(first)
	s := startServer(t, with(first, -1))
	c := configFor(s.ClientURL(), false)
	c.TLS = sinks.TLS{CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem"}
	sink := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir })
	if err := sink.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
		t.Fatal(err)
	}
	port := s.Addr().(*net.TCPAddr).Port
	stopServer(s)
	s = startServer(t, with(second, port))
	defer stopServer(s)
	if err := sink.Write(t.Context(), sinktest.Events(1, 1)); err == nil {
		t.Error("a server of an unknown authority was trusted")
	}
	present(second)
	eventually(t, "the new files are used", func() bool {
		return sink.Write(t.Context(), sinktest.Events(1, 1)) == nil
	})
}

// TestClearText: a sink whose password others can read on the way warns of it.
func TestClearText(t *testing.T) {
	t.Setenv("NATS_AUTH_TEST", "s3cret")
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	other := ""
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			other = ip.IP.String()
		}
	}
	if other == "" {
		t.Skip("this machine has no address but loopback")
	}
	ca := testca.New(t, "ca")
	dir := t.TempDir()
	testkit.Write(t, filepath.Join(dir, "ca.pem"), ca.PEM)
	for _, test := range []struct {
		name, host string
		secure     bool
		want       int
	}{{"loopback", "127.0.0.1", false, 0}, {"network", other, false, 1}, {"TLS", other, true, 0}} {
		s := startServer(t, func(o *server.Options) {
			o.Host, o.Authorization, o.JetStream = test.host, "s3cret", false
			if test.secure {
				o.TLS, o.TLSConfig = true, ca.Server(test.host, nil, nil)
			}
		})
		c := configFor(s.ClientURL(), false)
		if c.Token = (&sinks.Secret{Env: "NATS_AUTH_TEST"}); test.secure {
			c.TLS = sinks.TLS{CAFile: "ca.pem"}
		}
		var log sinktest.Log
		sink := sinktest.Open(t, c, log.Option, func(o *sinks.Options) { o.Dir = dir })
		if err := sink.Write(t.Context(), sinktest.Events(1, 1)); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if got := strings.Count(log.String(), "in clear text"); got != test.want {
			t.Errorf("%s: %d warnings, want %d: %s", test.name, got, test.want, &log)
		}
		stopServer(s)
	}
}
