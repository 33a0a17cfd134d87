package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/pkg/event"
)

func TestCommands(t *testing.T) {
	f := newFixture(t)
	f.run = func(_ context.Context, progress func(int)) (int, error) {
		progress(1)
		return 3, nil
	}
	f.serve()
	for _, tc := range []struct {
		path, body string
		code       int
		says       string
	}{
		{"/api/v1/replay", `{"sink":"archive","fromSequence":1}`, 200, `{"count":3,"done":true}`},
		{"/api/v1/replay", `{"sink":"archive","fromTime":"2026-01-01T00:00:00Z"}`, 200, `"done":true`},
		{"/api/v1/replay", `{"sink":"none","fromSequence":1}`, 404, "no such sink"},
		{"/api/v1/replay", `{"sink":"archive"}`, 400, "fromTime or fromSequence is required"},
		{"/api/v1/replay", `{"sink":"archive","fromTime":"2026-01-02T00:00:00Z","toTime":"2026-01-01T00:00:00Z"}`, 400, "begins at 2026-01-02T00:00:00Z, after its end"},
		{"/api/v1/replay", `{"sink":"archive","fromTime":"2026-01-02T00:00:00.123456789Z","toTime":"2026-01-01T00:00:00Z"}`, 400, "begins at 2026-01-02T00:00:00.123Z, after its end"},
		{"/api/v1/replay", `{"fromSequence":1}`, 400, "sink is required"},
		{"/api/v1/replay", `{"sink":"archive","form":1}`, 400, `unknown field \"form\"`},
		{"/api/v1/replay", `{"sink":`, 400, "not understood"},
		{"/api/v1/replay", `{"sink":"` + strings.Repeat("a", maxBody) + `"}`, 413, "larger than"},
		{"/api/v1/snapshot", `{"sink":"archive"}`, 200, `"done":true`},
		{"/api/v1/backtest", `{"from":"2026-01-01T00:00:00Z","routes":[{"Name":"r"}]}`, 200, `{"count":1,"done":true,"backtest":{"scanned":1,`},
		{"/api/v1/backtest", `{"from":"2026-01-02T00:00:00Z","to":"2026-01-01T00:00:00Z","routes":[]}`, 400, "after its end"},
		{"/api/v1/backtest", `{"routes":[]}`, 400, "from is required"},
		{"/api/v1/backtest", `{"from":"2026-01-01T00:00:00Z","sinks":[]}`, 400, `unknown field \"sinks\"`},
		{"/api/v1/snapshot", `{}`, 400, "sink is required"},
		{"/api/v1/reload", `{}`, 200, `"hash":"abc"`},
		{"/api/v1/sinks/archive/pause", `{}`, 200, "{}"},
		{"/api/v1/sinks/archive/resume", `{}`, 200, "{}"},
		{"/api/v1/sinks/archive/purge", `{}`, 409, "it is configured"},
		{"/api/v1/sinks/archive/explode", `{}`, 404, "there is no POST /api/v1/sinks/archive/explode"},
	} {
		code, body := f.post(tc.path, tc.body)
		f.expect(code, body, tc.code, tc.says)
	}
	code, body := f.get("/api/v1/replay")
	f.expect(code, body, 404, "there is no GET /api/v1/replay")
	code, body = f.get("/api/v1/events/7/explain")
	f.expect(code, body, 200, `"sequence":7`)
	code, body = f.get("/api/v1/history?when=(")
	f.expect(code, body, 400, "when: line 1, column 2")
	code, body = f.get("/api/v1/events/8/explain")
	f.expect(code, body, 404, "no such event")
}

