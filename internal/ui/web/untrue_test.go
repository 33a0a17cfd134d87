package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// TestOpening: of a daemon whose store is not open yet, what it has is not known, and is not "none".
func TestOpening(t *testing.T) {
	d := start(t, configMaps(namespace(t))+"routes: [{name: all, sinks: [screen]}]\nsinks: [{name: screen, stdout: {}}]\n")
	d.stop()
	// A file that the store is opened with is a pipe, which brings nothing before it is released.
	files, err := filepath.Glob(filepath.Join(d.dir, "data", "*", "OPTIONS-*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	options, err := os.ReadFile(files[0])
	if err == nil {
		err = errors.Join(os.Remove(files[0]), syscall.Mkfifo(files[0], 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	d.begin()
	release := sync.OnceFunc(func() {
		pipe, err := os.OpenFile(files[0], os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = pipe.Write(options)
		if err := errors.Join(err, os.Remove(files[0]), os.WriteFile(files[0], options, 0o600), pipe.Close()); err != nil {
			t.Error(err)
		}
	})
	defer release() // so that it can stop
	until(t, "the daemon answers", func() bool {
		resp, err := http.Get(d.base + "/livez")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil
	})
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 503")
	for _, view := range []string{"delivery", "watches", "config", "feed"} {
		p.do(chromedp.Navigate(d.base + "/ui/#/" + view))
		p.sees(".cluster", ".")
		p.settled()
		if text := p.text("body"); strings.Contains(text, "No ") || strings.Contains(text, "-1 B") || strings.Contains(text, "0 events") {
			t.Errorf("%s shows\n%s", view, text)
		}
		p.sees(".notice.gap", "store is being opened")
	}
	release()
	p.do(chromedp.Navigate(d.base + "/ui/#/delivery"))
	p.sees("main", "screen")
	p.sees(".cluster", ".")
	if text := p.text(".notice.gap"); text != "" {
		t.Errorf("of an open store: %s", text)
	}
}

// TestFreeSpace: file systems that grow, as NFS services have them, report about 8 EiB, and some nothing.
func TestFreeSpace(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	for free, want := range map[string]string{"9223372036853727232": "8388608 TiB free", "-1": "in the log$"} {
		p := open(t, edited(t, d, "/status", func(status []byte) []byte {
			return regexp.MustCompile(`"diskFree":[0-9]+`).ReplaceAll(status, []byte(`"diskFree":`+free))
		}), "#/config")
		p.sees(".facts-list dt:nth-of-type(4) + dd", want)
	}
}

// TestNumberAndString: a number does not look like a string of its digits, and an empty string not like nothing.
func TestNumberAndString(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	config := hooked(ns, hook, `retry: {poisonAttempts: 5}, body: '{"a": 1}'`)
	d := start(t, config)
	p := open(t, d, "#/config")
	d.configure("admin: {listen: ADDRESS}\n" + strings.ReplaceAll(config, "poisonAttempts: 5", `poisonAttempts: "5"`))
	p.sees(".fields", `poisonAttempts\s+5\s+"5"`)
	configMap(t, http.MethodPost, ns, "app", object{"level": "5"})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "6", "empty": ""})
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".fields", `data\.empty\s+""`)
	p.sees(".fields", `data\.level\s+5\s+6`)
}

// TestFarDifference: texts that differ far from their beginning are shown where they do.
func TestFarDifference(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	long := strings.Repeat("x", 5000)
	configMap(t, http.MethodPost, ns, "long", object{"line": long + "old" + long})
	configMap(t, http.MethodPatch, ns, "long", object{"line": long + "new" + long})
	p := open(t, d, "#/object/configmaps/"+ns+"/long")
	p.sees(".fields", `(?s)line.*xold.*xnew`)
	p.sees(".diff", `(?s)xold.*xnew`)
}

// TestReloads: what a reload has led to is not shown after the next, and a file that differs in what is masked has no other
// values to show.
func TestReloads(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	config := hooked(ns, hook, `retry: {poisonAttempts: 5}, body: '{"a": 1}'`)
	d := start(t, config)
	p := open(t, d, "#/config")
	p.press("main", "reload")
	p.sees("[role=status]", "the file is what runs")
	d.configure("admin: {listen: ADDRESS}\n" + strings.ReplaceAll(config, `"a": 1`, `"a": `))
	p.sees(".notice.bad", "The file is not what runs")
	if text := p.text(".facts-list"); strings.Contains(text, "the file is what runs") {
		t.Errorf("after a reload that failed: %s", text)
	}
	p.sees(`[aria-label="Configuration"]`, `sinks\[0\].body`)
	if text := p.text(`[aria-label="Configuration"]`); strings.Contains(text, "has other values") {
		t.Errorf("of a file whose shown values are the same: %s", text)
	}
}

// TestKeysOfARestart: a file of which a part waits for a restart is not all that runs.
func TestKeysOfARestart(t *testing.T) {
	config := configMaps(namespace(t))
	d := start(t, config)
	p := open(t, d, "#/config")
	p.sees(`[aria-label="Configuration"]`, `The file has what runs\.`)
	d.configure("admin: {listen: \"" + address(t) + "\"}\n" + config)
	p.sees(".notice.gap", "restart: admin.listen")
	p.sees(".facts-list", "as the file has it, but for the keys above")
	p.sees(`[aria-label="Configuration"]`, `The file has what runs, but for the keys above\.`)
}

// TestOldestUnread: of several resources that are not read, the earliest time is that of the period.
func TestOldestUnread(t *testing.T) {
	ns := namespace(t)
	var down atomic.Pointer[[]string]
	kubeconfig, cut := through(t, func(w http.ResponseWriter, r *http.Request) bool {
		if of := down.Load(); of == nil || !slices.ContainsFunc(*of, func(resource string) bool { return strings.HasSuffix(r.URL.Path, "/"+resource) }) {
			return false
		}
		http.Error(w, "down", http.StatusServiceUnavailable)
		return true
	})
	config := func(resources string) string {
		return "admin: {listen: ADDRESS}\nwatches: [{name: all, resources: [" + resources + "], namespaces: {include: [" + ns + "]}}]\n"
	}
	d := startWith(t, "", kubeconfig, config("services"))
	nextSecond()
	d.configure(config("services, configmaps"))
	configMap(t, http.MethodPost, ns, "app", nil)
	type unread struct{ Resource, Since string }
	type answer struct {
		Unread []unread
		Items  []struct{ Name string }
	}
	changes := func() (c answer) {
		resp, err := http.Get(d.base + "/api/v1/changes?from=-1h")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	until(t, "config maps are read later", func() bool { c := changes(); return len(c.Items) > 0 && len(c.Unread) == 0 })
	down.Store(&[]string{"services", "configmaps"})
	cut()
	until(t, "neither is read", func() bool { return len(changes().Unread) == 2 })
	p := open(t, d, "#/between?from=-1h")
	p.sees(".lead .verdict", "not read since")
	l := changes().Unread
	want := l[slices.IndexFunc(l, func(u unread) bool { return u.Resource == "services" })]
	if got := eval[string](p, `document.querySelector(".lead button.verdict time").dateTime`); got != want.Since {
		t.Errorf("not read since %s, want %s of %+v", got, want.Since, l)
	}
}

// TestEnterOnOthers: Enter on a row that stands for others lists them, also below a gap, which has no name.
func TestEnterOnOthers(t *testing.T) {
	r, d := startReplayed(t)
	front := reframed(t, d, func(rows []any) {
		if len(rows) > 0 {
			row := rows[0].(object)
			row["type"] = "gap"
			delete(row, "namespace")
			delete(row, "name")
		}
	})
	p := open(t, front, "#/feed?lens=all")
	p.sees(".dot.live", "live")
	const many = 12_000
	r.change(t, many)
	p.sees(".counts", "^"+grouped(many)+" changes since")
	p.others()
	eval[chromedp.Void](p, `void document.querySelector(".row.hole").click()`)
	p.sees(".row.hole.selected", "more change")
	p.keys("\r")
	p.sees(".bar", "back to live")
}

// TestEndOfFeed: the list of a live feed does not seem to be the whole history where it ends.
func TestEndOfFeed(t *testing.T) {
	r, d := startReplayed(t)
	const many = 12_000
	before := d.recorded()
	r.change(t, many)
	until(t, "all is recorded", func() bool { return d.recorded() >= before+many }) // what comes to a held list waits above it
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if q := r.URL.Query(); q.Get("limit") == "200" {
			q.Set("limit", "1000") // sooner
			r.URL.RawQuery = q.Encode()
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/feed?lens=all")
	p.sees(".row", "Pod")
	until(t, "the list ends", func() bool {
		eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 1e7)`)
		return eval[int](p, `Number(document.querySelector(".row").getAttribute("aria-setsize"))`) >= 10_000
	})
	p.sees(".bar", "older changes are not listed: choose a period")
}

// TestQuestionsOutOfOrder: what is confirmed is what was asked last, also if an earlier question is answered later. Of a
// command whose answer is lost, the page does not know whether it was done.
func TestQuestionsOutOfOrder(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	d := start(t, hooked(ns, hook, "retry: {poisonAttempts: 1}"))
	configMap(t, http.MethodPost, ns, "one", nil)
	configMap(t, http.MethodPatch, ns, "one", object{"a": "b"})
	var first atomic.Bool
	release, asked, sent := make(chan struct{}), make(chan struct{}), make(chan struct{})
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		r.Header.Del("Origin") // of another address
		switch {
		case strings.HasSuffix(r.URL.Path, "/drop") && !first.Swap(true):
			close(asked)
			late(w, r, pass, release)
			close(sent)
		case strings.HasSuffix(r.URL.Path, "/pause"):
			pass.ServeHTTP(httptest.NewRecorder(), r)
			w.Header().Set("Content-Length", "100")
			_ = http.NewResponseController(w).Flush() // the page sees that there is an answer
			panic(http.ErrAbortHandler)
		default:
			pass.ServeHTTP(w, r)
		}
	})
	p := open(t, front, "#/delivery/hook")
	p.sees(".group", "2 .*422")
	p.press(".filter", "delete all")
	rest(t, "it is not asked", asked)
	p.press(".filter", "deliver all again")
	p.sees("dialog", "Deliver 2 dead letters again")
	close(release)
	rest(t, "it is not answered", sent)
	p.settled()
	p.sees("dialog", "Deliver 2 dead letters again")
	p.press("dialog", "Cancel")
	p.allow("net::ERR_")
	p.press("tr:has([aria-current])", "pause")
	p.press("dialog", "pause")
	p.sees(".notice.bad", "whether it has done that is not known")
	p.sees("tr.chosen .dot", "paused")
}

// TestEventsOfAnotherGroup: a Kubernetes Event of an object of another group with the same kind and name, as Knative's Service, is
// not of this one.
func TestEventsOfAnotherGroup(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [configmaps, events], namespaces: {include: ["+ns+"]}}]\n")
	configMap(t, http.MethodPost, ns, "app", nil)
	for reason, version := range map[string]string{"Known": "v1", "Bare": "", "Foreign": "example.org/v1"} {
		shared.api.do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/events", object{
			"metadata": object{"name": "app." + strings.ToLower(reason)}, "type": "Normal", "reason": reason, "message": "said",
			"involvedObject": object{"apiVersion": version, "kind": "ConfigMap", "namespace": ns, "name": "app"},
		})
	}
	p := open(t, d, "#/feed?lens=all&namespace="+ns)
	p.sees(".rows", "Foreign")
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".versions", "Known")
	p.sees(".versions", "Bare")
	if text := p.text(".versions"); strings.Contains(text, "Foreign") {
		t.Errorf("the versions are\n%s", text)
	}
}

// TestShownTimes: the state at the time that is shown for a change has the change, as with the times that commands print.
func TestShownTimes(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "#/feed")
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	p.sees(".rows", "app")
	shown := p.text(".row time")
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".versions", shown)
	p.do(chromedp.Navigate(d.base + "/ui/#/between?from=-1h"))
	p.fill("to", shown)
	p.sees(".lead", "Between")
	p.sees("main", `(?s)1 .*app`)
}

// TestRuleOfForbidden: the rule that is shown for a forbidden resource is the one that `watcherd rbac` prints.
func TestRuleOfForbidden(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	front := edited(t, d, "/status", func(body []byte) []byte {
		return regexp.MustCompile(`("state": ?)"watching"`).ReplaceAll(body, []byte(`$1"forbidden","message":"no"`))
	})
	p := open(t, front, "#/watches")
	p.sees(`[aria-label="The rule to add"]`, "verbs")
	_, rule, _ := strings.Cut(p.text(`[aria-label="The rule to add"]`), "\n")
	printed, err := exec.CommandContext(t.Context(), shared.daemon, "rbac", "--config", filepath.Join(d.dir, "watcherd.yaml")).Output()
	if err != nil || !strings.Contains(string(printed), rule) {
		t.Errorf("the page has\n%s\nand watcherd rbac prints\n%s%v", rule, printed, err)
	}
}

// TestRowsOfAnotherDay: a row of another day has its whole time, and the name of its object.
func TestRowsOfAnotherDay(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "settings-of-the-first", nil)
	front := edited(t, d, "/history", func(body []byte) []byte {
		var page object
		if err := json.Unmarshal(body, &page); err != nil {
			t.Error(err)
			return body
		}
		items, _ := page["items"].([]any)
		for _, item := range items {
			item.(object)["time"] = "2025-10-05T12:34:56.789Z"
		}
		return encoded(t, page)
	})
	p := open(t, front, "#/feed?from=2025-10-01T00:00:00Z&namespace="+ns)
	for _, width := range []int64{1280, 720, 360} {
		p.do(chromedp.EmulateViewport(width, 800))
		p.sees(".row time", `2025-10-05`)
		p.settled()
		cut := func(of string) int {
			return eval[int](p, `(() => { const e = document.querySelector(".row " + %s); return Math.max(e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight); })()`, of)
		}
		p.shot(os.Getenv("WATCHERD_SCREENSHOTS"), fmt.Sprintf("%s-%d", t.Name(), width))
		if n := cut("time"); n > 0 {
			t.Errorf("at %d px, %d px of the time are not seen", width, n)
		}
		if n := cut(".name"); width == 360 && n > 0 { // wider ones have a part of long names
			t.Errorf("at %d px, %d px of the name are not seen", width, n)
		}
	}
}

// TestExplainAfterAReload: the verdicts of the configuration of now are those of the one that runs, also after a reload.
func TestExplainAfterAReload(t *testing.T) {
	ns := namespace(t)
	config := configMaps(ns) + "sinks: [{name: screen, stdout: {}}]\nroutes: [{name: all, sinks: [screen]}"
	d := start(t, config+"]\n")
	configMap(t, http.MethodPost, ns, "why", nil)
	p := open(t, d, "#/feed?namespace="+ns)
	p.sees(".rows", "why")
	p.do(chromedp.Navigate(d.base + "/ui/#/config?event=" + fmt.Sprint(eval[int64](p, `fetch("../api/v1/history?limit=1").then((r) => r.json()).then((a) => a.items[0].sequence)`))))
	p.sees(`[aria-label="Explain"]`, `(?s)all\s+takes it\s+screen`)
	d.configure("admin: {listen: ADDRESS}\n" + config + ", {name: pods, resources: [pods], sinks: [screen]}]\n")
	p.press("main", "reload")
	p.sees(".facts-list", "the file is what runs")
	p.sees(`[aria-label="Explain"]`, `pods\s+is for other resources`)
}

// TestExplainOfHeld: an event that a route holds by throttle is not shown as one that the sink has.
func TestExplainOfHeld(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns)+"sinks: [{name: screen, stdout: {}}]\nroutes: [{name: calm, throttle: {per: 1h}, sinks: [screen]}]\n")
	configMap(t, http.MethodPost, ns, "busy", object{"level": "info"})
	p := open(t, d, "#/feed?namespace="+ns)
	p.sees(".rows", "busy")
	configMap(t, http.MethodPut, ns, "busy", object{"level": "warn"})
	p.sees(".rows", "info → warn")
	p.do(chromedp.Navigate(d.base + "/ui/#/config?event=" + fmt.Sprint(eval[int64](p, `fetch("../api/v1/history?limit=1").then((r) => r.json()).then((a) => a.items[0].sequence)`))))
	p.sees(`[aria-label="Explain"]`, `(?s)screen \(by calm\)\..*calm\s+takes it, held for screen by throttle until \d`)
}

// TestReloadOfARestart: what a reload has led to is not more than what runs.
func TestReloadOfARestart(t *testing.T) {
	config := configMaps(namespace(t))
	d := start(t, config)
	p := open(t, d, "#/config")
	p.sees(`[aria-label="Configuration"]`, `The file has what runs\.`)
	d.configure("admin: {listen: \"" + address(t) + "\"}\n" + config)
	p.sees(".notice.gap", "restart: admin.listen")
	p.press("main", "reload")
	p.sees(".facts-list [role=status]", "what runs")
	if text := p.text(".facts-list [role=status]"); text == "the file is what runs" {
		t.Errorf("beside a file of which a part waits for a restart: %s", text)
	}
}

// TestOwnedUnread: what an object owns now is not known while the watch of that fails.
func TestOwnedUnread(t *testing.T) {
	ns := namespace(t)
	var down atomic.Bool
	kubeconfig, cut := through(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !down.Load() || !strings.HasSuffix(r.URL.Path, "/services") {
			return false
		}
		http.Error(w, "down", http.StatusServiceUnavailable)
		return true
	})
	d := startWith(t, "", kubeconfig, "admin: {listen: ADDRESS}\nwatches: [{name: all, resources: [configmaps, services], namespaces: {include: ["+ns+"]}}]\n")
	uid := shared.api.do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/configmaps", object{"metadata": object{"name": "root"}})["metadata"].(object)["uid"]
	service := "/api/v1/namespaces/" + ns + "/services"
	shared.api.do(t, http.MethodPost, service, object{"spec": object{"ports": []object{{"port": 80}}}, "metadata": object{
		"name": "mine", "ownerReferences": []object{{"apiVersion": "v1", "kind": "ConfigMap", "name": "root", "uid": uid, "controller": true}},
	}})
	p := open(t, d, "#/object/configmaps/"+ns+"/root?tab=owned")
	p.sees(".pane .grid", `Service\s+`+ns+"/mine")
	down.Store(true)
	cut()
	shared.api.do(t, http.MethodDelete, service+"/mine", nil)
	p.sees(".pane .notice.gap", "It may own others by now: .*not read since")
	p.press(".pane", "not read since")
	p.sees(".pane .gaps", "services.* not read since 20")
	p.accessible()
	down.Store(false)
	p.sees(".pane", "No object that is watched has an owner reference to it")
	if text := p.text(".pane .notice.gap"); strings.Contains(text, "not read since") {
		t.Errorf("of a watch that works: %s", text)
	}
}

// TestGapWithoutVersions: a gap is shown of an object, too, of which no change is recorded.
func TestGapWithoutVersions(t *testing.T) {
	ns := namespace(t)
	var gone atomic.Bool
	kubeconfig, cut := through(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("watch") || !strings.HasSuffix(r.URL.Path, "/configmaps") || !gone.CompareAndSwap(true, false) {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`))
		return true
	})
	d := startWith(t, "", kubeconfig, "admin: {listen: ADDRESS}\n"+configMaps(ns))
	configMap(t, http.MethodPost, ns, "other", nil)
	p := open(t, d, "#/feed?namespace="+ns)
	p.sees(".rows", "other")
	gone.Store(true)
	cut()
	configMap(t, http.MethodPost, ns, "short", nil)
	p.sees(".row.gap", "gap from .* to .* in "+ns+": expired")
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/never"))
	p.sees(".object", "No change of this object is recorded")
	p.press(".object", "⌁ 1 gap")
	p.sees(".gaps", "configmaps in "+ns+" .*: expired")
	p.accessible()
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/short"))
	p.sees(".versions", "(?s)added.*gap from .* to .*: expired.*not known before")
}

// TestOwnersOfAnother: while the state of a version is late, the owners of another are not in the head.
func TestOwnersOfAnother(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	owner := func(name string) []object {
		return []object{{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "1"}}
	}
	shared.api.do(t, http.MethodPost, path, object{"metadata": object{"name": "app", "ownerReferences": owner("first")}})
	shared.api.do(t, http.MethodPatch, path+"/app", object{"metadata": object{"ownerReferences": owner("second")}})
	var held atomic.Bool
	release := make(chan struct{})
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if held.Load() && strings.HasSuffix(r.URL.Path, "/app") {
			late(w, r, pass, release)
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/object/configmaps/"+ns+"/app")
	p.sees(".owners", "second")
	held.Store(true)
	p.keys("[")
	p.sees(".versions [aria-current]", "added")
	nextSecond()
	nextSecond()
	if text := p.text(".owners"); text != "" {
		t.Errorf("of a version whose state is not read yet: %s", text)
	}
	close(release)
	p.sees(".owners", "first")
}

// TestHourTwice: of the hour that a clock shows twice, a time is that of one of both.
func TestHourTwice(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "one", nil)
	configMap(t, http.MethodPost, ns, "two", nil)
	times := []string{"2025-10-26T01:30:00.5Z", "2025-10-26T00:30:00.5Z"}
	front := edited(t, d, "/history", func(body []byte) []byte {
		var page object
		if err := json.Unmarshal(body, &page); err != nil {
			t.Error(err)
			return body
		}
		items, _ := page["items"].([]any)
		for i, item := range items {
			if i < len(times) {
				item.(object)["time"] = times[i]
			}
		}
		return encoded(t, page)
	})
	p := open(t, &daemon{}, "about:blank")
	if _, err := chromedp.Call(p.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Europe/Berlin"}); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.Navigate(front.base + "/ui/#/feed?from=2025-10-01T00:00:00Z&namespace=" + ns))
	until(t, "both are listed", func() bool { return eval[int](p, `document.querySelectorAll(".row time").length`) >= 2 })
	shown := eval[[]string](p, `[...document.querySelectorAll(".row time")].slice(0, 2).map((e) => e.innerText)`)
	for i, text := range shown {
		p.do(chromedp.Navigate(front.base + "/ui/#/between?from=" + fmt.Sprint("-", i+1, "h")))
		p.sees(".filter", "from")
		p.fill("from", text)
		want, _ := time.Parse(time.RFC3339, times[i])
		until(t, "the address has the time", func() bool { return eval[bool](p, `location.hash.includes("2025")`) })
		got := eval[string](p, `new URLSearchParams(location.hash.split("?")[1]).get("from")`)
		if at, err := time.Parse(time.RFC3339, got); err != nil || !at.Equal(want) {
			t.Errorf("%s is shown as %s, which is taken as %s", times[i], text, got)
		}
	}
}

// TestErrorOfThePast: what failed before a sink delivered again has the time of that.
func TestErrorOfThePast(t *testing.T) {
	ns := namespace(t)
	var requests atomic.Int64
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch requests.Add(1) {
		case 1:
			http.Error(w, "down for a moment", http.StatusServiceUnavailable)
		case 2:
		default: // a delivery that takes long
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(release) })
	d := start(t, hooked(ns, srv.URL, "retry: {poisonAttempts: 5}"))
	configMap(t, http.MethodPost, ns, "first", nil)
	until(t, "it is delivered after all", func() bool { return requests.Load() == 2 })
	configMap(t, http.MethodPost, ns, "second", nil)
	until(t, "the next is on its way", func() bool { return requests.Load() == 3 })
	p := open(t, d, "#/delivery")
	p.sees("main", `(?s)hook.*running.*down for a moment.*last success`)
	if text := p.text(".why"); !strings.Contains(text, "last error ") {
		t.Errorf("of an error that is repaired: %s", text)
	}
}

// TestSinceAReload: a reload that changes nothing is not the beginning of what runs.
func TestSinceAReload(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	p := open(t, d, "#/config")
	p.sees(".facts-list", "as the file has it")
	nextSecond()
	nextSecond()
	began := p.text(".facts-list dd:nth-of-type(2)")
	p.press("main", "reload")
	p.sees(".facts-list", "the file is what runs")
	p.settled()
	nextSecond()
	nextSecond()
	nextSecond()
	if text := p.text(".facts-list dd:nth-of-type(2)"); text != began && !strings.Contains(text, "as of") {
		t.Errorf("what runs %q is, after a reload, what runs %q", began, text)
	}
}

// framed edits the frames of a stream.
type framed struct {
	http.ResponseWriter
	t    *testing.T
	rest []byte
	edit func(rows []any) // the oldest first
}

func (f *framed) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func (f *framed) Write(b []byte) (int, error) {
	parts := bytes.SplitAfter(append(f.rest, b...), []byte("\n\n"))
	f.rest = parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		if head, data, ok := bytes.Cut(part, []byte("event: frame\ndata: ")); ok {
			var frame object
			if err := json.Unmarshal(data, &frame); err != nil {
				f.t.Error(err)
			}
			rows, _ := frame["rows"].([]any)
			f.edit(rows)
			part = slices.Concat(head, []byte("event: frame\ndata: "), encoded(f.t, frame), []byte("\n\n"))
		}
		if _, err := f.ResponseWriter.Write(part); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// reframed is a daemon whose frames are edited.
func reframed(t *testing.T, d *daemon, edit func(rows []any)) *daemon {
	t.Helper()
	return behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			w = &framed{ResponseWriter: w, t: t, edit: edit}
		}
		pass.ServeHTTP(w, r)
	})
}

