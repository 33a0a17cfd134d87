package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/internal/testcluster"
	"github.com/watcherd/watcherd/internal/testkit"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// hideLaterConfig has Secrets in the clear but for one value, and routes that hold events back, or hides them and what
// ConfigMaps hold, when the routes hold nothing any longer; the sinks late are new and start from the log's beginning.
func hideLaterConfig(namespace, admin, url string, hide bool, late ...string) string {
	edits, lasting := "exposeSecrets: true, redact: [data.own]", "1h"
	if hide {
		edits, lasting = `redact: ["data[*]"]`, "1s"
	}
	config := fmt.Sprintf(`apiVersion: watcherd.dev/v1alpha1
kind: WatcherConfig
store: {path: ./data}
admin: {listen: %q}
watches:
- {name: all, resources: [secrets, configmaps], namespaces: {include: [%s]}, %s}
routes:
- {name: all, payload: [object, oldObject, patch, summary], sinks: [%s]}
- {name: throttled, payload: [object, oldObject, patch, summary], throttle: {per: 1h}, sinks: [rare]}
- {name: lasting, when: size(object.data) > 1, for: %s, payload: [object, oldObject, patch, summary], sinks: [rare]}
sinks:
- {name: rare, webhook: {url: %q}, batch: {maxEvents: 10}, retry: {initial: 50ms, max: 200ms}}
- {name: stuck, webhook: {url: %q}, batch: {maxEvents: 10}, retry: {initial: 50ms, max: 200ms}}
`, admin, namespace, edits, strings.Join(append([]string{"stuck"}, late...), ", "), lasting, url, url)
	for _, name := range late {
		config += fmt.Sprintf("- {name: %s, startFrom: earliest, file: {path: './%s/all.jsonl'}}\n", name, name)
	}
	return config
}

