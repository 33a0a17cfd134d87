package kafka_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/kafka"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// quiet checks that no secret shows up in what a sink says.
func quiet(t *testing.T, log *sinktest.Log, reg *prometheus.Registry, errs ...error) {
	t.Helper()
	metrics, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if all := fmt.Sprintf("%s %v %v %+v %#v", log, metrics, errs, errs, errs); strings.Contains(all, "canary") {
		t.Errorf("a secret shows up: %s", all)
	}
}

// endpoint is a server that gives credentials: it answers each request that wants looks right to.
func endpoint(t *testing.T, answer string, wants func(r *http.Request) bool) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || !wants(r) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client","error_description":"canary-secret"}`)
			return
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestMechanisms authenticates in every way there is. Each is refused, and pauses the sink, with
// the wrong credentials, of which nothing shows.
func TestMechanisms(t *testing.T) {
	secret := func(name string) *sinks.Secret { return &sinks.Secret{File: name} }
	password := func(mechanism string) func(*testing.T) *kafka.SASL {
		return func(*testing.T) *kafka.SASL {
			return &kafka.SASL{Mechanism: mechanism, User: "me", Password: secret("secret")}
		}
	}
	accept := func(mechanism, expect string) testservers.KafkaSpec {
		return testservers.KafkaSpec{Accept: mechanism, Expect: expect}
	}
	for _, test := range []struct {
		name string
		spec testservers.KafkaSpec
		sasl func(t *testing.T) *kafka.SASL
	}{
		{"plain", testservers.KafkaSpec{Mechanism: "PLAIN", User: "me", Password: "canary-secret"}, password("PLAIN")},
		{"scram 256", testservers.KafkaSpec{Mechanism: "SCRAM-SHA-256", User: "me", Password: "canary-secret"}, password("SCRAM-SHA-256")},
		{"scram 512", testservers.KafkaSpec{Mechanism: "SCRAM-SHA-512", User: "me", Password: "canary-secret"}, password("SCRAM-SHA-512")},
		{"plain, answered", accept("PLAIN", "\x00me\x00canary-secret"), password("PLAIN")},
		{"token", accept("OAUTHBEARER", "auth=Bearer canary-secret\x01"), func(*testing.T) *kafka.SASL {
			return &kafka.SASL{Mechanism: "OAUTHBEARER", Token: secret("secret")}
		}},
		{"oauth", accept("OAUTHBEARER", "auth=Bearer canary-token"), func(t *testing.T) *kafka.SASL {
			url := endpoint(t, `{"access_token":"canary-token","token_type":"bearer"}`, func(r *http.Request) bool {
				id, pass, _ := r.BasicAuth()
				return id == "me" && pass == "canary-secret" && r.Form.Get("grant_type") == "client_credentials" && r.Form.Get("scope") == "kafka write"
			})
			return &kafka.SASL{Mechanism: "OAUTHBEARER", OAuth: &sinks.OAuth{TokenURL: url, ClientID: "me", ClientSecret: secret("secret"), Scopes: []string{"kafka", "write"}}}
		}},
		{"msk keys", accept("AWS_MSK_IAM", `"x-amz-credential":"AKIATEST/`), func(t *testing.T) *kafka.SASL {
			key := "AKIATEST"
			if content, err := os.ReadFile("secret"); err == nil && string(content) == "canary-wrong" {
				key = "AKIAWRONG"
			}
			return &kafka.SASL{Mechanism: "AWS_MSK_IAM", AccessKey: key, SecretKey: secret("secret"), SessionToken: secret("secret")}
		}},
		{"msk environment", accept("AWS_MSK_IAM", `"x-amz-credential":"canary-secret/`), func(t *testing.T) *kafka.SASL {
			t.Setenv("AWS_ACCESS_KEY_ID", content(t))
			t.Setenv("AWS_SECRET_ACCESS_KEY", "canary-key")
			return &kafka.SASL{Mechanism: "AWS_MSK_IAM"}
		}},
		{"msk role", accept("AWS_MSK_IAM", `"x-amz-security-token":"canary-session"`), func(t *testing.T) *kafka.SASL {
			t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", absolute(t, "secret"))
			t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/watcherd")
			t.Setenv("AWS_ENDPOINT_URL_STS", endpoint(t, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
				<Credentials><SessionToken>canary-session</SessionToken><SecretAccessKey>canary-key</SecretAccessKey><AccessKeyId>AKIATEST</AccessKeyId></Credentials>
				</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, func(r *http.Request) bool {
				return r.Form.Get("WebIdentityToken") == "canary-secret" && r.Form.Get("RoleArn") == "arn:aws:iam::1:role/watcherd"
			}))
			return &kafka.SASL{Mechanism: "AWS_MSK_IAM"}
		}},
		{"msk pod identity", accept("AWS_MSK_IAM", `"x-amz-security-token":"canary-session"`), func(t *testing.T) *kafka.SASL {
			t.Setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", absolute(t, "secret"))
			t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", endpoint(t, `{"AccessKeyId":"AKIATEST","SecretAccessKey":"canary-key","Token":"canary-session"}`, func(r *http.Request) bool {
				return r.Header.Get("Authorization") == "canary-secret"
			}))
			return &kafka.SASL{Mechanism: "AWS_MSK_IAM"}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := testservers.StartKafka(t, test.spec)
			for _, right := range []bool{true, false} {
				t.Run(fmt.Sprint("right ", right), func(t *testing.T) {
					t.Chdir(t.TempDir())
					for _, name := range []string{
						"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
					} {
						t.Setenv(name, "")
					}
					t.Setenv("AWS_REGION", "eu-central-1")
					secret := map[bool]string{true: "canary-secret", false: "canary-wrong"}[right]
					testkit.Write(t, "secret", []byte(secret))
					c := configFor(k.Addr)
					c.SASL, c.Create = test.sasl(t), &kafka.Create{}
					var log sinktest.Log
					reg := prometheus.NewRegistry()
					s := sinktest.Open(t, c, log.Option, func(o *sinks.Options) { o.Dir, o.Registerer = absolute(t, "."), reg })
					if right {
						deliver(t, s, sinktest.Events(2, 2))
						quiet(t, &log, reg)
						return
					}
					if test.spec.Mechanism != "" {
						// kfake ends the connection without an answer, for which there may be other reasons.
						err := s.Write(t.Context(), sinktest.Events(2, 2))
						sinktest.WantClass(t, err, sinks.ClassRetry, "SASL")
						quiet(t, &log, reg, err)
						return
					}
					err := s.Write(t.Context(), sinktest.Events(2, 2))
					sinktest.WantClass(t, err, sinks.ClassPause)
					quiet(t, &log, reg, err)
				})
			}
		})
	}
}