// TestOthersOfAnEarlierTime: what a row stands for is listed, whatever the times of the rows around it: those of changes that
// were recorded later may be earlier.
func TestOthersOfAnEarlierTime(t *testing.T) {
	r, d := startReplayed(t)
	front := reframed(t, d, func(rows []any) {
		if len(rows) > 0 {
			rows[0].(object)["time"] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
		}
	})
	p := open(t, front, "#/feed?lens=all")
	p.sees(".dot.live", "live")
	const many = 12_000
	r.change(t, many)
	p.sees(".counts", "^"+grouped(many)+" changes since")
	sequence := func(row string) int {
		return eval[int](p, `(() => { const row = document.querySelector(".row.hole"), place = %s === "above" ? Number(row?.getAttribute("aria-posinset")) - 1 : 1;
			return Number(new URLSearchParams(document.querySelector('.row[aria-posinset="' + place + '"] a')?.href.split("?")[1]).get("v")); })()`, row)
	}
	above := 0
	until(t, "a row stands for others, below another", func() bool {
		p.others()
		above = sequence("above")
		return above > 0
	})
	p.press(".row.hole", "")
	p.sees(".bar", "back to live")
	until(t, "they are listed, the newest first", func() bool { return sequence("first") == above-1 })
}

// TestStreamThatEnds: the reason for which streams end is shown, and the next ones are asked for ever more seldom.
func TestStreamThatEnds(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	var works atomic.Bool
	asked := make(chan time.Time, 1000)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if works.Load() || !strings.HasSuffix(r.URL.Path, "/events") {
			pass.ServeHTTP(w, r)
			return
		}
		asked <- time.Now()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("id: 1\n\nevent: end\ndata: {\"reason\":\"the log cannot be read\"}\n\n")) // the page may have gone
	})
	p := open(t, front, "")
	p.sees(".rows", ns+"/app")
	p.sees(".notice.bad", "the log cannot be read")
	var last, before time.Time
	for range 5 {
		select {
		case at := <-asked:
			before, last = last, at
		case <-time.After(patience):
			t.Fatal("no other stream is asked for")
		}
	}
	if wait := last.Sub(before); wait < 2*time.Second {
		t.Errorf("after four streams that ended, the next one is asked for in %v", wait)
	}
	works.Store(true)
	p.sees(".dot.live", "live")
	until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
}

