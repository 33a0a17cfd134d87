package config_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/config"
)

// TestMasked has a secret at each place where a file may have one by mistake or on purpose.
func TestMasked(t *testing.T) {
	const canary = "c4n4ry"
	const text = `# c4n4ry
store: {redactionKey: {env: KEY}, path: /data, retention: {maxBytes: 1024}}
consistencyCheck: {redactionKey: c4n4ry}
cluster: &anchor {name: prod}
watches: [{name: w, resources: [secrets], drop: [data.token], exposeSecrets: true, selector: "token in (a)"}]
sinks:
- name: hook # c4n4ry
  body: '{"authorization": "Bearer c4n4ry"}'
  webhook:
    url: https://hooks.example.com/services/c4n4ry
    headers: {X-Custom: c4n4ry, X-File: {file: /etc/value}}
    bearerToken: c4n4ry
    basicAuth: {username: u, password: {file: /etc/password}, x: {a: [c4n4ry]}}
    signing: {secret: [c4n4ry, {deep: c4n4ry}]}
    tls: {keyFile: /etc/key, caFile: /etc/ca}
    proxyURL: http://user:c4n4ry@proxy:3128
- name: db
  postgres: {url: "postgres://u:c4n4ry@db/x?sslpassword=c4n4ry", dsn: c4n4ry, x: "host=db password=c4n4ry", y: "u:c4n4ry@tcp(db)"}
- name: nearly
  body: '{"routing_key": "c4n4ry"}'
  nats:
    urls: ["nats://u:c4n4ry@a, nats://u:c4n4ry@b", " nats://u:c4n4ry@a", "hooks.example.com/c4n4ry", "nats://u:12/c4n4ry@h", "x:c4n4ry://h", "nats://a:4222"]
    url: c4n4ry
    nkeySeed: c4n4ry
    pw: c4n4ry
    pin: 4711
    password: {env: "${PASSWORD:-c4n4ry }", value: c4n4ry, name: c4n4ry}
    headers: [{name: Authorization, value: c4n4ry}, "X: c4n4ry", {path: c4n4ry}, {"Authorization: Bearer c4n4ry": null}]
    tls: {keyFile: "-----BEGIN PRIVATE KEY-----\nc4n4ry", certFile: /etc/cert}
- name: other
  own: {apiKey: 4, api_key: c4n4ry, accessKeyID: c4n4ry, endpoint: "https://h:1", topic: changes, brokers: ["k:9092"], enabled: true, broken: "http://[c4n4ry"}
  again: *anchor
admin: {auth: {readTokenFile: /etc/token, commandNames: [alice, "b@example.com"]}}
`
	got := string(config.Masked([]byte(text)))
	if strings.Contains(got, canary) {
		t.Errorf("a secret is shown: %s", got)
	}
	var v struct {
		Store   json.RawMessage
		Sinks   []map[string]json.RawMessage
		Watches json.RawMessage
		Admin   json.RawMessage
	}
	if err := json.Unmarshal([]byte(got), &v); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"path":"/data","redactionKey":{"env":"KEY"},"retention":{"maxBytes":1024}}`,
		`[{"drop":["data.token"],"exposeSecrets":true,"name":"w","resources":["secrets"],"selector":"token in (a)"}]`,
		`{"auth":{"commandNames":["alice","b@example.com"],"readTokenFile":"/etc/token"}}`,
		`{"basicAuth":{"password":{"file":"/etc/password"},"username":"***","x":{"a":["***"]}},"bearerToken":"***","headers":{"X-Custom":"***","X-File":{"file":"/etc/value"}},"proxyURL":"http://proxy:3128/***","signing":{"secret":["***",{"deep":"***"}]},"tls":{"caFile":"/etc/ca","keyFile":"/etc/key"},"url":"https://hooks.example.com/***"}`,
		`{"dsn":"***","url":"postgres://db/***","x":"***","y":"***"}`,
		`{"headers":[{"name":"***","value":"***"},"***",{"path":"***"},{"***":null}],"nkeySeed":"***","password":{"env":"***","name":"***","value":"***"},"pin":"***","pw":"***","tls":{"certFile":"/etc/cert","keyFile":"***"},"url":"***","urls":["***","***","***","***","***","nats://a:4222"]}`,
		`{"accessKeyID":"***","apiKey":"***","api_key":"***","broken":"***","brokers":["k:9092"],"enabled":true,"endpoint":"https://h:1","topic":"changes"}`,
	}
	shown := []string{string(v.Store), string(v.Watches), string(v.Admin), string(v.Sinks[0]["webhook"]), string(v.Sinks[1]["postgres"]), string(v.Sinks[2]["nats"]), string(v.Sinks[3]["own"])}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, bad := range []string{"", "a: [", "# nothing", "a: 1\n---\nb: 2", strings.Repeat("#", config.MaxSize+1)} {
		if got := config.Masked([]byte(bad)); got != nil {
			t.Errorf("of %.10q there is %s", bad, got)
		}
	}
}

// TestMaskedReference: of the reference of all keys only these are hidden. A new key is in this
// list or known to be harmless.
func TestMaskedReference(t *testing.T) {
	data, err := os.ReadFile("watcherd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(config.Masked(data), &v); err != nil {
		t.Fatal(err)
	}
	var hidden []string
	var find func(v any, key string)
	find = func(v any, key string) {
		switch v := v.(type) {
		case map[string]any:
			for k, inner := range v {
				find(inner, k)
			}
		case []any:
			for _, item := range v {
				find(item, key)
			}
		case string:
			if strings.HasSuffix(v, "***") {
				hidden = append(hidden, key)
			}
		}
	}
	find(v, "")
	slices.Sort(hidden)
	if got := strings.Join(hidden, " "); got != "X-Scope-OrgID X-Team X-Tenant accessKey body min.insync.replicas url url user username" {
		t.Errorf("hidden are %s", got)
	}
	if text := fmt.Sprint(v); !strings.Contains(text, "/etc/watcherd/ops-token") || strings.Contains(text, "map[env:***]") {
		t.Error(text)
	}
}
