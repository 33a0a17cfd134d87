package sinks_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/watcherd/watcherd/internal/testkit"
	"github.com/watcherd/watcherd/internal/testservers"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// TestQuotedClientSecret: a token server that answers with the secret in place of HTTP, or of the code of an error, has it in no error.
func TestQuotedClientSecret(t *testing.T) {
	o := sinks.OAuth{TokenURL: "http://localhost/token", ClientID: "me", ClientSecret: &sinks.Secret{Env: "OAUTH_TEST_SECRET"}}
	for _, secret := range []string{`canary%&"secret`, "canary_secret"} {
		t.Setenv("OAUTH_TEST_SECRET", secret)
		encoded := base64.StdEncoding.EncodeToString([]byte("me:" + url.QueryEscape(secret)))
		for _, answer := range []string{
			secret + "\r\n\r\n", "HTTP/1.1 " + secret + "\r\n\r\n", "HTTP/1.1 " + url.QueryEscape(secret) + "\r\n\r\n",
			encoded + "\r\n\r\n", "HTTP/1.1 Basic\t" + encoded + "\r\n\r\n", strings.Repeat("x", 60<<10) + encoded + "\r\n\r\n",
			"HTTP/1.1 400 Bad\r\n\r\n" + `{"error":"` + secret + `"}`,
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + secret + "\r\n\r\n", // in place of a trailer
		} {
			path := testkit.Answering(t, testservers.SocketDir(t), func(c net.Conn) { _, _ = c.Write([]byte(answer)) })
			_, _, err := o.Fetch(t.Context(), t.TempDir(), &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}})
			if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), encoded) || len(err.Error()) > 2<<10 {
				t.Errorf("the error is %.3000v", err)
			}
		}
	}
}

// TestFetchLeavesTheTransport: a transport that a sink uses for its requests, too, is as it was after a token was fetched.
func TestFetchLeavesTheTransport(t *testing.T) {
	t.Setenv("OAUTH_TEST_SECRET", "secret")
	o := sinks.OAuth{TokenURL: "http://localhost/token", ClientID: "me", ClientSecret: &sinks.Secret{Env: "OAUTH_TEST_SECRET"}}
	path := testkit.Answering(t, testservers.SocketDir(t), func(c net.Conn) {
		_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + `{"access_token":"t"}`))
	})
	base := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	var fetching sync.WaitGroup
	for range 2 {
		fetching.Go(func() {
			if token, _, err := o.Fetch(t.Context(), t.TempDir(), base); err != nil || token != "t" {
				t.Errorf("token %q: %v", token, err)
			}
		})
	}
	fetching.Wait()
	if base.DisableKeepAlives || base.TLSClientConfig != nil || base.MaxResponseHeaderBytes != 0 {
		t.Errorf("the transport has other settings: keep-alives disabled %t, TLS %v, header bytes %d", base.DisableKeepAlives, base.TLSClientConfig, base.MaxResponseHeaderBytes)
	}
}

// FuzzToken: whatever bytes a token server answers take bounded memory, a token has a life of a day at most, and the error is without
// the secret.
func FuzzToken(f *testing.F) {
	const secret = "canary-secret"
	f.Setenv("OAUTH_TEST_SECRET", secret)
	var answer []byte
	path := testkit.Answering(f, testservers.SocketDir(f), func(c net.Conn) { _, _ = c.Write(answer) })
	o := sinks.OAuth{TokenURL: "http://localhost/token", ClientID: "me", ClientSecret: &sinks.Secret{Env: "OAUTH_TEST_SECRET"}}
	dir := f.TempDir()
	for _, seed := range []string{
		`HTTP/1.1 200 OK` + "\r\n\r\n" + `{"access_token":"t","expires_in":1e300}`,
		`HTTP/1.1 200 OK` + "\r\n\r\n" + `{"access_token":"","expires_in":-1}`,
		`HTTP/1.1 400 X` + "\r\n\r\n" + `{"error":"canary-secret"}`,
		`HTTP/1.1 302 X` + "\r\nLocation: http://canary-secret/\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		answer = sent
		testkit.Allocates(t, 4<<20+64*len(sent), func() {
			token, life, err := o.Fetch(t.Context(), dir, &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}})
			if err == nil && (token == "" || life < 0 || life.Hours() > 24) {
				t.Errorf("token %q for %s", token, life)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error is %v", err)
			}
		})
	})
}

// TestFileWithoutEnd: what is no file, or is too large for a secret, is an error, and is not waited for.
func TestFileWithoutEnd(t *testing.T) {
	pipe, large := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "large")
	err := errors.Join(syscall.Mkfifo(pipe, 0o600), os.WriteFile(large, nil, 0o600), os.Truncate(large, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "is not a regular file", large: "more than 1048576 bytes"} {
		found := make(chan error, 2)
		go func() {
			_, err := sinks.Secret{File: path}.Value()
			found <- err
			_, err = sinks.TLS{CAFile: path}.Load()
			found <- err
		}()
		for _, what := range []string{"secret", "caFile"} {
			select {
			case err := <-found:
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s %s: %v", what, filepath.Base(path), err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s %s: still being read", what, filepath.Base(path))
			}
		}
	}
}

// TestSecretHeader: the value of a header whose name is that of a credential is not part of the configuration.
func TestSecretHeader(t *testing.T) {
	for name, secret := range map[string]bool{
		"Authorization": true, "X-Api-Key": true, "DD-API-KEY": true, "signoz-ingestion-key": true, "X-Functions-Key": true, "Ocp-Apim-Subscription-Key": true,
		"X-License-Key": true, "x-honeycomb-team": true, "X-Auth": true,
		"Content-Type": false, "Idempotency-Key": false, "X-Partition-Key": false, "Surrogate-Key": false, "X-Scope-OrgID": false, "X-Author": false, "X-Keyspace": false,
	} {
		err := sinks.Header{Text: "text"}.Validate("headers."+name, name, false)
		if got := err != nil; got != secret {
			t.Errorf("%s: %v", name, err)
		}
		if err := (sinks.Header{Text: "text"}).Validate("headers."+name, name, true); err != nil {
			t.Errorf("%s, insecure: %v", name, err)
		}
	}
}

// TestHeaderOfAnotherType: the error names what to write, and has neither the value nor types of Go.
func TestHeaderOfAnotherType(t *testing.T) {
	for text, want := range map[string]string{
		`1234`:               "put quotes around",
		`true`:               "put quotes around",
		`["s3cret"]`:         "must be text",
		`{}`:                 "must be text",
		`{"value":"s3cret"}`: "must be text",
		`{"env":5}`:          "must be text",
	} {
		err := json.Unmarshal([]byte(text), &sinks.Header{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "{env: NAME} or {file: PATH}") {
			t.Errorf("%s: error %v, want one with %q", text, err, want)
			continue
		}
		for _, other := range []string{"s3cret", "1234", "json:", "sinks."} {
			if strings.Contains(err.Error(), other) {
				t.Errorf("%s: the error has %q: %v", text, other, err)
			}
		}
	}
}
