package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/event"
)

// TestDocumentAndServer holds the OpenAPI document and the server together: both have the same
// operations, and each answer is as the document describes it.
func TestDocumentAndServer(t *testing.T) {
	f := newFixture(t)
	dicts := compact.NewDictionaries(nil)
	f.cfg.History = history.New(f.store, ledger.New(f.store, dicts), &record.Inflater{Dictionaries: dicts})
	f.run = func(context.Context, func(int)) (int, error) { return 3, nil }
	f.letters = []DeadLetter{{Position: 7, Resource: &event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Last: time.Now(), Event: json.RawMessage(`{}`)}}
	f.add(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"a","name":"b","uid":"u","resourceVersion":"1"}}`)
	f.state.Store(&status.Status{Version: "v1", Pipeline: status.Pipeline{Caches: []status.Cache{}, Watches: []status.Watch{{Name: "w", Sources: []status.Source{{Resource: "pods"}}}}, Routes: []status.Route{{Name: "r", Sinks: []string{"s"}}}, Sinks: []status.Sink{{Name: "s"}}}})
	f.serve()
	code, document := f.get("/api/openapi.json")
	f.expect(code, document, 200, `"openapi": "3.1.0"`)
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("openapi.json", value); err != nil {
		t.Fatal(err)
	}

	var served, described []string
	for _, pattern := range f.srv.patterns {
		if strings.Contains(pattern, " /api/") {
			served = append(served, pattern)
		}
	}
	for _, op := range Operations() {
		described = append(described, op.Pattern)
		_, path, _ := strings.Cut(op.Pattern, " ")
		escaped := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(path)
		method, target, body := example(op.Pattern)
		switch {
		case op.Content != "", strings.HasSuffix(path, "/purge"): // which the fixture refuses
			continue
		case method == http.MethodGet:
			code, body = f.get(target)
		default:
			code, body = f.post(target, body)
		}
		f.expect(code, body, 200)
		at := "openapi.json#/paths/" + escaped + "/" + strings.ToLower(method) + "/responses/200/content/application~1json/schema"
		schema, err := compiler.Compile(at)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatalf("%s: %v in %s", op.Pattern, err, body)
		}
		if err := schema.Validate(answer); err != nil {
			t.Errorf("%s: %v in %s", op.Pattern, err, body)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if diff := gocmp.Diff(described, served); diff != "" {
		t.Errorf("(-described +served):\n%s", diff)
	}
}

// example is a request for a pattern that the fixture understands.
func example(pattern string) (method, target, body string) {
	method, target, ok := strings.Cut(pattern, " ")
	if !ok {
		method, target = http.MethodGet, pattern
	}
	for from, to := range map[string]string{
		"{resource}": "pods", "{first}": "a", "{name}": "b", "{event}": "7", "{sink}": "ops", "{check...}": "store", "{$}": "",
		"/diff": "/diff?from=2h", "/changes": "/changes?from=5m",
	} {
		target = strings.ReplaceAll(target, from, to)
	}
	body = map[string]string{
		"backtest": `{"from":"2026-01-01T00:00:00Z","watches":[],"routes":[]}`, "replay": `{"sink":"archive","fromSequence":1}`, "snapshot": `{"sink":"archive"}`, "backup": `{"dir":"/tmp/copy"}`,
		"retry": `{"all":true}`, "drop": `{"all":true}`,
	}[target[strings.LastIndexByte(target, '/')+1:]]
	return method, target, cmp.Or(body, "{}")
}

// TestParametersAreDescribed: what handlers read of a query is a parameter of an operation.
func TestParametersAreDescribed(t *testing.T) {
	described := map[string]bool{"verbose": true} // of the health checks
	for _, op := range Operations() {
		for name := range strings.FieldsSeq(op.Parameters) {
			described[name] = true
		}
	}
	read := map[string]bool{}
	eachCall(t, func(call *ast.CallExpr) {
		for _, arg := range call.Args {
			text, ok := arg.(*ast.BasicLit)
			reads := ok && text.Kind == token.STRING && isQuery(call)
			if reads {
				read[strings.Trim(text.Value, `"`)] = true
				break
			}
		}
	})
	if diff := gocmp.Diff(described, read); diff != "" {
		t.Errorf("(-described +read):\n%s", diff)
	}
}

// TestUnknownParameters: a filter that is misspelt, is none of the operation's, or cannot be read is refused: the answer would have more than was asked for.
func TestUnknownParameters(t *testing.T) {
	f := newFixture(t)
	f.serve()
	for target, want := range map[string]string{
		"/api/v1/events?follow=false&since=0&namspace=prod": `unknown parameter \"namspace\"; known here are: since, `,
		"/api/v1/events?follow=false&namespace=prod;a":      "not understood", "/api/v1/deadletters/ops?namespace=%zz": "not understood",
		"/api/v1/deadletters/ops?resaon=413": "resaon", "/api/v1/changes?from=5m&type=deleted": "type", "/api/v1/objects/pods/a/b?labelSelector=a": "labelSelector",
		"/api/v1/status?sink=a": "known here are: none",
	} {
		code, body := f.get(target)
		f.expect(code, body, http.StatusBadRequest, want)
	}
	code, body := f.post("/api/v1/deadletters/ops/drop?name=a", `{"all":true}`)
	f.expect(code, body, http.StatusBadRequest, "name")
}

// eachCall calls f with the calls in the package's source, tests apart.
func eachCall(t *testing.T, f func(*ast.CallExpr)) {
	t.Helper()
	packages, err := parser.ParseDir(token.NewFileSet(), ".", nil, 0) //nolint:staticcheck // one folder
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range packages["admin"].Files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				f(call)
			}
			return true
		})
	}
}

// isQuery reports whether a call reads a parameter: of a value query, or with it as an argument.
func isQuery(call *ast.CallExpr) bool {
	named := func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return ok && id.Name == "query"
	}
	if s, ok := call.Fun.(*ast.SelectorExpr); ok && named(s.X) {
		return true
	}
	return slices.ContainsFunc(call.Args, named)
}