func content(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("secret")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSecretMissing: what cannot be read pauses the sink with the key's name, and is read again.
func TestSecretMissing(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{Mechanism: "SCRAM-SHA-256", User: "me", Password: "s3cret"})
	dir := t.TempDir()
	c := configFor(k.Addr)
	c.SASL, c.Create = &kafka.SASL{Mechanism: "SCRAM-SHA-256", User: "me", Password: &sinks.Secret{File: "password"}}, &kafka.Create{}
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir })
	sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "sasl.password", "password")
	testkit.Write(t, filepath.Join(dir, "password"), []byte("s3cret\n"))
	deliver(t, s, sinktest.Events(1, 1))
	c.TLS = &sinks.TLS{CAFile: "no.pem"}
	sinktest.WantClass(t, sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir }).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "no.pem")
}

// TestTLS connects with a client certificate, and with another one of another authority when the
// server has changed both.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	first, second := testca.New(t, "first"), testca.New(t, "second")
	spec := func(ca *testca.Authority, port int) testservers.KafkaSpec {
		cert, key := certificates(t, dir, ca)
		return testservers.KafkaSpec{Port: port, Cert: cert, Key: key, ClientCA: string(ca.PEM)}
	}
	k := testservers.StartKafka(t, spec(first, 0))
	c := configFor(k.Addr)
	c.Timeout = sinks.Duration(2 * time.Second)
	c.TLS, c.Create = &sinks.TLS{CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem"}, &kafka.Create{}
	s := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = dir })
	deliver(t, s, sinktest.Events(1, 1))
	k.Kill()
	next := spec(second, 0)
	next.Port = testkit.PortOf(t, k.Addr)
	certificates(t, dir, first) // the sink's are still the old ones
	testservers.StartKafka(t, next)
	sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "certificate")
	certificates(t, dir, second)
	deliver(t, s, sinktest.Events(1, 1))

	plain := configFor(k.Addr)
	plain.Timeout = sinks.Duration(2 * time.Second)
	sinktest.WantClass(t, sinktest.Open(t, plain).Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry, "TLS")
}

// TestLeastPrivilege: writing and describing are all that mode history needs. Replaying into mode state needs reading,
// too, and says so.
func TestLeastPrivilege(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{Mechanism: "PLAIN", User: "me", Password: "s3cret", Unprivileged: true})
	t.Setenv("KAFKA_TEST_PASSWORD", "s3cret")
	c := configFor(k.Addr)
	as := func(user string) *kafka.SASL {
		return &kafka.SASL{Mechanism: "PLAIN", User: user, Password: &sinks.Secret{Env: "KAFKA_TEST_PASSWORD"}}
	}
	c.SASL, c.Create = as("admin"), &kafka.Create{}
	deliver(t, sinktest.Open(t, c), sinktest.Events(1, 1))
	c.SASL, c.Create, c.Mode = as("me"), nil, kafka.State
	var log sinktest.Log
	s := sinktest.Open(t, c, log.Option)
	deliver(t, s, sinktest.Events(4, 4))
	if !strings.Contains(log.String(), "settings of the topic cannot be read") {
		t.Errorf("the log says\n%s", &log)
	}
	events := sinktest.Events(1, 1)
	events[0].Replay = true
	sinktest.WantClass(t, s.Write(t.Context(), events), sinks.ClassPause, "TOPIC_AUTHORIZATION_FAILED")
}

