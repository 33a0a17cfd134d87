package sinks_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/sinks"
)

func TestClassify(t *testing.T) {
	cause := errors.New("cause")
	for _, test := range []struct {
		err   error
		class sinks.Class
		after time.Duration
	}{
		{cause, sinks.ClassRetry, 0},
		{sinks.Poison(cause), sinks.ClassPoison, 0},
		{sinks.TooLarge(cause), sinks.ClassPoison, 0},
		{sinks.Pause(cause), sinks.ClassPause, 0},
		{sinks.RetryAfter(cause, time.Second), sinks.ClassRetry, time.Second},
		{fmt.Errorf("wrapped: %w", sinks.Pause(cause)), sinks.ClassPause, 0},
		{errors.Join(errors.New("other"), sinks.Poison(cause)), sinks.ClassPoison, 0},
		{fmt.Errorf("the outermost counts: %w", sinks.Pause(sinks.Poison(cause))), sinks.ClassPause, 0},
		{&sinks.BatchError{Failed: map[int]error{0: sinks.Poison(cause)}}, sinks.ClassRetry, 0},
		{sinks.Held(sinks.Poison(cause)), sinks.ClassRetry, 0},
	} {
		if class, after := sinks.Classify(test.err); class != test.class || after != test.after {
			t.Errorf("%v: %s after %v, want %s after %v", test.err, class, after, test.class, test.after)
		}
		if !strings.Contains(test.err.Error(), "cause") {
			t.Errorf("%v hides its cause", test.err)
		}
	}
	for _, err := range []error{sinks.Poison(cause), sinks.TooLarge(cause), sinks.Pause(cause), sinks.RetryAfter(cause, 1)} {
		if !errors.Is(err, cause) {
			t.Errorf("%v is not its cause", err)
		}
	}
	for _, err := range []error{sinks.Poison(nil), sinks.TooLarge(nil), sinks.Pause(nil), sinks.RetryAfter(nil, 1)} {
		if err != nil {
			t.Errorf("a mark of no error is %#v", err)
		}
	}
	for class, want := range map[sinks.Class]string{sinks.ClassRetry: "retry", sinks.ClassPoison: "poison", sinks.ClassPause: "pause"} {
		if class.String() != want {
			t.Errorf("%s, want %s", class, want)
		}
	}
}

func TestIsTooLarge(t *testing.T) {
	cause := errors.New("cause")
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{cause, false},
		{sinks.Poison(cause), false},
		{sinks.TooLarge(cause), true},
		{fmt.Errorf("wrapped: %w", sinks.TooLarge(cause)), true},
		{sinks.Poison(sinks.TooLarge(cause)), false}, // the outermost mark counts
		{sinks.Held(sinks.TooLarge(cause)), false},
	} {
		if got := sinks.IsTooLarge(test.err); got != test.want {
			t.Errorf("%v: %t, want %t", test.err, got, test.want)
		}
	}
}

func TestBatchErrorNamesTheFirst(t *testing.T) {
	err := &sinks.BatchError{Failed: map[int]error{7: errors.New("seventh"), 3: errors.New("third")}}
	if got := err.Error(); got != "2 events failed, the first: third" {
		t.Error(got)
	}
	if got := (&sinks.BatchError{}).Error(); got != "no event failed" {
		t.Error(got)
	}
}

func TestSecret(t *testing.T) {
	const canary = "canary-4711"
	dir := t.TempDir()
	for name, content := range map[string]string{"plain": canary, "newline": canary + "\n", "windows": canary + "\r\n", "two": canary + "\n\n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SECRET_SET", canary)
	t.Setenv("SECRET_EMPTY", "")
	for _, test := range []struct {
		secret sinks.Secret
		want   string
	}{
		{sinks.Secret{File: "plain"}, canary},
		{sinks.Secret{File: "newline"}, canary},
		{sinks.Secret{File: "windows"}, canary},
		{sinks.Secret{File: "two"}, canary + "\n"},
		{sinks.Secret{File: filepath.Join(dir, "plain")}, canary},
		{sinks.Secret{Env: "SECRET_SET"}, canary},
		{sinks.Secret{File: "empty"}, ""},
		{sinks.Secret{File: "missing"}, ""},
		{sinks.Secret{Env: "SECRET_EMPTY"}, ""},
		{sinks.Secret{Env: "SECRET_UNSET_4711"}, ""},
	} {
		got, err := test.secret.In(dir).Value()
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%v: %q, %v; want %q", test.secret, got, err, test.want)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("msg", "secret", test.secret)
		if strings.Contains(log.String()+fmt.Sprintf("%v %+v %#v", test.secret, test.secret, test.secret), canary) {
			t.Errorf("the value shows up: %s", &log)
		}
	}
	if _, err := (sinks.Secret{Env: "SECRET_UNSET_4711"}).Value(); err == nil || err.Error() != "environment variable SECRET_UNSET_4711 is not set or empty: set it and restart watcherd" {
		t.Errorf("a variable that is not set: %v", err)
	}
	for _, test := range []struct {
		secret sinks.Secret
		ok     bool
	}{{sinks.Secret{}, false}, {sinks.Secret{Env: "A", File: "b"}, false}, {sinks.Secret{Env: "A"}, true}, {sinks.Secret{File: "b"}, true}, {sinks.Secret{Env: "$A"}, false}} {
		err := test.secret.Validate("signing.secret")
		if (err == nil) != test.ok {
			t.Errorf("%+v: %v", test.secret, err)
		}
		if field, is := errors.AsType[*sinks.FieldError](err); !test.ok && (!is || !strings.HasPrefix(field.Path, "signing.secret")) {
			t.Errorf("%+v: %v names no field", test.secret, err)
		}
	}
}

