package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/admin/client"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// terminal is a buffer that passes for a terminal.
type terminal struct {
	bytes.Buffer
	*os.File
}

func (t *terminal) Write(b []byte) (int, error) { return t.Buffer.Write(b) }

// hostile are texts that move a cursor, change colours, or reverse what follows.
const hostile = "a\x1b[2Jb\u009b31mc\u202ed\u200be\r\x7ff\U000E0041g\u2028h\x07"

// TestTerminal prints an object whose texts control a terminal, in all forms.
func TestTerminal(t *testing.T) {
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = ptmx.Close() })
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	object := `{"apiVersion":"v1","kind":"Widget","metadata":{"name":` + string(text) + `,"namespace":"n","labels":{"l":` + string(text) + `}},` + string(text) + `:[` + string(text) + `]}`
	for _, format := range []string{"table", "wide", "name", "json", "yaml", "jsonpath={.metadata.name}", "custom-columns=A:.metadata.name"} {
		out := &terminal{File: ptmx}
		p, err := newObjectPrinter(out, format)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.add([]byte(object)); err != nil {
			t.Fatal(err)
		}
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		checkClean(t, format, out.String())
	}
	body := &terminal{File: ptmx}
	if err := printBody(body, io.Discard, []byte(hostile), "text/plain"); err != nil {
		t.Fatal(err)
	}
	checkClean(t, "body", body.String())
	event := `{"type":"dev.watcherd.resource.added","id":"i","source":"/clusters/c","subject":"s","time":"2026-01-31T12:00:00Z","specversion":"1.0","data":{"name":` + string(text) + `}}`
	var out bytes.Buffer
	if err := (&tail{out: &out}).print("", []byte(event)); err != nil {
		t.Fatal(err)
	}
	checkClean(t, "tail", out.String())
	var decoded struct{ Data struct{ Name string } }
	if err := json.Unmarshal(out.Bytes(), &decoded); err != nil || decoded.Data.Name != hostile {
		t.Errorf("tail -o json has another name: %q, %v", decoded.Data.Name, err)
	}

	// What is no daemon may answer at its address.
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte(`{"status":418,"title":` + string(text) + `,"detail":` + string(text) + `}`))
	}))
	t.Cleanup(s.Close)
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"status", "--admin", s.URL}, &stdout, &stderr); code == 0 || !strings.Contains(stderr.String(), "[2J") {
		t.Errorf("exit code %d, %s", code, stderr.String())
	}
	checkClean(t, "error", stdout.String()+stderr.String())
}

func checkClean(t *testing.T, what, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && controls(r) }); i >= 0 {
		t.Errorf("%s prints %q", what, text)
	}
}

// TestCompletedWords: a shell runs no part of a completed name.
func TestCompletedWords(t *testing.T) {
	names := completion(func(context.Context, *client.Client, *cobra.Command, []string, string) []string {
		return []string{"system:node", "$(touch x)a", "`touch x`", "a;b", "a b", "a'b", hostile, "web-1.2", "--admin=a", "=ls"}
	})
	cmd := newGetCommand()
	cmd.SetContext(t.Context())
	if got, _ := names.asked(cmd, nil, ""); !slices.Equal(got, []string{"system:node", "web-1.2"}) {
		t.Errorf("%q", got)
	}
	kubeconfig := filepath.Join(t.TempDir(), "config")
	contexts := `{"apiVersion":"v1","kind":"Config","contexts":[{"name":"$(touch x)"},{"name":"arn:aws:eks:eu:1:cluster/a"},{"name":"-n"}]}`
	if err := os.WriteFile(kubeconfig, []byte(contexts), 0o600); err != nil {
		t.Fatal(err)
	}
	watch := newWatchCommand()
	if err := watch.Flags().Set("kubeconfig", kubeconfig); err != nil {
		t.Fatal(err)
	}
	if got, _ := completeContexts(watch, nil, ""); !slices.Equal(got, []string{"arn:aws:eks:eu:1:cluster/a"}) {
		t.Errorf("contexts: %q", got)
	}
}

// validated returns what validate --server prints of a configuration with a watch, and the number of its warnings.
func validated(t *testing.T, server string, watch map[string]any) (out string, warnings int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "watcherd.yaml")
	st, err := temporaryConfig(file, map[string]any{"path": filepath.Join(t.TempDir(), "store")}, watch, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, watcherd.Blocks(kinds.Builtin()))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if warnings, err = validateServer(t.Context(), &b, &rest.Config{Host: server}, c, st); err != nil {
		t.Fatal(err)
	}
	return b.String(), warnings
}

// TestValidateWarnsOfNamespaces: a namespace that a watch names and that does not exist is a warning, one that may not be listed is not.
func TestValidateWarnsOfNamespaces(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api", "/apis":
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			_, _ = io.WriteString(w, map[string]string{"/api": onlyPods, "/apis": noGroups}[r.URL.Path])
		case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","status":{"allowed":true}}`)
		case "/api/v1/namespaces":
			items := map[string]string{"metadata.name=here": `{"metadata":{"name":"here"}}`, "metadata.name=absent": ""}
			if item, ok := items[r.URL.Query().Get("fieldSelector")]; ok {
				_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"NamespaceList","metadata":{},"items":[%s]}`, item)
				return
			}
			fallthrough
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","code":403,"reason":"Forbidden"}`)
		}
	}))
	defer server.Close()
	got, warnings := validated(t, server.URL, map[string]any{
		"name": "a", "resources": []string{"pods"}, "namespaces": map[string]any{"include": []string{"here", "absent", "hidden"}},
	})
	if warnings != 1 {
		t.Errorf("%d warnings", warnings)
	}
	const want = "  watch a: warning: namespace absent does not exist: nothing is read from it until it does\n"
	if !strings.Contains(got, want) || strings.Count(got, "does not exist") != 1 {
		t.Errorf("%q", got)
	}
}

// TestValidateHostileServer: what a server answers to validate --server does not control the terminal.
func TestValidateHostileServer(t *testing.T) {
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			_, _ = io.WriteString(w, onlyPods)
		case "/apis":
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			_, _ = io.WriteString(w, noGroups)
		case "/apis/authentication.k8s.io/v1/selfsubjectreviews":
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprintf(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview","status":{"userInfo":{"username":%s}}}`, text)
		case "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","status":{"allowed":true}}`)
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","code":403,"reason":"Forbidden","message":%s}`, text)
		}
	}))
	defer server.Close()
	out, _ := validated(t, server.URL, map[string]any{"name": "a", "resources": []string{"pods"}})
	if !strings.Contains(out, "fields are not checked") || !strings.Contains(out, ", as ") {
		t.Errorf("%q", out)
	}
	checkClean(t, "validate", out)
}