// TestRightsLater: rights that an operator grants while the sink is paused for them are used.
func TestRightsLater(t *testing.T) {
	k := testservers.StartKafka(t, testservers.KafkaSpec{Mechanism: "PLAIN", User: "me", Password: "s3cret", Unprivileged: true})
	admin := observe(t, k.Addr, kgo.SASL(plain.Auth{User: "admin", Pass: "s3cret"}.AsMechanism()))
	admin.makeTopic(topic, 1)
	admin.mayWrite("User:me", false)
	t.Setenv("KAFKA_TEST_PASSWORD", "s3cret")
	c := configFor(k.Addr)
	c.SASL = &kafka.SASL{Mechanism: "PLAIN", User: "me", Password: &sinks.Secret{Env: "KAFKA_TEST_PASSWORD"}}
	s := sinktest.Open(t, c)
	for range 2 {
		sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassPause, "AUTHORIZATION_FAILED")
	}
	admin.mayWrite("User:me", true)
	deliver(t, s, sinktest.Events(1, 1))
}

// TestConfig: each problem names its key, and no message repeats a value that may hold a secret.
func TestConfig(t *testing.T) {
	secret := &sinks.Secret{Env: "X"}
	for _, test := range []struct {
		path   string
		change func(c *kafka.Config)
	}{
		{"brokers", func(c *kafka.Config) { c.Brokers = nil }},
		{"brokers[0]", func(c *kafka.Config) { c.Brokers = []string{"me:canary@host:9092"} }},
		{"brokers[0]", func(c *kafka.Config) { c.Brokers = []string{"host"} }},
		{"brokers[1]", func(c *kafka.Config) { c.Brokers = []string{"host:9092", "host:0"} }},
		{"topic", func(c *kafka.Config) { c.Topic = "{name}" }},
		{"mode", func(c *kafka.Config) { c.Mode = "both" }},
		{"acks", func(c *kafka.Config) { c.Acks = "none" }},
		{"idempotent", func(c *kafka.Config) { c.Acks = "leader" }},
		{"compression", func(c *kafka.Config) { c.Compression = "brotli" }},
		{"maxMessageBytes", func(c *kafka.Config) { c.MaxMessageBytes = 1 }},
		{"timeout", func(c *kafka.Config) { c.Timeout = 0 }},
		{"create.partitions", func(c *kafka.Config) { c.Create = &kafka.Create{Partitions: -1} }},
		{"create.replicas", func(c *kafka.Config) { c.Create = &kafka.Create{Replicas: 1000} }},
		{"create.config", func(c *kafka.Config) {
			c.Mode, c.Create = kafka.State, &kafka.Create{Config: map[string]string{"cleanup.policy": "delete"}}
		}},
		{"tls", func(c *kafka.Config) { c.TLS = &sinks.TLS{CertFile: "x"} }},
		{"sasl.mechanism", func(c *kafka.Config) { c.SASL = &kafka.SASL{Mechanism: "GSSAPI"} }},
		{"sasl.mechanism", func(c *kafka.Config) {
			c.SASL = &kafka.SASL{Mechanism: "PLAIN", User: "u", Password: secret, Token: secret}
		}},
		{"sasl.user", func(c *kafka.Config) { c.SASL = &kafka.SASL{Mechanism: "PLAIN"} }},
		{"sasl.password", func(c *kafka.Config) { c.SASL = &kafka.SASL{Mechanism: "PLAIN", User: "u", Password: &sinks.Secret{}} }},
		{"sasl.token", func(c *kafka.Config) { c.SASL = &kafka.SASL{Mechanism: "OAUTHBEARER"} }},
		{"sasl.oauth.tokenURL", func(c *kafka.Config) {
			c.SASL = &kafka.SASL{Mechanism: "OAUTHBEARER", OAuth: &sinks.OAuth{TokenURL: "https://me:canary@x/", ClientID: "c", ClientSecret: secret}}
		}},
		{"sasl.oauth.clientID", func(c *kafka.Config) {
			c.SASL = &kafka.SASL{Mechanism: "OAUTHBEARER", OAuth: &sinks.OAuth{TokenURL: "https://x/"}}
		}},
		{"sasl.accessKey", func(c *kafka.Config) { c.SASL = &kafka.SASL{Mechanism: "AWS_MSK_IAM", SecretKey: secret} }},
	} {
		c := configFor("127.0.0.1:9092")
		test.change(c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), test.path+": ") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", test.path, err)
		}
	}
	var c kafka.Config
	if err := json.Unmarshal([]byte(`{"brokers":["k1:9092"],"tls":{}}`), &c); err != nil || c.TLS == nil {
		t.Errorf("an empty tls block: %v, %v", c.TLS, err)
	}
}