// TestUnreadInTheStrip: a time that is not read is marked in the strip, up to its end.
func TestUnreadInTheStrip(t *testing.T) {
	ns := namespace(t)
	var down atomic.Bool
	kubeconfig, cut := through(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !down.Load() {
			return false
		}
		http.Error(w, "down", http.StatusServiceUnavailable)
		return true
	})
	d := startWith(t, "", kubeconfig, "admin: {listen: ADDRESS}\n"+configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	p := open(t, d, "#/feed?namespace="+ns)
	p.sees(".rows", "app")
	down.Store(true)
	cut()
	p.sees(".strip-head", "not read since")
	if end := eval[float64](p, `(() => { const r = document.querySelector(".gap-area"); return r ? Number(r.getAttribute("x")) + Number(r.getAttribute("width")) : 0; })()`); end < 119.9 {
		t.Errorf("of 120 parts, which end with a time that is not read, %v are before the end of the mark", end)
	}
	down.Store(false)
}

// TestHungCommand: a command that is not answered has an outcome after a while.
func TestHungCommand(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	d := start(t, hooked(ns, hook, "retry: {poisonAttempts: 1}"))
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/pause") {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the page has gone
			<-r.Context().Done()
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, &daemon{}, "about:blank")
	// What the page waits for longer than half a minute takes it a twentieth here.
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `{ const late = AbortSignal.timeout; AbortSignal.timeout = (ms) => late.call(AbortSignal, ms > 30000 ? ms / 20 : ms); }`,
	}); err != nil {
		t.Fatal(err)
	}
	p.allow("net::ERR_")
	p.do(chromedp.Navigate(front.base + "/ui/#/delivery"))
	p.press("tr", "pause")
	p.press("dialog", "pause")
	p.sees(".notice.bad", "whether it has done that is not known")
}

