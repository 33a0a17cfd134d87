package sinks_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/watcherd/watcherd/pkg/sinks"
)

func TestParseResults(t *testing.T) {
	long := strings.Repeat("é", sinks.MaxResultMessage)
	for _, test := range []struct {
		document string
		events   int
		want     []sinks.Result
	}{
		{`{"results":[{"status":"accepted"}]}`, 1, []sinks.Result{{Status: sinks.StatusAccepted}}},
		{"\n{\"results\":\t[ {\"status\": \"accepted\" },\r\n{\"status\":\"accepted\"}\n]}\n", 2, []sinks.Result{{Status: sinks.StatusAccepted}, {Status: sinks.StatusAccepted}}},
		{`{"results":[{"status":"accept\u0065d"}]}`, 1, []sinks.Result{{Status: sinks.StatusAccepted}}},
		{
			" {\"results\" : [{\"status\":\"retry\",\"message\":\"busy\",\"retryAfter\":1.5},\n{\"retryAfter\":0,\"status\":\"poison\"}] }\n", 2,
			[]sinks.Result{{Status: sinks.StatusRetry, Message: "busy", RetryAfter: 1500 * time.Millisecond}, {Status: sinks.StatusPoison}},
		},
		{`{"results":[{"status":"held"},{"status":"pause","message":"a\nb\u0000"}]}`, 2, []sinks.Result{{Status: sinks.StatusHeld}, {Status: sinks.StatusPause, Message: "a b "}}},
		{`{"results":[{"status":"retry","retryAfter":1e300}]}`, 1, []sinks.Result{{Status: sinks.StatusRetry, RetryAfter: 24 * time.Hour}}},
		{`{"results":[{"status":"retry","message":"` + long + `"}]}`, 1, []sinks.Result{{Status: sinks.StatusRetry, Message: long[:sinks.MaxResultMessage]}}},
	} {
		got, err := sinks.ParseResults([]byte(test.document), test.events)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v; want %+v", test.document, got, err, test.want)
		}
	}
}

func TestParseResultsRefuses(t *testing.T) {
	for document, want := range map[string]string{
		``:                                  "unexpected EOF",
		`null`:                              "expected",
		`[]`:                                "expected",
		`{}`:                                "0 results for 1 events",
		`{"results":null}`:                  "expected",
		`{"results":[]}`:                    "0 results for 1 events",
		`{"results":[{"status":"accepted"}`: "unexpected EOF",
		`{"results":[{"status":"accepted"},{"status":"accepted"}]}`:    "more than 1 results",
		`{"results":[{"status":"accepted"}]}{}`:                        "data behind the document",
		`{"results":[{"status":"accepted"}]} x`:                        "data behind the document",
		`{"results":[{"status":"accepted"},]}`:                         "more than 1 results",
		`{"results":[{"status":"accepted"}],}`:                         "invalid character",
		`{"results":[{"status":"accepted"}],"more":1}`:                 `unknown member "more"`,
		`{"Results":[{"status":"accepted"}]}`:                          `unknown member "Results"`,
		`{"results":[{"status":"accepted"}],"results":[]}`:             `member "results" is repeated`,
		`{"results":[{"status":"accepted","status":"poison"}]}`:        `result 0: member "status" is repeated`,
		`{"results":[{"status":"accepted","id":"x"}]}`:                 `unknown member "id"`,
		`{"results":[{"status":"ACCEPTED"}]}`:                          `unknown status "ACCEPTED"`,
		`{"results":[{}]}`:                                             `unknown status ""`,
		`{"results":[{"status":"` + strings.Repeat("x", 41) + `"}]}`:   "unknown status of 41 bytes",
		`{"results":[{"` + strings.Repeat("x", 41) + `":1}]}`:          "unknown member of 41 bytes",
		`{"results":["` + strings.Repeat("x", 41) + `"]}`:              "of 41 bytes where { is expected",
		`{"results":["accepted"]}`:                                     `"accepted" where { is expected`,
		`{"results":[{"status":1}]}`:                                   "cannot unmarshal",
		`{"results":[{"status":"retry","retryAfter":-1}]}`:             "retryAfter -1 with status retry",
		`{"results":[{"status":"accepted","retryAfter":1}]}`:           "retryAfter 1 with status accepted",
		`{"results":[{"status":"retry","retryAfter":"5s"}]}`:           "cannot unmarshal",
		`{"results":[{"status":"` + strings.Repeat("x", 3000) + `"}]}`: "more than 2048 bytes",
	} {
		got, err := sinks.ParseResults([]byte(document), 1)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %q", document, got, err, want)
		}
	}
}

