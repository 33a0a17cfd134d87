package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// configMaps is a configuration that watches those of a namespace.
func configMaps(namespace string) string {
	return "watches:\n- {name: settings, resources: [configmaps], namespaces: {include: [" + namespace + "]}}\n"
}

const markup = `<img src=x onerror="document.title='run'"><b>`

func TestFeed(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "")
	p.sees(".dot.live", "live")
	p.sees(".strip-head", `^0 changes in 15m\s*\n`)
	configMap(t, http.MethodPost, ns, "first", object{"text": markup})
	p.sees(".rows", `(?s)ConfigMap.*`+ns+`/first.*tester.*added`)
	configMap(t, http.MethodPatch, ns, "first", object{"text": "other"})
	p.sees(".row:first-child", `data text .* → other`)
	configMap(t, http.MethodPost, ns, "second", nil)
	configMap(t, http.MethodDelete, ns, "second", nil)
	p.sees(".row.deleted", "second")
	p.sees(".counts", "^4 changes since")
	p.sees(".strip-head", "change")

	// Filters are of the daemon, and of the address.
	p.fill("name", "first")
	p.sees(".rows", "first")
	until(t, "only the changes of one name are listed", func() bool {
		return !strings.Contains(p.text(".rows"), "second") && strings.Contains(p.text(".rows"), "first")
	})
	p.press(".toggles", "+ added")
	until(t, "only additions are listed", func() bool {
		return !strings.Contains(p.text(".rows"), "→") && strings.Contains(p.text(".rows"), "first")
	})
	p.do(chromedp.Reload())
	until(t, "a reload keeps the filter", func() bool {
		return strings.Contains(p.text(".rows"), "first") && !strings.Contains(p.text(".rows"), "second")
	})
	p.do(chromedp.NavigateBack())
	p.sees(".rows", "→ other")
	p.do(chromedp.NavigateBack())
	p.sees(".rows", "second")

	// A pause keeps new changes back, and loses none.
	p.keys("p")
	p.sees(".bar", "resume")
	for i := range 3 {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("kept-%d", i), nil)
	}
	p.sees(".bar", "3 newer")
	if strings.Contains(p.text(".rows"), "kept-") {
		t.Error("a paused feed lists new changes")
	}
	p.keys("p")
	p.sees(".rows", `(?s)kept-2.*kept-1.*kept-0`)

	// The keyboard leads to the object, and back.
	p.keys("jj")
	p.sees(".feed > [role=status]", "^added ConfigMap "+ns+"/kept-1 ") // which a screen reader reads out
	p.sees(".row.selected", "kept-1")
	configMap(t, http.MethodPost, ns, "late", nil)
	p.sees(".row:first-child", "late")
	p.sees(".row.selected", "kept-1") // while others come
	p.keys("\r")
	p.sees("h1", "kept-1")
	p.do(chromedp.NavigateBack())
	p.sees(".rows", "kept-2")
	p.keys("?")
	p.sees(".help", "older and newer version")
	p.keys("\x1b")
	if title := eval[string](p, "document.title"); strings.Contains(title, "run") {
		t.Error("the markup of an object was run")
	}

	// A period of the past.
	p.do(chromedp.Navigate(p.base + "/ui/#/feed?from=-0s"))
	p.sees(".rows", "No recorded change in this period matches")
	p.do(chromedp.Navigate(p.base + "/ui/#/feed?from=-1h&to=-1s&when=" + "object.metadata.name%20%3D%3D%20%22first%22"))
	p.sees(".rows", "first")
	p.sees(".bar", "back to live")
	if text := p.text(".rows"); strings.Contains(text, "kept-") {
		t.Errorf("the expression selects\n%s", text)
	}
	p.sees(".strip-head", "whatever the expression selects")
	p.fill("when", "object.metdata.name == 'first'")
	p.sees(".bar", "a field that the expression reads is missing in [1-9]")
	p.allow("status of 400")
	p.fill("when", "object.metadata.(")
	p.sees(".notice.bad", "when")
	p.fill("when", "")
	p.press(".bar", "back to live")
	p.sees(".dot.live", "live")
	p.sees(".rows", "kept-2")
	p.accessible()
}