// TestFieldsUnread: where the states of a difference are not read, that is in place of the list of its fields.
func TestFieldsUnread(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "debug"})
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/app") {
			http.Error(w, "the disk is broken", http.StatusInternalServerError)
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 500")
	p.do(chromedp.Navigate(front.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".diff", "debug")
	p.sees(".pane .notice.bad", "the disk is broken")
}

// TestNamespaceOfNone: an object without a namespace has none of the address that leads to it, as that of an owner may.
func TestNamespaceOfNone(t *testing.T) {
	d := start(t, "watches: [{name: spaces, resources: [namespaces]}]\n")
	ns := namespace(t)
	p := open(t, d, "#/object/namespaces/elsewhere/"+ns)
	p.sees(".versions", "added")
	p.sees("h1", "^"+ns+" ")
	for _, link := range []string{"what followed", "in the feed"} {
		if to := eval[string](p, `[...document.querySelectorAll(".object a")].find((a) => a.innerText === %s).href`, link); strings.Contains(to, "elsewhere") {
			t.Errorf("%s leads to %s", link, to)
		}
	}
}

// TestNoLetterToDelete: where no dead letter matches, there is none to be asked about.
func TestNoLetterToDelete(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	d := start(t, hooked(ns, hook, "retry: {poisonAttempts: 1}"))
	configMap(t, http.MethodPost, ns, "one", nil)
	p := open(t, d, "#/delivery/hook")
	p.sees(".group", "1 .*422")
	p.fill("name", "other")
	p.sees("main", "No dead letter matches")
	for _, what := range []string{"delete all that match", "deliver all that match again"} {
		p.press(".filter", what)
		p.sees("[role=status].good, dialog", ".")
		if text := p.text("dialog"); text != "" {
			t.Fatalf("of no dead letters, the page asks %s", text)
		}
		p.sees("[role=status].good", "There is none: nothing was done")
	}
}

