package admin

import (
	"context"
	"go/ast"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// roles are the routes of the package and who is answered on the admin listener: anyone, a
// client that reads, or one that runs commands.
var roles = map[string]string{
	"GET /ui/": "anyone", "GET /ui": "anyone",
	"GET /livez": "read", "GET /livez/{check...}": "read", "GET /readyz": "read", "GET /readyz/{check...}": "read", "GET /metrics": "read",
	"GET /{$}": "read", "/": "read", "GET /api/openapi.json": "read", "/api/v1/": "read", "/at/": "read",
	"GET /api/v1/status": "read", "GET /api/v1/config": "read",
	"GET /api/v1/objects/{resource}": "read", "GET /api/v1/objects/{resource}/{first}": "read", "GET /api/v1/objects/{resource}/{first}/{name}": "read",
	"GET /api/v1/objects/{resource}/{first}/{name}/versions": "read", "GET /api/v1/objects/{resource}/{first}/{name}/diff": "read", "GET /api/v1/objects/{resource}/{first}/{name}/blame": "read", "GET /api/v1/objects/{resource}/{first}/{name}/owned": "read",
	"GET /api/v1/history": "read", "GET /api/v1/history/histogram": "read", "GET /api/v1/changes": "read",
	"GET /api/v1/events": "read", "GET /api/v1/events/{event}/explain": "read", "GET /api/v1/deadletters/{sink}": "read",
	"POST /api/v1/backtest": "command", "POST /api/v1/replay": "command", "POST /api/v1/snapshot": "command", "POST /api/v1/backup": "command",
	"POST /api/v1/reload": "command", "POST /api/v1/plan": "command",
	"POST /api/v1/deadletters/{sink}/retry": "command", "POST /api/v1/deadletters/{sink}/drop": "command",
	"POST /api/v1/sinks/{sink}/pause": "command", "POST /api/v1/sinks/{sink}/resume": "command", "POST /api/v1/sinks/{sink}/skip": "command", "POST /api/v1/sinks/{sink}/purge": "command",
}

// TestRolesAreStated: every pattern that the package gives to a mux has a role.
func TestRolesAreStated(t *testing.T) {
	registered := map[string]bool{}
	eachCall(t, func(call *ast.CallExpr) {
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Handle", "HandleFunc", "handle"}, f.Sel.Name) {
			return
		}
		at := 0
		if f.Sel.Name == "handle" {
			at = 1
		}
		switch pattern := call.Args[at].(type) {
		case *ast.BasicLit:
			text, err := strconv.Unquote(pattern.Value)
			if err != nil {
				t.Fatal(err)
			}
			registered[text] = true
		case *ast.Ident:
			switch pattern.Name {
			case "past":
				registered[past] = true
			case "pattern": // of Server.handle itself
			default:
				t.Errorf("the pattern %s has no text here", pattern.Name)
			}
		case *ast.SelectorExpr: // of Server.operations
			if pattern.Sel.Name != "Pattern" {
				t.Errorf("the pattern %s has no text here", pattern.Sel.Name)
			}
		default:
			t.Errorf("a pattern of type %T", pattern)
		}
	})
	for _, op := range Operations() {
		registered[op.Pattern] = true
	}
	if diff := gocmp.Diff(slices.Sorted(maps.Keys(roles)), slices.Sorted(maps.Keys(registered))); diff != "" {
		t.Errorf("(-with a role +registered):\n%s", diff)
	}
}

// TestRoles asks every route without a token, with a wrong one, and with that of each role, and what
// changes something in every method. The probes listener answers nothing but health and metrics.
func TestRoles(t *testing.T) {
	f := newFixture(t)
	dicts := compact.NewDictionaries(nil)
	f.cfg.History = history.New(f.store, ledger.New(f.store, dicts), &record.Inflater{Dictionaries: dicts})
	f.run = func(context.Context, func(int)) (int, error) { return 3, nil }
	f.letters = []DeadLetter{{Position: 7, Resource: &event.Resource{}}}
	f.add(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"a","name":"b","uid":"u","resourceVersion":"1"}}`)
	f.state.Store(&status.Status{Pipeline: status.Pipeline{Applied: true}})
	dir := t.TempDir()
	f.cfg.Probes = "127.0.0.1:0"
	f.cfg.Access = Access{ReadTokenFile: filepath.Join(dir, "read"), CommandTokenFile: filepath.Join(dir, "command")}
	for file, text := range map[string]string{f.cfg.Access.ReadTokenFile: "reader", f.cfg.Access.CommandTokenFile: "operator"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.serve()
	probes := "http://" + f.srv.Addresses()[1].String()
	headers := []string{"", "Bearer stranger", "Bearer reader", "Bearer operator"}
	// Answers that are not 200 to those who may ask.
	other := map[string]int{
		"GET /nothing": 404, "GET /api/v1/": 404, // no such place
		"GET /livez/store":             404, // no such check
		"POST /api/v1/sinks/ops/purge": 409, // the fixture refuses
	}
	for pattern, role := range roles {
		method, target, body := example(pattern)
		if pattern == "/" {
			target = "/nothing"
		}
		if strings.HasPrefix(target, "/api/v1/events") && !strings.Contains(target, "explain") {
			target += "?follow=false"
		}
		ok := 200
		if code := other[method+" "+target]; code != 0 {
			ok = code
		}
		want := map[string][4]int{"anyone": {ok, ok, ok, ok}, "read": {401, 401, ok, ok}, "command": {401, 401, 403, ok}}[role]
		var got [4]int
		for i, header := range headers {
			got[i], _ = f.ask(method, f.base+target, body, "Authorization", header, "Content-Type", "application/json")
		}
		if got != want {
			t.Errorf("%s %s: %v for %q, want %v", method, target, got, headers, want)
		}
		for _, method := range []string{http.MethodPost, http.MethodDelete} {
			if role == "anyone" || strings.HasPrefix(pattern, method) || pattern == past {
				continue // the page has nothing to change, and the past cannot be changed
			}
			for i, want := range []int{401, 401, 403} {
				if code, _ := f.ask(method, f.base+target, body, "Authorization", headers[i]); code != want {
					t.Errorf("%s %s with %q: %d, want %d", method, target, headers[i], code, want)
				}
			}
		}
		want[0] = 404
		if slices.ContainsFunc([]string{"/livez", "/readyz", "/metrics"}, func(prefix string) bool { return strings.HasPrefix(target, prefix) }) {
			want[0] = ok
		}
		for _, header := range headers {
			if code, _ := f.ask(method, probes+target, body, "Authorization", header); code != want[0] {
				t.Errorf("probes: %s %s: %d, want %d", method, target, code, want[0])
			}
		}
	}
}