// TestWayBack: from an object, the way back leads to the rows from where it was opened, whatever came meanwhile.
func TestWayBack(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	const many = 60
	for i := range many {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("app-%02d", i), nil)
	}
	p := open(t, d, "")
	p.sees(".dot.live", "live")
	p.sees(".row:first-child", "app-59")
	eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 20 * document.querySelector(".row").clientHeight)`)
	p.sees(".rows", "app-20")
	configMap(t, http.MethodPost, ns, "newer", nil)
	p.sees(".bar", "1 newer")
	p.press(".row:has(a[href*=app-35])", ns+"/app-35")
	p.sees("h1", "app-35")
	p.do(chromedp.NavigateBack())
	p.sees(".row:first-child", "app-39")
	p.press(".bar", "back to live")
	p.sees(".row:first-child", "newer")

	p.sees(".dot.live", "live")
	p.keys("p")
	configMap(t, http.MethodPost, ns, "newest", nil)
	p.sees(".bar", "1 newer")
	p.keys("jjj\r")
	p.sees("h1", "app-58")
	p.do(chromedp.NavigateBack())
	p.sees(".row:first-child", "newer")
	p.sees(".bar", "back to live")
}

// TestLens: all changes of status that the filter selects are counted, not only those that would be
// listed, and hidden until they are asked for.
func TestLens(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: apps, resources: [deployments.apps], namespaces: {include: ["+ns+"]}}]\n")
	path := "/apis/apps/v1/namespaces/" + ns + "/deployments"
	shared.api.do(t, http.MethodPost, path+"?fieldManager=tester", object{"metadata": object{"name": "web"}, "spec": object{
		"selector": object{"matchLabels": object{"app": "web"}},
		"template": object{"metadata": object{"labels": object{"app": "web"}}, "spec": object{"containers": []object{{"name": "web", "image": "web"}}}},
	}})
	nextSecond()
	p := open(t, d, "")
	p.sees(".dot.live", "live")
	const statuses = 250
	for i := range statuses {
		shared.api.do(t, http.MethodPatch, path+"/web/status?fieldManager=controller", object{"status": object{"observedGeneration": i + 1}})
	}
	p.sees(".bar", fmt.Sprintf("%d status changes hidden: show", statuses))
	if text := p.text(".rows"); !strings.Contains(text, "added") || strings.Contains(text, "observedGeneration") {
		t.Errorf("the lens shows\n%s", text)
	}
	p.sees(".counts", "^0 changes since")
	p.fill("manager", "controller")
	p.sees(".rows", "besides status changes")
	p.sees(".bar", fmt.Sprintf("%d status changes hidden: show", statuses))
	p.press(".bar", fmt.Sprint(statuses))
	p.sees(".rows", "observedGeneration")
	p.sees(".bar", "hide status changes")
	shared.api.do(t, http.MethodPatch, path+"/web?fieldManager=tester", object{"metadata": object{"labels": object{"a": "b"}}})
	nextSecond()
	shared.api.do(t, http.MethodPatch, path+"/web/status?fieldManager=controller", object{"status": object{"observedGeneration": 1}})
	p.sees(".counts", "^1 change since") // that of the manager
	p.do(chromedp.NavigateBack(), chromedp.NavigateBack())
	p.sees(".rows", "label a")
	p.accessible()
}

// TestStrip: the histogram scrolls the list, and shows which part of the period the list has in view.
func TestStrip(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "early", nil)
	nextSecond()
	nextSecond()
	configMap(t, http.MethodPost, ns, "late", nil)
	p := open(t, d, "#/feed?from=-1m&to=-0s")
	p.sees(".rows", "(?s)late.*early")
	p.sees(".strip-head", "2 changes in 1m")
	thumb := func() (box [2]float64) {
		r := eval[[]float64](p, `(() => { const t = document.querySelector(".thumb").getBoundingClientRect(); return [t.left, t.right]; })()`)
		return [2]float64(r)
	}
	until(t, "the part in view is shown", func() bool { return eval[bool](p, `!!document.querySelector(".thumb")`) })
	both := thumb()
	// A click on the last bar: what came before the later change follows from there.
	top := eval[float64](p, `document.querySelector(".strip-area svg").getBoundingClientRect().top`)
	p.do(chromedp.MouseClickXY(both[0]+1, top+5))
	until(t, "the list begins at the earlier change", func() bool {
		return strings.Contains(p.text(".rows"), "early") && !strings.Contains(p.text(".rows"), "late")
	})
	p.sees(".strip-head", "2 changes in 1m")
	until(t, "the strip marks the earlier change alone", func() bool { return thumb()[1] < both[1] })
	p.sees(".bar", "back to live")
	eval[chromedp.Void](p, `void document.querySelector(".strip-area").focus()`)
	p.keys(kb.PageUp)
	p.sees(".rows", "(?s)late.*early")
	p.accessible()
	p.do(chromedp.NavigateBack())
	until(t, "the list begins at the earlier change again", func() bool { return !strings.Contains(p.text(".rows"), "late") })
	p.press(".bar", "back to live")
	p.sees(".dot.live", "live")
	p.sees(".rows", "(?s)late.*early")
}

// TestBurst: counts stay exact and the number of elements small, however many changes come.
func TestBurst(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "")
	p.sees(".dot.live", "live")
	const many = 400
	for i := range many {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("burst-%03d", i), nil)
	}
	p.sees(".counts", fmt.Sprintf("^%d changes since", many))
	p.sees(".row:first-child", "burst-399")
	if rows := eval[int](p, `document.querySelectorAll(".row").length`); rows > 200 {
		t.Errorf("%d rows are elements", rows)
	}
	eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 1e6)`)
	p.sees(".rows", "burst-000|list them") // of more than a frame has, there is a row with their number
	configMap(t, http.MethodPost, ns, "after", nil)
	p.sees(".bar", "1 newer")
	p.press(".bar", "1 newer")
	p.sees(".row:first-child", "after")
}

func TestObject(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees("main", "No change of this object is recorded")
	configMap(t, http.MethodPost, ns, "app", object{"level": "info", "text": markup})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "debug"})
	p.sees(".versions", `(?s)level info → debug.*added`)
	p.sees(".fields", `(?s)data\.level.*info.*debug`)
	p.sees(".diff", `(?s)-.*level: info.*\+.*level: debug`)
	p.press(".tabs", "YAML")
	p.sees("pre", `(?s)level: debug.*img src=x onerror`)
	if n := eval[int](p, `document.querySelectorAll("main img").length`); n != 0 {
		t.Error("the markup of an object is in the page")
	}
	p.keys("[")
	p.sees("pre", "level: info")
	p.sees(".versions [aria-current]", "added")
	p.do(chromedp.Reload())
	p.sees("pre", "level: info")
	p.keys("]")
	p.sees("pre", "level: debug")

	// What is copied can be applied.
	eval[chromedp.Void](p, `void (navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); })`)
	p.press(".pane", "copy for kubectl apply")
	until(t, "it is copied", func() bool { return eval[string](p, `window.copied ?? ""`) != "" })
	if text := eval[string](p, "window.copied"); !strings.Contains(text, "level: debug") || strings.Contains(text, "resourceVersion") || strings.Contains(text, "uid") {
		t.Errorf("copied is\n%s", text)
	}

	// The next life under this name.
	configMap(t, http.MethodDelete, ns, "app", nil)
	configMap(t, http.MethodPost, ns, "app", object{"level": "warn"})
	p.press(".tabs", "Changes")
	p.sees(".versions .life", "created again")
	p.sees(".pane", "created")
	p.press(".versions li:last-of-type, .versions li:nth-last-of-type(2)", "Compare with the version")
	p.sees(".diff", `(?s)level: info.*level: warn`)
	if !strings.Contains(eval[string](p, "location.hash"), "w=") {
		t.Error("the compared version is not in the address")
	}
	p.accessible()
}

// TestManyVersions: an object with more versions than a page has.
func TestManyVersions(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "#/object/configmaps/"+ns+"/busy")
	const versions = 510
	configMap(t, http.MethodPost, ns, "busy", object{"n": "0"})
	for i := 1; i < versions; i++ {
		configMap(t, http.MethodPatch, ns, "busy", object{"n": fmt.Sprint(i)})
	}
	count := func() int {
		return eval[int](p, `document.querySelectorAll(".versions li[class=updated], .versions li[class=added]").length`)
	}
	until(t, "the newest are shown", func() bool { return count() == 500 && strings.Contains(p.text(".versions"), "n 508 → 509") })
	if text := p.text(".versions .life"); strings.Contains(text, "did not exist") {
		t.Errorf("before the 500th version: %s", text)
	}
	eval[chromedp.Void](p, `void document.querySelector(".versions li:nth-last-child(2) > button").click()`) // the last of the page
	p.sees(".fields", `(?s)n.*9.*10`)
	p.press(".versions", "Older versions")
	p.sees(".versions", "(?s)n 8 → 9.*it did not exist before")
	if n := count(); n != versions-500 {
		t.Errorf("%d older versions are shown", n)
	}
	p.sees(".fields", `(?s)n.*8.*9`)
	p.press(".tabs", "Blame")
	p.sees(".pane", "Blame is of the last state, not of the chosen one")
	p.do(chromedp.NavigateBack())
	p.do(chromedp.NavigateBack())
	p.sees(".versions", "n 508 → 509")
	p.sees(".fields", `(?s)n.*9.*10`) // else what follows may look at the fields from before
	p.press(".versions", "Older versions")
	p.sees(".fields", `(?s)n.*8.*9`)
	p.keys("[")
	p.sees(".fields", `(?s)n.*7.*8`)
	chosen := eval[string](p, `new URLSearchParams(location.hash.split("?")[1]).get("v")`)
	p.press(".versions", "The newest versions")
	p.sees(".versions", "n 508 → 509")
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/busy?v=" + chosen)) // an older one, by its address
	p.sees(".versions", "n 8 → 9")
	p.sees(".fields", `(?s)n.*7.*8`)
	p.accessible()
}