// TestFileGone: a file that is gone is not one that has no YAML.
func TestFileGone(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	if err := os.Remove(filepath.Join(d.dir, "watcherd.yaml")); err != nil {
		t.Fatal(err)
	}
	p := open(t, d, "#/config")
	p.sees(`[aria-label="Configuration"]`, "no such file")
	p.sees(`[aria-label="Configuration"] .notice.bad`, "The file cannot be read, or is not YAML")
}

// TestOwnerWithoutNamespace: an owner is in the namespace of what it owns or in none, which the reference does not tell: none is shown.
func TestOwnerWithoutNamespace(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [configmaps, namespaces]}]\n")
	shared.api.do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/configmaps", object{"metadata": object{
		"name": "app", "ownerReferences": []object{{"apiVersion": "v1", "kind": "Namespace", "name": ns, "uid": "1"}},
	}})
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".owners", `Namespace\s+`+ns+"$")
	p.press(".owners", ns)
	p.sees(".versions", "=|sync|added")
	p.sees("h1", "^"+ns+" ")
}

// TestExplainAgain: an event that a route holds no more is not shown as one that it holds.
func TestExplainAgain(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns)+"sinks: [{name: screen, stdout: {}}]\nroutes: [{name: calm, throttle: {per: 1h}, sinks: [screen]}]\n")
	configMap(t, http.MethodPost, ns, "busy", object{"level": "info"})
	p := open(t, d, "#/feed?namespace="+ns)
	p.sees(".rows", "busy")
	configMap(t, http.MethodPut, ns, "busy", object{"level": "warn"})
	p.sees(".rows", "info → warn")
	sequence := eval[int64](p, `fetch("../api/v1/history?limit=1").then((r) => r.json()).then((a) => a.items[0].sequence)`)
	var due atomic.Bool
	front := edited(t, d, "/explain", func(body []byte) []byte {
		var e object
		if err := json.Unmarshal(body, &e); err != nil {
			t.Error(err)
		}
		if due.Load() {
			e["holds"] = []any{}
		}
		return encoded(t, e)
	})
	p.do(chromedp.Navigate(front.base + "/ui/#/config?event=" + fmt.Sprint(sequence)))
	p.sees(`[aria-label="Explain"]`, "takes it, held for screen")
	due.Store(true)
	p.sees(`[aria-label="Explain"]`, `takes it\s+screen`)
}

