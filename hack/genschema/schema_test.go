package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	checker "github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

const reference = "../../config/watcherd.yaml"

func blocks() config.Kinds {
	k := config.Kinds{}
	for name, newConfig := range kinds.Builtin() {
		k[name] = func() any { return newConfig() }
	}
	return k
}

func TestSchemaIsUpToDate(t *testing.T) {
	got, err := generate("../..")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(config.Schema()), string(got)); diff != "" {
		t.Errorf("run go generate ./config (-committed +generated)\n%s", diff)
	}
}

func TestReferenceCompiles(t *testing.T) {
	c, err := config.Load(reference, blocks())
	if err != nil {
		t.Fatal(err)
	}
	s, err := plan.Compile(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Warnings) > 0 {
		t.Errorf("warnings: %v", s.Warnings)
	}
}

// TestReferenceShowsDefaults: what the reference calls a default is one.
func TestReferenceShowsDefaults(t *testing.T) {
	c, err := config.Load(reference, blocks())
	if err != nil {
		t.Fatal(err)
	}
	d := config.Default()
	d.Admin.Probes = c.Admin.Probes
	for name, pair := range map[string][2]any{
		"kubeAPI": {d.KubeAPI, c.KubeAPI}, "admin": {d.Admin, c.Admin}, "consistencyCheck": {d.ConsistencyCheck, c.ConsistencyCheck},
		"retry": {config.DefaultSink().Retry, c.Sinks[0].Retry},
		"store": {spelled(d.Store), spelled(c.Store)},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s (-default +reference)\n%s", name, diff)
		}
	}
}

func spelled(s config.Store) []string {
	return []string{s.Path, s.MaxBytes.String(), s.MinFree.String(), s.Retention.MaxBytes.String(), s.Retention.MaxAge.String()}
}

// TestReferenceMentionsEveryKey, if only in a comment.
func TestReferenceMentionsEveryKey(t *testing.T) {
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := s.UnmarshalJSON(config.Schema()); err != nil {
		t.Fatal(err)
	}
	keys := 0
	for name, def := range s.Definitions {
		objects := append(slices.Clone(def.OneOf), def)
		for _, o := range objects {
			if o.Properties == nil {
				continue
			}
			for p := o.Properties.Oldest(); p != nil; p = p.Next() {
				keys++
				if !regexp.MustCompile(`(^|[\s{,])` + p.Key + `:`).Match(text) {
					t.Errorf("%s.%s is not in the reference", name, p.Key)
				}
			}
		}
	}
	if keys < 80 {
		t.Errorf("only %d keys found in the schema", keys)
	}
}

func compiledSchema(t *testing.T) *checker.Schema {
	t.Helper()
	doc, err := checker.UnmarshalJSON(bytes.NewReader(config.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := checker.NewCompiler()
	if err := c.AddResource(address, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func check(t *testing.T, s *checker.Schema, text []byte) error {
	t.Helper()
	j, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := checker.UnmarshalJSON(bytes.NewReader(j))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

// TestSchemaAccepts the reference and every example, which must load too.
func TestSchemaAccepts(t *testing.T) {
	s := compiledSchema(t)
	examples, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(examples, reference) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte("kind: "+config.Kind)) {
			continue // a manifest
		}
		if err := check(t, s, text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		c, err := config.Load(file, blocks())
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := plan.Compile(c); err != nil {
			t.Error(err)
		}
	}
}

// TestSchemaRefuses what Parse refuses for its shape.
func TestSchemaRefuses(t *testing.T) {
	s := compiledSchema(t)
	const head = "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\n"
	const watches = "watches: [{name: w, resources: [pods]}]\n"
	for _, ok := range []string{
		head + watches,
		head + watches + "sinks: [{name: s, stdout: {}}]\n",
		head + watches + "sinks: [{name: s, webhook: {url: x, headers: {A: b, C: {env: D}}}}]\n",
		head + watches + "store: {maxBytes: 1000000, retention: {maxAge: 1h30m, maxBytes: 1.5Gi}}\n",
	} {
		if err := check(t, s, []byte(ok)); err != nil {
			t.Errorf("%s%v", ok, err)
		}
	}
	for _, bad := range []string{
		head,
		watches,
		head + "watches: []\n",
		head + "watches: [{name: w}]\n",
		head + "watches: [{name: w, resources: [5]}]\n",
		head + "watches: [{name: w, resources: [{group: apps}]}]\n",
		head + "watches: [{name: w, resources: [{resource: pods, kind: Pod}]}]\n",
		head + "watches: [{name: w, resources: [pods], snapshot: always}]\n",
		head + "watches: [{name: w, resources: [pods], labelselector: a}]\n",
		head + watches + "colour: red\n",
		head + watches + "store: {maxBytes: lots}\n",
		head + watches + "store: {maxBytes: -1}\n",
		head + watches + "consistencyCheck: {interval: 1w}\n",
		head + watches + "consistencyCheck: {interval: 60}\n",
		head + watches + "kubeAPI: {qps: 0}\n",
		head + watches + "sinks: [{name: s}]\n",
		head + watches + "sinks: [{name: s, stdout: {}, file: {path: x}}]\n",
		head + watches + "sinks: [{name: s, file: {}}]\n",
		head + watches + "sinks: [{name: s, kafka: {}}]\n",
		head + watches + "sinks: [{name: s, otlp: {}}]\n",
		head + watches + "sinks: [{name: s, elasticsearch: {}}]\n",
		head + watches + "sinks: [{name: s, postgres: {url: \"postgres://host/database\"}}]\n",
		head + watches + "sinks: [{name: s, object: {}}]\n",
		head + watches + "sinks: [{name: s, object: {s3: {bucket: b, secretKey: text}}}]\n",
		head + watches + "sinks: [{name: s, plugin: {}}]\n",
		head + watches + "sinks: [{name: s, postgres: {url: {env: U}, tables: [events]}}]\n",
		head + watches + "sinks: [{name: s, stdout: {}, format: xml}]\n",
		head + watches + "sinks: [{name: s, webhook: {url: x, bearerToken: abc}}]\n",
		head + watches + "sinks: [{name: s, webhook: {url: x, bearerToken: {}}}]\n",
		head + watches + "sinks: [{name: s, webhook: {url: x, bearerToken: {env: A, file: b}}}]\n",
		head + watches + "routes: [{name: r, sinks: []}]\n",
		head + watches + "routes: [{name: r, sinks: [s], events: [add]}]\n",
	} {
		if err := check(t, s, []byte(bad)); err == nil {
			t.Errorf("the schema accepts\n%s", bad)
		}
		if _, err := config.Parse("bad.yaml", []byte(bad), blocks()); err == nil {
			t.Errorf("Parse accepts\n%s", bad)
		}
	}
}