// TestProgress follows a command that takes a while.
func TestProgress(t *testing.T) {
	f := newFixture(t)
	proceed := make(chan struct{})
	f.run = func(_ context.Context, progress func(int)) (int, error) {
		progress(7)
		<-proceed
		return 9, errors.New("the disk is gone")
	}
	f.serve()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.base+"/api/v1/snapshot", strings.NewReader(`{"sink":"archive"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", ContentTypeProgress)
	resp, err := f.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	line := make([]byte, 64)
	n, err := resp.Body.Read(line)
	if got := string(line[:n]); err != nil || got != "{\"count\":7}\n" {
		t.Errorf("first line %q, %v", got, err)
	}
	close(proceed)
	rest := ""
	for {
		n, err := resp.Body.Read(line)
		rest += string(line[:n])
		if err != nil {
			break
		}
	}
	if !strings.HasSuffix(rest, "{\"count\":9,\"error\":\"the disk is gone\"}\n") {
		t.Errorf("then %q", rest)
	}
}

// TestCommandsEnd has commands end with the daemon, and not more at a time than the
// limit.
func TestCommandsEnd(t *testing.T) {
	f := newFixture(t)
	running := make(chan struct{}, maxCommands)
	f.run = func(ctx context.Context, _ func(int)) (int, error) {
		running <- struct{}{}
		<-ctx.Done()
		return 5, ctx.Err()
	}
	f.serve()
	type result struct {
		code int
		body string
	}
	results := make(chan result, maxCommands)
	for range maxCommands {
		go func() {
			code, body := f.post("/api/v1/snapshot", `{"sink":"archive"}`)
			results <- result{code, body}
		}()
	}
	for range maxCommands {
		<-running
	}
	code, body := f.post("/api/v1/snapshot", `{"sink":"archive"}`)
	f.expect(code, body, 503, "commands are running already")
	close(f.stopping)
	for range maxCommands {
		r := <-results
		f.expect(r.code, r.body, 503, "the daemon is stopping; 5 events were queued")
	}
}

// TestPanics: a request that panics fails, and nothing else does.
func TestPanics(t *testing.T) {
	f, log := newFixture(t), &logged{}
	f.cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	f.run = func(context.Context, func(int)) (int, error) { panic("a command's canary") }
	f.serve()
	code, body := f.post("/api/v1/snapshot", `{"sink":"archive"}`)
	f.expect(code, body, http.StatusInternalServerError, "its log has the reason")
	code, body = f.get("/api/v1/history") // the fixture has no history: nil
	f.expect(code, body, http.StatusInternalServerError, "its log has the reason")
	code, body = f.get("/api/v1/status")
	f.expect(code, body, http.StatusOK)
	if log.lines("request panicked", "POST /api/v1/snapshot", "a command's canary", "TestPanics") == nil || log.lines("request panicked", "GET /api/v1/history") == nil {
		t.Errorf("log: %q", log.lines("panicked"))
	}
	for range maxCommands { // no place stays taken
		code, body = f.post("/api/v1/snapshot", `{"sink":"archive"}`)
		f.expect(code, body, http.StatusInternalServerError)
	}
}

func TestSkip(t *testing.T) {
	f := newFixture(t)
	f.serve()
	code, body := f.post("/api/v1/sinks/ops/skip", `{}`)
	f.expect(code, body, 200, `"sequence":41`, `"position":3`, `"subject":"/api/v1/namespaces/a/pods/b"`, `"reason":"status 403"`)
	code, body = f.post("/api/v1/sinks/ops/skip", `{"sequence":4711}`)
	f.expect(code, body, 200, `"sequence":4711`)
	code, body = f.post("/api/v1/sinks/none/skip", `{}`)
	f.expect(code, body, 404, "no such sink")
	code, body = f.post("/api/v1/sinks/ops/skip", `{"position":1}`)
	f.expect(code, body, 400)
	code, body = f.get("/api/v1/sinks/ops/skip")
	f.expect(code, body, 404)
}

func TestDeadLetters(t *testing.T) {
	f := newFixture(t)
	for i := range uint64(5) {
		f.letters = append(f.letters, DeadLetter{Position: 10 + i, Reason: "no"})
	}
	f.serve()
	code, body := f.get("/api/v1/deadletters/ops?limit=2")
	f.expect(code, body, 200, `"continue":11`, `"position":10`)
	code, body = f.get("/api/v1/deadletters/ops?limit=2&after=13")
	f.expect(code, body, 200, `"position":14`)
	if strings.Contains(body, "continue") {
		t.Errorf("the last page goes on: %s", body)
	}
	code, body = f.post("/api/v1/deadletters/ops/drop", `{"positions":[10,99]}`)
	f.expect(code, body, 200, `"count":1`)
	code, body = f.post("/api/v1/deadletters/ops/drop", `{"positions":[99]}`)
	f.expect(code, body, 404)
	code, body = f.post("/api/v1/deadletters/ops/drop", `{}`)
	f.expect(code, body, 400, "positions")
	// Letters that are refused again at once are not retried for ever.
	code, body = f.post("/api/v1/deadletters/ops/retry", `{"all":true}`)
	f.expect(code, body, 200, `"count":4`)
}

// A Role has a name of any length: a page of dead letters is bounded, without their events, too.
func TestDeadLettersOfLongNames(t *testing.T) {
	f := newFixture(t)
	const letters, name = 500, 60 << 10
	for i := range uint64(letters) {
		f.letters = append(f.letters, DeadLetter{Position: 1 + i, Subject: strings.Repeat("x", name), Name: strings.Repeat("x", name)})
	}
	f.serve()
	found, pages := 0, 0
	for after := uint64(0); pages == 0 || after != 0; pages++ {
		code, body := f.get(fmt.Sprintf("/api/v1/deadletters/ops?limit=1000&after=%d", after))
		f.expect(code, body[:min(len(body), 200)], 200)
		var page DeadLetterList
		if err := json.Unmarshal([]byte(body), &page); err != nil {
			t.Fatal(err)
		}
		if len(body) > 2*maxLetterBytes {
			t.Fatalf("a page of %d bytes", len(body))
		}
		found += len(page.Items)
		after = page.Continue
	}
	if found != letters {
		t.Errorf("%d dead letters on %d pages", found, pages)
	}
}

// TestOrderOfLetters: letters are retried in the order of their positions, those of one object among them, in whatever order a request has them,
// and each is looked for once.
func TestOrderOfLetters(t *testing.T) {
	f := newFixture(t)
	positions := []uint64{}
	for i := range uint64(2*maxLetters + 1) {
		f.letters = append(f.letters, DeadLetter{Position: i + 1})
		positions = append(positions, uint64(2*maxLetters)+1-i, i+1)
	}
	f.serve()
	body, err := json.Marshal(LettersRequest{Positions: positions})
	if err != nil {
		t.Fatal(err)
	}
	code, answer := f.post("/api/v1/deadletters/ops/retry", string(body))
	f.expect(code, answer, 200)
	if !slices.IsSorted(f.retried) || len(f.retried) != 2*maxLetters+1 {
		t.Errorf("%d letters, sorted %t", len(f.retried), slices.IsSorted(f.retried))
	}
}

// TestLettersByFilter lists, counts, retries and drops dead letters that a filter selects.
func TestLettersByFilter(t *testing.T) {
	f := newFixture(t)
	for i := range uint64(8) {
		l := DeadLetter{Position: 10 + i, Reason: "refused: status 413", Type: "updated", Resource: &event.Resource{Group: "apps", Version: "v1", Resource: "deployments"}, Namespace: "prod", Name: "web", Last: time.Unix(1_800_000_000+int64(i), 0)}
		if i%2 == 1 {
			l.Reason, l.Type, l.Resource, l.Namespace, l.Name = "refused: status 400", "deleted", &event.Resource{Version: "v1", Resource: "pods"}, "dev", "a"
		}
		f.letters = append(f.letters, l)
	}
	f.serve()
	for query, want := range map[string]int{
		"": 8, "?type=updated": 4, "?resource=deployments.apps": 4, "?resource=pods&type=updated": 0, "?resource=po": 4, "?resource=Pod": 4, "?resource=pods.v2": 0, "?namespace=dev": 4, "?name=web": 4,
		"?reason=413": 4, "?from=2027-01-15T08:00:02Z": 6, "?to=2027-01-15T08:00:02Z": 3, "?limit=3": 3, "?limit=1&type=deleted": 1,
	} {
		code, body := f.get("/api/v1/deadletters/ops" + query)
		f.expect(code, body, 200)
		if n := strings.Count(body, `"position"`); n != want {
			t.Errorf("%s: %d letters, want %d: %s", query, n, want, body)
		}
	}
	code, body := f.get("/api/v1/deadletters/ops?limit=1&type=deleted")
	f.expect(code, body, 200, `"position":11`, `"continue":11`)
	for _, tc := range []struct {
		verb, body string
		code       int
		says       string
	}{
		{"drop", `{"filter":{"reason":"413"},"dryRun":true}`, 200, `"count":4`},
		{"drop", `{"all":true,"dryRun":true}`, 200, `"count":8`},
		{"drop", `{"positions":[10,99],"dryRun":true}`, 200, `"count":1`},
		{"drop", `{"filter":{"types":["other"]}}`, 400, "unknown type"},
		{"drop", `{"filter":{"resource":"a/b"}}`, 400, "resource: "},
		{"drop", `{"filter":{},"all":true}`, 400, "or say all"},
		{"drop", `{"filter":{"resource":"po"},"dryRun":true}`, 200, `"count":4`},
		{"drop", `{"filter":{"resource":"pods","name":"a"},"count":3}`, 409, "4 dead letters match by now, not 3"},
		{"drop", `{"all":true,"count":0}`, 409, "8 dead letters match by now, not 0"},
		{"drop", `{"filter":{"resource":"pods","name":"a"},"count":4}`, 200, `"count":4`},
		{"drop", `{"filter":{"resource":"pods"}}`, 200, `"count":0`},
		{"retry", `{"filter":{"to":"2027-01-15T08:00:02Z"}}`, 200, `"count":2`},
		{"drop", `{"positions":[14,99],"count":2}`, 409, "1 dead letters match by now, not 2"},
		{"drop", `{"positions":[14,99],"count":1}`, 200, `"count":1`},
	} {
		code, body := f.post("/api/v1/deadletters/ops/"+tc.verb, tc.body)
		f.expect(code, body, tc.code, tc.says)
	}
	if len(f.letters) != 3 {
		t.Errorf("%d letters are left", len(f.letters))
	}
}