// TestOlderThanAll: where the versions that the address names are not recorded any more, as retention deletes them while they
// are read, the newer ones are one step away.
func TestOlderThanAll(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	p := open(t, d, "#/object/configmaps/"+ns+"/app?end=2026-01-01T00:00:00Z")
	p.sees(".object .empty", "^No change of this object up to 2026-.* is recorded")
	p.press(".object", "The newest versions")
	p.sees(".versions", "added")
}

// TestOwnedUnknown: where there may be objects that it owns, none of which is known, the page does not say that there are none.
func TestOwnedUnknown(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	for as, note := range map[string]string{"gap": "Changes may have been missed", "unknown-before": "Not all states"} {
		front := edited(t, d, "/owned", func([]byte) []byte { return encoded(t, object{"as": as, "items": []object{}}) })
		p := open(t, front, "#/object/configmaps/"+ns+"/app?tab=owned")
		p.sees(".pane .notice.gap", "^"+note+".*: there may be others")
		if text := p.text(".pane .empty"); text != "None is known." {
			t.Errorf("as %s, the page says %q", as, text)
		}
	}
}

// TestLaterUnknown: the state of an object while it was not in the selection of a watch is not known, although earlier ones are recorded.
func TestLaterUnknown(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [configmaps], namespaces: {include: ["+ns+"]}, labelSelector: tier=web}]\n")
	path := "/api/v1/namespaces/" + ns + "/configmaps"
	app := func(method, path, tier, step string) {
		shared.api.do(t, method, path, object{"metadata": object{"name": "app", "labels": object{"tier": tier}}, "data": object{"step": step}})
	}
	second := func() string {
		nextSecond()
		defer nextSecond()
		return time.Now().UTC().Format(time.RFC3339)
	}
	app(http.MethodPost, path, "web", "1")
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", "added")
	from := second()
	app(http.MethodPatch, path+"/app", "db", "2")
	p.sees(".versions", "web → db")
	to := second()
	app(http.MethodPatch, path+"/app", "db", "3")
	app(http.MethodPatch, path+"/app", "web", "4")
	p.sees(".versions", "db → web|3 → 4|2 → 4|updated.*updated")
	p.do(chromedp.Navigate(d.base + "/ui/#/between?namespace=" + ns + "&from=" + from + "&to=" + to))
	p.press("main", "Difference of app")
	p.sees(".under .notice.gap", "^The later state is not known")
	if text := p.text(".under .notice.gap"); strings.Contains(text, "early") {
		t.Errorf("of what is later than recorded states, the page says %q", text)
	}
}

// TestBlameAgain: what blame is worth is that of now, also if the object has not changed since.
func TestBlameAgain(t *testing.T) {
	ns := namespace(t)
	var down atomic.Bool
	kubeconfig, cut := through(t, func(w http.ResponseWriter, r *http.Request) bool {
		if !down.Load() {
			return false
		}
		http.Error(w, "down", http.StatusServiceUnavailable)
		return true
	})
	d := startWith(t, "", kubeconfig, "admin: {listen: ADDRESS}\n"+configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	p := open(t, d, "#/object/configmaps/"+ns+"/app?tab=blame")
	p.sees(".blame", "level: info")
	down.Store(true)
	cut()
	p.sees(".pane .notice.gap", "It may be another by now: .*not read since")
	p.accessible()
	down.Store(false)
	until(t, "it is read again", func() bool { return p.text(".pane .notice.gap") == "" })
}

// TestFailedCount: a count that fails has changed nothing, and nothing else is said.
func TestFailedCount(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	d := start(t, hooked(ns, hook, "retry: {poisonAttempts: 1}"))
	configMap(t, http.MethodPost, ns, "one", nil)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/drop") {
			panic(http.ErrAbortHandler)
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/delivery/hook")
	p.sees(".group", "1 .*422")
	p.allow("net::ERR_")
	p.press(".filter", "delete all")
	p.sees(".notice.bad", "^the daemon does not answer$")
}

// TestCalmNotice: the reason for which streams end stays while the next ones begin, and end.
func TestCalmNotice(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	var works atomic.Bool
	asked := make(chan struct{}, 1000)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if works.Load() || !strings.HasSuffix(r.URL.Path, "/events") {
			pass.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("id: 1\n\n"))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(100 * time.Millisecond): // so that the page takes the beginning by itself
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte("event: end\ndata: {\"reason\":\"the log cannot be read\"}\n\n")) // the page may have gone
		asked <- struct{}{}
	})
	p := open(t, front, "")
	p.sees(".notice.bad", "the log cannot be read")
	eval[chromedp.Void](p, `(() => { window.gone = 0; new MutationObserver(() => { if (!document.querySelector(".notice.bad")) window.gone++; }).observe(document.body, { childList: true, subtree: true }); })()`)
	for range 3 {
		select {
		case <-asked:
		case <-time.After(patience):
			t.Fatal("no other stream is asked for")
		}
	}
	p.settled()
	if n := eval[int](p, "window.gone"); n > 0 {
		t.Error("the notice went, and came back")
	}
	works.Store(true)
	until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
}