func TestBetween(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "made", nil)
	p := open(t, d, "#/between?from=-1h")
	// The first minute of a log proves nothing of the time before it.
	p.sees("main", `(?s)Unknown at one end.*made`)
	p.sees(".lead", "history begins within this period")
	configMap(t, http.MethodPatch, ns, "made", object{"text": markup + "\u202e"})
	until(t, "both changes are recorded", func() bool {
		p.press(".filter", "ask again")
		return strings.Contains(p.text("main"), "2 changes")
	})
	p.press("main", "Difference of made")
	p.sees(".diff", `img src=x onerror`)
	p.sees(".under .notice.gap", "^The earlier state is not known")
	configMap(t, http.MethodPatch, ns, "made", object{"more": "later"})
	until(t, "the next change is in the answer", func() bool {
		p.press(".filter", "ask again")
		return strings.Contains(p.text("main"), "3 changes")
	})
	p.sees(".diff", "more: later") // as the period has it now
	if text := p.saved(); !strings.Contains(text, "made") || !strings.Contains(text, "&#60;img src=x") || strings.Contains(text, "<img") || strings.Contains(text, "<script") || strings.Contains(text, "\u202e") {
		t.Errorf("the file is\n%s", text)
	}
	if text := p.saved(); !strings.Contains(text, "The earlier state is not known") {
		t.Errorf("the file has what is not certain as if it were:\n%s", text)
	}
	p.fill("name", "made")
	until(t, "it is asked for", func() bool { return strings.Contains(eval[string](p, "location.hash"), "name=made") })
	p.settled()
	p.sees(".net", "made")
	if text := p.saved(); !strings.Contains(text, "name: made") {
		t.Errorf("the file does not have the filter of its changes:\n%s", text)
	}
	p.fill("name", "")
	p.fill("to", "-59m") // when there was no history yet
	p.sees(".lead", "no change is recorded.*not everything of this period is recorded")
	p.allow("status of 400")
	p.fill("from", "yesterday")
	p.sees(".notice.bad", "neither how long ago")
	p.fill("from", "-1h")
	p.fill("to", "")
	p.sees("main", `(?s)Unknown at one end.*made`)
	p.accessible()
}

// saved is the file that the page writes.
func (p *tab) saved() string {
	p.t.Helper()
	eval[chromedp.Void](p, `void (window.saved = "", URL.createObjectURL = (blob) => { blob.text().then((t) => { window.saved = t; }); return "data:,"; })`)
	eval[chromedp.Void](p, `void (HTMLAnchorElement.prototype.click = function () { window.file = this.download; })`)
	eval[chromedp.Void](p, `void [...document.querySelectorAll("button")].find((b) => b.innerText === "save as HTML").dispatchEvent(new MouseEvent("click", { bubbles: true }))`)
	until(p.t, "the file is made", func() bool { return eval[string](p, `window.saved`) != "" })
	return eval[string](p, "window.saved")
}

func TestBlame(t *testing.T) {
	ns := namespace(t)
	configMap(t, http.MethodPost, ns, "app", object{"level": "info", "text": markup})
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPatch, ns, "app", object{"level": "debug", "mode": "fast"})
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", "level info → debug")
	p.press(".tabs", "Blame")
	p.sees(".blame", `tester\s+exact\s+\d+s\s+level: debug`)
	p.sees(".blame", `tester\s+<\s*older than the history\s+\d+s\s+text: .*img src=x onerror`)
	if n := eval[int](p, `document.querySelectorAll("main img").length`); n != 0 {
		t.Error("the markup of an object is in the page")
	}
	p.accessible()
	p.keys("[")
	p.sees(".pane", "of the last state")
	p.do(chromedp.Reload())
	p.sees(".pane", "of the last state")
	eval[chromedp.Void](p, `void document.querySelector(".blame tr.exact a").click()`)
	p.sees(".fields", `(?s)data\.level.*info.*debug`)
	p.do(chromedp.NavigateBack())
	p.sees(".blame", "level: debug")
	configMap(t, http.MethodPatch, ns, "app", object{"level": "warn"})
	p.sees(".blame", "level: warn")
	configMap(t, http.MethodDelete, ns, "app", nil)
	p.sees(".pane", `(?s)deleted: this is its last state.*level: warn`)
}

// TestOwners: from an object to its owner, and the consequences below it.
func TestOwners(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	owned := func(name, owner string) {
		t.Helper()
		shared.api.do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/configmaps?fieldManager=tester", object{"data": object{"text": markup}, "metadata": object{
			"name": name, "ownerReferences": []object{{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": "1", "controller": true}},
		}})
	}
	configMap(t, http.MethodPost, ns, "top", nil)
	owned("middle", "top")
	owned("bottom", "middle")
	owned("orphan", "before")
	p := open(t, d, "#/object/configmaps/"+ns+"/bottom")
	p.sees(".owners", `ConfigMap\s+middle`)
	p.press(".owners", "middle")
	p.sees("h1", "middle")
	p.press(".owners", "top")
	p.sees("h1", "top")
	p.sees(".versions", "added")
	if text := p.text(".owners"); text != "" {
		t.Errorf("an object without owners has %s", text)
	}

	p.do(chromedp.Navigate(p.base + "/ui/#/between?from=-1h"))
	p.sees("main", `(?s)Unknown at one end\s+1.*top.*configmaps: 2 unknown.*Below other owners\s+1.*before.*configmaps: 1 unknown`)
	if text := p.text("main"); strings.Contains(text, "bottom") || strings.Contains(text, "orphan") {
		t.Errorf("consequences are not folded:\n%s", text)
	}
	p.press(".below", "▸ configmaps: 2")
	p.sees(".below .net", `(?s)middle.*bottom`)
	p.press(".below", "Difference of bottom")
	p.sees(".diff", "img src=x onerror")
	p.accessible()
	folded := regexp.MustCompile(`(?s)top</b>.*<details class="c"><summary>configmaps: 2 unknown</summary>\s*<details>.*middle</b>.*bottom</b>`)
	if text := p.saved(); !folded.MatchString(text) || !strings.Contains(text, "before</b></p>") {
		t.Errorf("the file is\n%s", text)
	}
	p.press(".filter", "by owner")
	p.sees("main", `(?s)Unknown at one end\s+4`)
	p.sees(".net", `(?s)bottom`)
	if text := p.saved(); strings.Contains(text, `class="c"`) {
		t.Errorf("the file of the flat list is\n%s", text)
	}
	p.do(chromedp.Reload())
	p.sees("main", `(?s)Unknown at one end\s+4`)
	p.do(chromedp.NavigateBack())
	p.sees("main", "configmaps: 2 unknown")
}

