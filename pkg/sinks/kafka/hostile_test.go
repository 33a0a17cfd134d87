package kafka_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/kafka"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// A broker that quotes the credentials where it does not make a topic has no part of them in the error.
func TestQuotedWithoutTopic(t *testing.T) {
	t.Setenv("KAFKA_TEST_PASSWORD", "canary-secret")
	c := configFor(challenger(t, "", 0))
	c.SASL, c.Create = &kafka.SASL{Mechanism: "PLAIN", User: "me", Password: &sinks.Secret{Env: "KAFKA_TEST_PASSWORD"}}, &kafka.Create{}
	err := sinktest.Open(t, c).Write(t.Context(), sinktest.Events(1, 1))
	sinktest.WantClass(t, err, sinks.ClassPause, "create it", "***")
	if strings.Contains(err.Error(), "canar") {
		t.Error(err)
	}
}

// A broker that quotes the credentials where it does not show the settings of a topic has no part of them in the log.
func TestQuotedWithoutSettings(t *testing.T) {
	t.Setenv("KAFKA_TEST_PASSWORD", "canary-secret")
	c := configFor((&broker{topic: true}).serve(t))
	c.SASL, c.Timeout = &kafka.SASL{Mechanism: "PLAIN", User: "me", Password: &sinks.Secret{Env: "KAFKA_TEST_PASSWORD"}}, sinks.Duration(time.Second)
	var log sinktest.Log
	if err := sinktest.Open(t, c, log.Option).Write(t.Context(), sinktest.Events(1, 1)); err == nil {
		t.Error("it is accepted")
	}
	if !strings.Contains(log.String(), "the settings of the topic cannot be read") || strings.Contains(log.String(), "canar") {
		t.Error(log.String())
	}
}

// challenger is a broker that answers the first message of SCRAM with a number of iterations, or refuses all that
// authenticate with an error, and quotes what they send, if that is empty. With no error it has no topic and makes none.
func challenger(t *testing.T, iterations string, code int16) (addr string) {
	return (&broker{iterations: iterations, code: code}).serve(t)
}

type broker struct {
	iterations string
	code       int16
	topic      bool        // it has the topics that it is asked for, and refuses all that authenticate once it was asked for their settings
	asked      atomic.Bool // for these
}

