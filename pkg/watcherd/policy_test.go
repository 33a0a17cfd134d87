package watcherd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/pkg/watcherd"
	"github.com/watcherd/watcherd/pkg/watcherd/kinds"
)

// TestPolicy loads a configuration that names files in every way: what the policy does
// not allow is reported at its place.
func TestPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w.yaml")
	const text = `apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {redactionKey: {file: /var/run/secrets/key}}
admin: {auth: {readTokenFile: /etc/watcherd/../shadow}, tls: {certFile: /etc/watcherd/c, keyFile: /etc/watcherd/k}}
watches:
- {name: open, resources: [secrets], exposeSecrets: true}
sinks:
- name: hook
  webhook:
    url: {file: /etc/watcherd/url}
    headers: {X-Token: {file: /var/run/secrets/token}, X-Plain: text}
    tls: {caFile: /etc/watcherd-other/ca}
    signing: {secret: {file: relative}}
- name: files
  file: {path: /var/log/changes.jsonl}
- name: bus
  nats: {url: "nats://n", subject: a, credentialsFile: /var/run/secrets/creds}
- name: db
  postgres: {url: {env: DSN}, password: {file: /var/run/secrets/pw}, tls: {caFile: /etc/watcherd/ca}}
- name: log
  kafka: {brokers: ["k:9"], topic: t, tls: {}, sasl: {mechanism: OAUTHBEARER, oauth: {tokenURL: "https://h", clientID: a, clientSecret: {file: /x}, tls: {keyFile: /y, certFile: /etc/watcherd/c}}}}
- name: program
  plugin: {command: [watcherd, run, --config, /etc/watcherd/another.yaml]}
- name: beside
  plugin: {url: "unix:///run/sink.sock"}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := watcherd.Load(file, kinds.Builtin()); err != nil {
		t.Fatal(err)
	}
	_, err := watcherd.LoadWithin(file, kinds.Builtin(), config.Policy{SecretDirs: []string{"/etc/watcherd", "/opt/"}, ForbidExposeSecrets: true})
	if err == nil {
		t.Fatal("it is accepted")
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		if at, rest, ok := strings.Cut(strings.TrimPrefix(line, file), ": "); ok {
			path, _, _ := strings.Cut(rest, ": ")
			got = append(got, at+" "+path)
		}
	}
	want := []string{
		":3:30 store.redactionKey.file", ":4:31 admin.auth.readTokenFile", ":6:53 watches[0].exposeSecrets",
		":11:31 sinks[0].webhook.headers.X-Token.file", ":12:19 sinks[0].webhook.tls.caFile", ":13:30 sinks[0].webhook.signing.secret.file",
		":17:56 sinks[2].nats.credentialsFile", ":19:48 sinks[3].postgres.password.file",
		":21:144 sinks[4].kafka.sasl.oauth.clientSecret.file", ":21:164 sinks[4].kafka.sasl.oauth.tls.keyFile",
		":23:21 sinks[5].plugin.command",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the problems are\n%s\nwant\n%s\n%v", strings.Join(got, "\n"), strings.Join(want, "\n"), err)
	}
	_, err = watcherd.LoadWithin(file, kinds.Builtin(), config.Policy{ForbidExposeSecrets: true})
	if err == nil || strings.Count(err.Error(), file) != 2 || !strings.Contains(err.Error(), "sinks[5].plugin.command") {
		t.Errorf("with a policy about exposeSecrets alone: %v", err)
	}
}

// TestProblemsHaveNoSecret: no problem quotes a secret that a slip made a part of a key, or that is a number.
func TestProblemsHaveNoSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w.yaml")
	for _, block := range []string{
		"webhook: {url: 'https://h', headers: {Authorization:Bearer c4n4ry}}", "plugin: {url: 'https://h', headers: {'Authorization: Bearer c4n4ry': a}}",
		"webhook: {url: 'https://h', bearerToken:c4n4ry}", "webhook: {url: 'https://h', bearerToken: {file:c4n4ry}}", "nats: {url: 'nats://h', subject: a, password:c4n4ry: {env: X}}",
		"plugin: {command: [a], env: {TOKEN=c4n4ry: a}}", "webhook: {url: 'https://h', bearerToken: 4711}", "webhook: {url: 'https://h', headers: {X-Token: 4711}}",
		"webhook: {url: 'https://h', basicAuth: {username: u, password: 4711}}", "nats: {url: 'nats://h', subject: a, token: 4711}",
	} {
		text := "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nwatches: [{name: w, resources: [pods]}]\nsinks: [{name: hook, " + block + "}]\n"
		if masked := string(config.Masked([]byte(text))); strings.Contains(masked, "c4n4ry") {
			t.Fatalf("%s: %s", block, masked)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := watcherd.Load(file, kinds.Builtin())
		if err == nil || strings.Contains(err.Error(), "c4n4ry") || strings.Contains(err.Error(), "4711") || !strings.Contains(err.Error(), "w.yaml:4:") {
			t.Errorf("%s: %v", block, err)
		}
	}
}

// TestPolicyOfLinks: a file is outside of the folders if the system finds it there, although its path looks as if it was within.
func TestPolicyOfLinks(t *testing.T) {
	dir := t.TempDir()
	allowed, outside := filepath.Join(dir, "allowed"), filepath.Join(dir, "outside")
	for _, folder := range []string{filepath.Join(allowed, "current"), filepath.Join(outside, "folder")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(outside, "folder"), filepath.Join(allowed, "link")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(allowed, "token"), filepath.Join(outside, "token")} {
		if err := os.WriteFile(file, []byte(filepath.Dir(file)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]bool{allowed + "/token": true, allowed + "/./token": true, allowed + "/link/../token": false, allowed + "/..token": true} {
		file := filepath.Join(dir, "w.yaml")
		text := "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nwatches: [{name: w, resources: [pods]}]\n" +
			"sinks: [{name: hook, webhook: {url: 'https://h', bearerToken: {file: " + path + "}}}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := watcherd.LoadWithin(file, kinds.Builtin(), config.Policy{SecretDirs: []string{allowed}})
		if (err == nil) != want {
			read, _ := os.ReadFile(path)
			t.Errorf("%s, which is in %s: the error is %v", path, read, err)
		}
	}
}

// FuzzLoad compiles anything as a configuration of the built-in kinds: it is accepted, or
// refused with places.
func FuzzLoad(f *testing.F) {
	const head = "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\n"
	for _, pattern := range []string{"../../examples/*.yaml", "../../config/watcherd.yaml", "../../config/testdata/*.bad.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || files == nil {
			f.Fatal(pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	f.Add(head + "watches: [{name: w, resources: ['*'], redact: ['**.a[*].**.b'], drop: [spec]}]\nroutes: [{name: r, when: 'object.a.matches(\"(a?){9}\")', changed: [meaningful]}]\n")
	file := filepath.Join(f.TempDir(), "w.yaml")
	policy := config.Policy{SecretDirs: []string{"/etc/watcherd"}, ForbidExposeSecrets: true}
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := watcherd.LoadWithin(file, kinds.Builtin(), policy); err != nil && !strings.Contains(err.Error(), "w.yaml:") {
			t.Errorf("an error without a place: %v", err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// TestErrorsOfAllStages is a configuration with keys, values, selectors and expressions that
// are not valid: one attempt reports all of them, and none that only follows from another.
func TestErrorsOfAllStages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w.yaml")
	text := `apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
watches:
- {name: a, resources: [pods], labelSelector: "a=b=c", metadataOnly: 7}
- {name: b, resources: [nodes], exposeSecrets: true}
routes:
- {name: r, events: [update], when: 'event == "added"', sinks: [s]}
- {name: q, changed: ["spec.["], sinks: [none]}
sinks:
- {name: s, stdout: {}}
- {name: t, stdot: {}}
- {name: h, webhook: {url: "127.0.0.1:80/x"}, body: "1 +"}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := watcherd.LoadWithin(file, kinds.Builtin(), config.Policy{ForbidExposeSecrets: true})
	list, ok := errors.AsType[*config.Errors](err)
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	var got []string
	for _, e := range list.List {
		got = append(got, e.Path)
	}
	want := []string{
		"watches[0].labelSelector", "watches[0].metadataOnly", "watches[1].exposeSecrets", "routes[0].events[0]", "routes[0].when",
		"routes[1].changed[0]", "routes[1].sinks[0]", "sinks[1].stdot", "sinks[2].webhook.url", "sinks[2].body",
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the problems are with\n%s, want\n%s\n%v", strings.Join(got, " "), strings.Join(want, " "), err)
	}
}