// TestOwned: what an object owns, now and when an older version of it was the last.
func TestOwned(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	path := "/api/v1/namespaces/" + ns + "/configmaps?fieldManager=tester"
	uid := shared.api.do(t, http.MethodPost, path, object{"metadata": object{"name": "root"}})["metadata"].(object)["uid"]
	for name, of := range map[string]any{"mine": uid, "of-another-life": "1"} {
		shared.api.do(t, http.MethodPost, path, object{"metadata": object{
			"name": name, "ownerReferences": []object{{"apiVersion": "v1", "kind": "ConfigMap", "name": "root", "uid": of, "controller": true}},
		}})
	}
	configMap(t, http.MethodPatch, ns, "root", object{"step": "2"})
	p := open(t, d, "#/object/configmaps/"+ns+"/root?tab=owned")
	p.sees(".pane .grid", `ConfigMap\s+`+ns+"/mine")
	if text := p.text(".pane"); strings.Contains(text, "of-another-life") {
		t.Errorf("an object is listed that names another life:\n%s", text)
	}
	p.accessible()
	configMap(t, http.MethodDelete, ns, "mine", nil)
	p.sees(".pane", "No object that is watched has an owner reference to it")
	configMap(t, http.MethodPatch, ns, "root", object{"step": "3"})
	p.sees(".versions", "2 → 3")
	p.keys("[") // to the second version, when both were there
	p.sees(".pane .grid", ns+"/mine")
	p.press(".pane .grid", ns+"/mine")
	p.sees("h1", "mine")
	p.sees(".versions [aria-current]", "added")
	p.do(chromedp.NavigateBack())
	p.sees(".pane .grid", ns+"/mine")
}

// receiver is a webhook's that refuses what is in a namespace, until it is told to take it.
func receiver(t *testing.T) (url string, takes *atomic.Bool) {
	takes = new(atomic.Bool)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !takes.Load() {
			http.Error(w, "the schema <b>refuses</b> this", http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, takes
}

// hooked is the configuration of a sink with more keys, whose receiver has the URL.
func hooked(ns, url, more string) string {
	return configMaps(ns) + `
routes: [{name: all, sinks: [hook]}]
sinks: [{name: hook, ` + more + `, webhook: {url: "` + url + `"}}]
`
}

func TestDelivery(t *testing.T) {
	ns := namespace(t)
	url, takes := receiver(t)
	d := start(t, configMaps(ns)+`
routes: [{name: all, sinks: [hook, screen]}]
sinks:
- {name: hook, retry: {poisonAttempts: 1}, webhook: {url: "`+url+`"}}
- {name: screen, stdout: {}}
`)
	p := open(t, d, "#/delivery")
	p.sees("main", `(?s)hook.*webhook.*screen.*stdout`)
	p.press("main", "hook")
	configMap(t, http.MethodPost, ns, "refused", nil)
	p.sees(".group", `1 .*422.*the schema <b>refuses</b> this`)
	p.press(".group", "")
	p.press(".letter", "▸")
	p.sees(".letter pre", `specversion|type:`)
	p.accessible()

	takes.Store(true)
	p.press(".group", "deliver again")
	p.sees("dialog", "Deliver 1 dead letter again")
	p.press("dialog", "deliver again")
	p.sees("[role=status].good", "1 dead letter queued again")
	p.sees("main", "hook has no dead letters")

	// By a filter, after a count.
	takes.Store(false)
	configMap(t, http.MethodPost, ns, "one", nil)
	p.sees(".group", `1 .*422`)
	takes.Store(true) // of a sink that refuses all, one event becomes a dead letter at a time
	configMap(t, http.MethodPost, ns, "taken", nil)
	p.sees("tr.chosen [data-label=Delivered]", "2")
	takes.Store(false)
	configMap(t, http.MethodPost, ns, "other", nil)
	p.sees(".group", `2 .*422`)
	p.fill("name", "other")
	p.sees(".group", `1 .*422`)
	p.press(".filter", "delete all that match")
	p.sees("dialog", `(?s)Delete 1 dead letter.*name: other`)
	p.fill("Type hook to confirm", "hook")
	p.press("dialog", "delete")
	p.sees("[role=status].good", "1 dead letter deleted")
	p.sees("main", "No dead letter matches")
	takes.Store(true)
	p.fill("name", "")
	p.sees(".group", `1 .*422`)
	p.press(".filter", "deliver all again")
	p.sees("dialog", "Deliver 1 dead letter again")
	p.press("dialog", "deliver again")
	p.sees("main", "hook has no dead letters")

	takes.Store(false)
	configMap(t, http.MethodPost, ns, "dropped", nil)
	p.sees(".group", `1 .*422`)
	p.press(".group", "")
	p.press(".group", "delete")
	p.sees("dialog", "Delete 1 dead letter")
	if disabled := eval[bool](p, `document.querySelector("dialog [type=submit]").disabled`); !disabled {
		t.Error("the letter can be deleted without the name of its sink")
	}
	p.fill("Type hook to confirm", "hook")
	p.press("dialog", "delete")
	p.sees("[role=status].good", "1 dead letter deleted")

	takes.Store(true)
	p.press("tr:has([aria-current])", "pause")
	p.sees("dialog", "Nothing is lost")
	p.press("dialog", "pause")
	p.sees("tr.chosen .dot", "paused")
	configMap(t, http.MethodPost, ns, "waits", nil)
	p.sees("tr.chosen [data-label=Waiting]", "1")
	p.press("tr.chosen", "resume")
	p.sees("tr.chosen [data-label=Waiting]", "0")
}

func TestWatches(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns)+"- {name: later, resources: [gadgets.example.org]}\n")
	configMap(t, http.MethodPost, ns, "seen", nil)
	p := open(t, d, "#/watches")
	p.sees("main", `(?s)settings.*configmaps\.v1.*watching.*later.*gadgets\.example\.org.*waiting.*does not serve`)
	p.sees(".facts", "^1 object\\b")
	p.accessible()
	p.press("main", "configmaps.v1")
	p.sees(".rows", "seen")
}