func TestResultsError(t *testing.T) {
	if err := sinks.ResultsError([]sinks.Result{{Status: sinks.StatusAccepted}, {Status: sinks.StatusAccepted}}); err != nil {
		t.Error(err)
	}
	err := sinks.ResultsError([]sinks.Result{
		{Status: sinks.StatusAccepted},
		{Status: sinks.StatusRetry, Message: "busy"},
		{Status: sinks.StatusRetry, RetryAfter: time.Minute},
		{Status: sinks.StatusPoison},
		{Status: sinks.StatusHeld},
		{Status: sinks.StatusPause},
	})
	named, ok := errors.AsType[*sinks.BatchError](err)
	if !ok || len(named.Failed) != 5 || named.Failed[1].Error() != "the receiver answered retry: busy" {
		t.Fatalf("%v", err)
	}
	var got []string
	for i := 1; i <= 5; i++ {
		class, after := sinks.Classify(named.Failed[i])
		got = append(got, fmt.Sprint(class, " ", after))
	}
	if want := "retry 0s, retry 1m0s, poison 0s, retry 0s, pause 0s"; strings.Join(got, ", ") != want {
		t.Errorf("classes %s, want %s", strings.Join(got, ", "), want)
	}
}

func FuzzParseResults(f *testing.F) {
	f.Add([]byte(`{"results":[{"status":"accepted"},{"status":"retry","message":"busy","retryAfter":5}]}`), 2)
	f.Add([]byte(`{"results":[{"status":"poison"}],"results":[]}`), 1)
	f.Add([]byte("{\"results\": [{\"status\": \"accepted\"} ,\n{\"status\": \"accepted\"}]}\n"), 2)
	f.Add([]byte(`{"results":[{"status":"retry","retryAfter":1e999}]}`), 1)
	f.Add([]byte("{\"results\":[{\"status\":\"held\",\"message\":\"\xff\\ud800\"}]}"), 1)
	f.Fuzz(func(t *testing.T, document []byte, events int) {
		if events < 0 || events > 1<<16 {
			return
		}
		results, err := sinks.ParseResults(document, events)
		if err != nil {
			if results != nil {
				t.Errorf("results beside the error %v", err)
			}
			return
		}
		if len(results) != events {
			t.Fatalf("%d results for %d events", len(results), events)
		}
		var plain struct{ Results []json.RawMessage }
		if err := json.Unmarshal(document, &plain); err != nil || len(plain.Results) != events {
			t.Errorf("%q has %d results: %v", document, len(plain.Results), err)
		}
		failed := 0
		for i, r := range results {
			if r.RetryAfter < 0 || len(r.Message) > sinks.MaxResultMessage || !utf8.ValidString(r.Message) || strings.ContainsAny(r.Message, "\n\r\x00") {
				t.Errorf("result %d: %+v", i, r)
			}
			if r.Status != sinks.StatusAccepted {
				failed++
			}
		}
		named, ok := errors.AsType[*sinks.BatchError](sinks.ResultsError(results))
		if ok != (failed > 0) || ok && len(named.Failed) != failed {
			t.Errorf("%d failed results became %v", failed, named)
		}
	})
}