func (b *broker) serve(t *testing.T) (addr string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for {
					if err := b.challenge(conn); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// challenge answers one request.
func (b *broker) challenge(conn net.Conn) error {
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	request := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, request); err != nil {
		return err
	}
	var answer []byte
	switch kmsg.Key(binary.BigEndian.Uint16(request)) {
	case kmsg.ApiVersions:
		r := kmsg.NewPtrApiVersionsResponse()
		for _, key := range []kmsg.Key{kmsg.Produce, kmsg.Metadata, kmsg.SASLHandshake, kmsg.ApiVersions, kmsg.CreateTopics, kmsg.DescribeConfigs, kmsg.SASLAuthenticate} {
			r.ApiKeys = append(r.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key.Int16(), MaxVersion: 1})
		}
		r.ErrorCode = 35 // that version is not supported: the client asks again with version 0
		if binary.BigEndian.Uint16(request[2:]) == 0 {
			r.ErrorCode = 0
		}
		answer = r.AppendTo(nil)
	case kmsg.SASLHandshake:
		r := kmsg.NewPtrSASLHandshakeResponse()
		r.Version, r.SupportedMechanisms = 1, []string{"SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"}
		answer = r.AppendTo(nil)
	case kmsg.Metadata:
		r := kmsg.NewPtrMetadataResponse()
		at := conn.LocalAddr().(*net.TCPAddr)
		r.Version, r.ControllerID = 1, 7
		r.Brokers = []kmsg.MetadataResponseBroker{{NodeID: r.ControllerID, Host: at.IP.String(), Port: int32(at.Port)}}
		asked := kmsg.NewPtrMetadataRequest()
		asked.Version = 1
		if err := asked.ReadFrom(request[10+binary.BigEndian.Uint16(request[8:]):]); err != nil {
			return err
		}
		for _, topic := range asked.Topics {
			found := kmsg.MetadataResponseTopic{Topic: topic.Topic, ErrorCode: kerr.UnknownTopicOrPartition.Code}
			if b.topic {
				found.ErrorCode, found.Partitions = 0, []kmsg.MetadataResponseTopicPartition{{Leader: r.ControllerID, Replicas: []int32{r.ControllerID}, ISR: []int32{r.ControllerID}}}
			}
			r.Topics = append(r.Topics, found)
		}
		answer = r.AppendTo(nil)
	case kmsg.DescribeConfigs:
		b.asked.Store(true)
		return io.ErrUnexpectedEOF
	case kmsg.CreateTopics:
		r := kmsg.NewPtrCreateTopicsResponse()
		r.Version, r.Topics = 1, []kmsg.CreateTopicsResponseTopic{{
			ErrorCode: kerr.PolicyViolation.Code, ErrorMessage: new(strings.Repeat("x", 195) + "canary-secret"),
		}}
		answer = r.AppendTo(nil)
	default:
		if b.iterations == "" {
			r := kmsg.NewPtrSASLAuthenticateResponse()
			code := b.code
			if b.asked.Load() {
				code = kerr.SaslAuthenticationFailed.Code
			}
			r.Version, r.ErrorCode, r.ErrorMessage = 1, code, new("no: "+string(request)+strings.Repeat(" no", 5000))
			answer = r.AppendTo(nil)
			break
		}
		_, nonce, _ := bytes.Cut(request, []byte(",r="))
		r := kmsg.NewPtrSASLAuthenticateResponse()
		r.Version, r.SASLAuthBytes = 1, []byte("r="+string(nonce)+"more,s=c2FsdHNhbHRzYWx0,i="+b.iterations)
		answer = r.AppendTo(nil)
	}
	out := binary.BigEndian.AppendUint32(nil, uint32(4+len(answer)))
	_, err := conn.Write(append(append(out, request[4:8]...), answer...))
	return err
}

// A broker cannot have the client compute for as long as it likes: nothing ends that.
func TestIterations(t *testing.T) {
	t.Chdir(t.TempDir())
	testkit.Write(t, "secret", []byte("canary-secret"))
	for _, iterations := range []string{"20000000", "9223372036854775808"} {
		c := configFor(challenger(t, iterations, 0))
		c.SASL = &kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "me", Password: &sinks.Secret{File: "secret"}}
		s := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = absolute(t, ".") })
		sinktest.WantClass(t, s.Write(t.Context(), sinktest.Events(1, 1)), sinks.ClassRetry, "iterations of SCRAM")
	}
}

// A broker that quotes the credentials has no secret in the error.
func TestQuotedCredentials(t *testing.T) {
	t.Chdir(t.TempDir())
	testkit.Write(t, "secret", []byte("canary-secret"))
	secret := &sinks.Secret{File: "secret"}
	fetched := &sinks.OAuth{
		TokenURL: endpoint(t, `{"access_token":"canary-token","token_type":"bearer"}`, func(*http.Request) bool { return true }), ClientID: "me", ClientSecret: secret,
	}
	for _, way := range []*kafka.SASL{
		{Mechanism: "PLAIN", User: "me", Password: secret}, {Mechanism: "OAUTHBEARER", Token: secret}, {Mechanism: "OAUTHBEARER", OAuth: fetched},
	} {
		for code, class := range map[int16]sinks.Class{58: sinks.ClassPause, -1: sinks.ClassRetry, 34: sinks.ClassPause, 31: sinks.ClassPause} {
			c := configFor(challenger(t, "", code))
			c.SASL = way
			s := sinktest.Open(t, c, func(o *sinks.Options) { o.Dir = absolute(t, ".") })
			err := s.Write(t.Context(), sinktest.Events(1, 1))
			sinktest.WantClass(t, err, class, "")
			if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, "canary") || len(text) > 4<<10 {
				t.Errorf("%s, code %d: %.500s", way.Mechanism, code, text)
			}
		}
	}
}