func TestConfig(t *testing.T) {
	ns := namespace(t)
	config := configMaps(ns) + "routes: [{name: all, sinks: [screen]}, {name: pods, resources: [pods], sinks: [screen]}]\nsinks: [{name: screen, stdout: {}}]\n"
	d := start(t, config)
	configMap(t, http.MethodPost, ns, "why", nil)
	p := open(t, d, "#/config")
	p.sees("main", `(?s)as the file has it.*Routes.*all.*screen`)
	p.allow("status of 4")
	d.configure("admin: {listen: ADDRESS}\n" + config + "colour: blue\n")
	p.press("main", "reload")
	p.sees(".notice.bad", `colour`)
	p.sees(`[aria-label="Configuration"]`, `(?s)9:1.*colour.*unknown key.*the file.*colour.*name: screen`)
	many := ""
	for i := range 250 {
		many += fmt.Sprintf("- {name: n%d, stdout: {}}\n", i)
	}
	d.configure("admin: {listen: ADDRESS}\n" + strings.ReplaceAll(config, "[{name: screen, stdout: {}}]", "\n- {name: screen, stdout: {}}\n"+many) + "colour: blue\n")
	p.sees(`[aria-label="Configuration"]`, `(?s)colour.*the file.*n99.*and 301 more values`)
	d.configure("admin: {listen: ADDRESS}\n" + config)
	p.press("main", "reload")
	until(t, "the file is what runs", func() bool { return p.text(".notice.bad") == "" })
	p.fill("event", fmt.Sprint(eval[int64](p, `fetch("../api/v1/history?limit=1").then((r) => r.json()).then((a) => a.items[0].sequence)`)))
	p.sees("main", `(?s)When it was recorded: screen \(by all\).*all\s+takes it\s+screen.*pods\s+is for other resources`)
	p.accessible()
}

func TestToken(t *testing.T) {
	ns := namespace(t)
	dir := t.TempDir()
	write := func(name, token string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("read", "reader")
	write("command", "commander")
	d := startWith(t, "commander", shared.kubeconfig, fmt.Sprintf("admin: {listen: ADDRESS, auth: {readTokenFile: %s, commandTokenFile: %s}}\n", filepath.Join(dir, "read"), filepath.Join(dir, "command"))+configMaps(ns)+
		"routes: [{name: all, sinks: [screen]}]\nsinks: [{name: screen, stdout: {}}]\n")
	configMap(t, http.MethodPost, ns, "guarded", nil)
	p := open(t, d, "app.css")
	p.allow("status of 40[134]")
	p.do(chromedp.Navigate(p.base + "/ui/"))
	p.sees("main", "A token, please")
	p.accessible()
	p.fill("Token", "wrong")
	p.press("main", "Continue")
	p.sees("main", "is not in admin.auth")
	p.fill("Token", "“reader”") // which no request can have
	p.press("main", "Continue")
	p.sees("main", `(?s)A token, please.*characters that no token has`)
	p.do(chromedp.Navigate(p.base + "/ui/#token=reader")) // in the tab that is open
	p.sees(".rows", "guarded")
	if address := eval[string](p, "location.href"); strings.Contains(address, "reader") {
		t.Errorf("the address is %s", address)
	}
	p.do(chromedp.Navigate(p.base + "/ui/#/delivery"))
	p.press("main", "pause")
	p.press("dialog", "pause")
	p.sees(".notice.bad", "the read token is for reading")
	p.do(chromedp.Navigate(p.base + "/ui/#/feed"))
	p.sees(".dot.live", "live")
	write("read", "rotated")
	p.sees("main", "A token, please")
	p.fill("Token", "rotated")
	p.press("main", "Continue")
	p.sees(".rows", "guarded")
	write("read", "") // for a moment
	p.sees("main", "A token, please")
	write("read", "rotated")
	p.sees(".rows", "guarded")
	write("read", "a&b=c+d%2f") // with what an address has other uses for
	p.sees("main", "A token, please")
	ui := exec.CommandContext(t.Context(), shared.daemon, "ui", "--config", filepath.Join(d.dir, "watcherd.yaml"), "--read-only")
	address, err := ui.Output()
	if err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.Navigate(strings.TrimSpace(string(address))))
	p.sees(".rows", "guarded")
	if address := eval[string](p, "location.href"); strings.Contains(address, "token") {
		t.Errorf("the address is %s", address)
	}
}

// TestRestart: a page that is open while the daemon restarts shows what happened meanwhile.
func TestRestart(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "")
	p.sees(".dot.live", "live")
	configMap(t, http.MethodPost, ns, "before", nil)
	p.sees(".rows", "before")
	p.allow("net::ERR_|Failed to load")
	d.stop()
	p.sees(".notice.bad", "the daemon does not answer")
	p.sees(".dot", "reconnecting")
	configMap(t, http.MethodPost, ns, "meanwhile", nil)
	d.run()
	p.sees(".rows", `(?s)meanwhile.*before`)
	p.sees(".dot.live", "live")
	until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
	p.sees(".counts", "^2 changes since")
}

// TestHungDaemon: numbers of a daemon that does not answer do not stand as those of now for as long as an answer may take.
func TestHungDaemon(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	p := open(t, d, "")
	p.sees(".dot.live", "live")
	p.allow("net::ERR_") // of a connection that was idle for too long by then
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.cmd.Process.Signal(syscall.SIGCONT) }() // so that it can stop
	p.sees(".notice.bad", "the daemon does not answer")
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
}