// TestHidingMoreLater records values in the clear while a sink is down, hides them by a
// reload, and looks for them in all that comes out afterwards and in the store.
func TestHidingMoreLater(t *testing.T) {
	c := testcluster.Shared(t)
	ns := c.Namespace(t)
	dyn := c.Dynamic(t)
	plain, own := newCanary(), newCanary()
	receiver := newEndpoint(t)
	receiver.become(failing)
	admin := testkit.Address(t)
	config := func(hide bool, late ...string) string {
		return hideLaterConfig(ns, admin, receiver.url(), hide, late...)
	}
	const objects = 30
	both := []schema.GroupVersionResource{secrets, configMaps}
	write := func(round int) {
		for i := range objects {
			for _, gvr := range both {
				u := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "v1", "kind": map[string]string{"secrets": "Secret", "configmaps": "ConfigMap"}[gvr.Resource],
					"metadata": map[string]any{"namespace": ns, "name": fmt.Sprintf("o-%d", i)},
					"data":     map[string]any{"value": plain.base64(), "round": fmt.Sprintf("%04d", round)},
				}}
				if gvr == secrets {
					u.Object["data"].(map[string]any)["own"] = own.base64()
					u.SetAnnotations(map[string]string{"example.com/own": "it is " + own.text})
				}
				var err error
				if round == 0 {
					_, err = dyn.Resource(gvr).Namespace(ns).Create(t.Context(), u, metav1.CreateOptions{})
				} else {
					_, err = dyn.Resource(gvr).Namespace(ns).Update(t.Context(), u, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	get := func(path string) string {
		t.Helper()
		var body string
		eventually(t, func() (ok bool) { body, ok = httpGet(t, "http://"+admin+path); return ok },
			func() string { return path + " doesn't answer: " + body })
		return body
	}
	now := func() (st status.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(get("/api/v1/status")), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}

	d := newDaemon(t, c.Kubeconfig, config(false))
	d.start()
	eventually(t, func() bool { return now().Applied && len(now().Watches) == 1 }, func() string { return "it doesn't run" })
	write(0)
	write(1)
	eventually(t, func() bool { return now().Store.LoggedEvents >= 4*objects }, func() string { return fmt.Sprint(now().Store) })

	contents := map[string][]byte{}
	// ask asks every door of the history.
	ask := func(when string) {
		t.Helper()
		paths := []string{
			"/api/v1/history?limit=1000", "/api/v1/history?limit=1000&path=data.value", "/api/v1/history?limit=1000&order=asc&when=" + url.QueryEscape(`int(object.data.value) > 0`),
			"/api/v1/history/histogram?from=1h", "/api/v1/changes?from=1h", "/api/v1/changes?from=1h&group=owner",
			"/api/v1/events?follow=false&since=1h", "/api/v1/events?follow=false&since=1h&view=feed", "/api/v1/deadletters/stuck?events=true",
		}
		var page struct{ Items []struct{ Sequence uint64 } }
		if err := json.Unmarshal([]byte(get("/api/v1/history?resource=secrets&limit=3")), &page); err != nil {
			t.Fatal(err)
		}
		for _, change := range page.Items {
			paths = append(paths, fmt.Sprintf("/api/v1/events/%d/explain", change.Sequence))
		}
		for _, resource := range []string{"secrets", "configmaps"} {
			object := "/api/v1/objects/" + resource + "/" + ns + "/o-0"
			paths = append(paths, "/api/v1/objects/"+resource, "/api/v1/objects/"+resource+"?at=-1ms", object, object+"?at=-1ms", object+"/versions", object+"/diff", object+"/diff?from=1h", object+"/blame",
				"/at/-1ms/api/v1/"+resource, "/at/-1ms/api/v1/namespaces/"+ns+"/"+resource+"/o-0")
		}
		for _, path := range paths {
			contents[when+" GET "+path] = []byte(get(path))
		}
		candidate := d.path("candidate.yaml")
		shown := strings.Replace(config(false, "shown"), "startFrom: earliest", "body: '[object, oldObject, patch, event.summary]'", 1)
		if err := os.WriteFile(candidate, []byte(shown), 0o600); err != nil {
			t.Fatal(err)
		}
		out, errs, code := command(t, "backtest", "--config", candidate, "--since", "1h", "-o", "json", "--admin", "http://"+admin)
		if code != 0 {
			t.Error(errs)
		}
		contents[when+" backtest"] = []byte(out + errs)
	}
	before := now().Config.Hash
	d.configure(config(true, "late"))
	eventually(t, func() bool { return now().Config.Hash != before }, func() string { return "it isn't reloaded" })
	ask("reloaded")
	receiver.become(healthy)
	eventually(t, func() bool {
		content, err := os.ReadFile(d.path("late/all.jsonl"))
		return err == nil && bytes.Count(content, []byte("\n")) >= 4*objects
	}, func() string { return "the new sink has not got the log" })
	eventually(t, func() bool {
		for _, s := range now().Sinks {
			if s.Queued > 0 {
				return false
			}
		}
		return true
	}, func() string { return "the backlog is not delivered" })
	eventually(t, func() bool { s := now().Scrub; return s != nil && !s.Done.IsZero() },
		func() string { return fmt.Sprintf("scrub %+v", now().Scrub) })
	if s := now().Scrub; s.Failed > 0 || s.Rewritten < 4*objects || strings.Join(s.Resources, " ") != "configmaps secrets" {
		t.Errorf("scrub %+v", s)
	}
	ask("scrubbed")
	// What routes hold is released.
	var received [][]byte
	awaitReceived := func(n int, what string) {
		t.Helper()
		found := 0
		eventually(t, func() bool {
			fresh, err := receiver.tap().more()
			received, found = append(received, fresh...), 0
			for _, body := range received {
				if bytes.Contains(body, []byte(what)) {
					found++
				}
			}
			return err == nil && found >= n
		}, func() string { return fmt.Sprintf("%d events with %s, want %d", found, what, n) })
	}
	awaitReceived(2*objects, `"for":{"since":`)
	for i := range objects - 1 {
		for _, gvr := range both {
			if err := dyn.Resource(gvr).Namespace(ns).Delete(t.Context(), fmt.Sprintf("o-%d", i), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	awaitReceived(2*2*(objects-1), `"type":"dev.watcherd.resource.deleted"`)
	if _, errs, code := command(t, "store", "backup", d.path("copy"), "--admin", "http://"+admin); code != 0 {
		t.Error(errs)
	}
	d.stop()
	exported, stored := storeContents(t, d)
	contents["store export"], contents["store, inflated"] = exported, stored
	// Of each object: two of the backlog, the first one of the throttle, what it held, which what lasted released, and that; and
	// of those that are deleted twice the deletion.
	if want := 2 * (5*objects + 2*(objects-1)); len(received) != want {
		t.Errorf("the receiver has %d events, want %d", len(received), want)
	}
	contents["receiver"] = bytes.Join(received, nil)
	err := filepath.WalkDir(d.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		contents[strings.TrimPrefix(path, d.dir)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for where, content := range contents {
		if plain.in(content) || own.in(content) {
			t.Errorf("the value is in: %s", where)
		}
	}
	for _, where := range []string{
		"/late/all.jsonl", "store, inflated", "reloaded GET /api/v1/objects/secrets?at=-1ms", "reloaded GET /at/-1ms/api/v1/configmaps", "reloaded GET /api/v1/objects/secrets/" + ns + "/o-0/blame", "reloaded backtest",
		"scrubbed GET /api/v1/objects/secrets", "scrubbed GET /at/-1ms/api/v1/configmaps", "scrubbed GET /api/v1/objects/secrets/" + ns + "/o-0/blame",
	} {
		if !bytes.Contains(contents[where], []byte("redacted:hmac-sha256:")) {
			t.Errorf("nothing is hidden in: %s:\n%.2000s", where, contents[where])
		}
	}
}