// TestBusyDifference: a difference that is not there yet is one that is awaited, also the first one.
func TestBusyDifference(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	release := make(chan struct{})
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/diff") {
			late(w, r, pass, release)
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/object/configmaps/"+ns+"/app")
	p.sees(".pane [aria-busy=true]", "Reading…")
	close(release)
	p.sees(".pane", "created")
	if text := p.text(".pane [aria-busy=true]"); text != "" {
		t.Errorf("awaited is %s", text)
	}
}

// TestComparedTimes: a difference is from the earlier version to the later one, whichever is the shown one.
func TestComparedTimes(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	for _, level := range []string{"debug", "warn"} {
		nextSecond()
		configMap(t, http.MethodPatch, ns, "app", object{"level": level})
	}
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", "debug → warn")
	p.keys("[")
	p.sees(".fields", `info\s+debug`)
	p.press(".versions li.updated", "Compare with the version") // the newest
	p.sees(".fields", `debug\s+warn`)
	if times := eval[[]string](p, `[...document.querySelectorAll(".tabs time")].map((e) => e.dateTime)`); len(times) != 2 || times[0] >= times[1] {
		t.Errorf("the difference from debug to warn is from and to %v", times)
	}
}

// TestBlameOfOlderVersions: blame is of the last state, also beside a page of older versions, to which none is added.
func TestBlameOfOlderVersions(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", "added")
	nextSecond()
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/app?tab=blame&end=" + time.Now().UTC().Format(time.RFC3339)))
	p.sees(".blame", "level: info")
	nextSecond()
	configMap(t, http.MethodPatch, ns, "app", object{"level": "debug"})
	p.sees(".blame", "level: debug")
	p.sees(".pane", "Blame is of the last state, not of the chosen one")
}

// TestRightToLeft: values in letters that are written from right to left stand before and after the arrow as they were.
func TestRightToLeft(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "שלום"})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "קודם"})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "7"})
	p := open(t, d, "#/feed?name=app")
	for view, list := range map[string]string{"feed?name=app": ".row .summary", "object/configmaps/" + ns + "/app": ".versions .summary"} {
		eval[chromedp.Void](p, `void (location.hash = %s)`, "#/"+view)
		p.sees(list, "קודם")
		type place struct{ Old, New float64 }
		for _, change := range [][2]string{{"שלום", "קודם"}, {"קודם", "7"}} {
			at := eval[place](p, `((list, old, young) => {
				const e = [...document.querySelectorAll(list)].find((e) => e.textContent.includes(old + " → " + young)), place = (text) => {
					const nodes = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), range = document.createRange();
					for (let n; (n = nodes.nextNode());) if (n.data.includes(text)) {
						range.setStart(n, n.data.indexOf(text));
						range.setEnd(n, n.data.indexOf(text) + text.length);
					}
					return range.getBoundingClientRect().left;
				};
				return { Old: place(old), New: place(young) };
			})(%s, %s, %s)`, list, change[0], change[1])
			if at.Old >= at.New {
				t.Errorf("in %s, the old value %s is at %v, and the new one %s at %v", list, change[0], at.Old, change[1], at.New)
			}
		}
	}
}

// TestExpressionThatFails: what an expression cannot decide is counted, of what comes and of all pages.
func TestExpressionThatFails(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "#/feed?when="+url.QueryEscape(`int(object.data.level) > 3`))
	p.sees(".rows", "No recorded change matches")
	p.sees(".dot.live", "live")
	for i := range 6 {
		configMap(t, http.MethodPost, ns, fmt.Sprint("app-", i), object{"level": "high"})
	}
	p.sees(".bar", "expression failed on at least 6")
	configMap(t, http.MethodPost, ns, "other", object{"level": "5"})
	p.sees(".rows", "other")
	p.sees(".bar", "expression failed on at least 6")
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		limit(r, 1)
		pass.ServeHTTP(w, r)
	})
	configMap(t, http.MethodPost, ns, "last", object{"level": "high"})
	p.sees(".bar", "expression failed on at least 7")
	p.do(chromedp.Navigate(front.base + "/ui/#/feed?from=-1h&when=" + url.QueryEscape(`int(object.data.level) > 3`)))
	p.sees(".rows", "other")
	for range 20 {
		if !eval[bool](p, `[...document.querySelectorAll(".bar button")].some((e) => e.innerText === "search on")`) {
			break
		}
		p.press(".bar", "search on")
		p.settled()
	}
	p.sees(".bar", "expression failed on 7")
}

// TestManyHeld: while a list with an expression is held, what is more than a page is not counted exactly.
func TestManyHeld(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "first", nil)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		limit(r, 3)
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/feed?when="+url.QueryEscape(`object.metadata.name != "x"`))
	p.sees(".rows", "first")
	p.sees(".dot.live", "live")
	p.keys("p")
	p.sees(".bar", "resume")
	for i := range 6 {
		configMap(t, http.MethodPost, ns, fmt.Sprint("held-", i), nil)
	}
	p.sees(".bar", "at least 3 newer")
}

// TestGapOfATurnedClock: a gap is listed once among versions, too, whose times fall while their sequences rise, as after a clock
// was set back.
func TestGapOfATurnedClock(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	for i := range 3 {
		configMap(t, http.MethodPatch, ns, "app", object{"level": fmt.Sprint(i)})
	}
	at := func(minutes int) string {
		return time.Now().Add(time.Duration(minutes) * time.Minute).UTC().Format(time.RFC3339)
	}
	p := open(t, edited(t, d, "/versions", func(body []byte) []byte {
		var answer object
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Error(err)
			return body
		}
		for i, item := range answer["items"].([]any) {
			item.(object)["time"] = at([]int{-60, -30, -90, -100}[i])
		}
		answer["gaps"] = []object{{"watch": "all", "resource": object{"version": "v1", "resource": "configmaps", "kind": "ConfigMap"}, "cause": "expired", "from": at(-50), "to": at(-40)}}
		return encoded(t, answer)
	}), "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", `(?s)level 1 → 2.*added`)
	if n := eval[int](p, `document.querySelectorAll(".versions .life.gap").length`); n != 1 {
		t.Errorf("one gap is listed %d times", n)
	}
}