// forgets has the API server of a kubeconfig behind a proxy, which refuses the next watch of ConfigMaps as one
// of lost history after it is set.
func forgets(t *testing.T) (kubeconfig string, next *atomic.Bool) {
	t.Helper()
	next = new(atomic.Bool)
	kubeconfig, _ = through(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") == "" || !strings.HasSuffix(r.URL.Path, "/configmaps") || !next.Swap(false) {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Expired","message":"too old resource version","code":410}`)) // the daemon may have gone
		return true
	})
	return kubeconfig, next
}

// through has the API server of a kubeconfig behind a proxy, which may answer in its place. Its connections are cut on request.
func through(t *testing.T, answers func(w http.ResponseWriter, r *http.Request) bool) (kubeconfig string, cut func()) {
	t.Helper()
	target, err := url.Parse(shared.api.base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: shared.api.client.Transport, FlushInterval: -1}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: %q}}]\nusers: [{name: x, user: {}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n", srv.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, srv.CloseClientConnections
}

// TestFound: an object that the daemon has found was not created at that time.
func TestFound(t *testing.T) {
	ns := namespace(t)
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	d := start(t, configMaps(ns))
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", `sync(?s:.*)not known before`)
	p.sees(".diff", "level: info")
	p.sees(".pane", "The earlier state is not known")
	if text := p.text(".pane .notice.added"); text != "" {
		t.Errorf("the page has it as %q", text)
	}
}

// TestUnread: while a watch fails, the page of an object has the time up to which it is known.
func TestUnread(t *testing.T) {
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
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", "added")
	down.Store(true)
	cut()
	p.sees(".object > .notice.gap", "configmaps.* not read since 20")
	down.Store(false)
	until(t, "it is read again", func() bool { return p.text(".object > .notice.gap") == "" })
}

// TestCopyOfRedacted: the copy of a state has the hashes of redacted values, and the page shows that.
func TestCopyOfRedacted(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches:\n- {name: settings, resources: [configmaps], namespaces: {include: ["+ns+"]}, redact: [data.password]}\n")
	shared.api.do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/configmaps", object{
		"metadata": object{"name": "app", "annotations": object{"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "data": object{"level": "info", "password": "p"},
	})
	configMap(t, http.MethodPost, ns, "plain", object{"level": "info"})
	p := open(t, d, "#/object/configmaps/"+ns+"/app?tab=yaml")
	p.sees(".pane .notice.gap", "^1 value redacted")
	eval[chromedp.Void](p, `void (navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); })`)
	p.press(".pane", "copy for kubectl apply")
	until(t, "it is copied", func() bool { return eval[string](p, `window.copied ?? ""`) != "" })
	if text := eval[string](p, "window.copied"); strings.Contains(text, "last-applied") {
		t.Errorf("copied is\n%s", text)
	}
	p.accessible()
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/plain?tab=yaml"))
	p.sees("pre", "name: plain")
	if text := p.text(".pane .notice"); text != "" {
		t.Errorf("the page has %q", text)
	}
}

// TestPeriods: a period before the history leads to the one that is known, and times are taken as they are shown. A
// namespace that no watch reads has no verdict of being complete.
func TestPeriods(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps("'"+ns+"*'"))
	p := open(t, d, "#/between?from=-1h")
	p.sees(".lead", "history begins within this period")
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	until(t, "it is recorded", func() bool {
		p.press(".page", "ask again")
		return strings.Contains(p.text(".lead"), "1 unknown at one end")
	})
	p.press(".lead", "from then on")
	p.sees(".lead", `1 created\. ✓ complete`)
	p.fill("from", "00:00")
	p.sees(".lead", "history begins within this period")
	if got, want := eval[string](p, `decodeURIComponent(location.hash)`), "#/between?from="+eval[string](p, `new Date(new Date().setHours(0, 0, 0, 0)).toISOString()`); got != want {
		t.Errorf("the address has %s, want %s", got, want)
	}
	p.fill("namespace", "kube-system")
	p.press(".lead", "not read since")
	p.sees(".gaps", "configmaps kube-system not read since .*: no watch selects the namespace")
	p.accessible()
}

// TestRate: what was delivered before the view is open does not count as delivered since.
func TestRate(t *testing.T) {
	d := start(t, "watches:\n- {name: settings, resources: [configmaps]}\nroutes:\n- {name: all, sinks: [files]}\nsinks:\n- {name: files, file: {path: ./out.jsonl}}\n")
	p := open(t, d, "#/watches")
	p.sees(".facts", "resource")
	// From now on the status has more.
	eval[chromedp.Void](p, `void (() => {
		const real = fetch;
		window.answers = 0;
		window.fetch = async (...args) => {
			const answer = await real(...args);
			if (!String(args[0]).includes("status")) return answer;
			const status = await answer.json();
			for (const sink of status.sinks) sink.delivered = 1_000_000;
			window.answers++;
			return Response.json(status);
		};
		location.hash = "#/delivery";
	})()`)
	until(t, "there are statuses", func() bool { return eval[int](p, "window.answers") > 2 })
	p.sees("td[data-label=Delivered]", "1,000,000")
	if rate := p.text(`td[data-label="Per second"]`); rate != "0.0" {
		t.Errorf("delivered are %s per second, want none", rate)
	}
}

// TestNarrow: on a small screen, a row of the feed has the whole name of its object, and the manager.
func TestNarrow(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, d, "#/feed?namespace="+ns)
	p.sees(".dot.live", "live")
	p.do(chromedp.EmulateViewport(360, 740))
	configMap(t, http.MethodPost, ns, "settings-of-the-first", object{"level": "info"})
	p.sees(".row .by", "tester")
	if !eval[bool](p, `(() => { const e = document.querySelector(".row .name"); return e.scrollWidth <= e.clientWidth; })()`) {
		t.Error("the name is cut")
	}
	if eval[int](p, `document.querySelector(".row .by").clientWidth`) == 0 {
		t.Error("the manager is hidden")
	}
}

// TestHeight: long lists scroll in their places, and the document around them does not.
func TestHeight(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "busy", object{"n": "0"})
	for i := range 60 {
		configMap(t, http.MethodPatch, ns, "busy", object{"n": fmt.Sprint(i + 1)})
		configMap(t, http.MethodPost, ns, fmt.Sprintf("app-%02d", i), nil)
	}
	p := open(t, d, "")
	for place, want := range map[string]string{"object/configmaps/" + ns + "/busy": "n 59 → 60", "between?from=-1h": "app-59", "object/configmaps/" + ns + "/busy?tab=blame": "tester"} {
		for _, width := range []int64{1280, 360} {
			p.do(chromedp.EmulateViewport(width, 800), chromedp.Navigate(d.base+"/ui/#/"+place))
			p.sees("main", want)
			if high := eval[int](p, `document.documentElement.scrollHeight`); high > 800 {
				t.Errorf("%s, %d px wide: the document has %d px", place, width, high)
			}
		}
	}
}

// TestVersionsOfOneTime: a list shows that an object was deleted and created again. Both versions have one time,
// and each its own state.
func TestVersionsOfOneTime(t *testing.T) {
	ns := namespace(t)
	kubeconfig, forget := forgets(t)
	d := startWith(t, "", kubeconfig, "admin: {listen: ADDRESS}\n"+configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", "added")
	p.do(chromedp.Navigate("about:blank"))
	feed := open(t, d, "#/feed")
	feed.sees(".dot.live", "live")
	feed.allow("net::ERR_|Failed to load")
	d.stop()
	configMap(t, http.MethodDelete, ns, "app", nil)
	configMap(t, http.MethodPost, ns, "app", object{"level": "debug"})
	forget.Store(true)
	d.run()
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".versions", `(?s)added.*created again.*deleted.*gap from .* to .*: expired.*added`)
	feed.sees(".row.gap", "gap from .* to .*: expired")
	p.sees(".diff", `(?s)\+.*level: debug`)
	p.keys("[")
	p.sees(".versions [aria-current]", "deleted")
	p.sees(".diff", `(?s)-.*level: info`)
	if text := p.text(".pane"); !strings.Contains(text, "deleted") || strings.Contains(text, "debug") {
		t.Errorf("the deletion shows\n%s", text)
	}
	p.press(".tabs", "YAML")
	p.sees(".pane", "It did not exist at this time")
	p.keys("[")
	p.sees("pre", "level: info")
	p.do(chromedp.Navigate(d.base + "/ui/#/between?from=-1h"))
	p.sees(".lead", `(?s)gap.*history begins within this period`)
	if text := p.saved(); !strings.Contains(text, "expired; the history begins at ") {
		t.Errorf("the file is\n%s", text)
	}
}

// nextSecond has what follows happen in another second: managed fields have no finer time, so of
// one second they name all managers.
func nextSecond() {
	for begun := time.Now().Unix(); time.Now().Unix() == begun; time.Sleep(10 * time.Millisecond) {
	}
}

// TestStory is a rollout that fails, as the pictures of the documentation have it: with
// WATCHERD_PICTURES=../../../docs/images they are made anew.
func TestStory(t *testing.T) {
	ns := "shop"
	shared.api.do(t, http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": ns}})
	d := start(t, "watches: [{name: shop, resources: [deployments.apps, replicasets.apps, pods, events], namespaces: {include: ["+ns+"]}}]\n")
	// write writes an object and returns its uid.
	write := func(method, path, manager string, o object) string {
		t.Helper()
		return shared.api.do(t, method, path+"?fieldManager="+manager, o)["metadata"].(object)["uid"].(string)
	}
	apps, core := "/apis/apps/v1/namespaces/"+ns, "/api/v1/namespaces/"+ns
	template := func(version string) object {
		return object{"metadata": object{"labels": object{"app": "web"}}, "spec": object{"containers": []object{{"name": "web", "image": "ghcr.io/shop/web:" + version}}}}
	}
	selector := object{"matchLabels": object{"app": "web"}}
	owned := func(name, kind, owner, uid string) object {
		return object{"name": name, "ownerReferences": []object{{"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": uid, "controller": true}}}
	}
	web := write(http.MethodPost, apps+"/deployments", "helm", object{"metadata": object{"name": "web"}, "spec": object{"replicas": 3, "selector": selector, "template": template("1.4")}})
	for d.recorded() == 0 { // each resource has a watch of its own, and no order with the others
		time.Sleep(10 * time.Millisecond)
	}
	// rollout is what the controllers make of a version; it returns the uid of the Pod.
	rollout := func(version, set, pod string) string {
		t.Helper()
		uid := write(http.MethodPost, apps+"/replicasets", "kube-controller-manager", object{"metadata": owned(set, "Deployment", "web", web), "spec": object{"replicas": 1, "selector": selector, "template": template(version)}})
		p := template(version)
		maps.Copy(p["metadata"].(object), owned(pod, "ReplicaSet", set, uid))
		return write(http.MethodPost, core+"/pods", "kube-controller-manager", p)
	}
	rollout("1.4", "web-7c9f6", "web-7c9f6-x2k4d")
	nextSecond()
	write(http.MethodPatch, apps+"/deployments/web", "kubectl-set", object{"spec": object{"template": template("1.5")}})
	pod := rollout("1.5", "web-58d4b", "web-58d4b-q8w7z")
	said := func(name, apiVersion, kind, about, uid, reason, message string) {
		t.Helper()
		write(http.MethodPost, core+"/events", "kubelet", object{
			"metadata": object{"name": name}, "type": "Warning", "reason": reason, "message": message, "count": 3,
			"involvedObject": object{"apiVersion": apiVersion, "kind": kind, "namespace": ns, "name": about, "uid": uid},
		})
	}
	said("web-58d4b-q8w7z.1", "v1", "Pod", "web-58d4b-q8w7z", pod, "BackOff", "Back-off pulling image ghcr.io/shop/web:1.5")
	said("web.1", "apps/v1", "Deployment", "web", web, "ProgressDeadlineExceeded", "ReplicaSet web-58d4b has timed out progressing")
	nextSecond()
	write(http.MethodPatch, apps+"/deployments/web", "kubectl-edit", object{"spec": object{"replicas": 5}})

	p := open(t, d, "#/feed?namespace="+ns)
	p.sees(".rows", `(?s)kubectl-edit\s+replicas 3 → 5.*kubectl-set\s+image of container web 1\.4 → 1\.5`)
	p.picture("feed")
	p.do(chromedp.Navigate(d.base + "/ui/#/object/deployments.apps/" + ns + "/web"))
	p.sees(".versions", `(?s)replicas 3 → 5.*Event.*Warning ProgressDeadlineExceeded: ReplicaSet web-58d4b has timed out progressing \(3 times\).*image of container web`)
	if text := p.text(".versions"); strings.Contains(text, "BackOff") {
		t.Errorf("the Event is of another object:\n%s", text)
	}
	p.accessible()
	p.keys("[")
	p.sees(".fields", `(?s)image.*web:1\.4.*web:1\.5`)
	p.picture("object")
	p.press(".tabs", "what followed")
	p.sees("main", `(?s)Between.*web.*(replicasets\.apps|pods): `)
	if text := p.text("main"); strings.Contains(text, "Below other owners") {
		t.Errorf("what followed is not below its owner:\n%s", text)
	}
	p.picture("between")
	p.do(chromedp.Navigate(d.base + "/ui/#/object/events/" + ns + "/web.1"))
	p.sees(".versions", "Warning ProgressDeadlineExceeded")
}

// TestRecording reads a recording from its file, without a daemon.
func TestRecording(t *testing.T) {
	ns, dir := namespace(t), t.TempDir()
	configMap(t, http.MethodPost, ns, "app", object{"level": "info", "text": markup + "</script>"})
	begun, done, out := filepath.Join(dir, "begun"), filepath.Join(dir, "done"), filepath.Join(dir, "out")
	record := exec.CommandContext(t.Context(), shared.daemon, "record", "--out", out, "--resource", "configmaps,controllerrevisions.apps", "-n", ns, "--linger", "0s", "--",
		"sh", "-c", "touch "+begun+"; until test -e "+done+"; do sleep 0.05; done; exit 3")
	record.Env = append(os.Environ(), "KUBECONFIG="+shared.kubeconfig)
	var report strings.Builder
	record.Stderr = &report
	if err := record.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the command runs", func() bool { _, err := os.Stat(begun); return err == nil })
	configMap(t, http.MethodPatch, ns, "app", object{"level": "debug"})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "warn"})
	configMap(t, http.MethodPost, ns, "new", object{"a": "b"})
	shared.api.do(t, http.MethodPost, "/apis/apps/v1/namespaces/"+ns+"/controllerrevisions", object{"metadata": object{"name": "large"}, "data": object{"a": "b"}, "revision": int64(1)<<53 + 1})
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := record.Wait(); record.ProcessState.ExitCode() != 3 {
		t.Fatalf("%v\n%s", err, report.String())
	}

	p := open(t, &daemon{}, "file://"+filepath.Join(out, "recording.html"))
	p.sees("h1", "Recording")
	p.keys("?")
	p.sees(".help", "older and newer version")
	if text := p.text(".help"); strings.Contains(text, "Delivery") || strings.Contains(text, "feed") {
		t.Errorf("keys of views that a recording does not have:\n%s", text)
	}
	p.keys("?")
	p.sees("main", `(?s)sh -c.*exit code 3.*complete.*Created.*new.*Changed.*level info → warn`)
	p.press(".net", "Difference of app")
	p.sees(".diff", `(?s)level: info.*level: warn`)
	p.accessible()
	p.press(".net", ns+"/app")
	p.sees(".versions", `(?s)level debug → warn.*level info → debug`)
	p.sees(".fields", `(?s)level.*debug.*warn`)
	p.keys("[")
	p.sees(".fields", `(?s)level.*info.*debug`)
	p.keys("[")
	p.press(".tabs", "YAML")
	p.sees("pre", `(?s)level: info.*img src=x onerror.*/script`)
	p.accessible()
	p.do(chromedp.Reload())
	p.sees("pre", "level: info")
	p.do(chromedp.Navigate("file://" + filepath.Join(out, "recording.html") + "#/object/controllerrevisions.apps/" + ns + "/large?tab=yaml"))
	p.sees("pre", fmt.Sprint("revision: ", int64(1)<<53+1)) // which a number of JavaScript cannot be

	// Where a page is given neither an origin nor storage.
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "sandbox allow-scripts")
		http.ServeFile(w, r, filepath.Join(out, "recording.html"))
	}))
	t.Cleanup(srv.Close)
	open(t, &daemon{}, srv.URL).sees("h1", "Recording")
}

// TestKeyboard does everything in each view without a pointer: Tab reaches every control, shows where it is and never stays,
// and a question that is answered gives the focus back.
func TestKeyboard(t *testing.T) {
	ns := namespace(t)
	url, _ := receiver(t)
	d := start(t, hooked(ns, url, "retry: {poisonAttempts: 1}"))
	configMap(t, http.MethodPost, ns, "kept", object{"level": "info"})
	configMap(t, http.MethodPatch, ns, "kept", object{"level": "debug"})
	p := open(t, d, "#/feed?lens=all")
	for _, view := range []struct{ place, within, loaded string }{
		{"feed?lens=all", ".rows", "kept"},
		{"object/configmaps/" + ns + "/kept", ".fields", `info.*debug`},
		{"between?from=-1h", "main", `Unknown at one end`},
		{"delivery/hook", ".group", `422`},
		{"watches", "main", `configmaps\.v1`},
		{"config", "main", `as the file has it`},
	} {
		p.do(chromedp.Navigate(d.base + "/ui/#/" + view.place))
		p.sees(view.within, "(?s)"+view.loaded)
		var missed []string
		t.Cleanup(func() {
			if len(missed) > 0 {
				t.Logf("what Tab does not reach, or does not show, in %s: %q", view.place, missed)
			}
		})
		until(t, "Tab reaches every control", func() bool { missed = p.unreached(); return len(missed) == 0 }) // the view may load meanwhile
	}

	p.do(chromedp.Navigate(d.base + "/ui/#/between?from=-1h"))
	p.walk("Difference of kept", kb.Enter)
	p.sees(".diff", `level`)

	p.do(chromedp.Navigate(d.base + "/ui/#/delivery/hook"))
	p.sees(".group", `422`)
	p.walk("pause", kb.Enter)
	p.sees("dialog", "Nothing is lost")
	p.keys(kb.Escape)
	until(t, "the question is gone", func() bool { return eval[bool](p, `!document.querySelector("dialog")`) })
	p.focused("pause")
	p.keys(kb.Enter)
	p.sees("dialog", "Nothing is lost")
	p.walk("pause", " ")
	p.sees("tr.chosen .dot", "paused")
	p.focused("resume")
	p.keys(kb.Enter)
	p.focused("pause")
	p.walk("delete all", kb.Enter)
	p.sees("dialog", "Delete 2 dead letters")
	p.keys("hook" + kb.Enter)
	p.sees("[role=status].good", "2 dead letters deleted")
	p.focused("delete all")

	p.do(chromedp.Navigate(d.base + "/ui/#/config"))
	p.walk("reload", kb.Enter)
	p.sees("main", `as the file has it`)
	p.focused("reload")
	p.walk("Keys", kb.Enter)
	p.sees(".help", "next and previous row")
	p.walk("Close", kb.Enter)
	until(t, "the keys are gone", func() bool { return p.text(".help") == "" })
	p.focused("Keys")
}

// focusName is the name of the control that has the focus.
const focusName = `((e) => (e.getAttribute("aria-label") ?? e.closest("label")?.innerText ?? e.innerText).trim())(document.activeElement)`

// focused waits until the focus is at a control with a name.
func (p *tab) focused(name string) {
	p.t.Helper()
	until(p.t, "the focus is at "+name, func() bool { return strings.HasPrefix(eval[string](p, focusName), name) })
}

// walk presses Tab until a control with a name has the focus, and then a key.
func (p *tab) walk(name, key string) {
	p.t.Helper()
	var all []string
	for range 200 {
		p.keys(kb.Tab)
		at := eval[string](p, focusName)
		if strings.HasPrefix(at, name) {
			p.keys(key)
			return
		}
		all = append(all, at)
	}
	p.t.Fatalf("Tab does not reach %s, but %q", name, all)
}

// unreached returns the visible controls that Tab does not reach, or that do not show that they have the focus.
func (p *tab) unreached() []string {
	p.t.Helper()
	eval[chromedp.Void](p, `void (document.activeElement.blur(), window.reached = new Set())`)
	for range 200 {
		p.keys(kb.Tab)
		if again := eval[bool](p, `(() => {
			const e = document.activeElement, again = reached.has(e);
			if (e !== document.body && getComputedStyle(e).outlineStyle !== "none") reached.add(e);
			return again;
		})()`); again {
			break
		}
	}
	return eval[[]string](p, `[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
		.filter((e) => !e.disabled && e.checkVisibility() && !reached.has(e)).map((e) => e.outerHTML.slice(0, 120))`)
}
