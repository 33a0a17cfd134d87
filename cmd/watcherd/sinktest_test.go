package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestSinktest: a check is printed as it ends, the fault of a plugin under its check, and the exit code is that of the whole.
func TestSinktest(t *testing.T) {
	const canary = "canary-token-4711"
	t.Setenv("SINKTEST_TOKEN", "Bearer "+canary)
	var refuse atomic.Pointer[string] // a request that a check has given up may outlive its test
	plugin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var batch []json.RawMessage
		switch {
		case r.Header.Get("Authorization") != "Bearer "+canary:
			w.WriteHeader(http.StatusUnauthorized)
			return
		case json.Unmarshal(body, &batch) != nil:
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		refuse, results := *refuse.Load(), make([]string, len(batch))
		for i, e := range batch {
			results[i] = `{"status": "accepted"}`
			if refuse != "" && strings.Contains(string(e), refuse) {
				results[i] = `{"status": "poison", "message": "no ` + r.Header.Get("Authorization") + `\u001b[31m"}`
			}
		}
		fmt.Fprintf(w, `{"results": [%s]}`, strings.Join(results, ","))
	}))
	defer plugin.Close()
	for _, test := range []struct {
		name, refuse string
		args         []string
		code, checks int
		want         string // in the output
	}{
		{"passes", "", []string{"--url", plugin.URL, "--authorization-env", "SINKTEST_TOKEN"}, exitOK, 14, "passed"},
		{"refuses", "dev.watcherd.gap", []string{"--url", plugin.URL, "--authorization-env", "SINKTEST_TOKEN"}, exitFailed, 14, "1 of 7 events"},
		{"no token", "", []string{"--url", plugin.URL}, exitFailed, 1, "status 401"},
		{"down", "", []string{"--url", "unix://" + filepath.Join(t.TempDir(), "none")}, exitFailed, 1, "no such file"},
		{"no variable", "", []string{"--url", plugin.URL, "--authorization-env", "SINKTEST_NONE"}, exitFailed, 1, "SINKTEST_NONE"},
		{"no address", "", nil, exitUsage, 0, "--url"},
		{"no URL", "", []string{"--url", "localhost:80"}, exitUsage, 0, "http://"},
	} {
		t.Run(test.name, func(t *testing.T) {
			refuse.Store(&test.refuse)
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), append([]string{"sinktest"}, test.args...), &stdout, &stderr); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			all := stdout.String() + stderr.String()
			checks := strings.Count(all, "\npassed ") + strings.Count(all, "\nFAILED ") + strings.Count(all, "\nskipped ")
			if checks != test.checks || !strings.Contains(all, test.want) || strings.ContainsAny(all, "\x1b") || strings.Contains(all, canary) {
				t.Errorf("%d checks, want %d with %q:\n%s", checks, test.checks, test.want, all)
			}
		})
	}
}