// TestLateFirstPage: a first page that is answered when more than the feed keeps has come since hides nothing of that.
func TestLateFirstPage(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	row := func(sequence int) object {
		return object{
			"sequence": sequence, "time": time.Now().UTC(), "type": "updated", "namespace": ns, "name": fmt.Sprint("n-", sequence),
			"resource": object{"version": "v1", "resource": "configmaps", "kind": "ConfigMap"},
		}
	}
	first, asked := make(chan struct{}), make(chan string, 10)
	answered := make(chan struct{})
	var n atomic.Int64
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		switch r.URL.Path {
		case "/api/v1/events": // 2100 changes in 42 frames, of which each has rows for 49
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "id: 10000\n\n")
			for i := range 42 {
				rows := []object{}
				for j := range 49 {
					rows = append(rows, row(10002+50*i+j))
				}
				_, _ = fmt.Fprintf(w, "id: %d\nevent: frame\ndata: %s\n\n", 10050+50*i, encoded(t, object{"total": 50, "noise": 0, "counts": object{}, "rows": rows}))
			}
			_ = http.NewResponseController(w).Flush() // the page may have gone
			<-r.Context().Done()
		case "/api/v1/history":
			answer := object{"from": time.Now().Add(-time.Hour).UTC(), "to": time.Now().UTC(), "complete": true, "gaps": []object{}, "scanned": 2, "items": []object{}}
			if n.Add(1) == 1 {
				select {
				case <-first:
				case <-r.Context().Done():
				}
				answer["items"] = []object{row(10000), row(9999)}
				defer close(answered)
			} else {
				asked <- r.URL.Query().Get("before")
			}
			_, _ = w.Write(encoded(t, answer))
		default:
			pass.ServeHTTP(w, r)
		}
	})
	p := open(t, front, "#/feed?lens=all")
	p.sees(".counts", "^2,100 changes since")
	close(first)
	rest(t, "the first page is not answered", answered)
	p.settled()
	var before string
	until(t, "what is between is asked for", func() bool {
		eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 1e7)`)
		select {
		case before = <-asked:
			return true
		default:
			return false
		}
	})
	if before != "10102" { // of the oldest row that is kept
		t.Errorf("the list is continued before %s", before)
	}
}

// TestTimeZone: the times of a list are of one zone, also after the browser has come to another.
func TestTimeZone(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	p := open(t, &daemon{}, "about:blank")
	zone := func(name string) {
		if _, err := chromedp.Call(p.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: name}); err != nil {
			t.Fatal(err)
		}
	}
	zone("Etc/GMT+3")
	p.do(chromedp.Navigate(d.base + "/ui/"))
	p.sees(".row", "app")
	before := p.text(".row:last-child time")
	zone("Etc/GMT+2")
	configMap(t, http.MethodPost, ns, "later", nil)
	p.sees(".row", "later")
	if after := p.text(".row:last-child time"); after == before {
		t.Errorf("below a row of %s, one of before is of %s still", p.text(".row time"), after)
	}
}

// TestAnotherDaemon: another daemon at the address, as a port is forwarded to another cluster or a store was begun again after
// a clock that was ahead, has its own rows in the feed, from the first on, and none of the one before.
func TestAnotherDaemon(t *testing.T) {
	for _, c := range []struct {
		one, two string
		ahead    bool // sequences of the daemon that was there first
	}{{"one", "two", false}, {"same", "same", true}} {
		nsOne, nsTwo := namespace(t), namespace(t)
		config := func(cluster, ns string) string { return "cluster: {name: " + cluster + "}\n" + configMaps(ns) }
		var one, two *daemon
		if c.ahead {
			two = start(t, config(c.two, nsTwo))
		}
		one = start(t, config(c.one, nsOne))
		if !c.ahead {
			two = start(t, config(c.two, nsTwo))
		}
		target, err := url.Parse(two.base)
		if err != nil {
			t.Fatal(err)
		}
		second := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1}
		there, leave := context.WithCancel(t.Context())
		defer leave()
		front := behind(t, one, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if there.Err() != nil {
				second.ServeHTTP(w, r)
				return
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(there, cancel)()
			pass.ServeHTTP(w, r.WithContext(ctx)) //nolint:contextcheck // it is made of that of the request
		})
		configMap(t, http.MethodPost, nsOne, "of-one", nil)
		p := open(t, front, "")
		p.sees(".dot.live", "live")
		p.sees(".rows", "of-one")
		p.allow("net::ERR_|Failed to load|502")
		leave()
		p.sees(".cluster", c.two)
		configMap(t, http.MethodPost, nsTwo, "of-two", nil)
		p.sees(".rows", "of-two")
		if text := p.text(".rows"); strings.Contains(text, "of-one") {
			t.Errorf("ahead %t: the feed has changes of the daemon before: %s", c.ahead, text)
		}
	}
}

// TestBeforeItsFirst: an address that names a change from before an object was created says nothing of what is lost.
func TestBeforeItsFirst(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	p := open(t, d, "#/object/configmaps/"+ns+"/app?v=1")
	p.sees(".versions", "it did not exist before")
	p.sees(".pane .notice.gap", "it did not exist: this is its first version")
}

// TestOpenGroup: a group of dead letters that is open stays so when its oldest is gone.
func TestOpenGroup(t *testing.T) {
	ns := namespace(t)
	var n atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, fmt.Sprintf("request %d is refused", 1000+n.Add(1)), http.StatusUnprocessableEntity)
	}))
	t.Cleanup(hook.Close)
	d := start(t, hooked(ns, hook.URL, "retry: {poisonAttempts: 1}"))
	configMap(t, http.MethodPost, ns, "one", nil)
	configMap(t, http.MethodPatch, ns, "one", object{"a": "b"})
	p := open(t, d, "#/delivery/hook")
	p.sees(".group", "2 .*422")
	p.press(".group", "2")
	p.sees(".letter", "one")
	resp, err := http.Get(d.base + "/api/v1/deadletters/hook?limit=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var oldest struct{ Items []struct{ Position int } }
	if err := json.NewDecoder(resp.Body).Decode(&oldest); err != nil || len(oldest.Items) == 0 {
		t.Fatal(oldest, err)
	}
	if err := drop(d, strconv.Itoa(oldest.Items[0].Position-1)); err != nil {
		t.Fatal(err)
	}
	p.sees(".group summary", "1 .*422")
	if !eval[bool](p, `document.querySelector(".group").open`) {
		t.Error("the group is closed")
	}
}