func TestValues(t *testing.T) {
	type block struct {
		D sinks.Duration
		B sinks.Bytes
	}
	for _, test := range []struct {
		text string
		want block
		ok   bool
	}{
		{`{"d":"1m30s","b":"100Mi"}`, block{sinks.Duration(90 * time.Second), 100 << 20}, true},
		{`{"d":"1d12h"}`, block{D: sinks.Duration(36 * time.Hour)}, true},
		{`{"d":"0s","b":0}`, block{}, true},
		{`{"b":1024}`, block{B: 1024}, true},
		{`{"b":"1G"}`, block{B: 1e9}, true},
		{`{"d":"-1s"}`, block{D: sinks.Duration(-time.Second)}, true}, // the block's Validate says where that is wrong
		{`{"d":15}`, block{}, false},
		{`{"d":"15"}`, block{}, false},
		{`{"d":"soon"}`, block{}, false},
		{`{"b":"ten"}`, block{}, false},
		{`{"b":true}`, block{}, false},
		{`{"b":"10MB"}`, block{}, false},
	} {
		var got block
		err := json.Unmarshal([]byte(test.text), &got)
		if (err == nil) != test.ok || test.ok && got != test.want {
			t.Errorf("%s: %+v, %v", test.text, got, err)
		}
		if !test.ok {
			continue
		}
		again, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var back block
		if err := json.Unmarshal(again, &back); err != nil || back != got {
			t.Errorf("%s is written as %s and read as %+v: %v", test.text, again, back, err)
		}
	}
}

func TestFormat(t *testing.T) {
	e := &event.Event{ID: "1", Type: event.Added, Resource: event.Resource{Version: "v1", Resource: "pods"}, Object: json.RawMessage("{\n\"a\":\"\\n\"\n}")}
	for format, want := range map[sinks.Format][]byte{
		"": event.AppendCloudEvent(nil, e), sinks.CloudEvents: event.AppendCloudEvent(nil, e),
		sinks.CloudEventsBinary: event.AppendData(nil, e), sinks.JSON: event.AppendJSON(nil, e),
	} {
		if got := format.Append([]byte("x"), e); !bytes.Equal(got[1:], want) || got[0] != 'x' {
			t.Errorf("%q: %s, want %s", format, got, want)
		}
		line := format.AppendLine([]byte("before\n"), e)
		if !bytes.HasPrefix(line, []byte("before\n")) || bytes.Count(line, []byte("\n")) != 2 || !bytes.HasSuffix(line, []byte("}\n")) {
			t.Errorf("%q: not one line more: %q", format, line)
		}
		var a, b any
		if json.Unmarshal(line[len("before\n"):], &a) != nil || json.Unmarshal(want, &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%q: the line says something else", format)
		}
	}
	for format, ok := range map[sinks.Format]bool{"": true, sinks.CloudEvents: true, sinks.JSON: true, sinks.CloudEventsBinary: false, "xml": false} {
		if err := format.RequireText(); (err == nil) != ok {
			t.Errorf("%q: %v", format, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	first, second := sinks.NewMetrics(reg, "x"), sinks.NewMetrics(reg, "x")
	if a, b := first.Counter("y_total", "a"), second.Counter("y_total", "a"); a != b || first.Err() != nil || second.Err() != nil {
		t.Errorf("a second registration gives another counter: %v, %v", first.Err(), second.Err())
	}
	if first.Counter("y_total", "other help"); first.Err() == nil {
		t.Error("a contradictory metric was registered")
	}
}

func TestTLS(t *testing.T) {
	if err := (sinks.TLS{CertFile: "a"}).Validate("tls"); err == nil {
		t.Error("a certificate without its key is valid")
	}
	c, err := sinks.TLS{ServerName: "x"}.Load()
	if err != nil || c.ServerName != "x" || c.RootCAs != nil || c.MinVersion < 0x0303 || c.InsecureSkipVerify {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range []sinks.TLS{{CAFile: "/no/such"}, {CAFile: "/dev/null"}, {CertFile: "/no/such", KeyFile: "/no/such"}} {
		if _, err := bad.Load(); err == nil {
			t.Errorf("%+v was loaded", bad)
		}
	}
	if got := (sinks.TLS{CAFile: "ca.pem", KeyFile: "/abs"}).In("/etc"); got.CAFile != "/etc/ca.pem" || got.KeyFile != "/abs" || got.CertFile != "" {
		t.Errorf("%+v", got)
	}
}
