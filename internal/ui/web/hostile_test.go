package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestAddresses: whatever an address has, the page shows something and runs nothing.
func TestAddresses(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	for place, want := range map[string]string{
		"#/object/configmaps/" + ns + "/%":       "no watch reads|No change of this object",
		"#token=%":                               "Feed",
		"#/constructor":                          "There is no view constructor",
		"#/__proto__":                            "There is no view __proto__",
		"#/%3Cimg%20src=x%20onerror=alert(1)%3E": "There is no view <img",
		"#/object/configmaps/" + ns + "/app?tab=evil&v=x&w=-1": "created",
		"#/object/configmaps/" + ns + "/app?v=1":               "it did not exist: this is its first version",
		"#/object/configmaps/" + ns + "/app?w=1":               "is not known: it is not recorded",
		"#/object/configmaps/" + ns + "/app?end=soon":          "neither how long ago",
		"#/object/nothing/-/x":                                 "does not serve",
		"#/feed?from=soon&to=later":                            "neither how long ago",
		"#/feed?from=-5m&to=-1s":                               "-5m – -1s",
		"#/feed?range=constructor&lens=none":                   "changes? in 15m",
		"#/between?from=%00":                                   "neither how long ago",
		"#/delivery/constructor":                               "No sink is configured",
		"#/config?event=../../metrics":                         "event",
	} {
		t.Run(place, func(t *testing.T) {
			p := open(t, d, "app.css")
			p.allow("status of 40[04]")
			p.do(chromedp.Navigate(d.base + "/ui/" + place))
			p.sees("body", want)
			if text := p.text("body"); strings.Contains(text, "NaN") || strings.Contains(text, "[object") {
				t.Errorf("the page shows\n%s", text)
			}
		})
	}
}

// TestOddObjects: keys that every object of JavaScript has, values that YAML could read as others or that change how the page
// reads, and what is copied is what the API server had.
func TestOddObjects(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [configmaps, deployments.apps], namespaces: {include: ["+ns+"]}}]\n")
	odd := object{
		"constructor": "made", "toString": "text", "half": ".5", "no": "no", "escape": "a\n\x1b[31mb", "separator": "a\n\u2028b", "sign": "=", "date": "2026-01-01",
		"lines": "  a\nb\n\n", "block": "a\n  b\n \n# c: d\n", "tab": "\ta", "emoji": "a\n\U0001f600", "order": "a\u202eb\u200b\nc\U000E0041", "blank": "a\u3164b\u034fc\ufe0fd\u00a0e\u2800", "html": markup, "colon": "a: b", "long": strings.Repeat("x", 1_000_000),
	}
	configMap(t, http.MethodPost, ns, "odd", object{"a": "b"})
	configMap(t, http.MethodPatch, ns, "odd", odd)
	// A whole number that a number of JavaScript cannot have.
	shared.api.do(t, http.MethodPost, "/apis/apps/v1/namespaces/"+ns+"/deployments", object{"metadata": object{"name": "web"}, "spec": object{
		"selector": object{"matchLabels": object{"app": "web"}},
		"template": object{"metadata": object{"labels": object{"app": "web"}}, "spec": object{"terminationGracePeriodSeconds": int64(1)<<53 + 1, "containers": []object{{"name": "web", "image": "web"}}}},
	}})
	p := open(t, d, "#/object/deployments.apps/"+ns+"/web?tab=yaml")
	p.sees("pre", fmt.Sprint("terminationGracePeriodSeconds: ", int64(1)<<53+1))
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/odd"))
	p.sees(".versions", "2|data")
	p.sees(".fields", `(?s)added.{1,3}data\.constructor\s+made`)
	p.sees(".fields", `(?s)added.{1,3}data\.toString\s+text`)
	p.sees(".diff", `img src=x onerror`)
	p.sees(".fields", `data\.order\s+a\\u202eb\\u200b\s+c\\U000e0041`)
	p.sees(".diff", `order: .*\\u202e`)
	p.sees(".fields", `data\.blank\s+a\\u3164b\\u034fc\\ufe0fd\\u00a0e\\u2800`)
	p.sees(".fields", `data\.long\s+x{1000}x+… \(1,000,000 characters\)`)
	p.press(".tabs", "YAML")
	p.sees("pre", `order: "a\\u202eb\\u200b\\nc\\U000e0041"`)
	eval[chromedp.Void](p, `void (navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); })`)
	p.press(".pane", "copy for kubectl apply")
	until(t, "it is copied", func() bool { return eval[string](p, `window.copied ?? ""`) != "" })
	text := strings.Replace(eval[string](p, "window.copied"), "name: odd", "name: copy", 1)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, shared.api.base+"/api/v1/namespaces/"+ns+"/configmaps", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/yaml")
	resp, err := shared.api.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("the copy is refused: %s %.1000s", resp.Status, answer)
	}
	copied := shared.api.do(t, http.MethodGet, "/api/v1/namespaces/"+ns+"/configmaps/copy", nil)["data"].(object)
	for key, value := range odd {
		if copied[key] != value {
			t.Errorf("%s is copied as %.100q, want %.100q", key, copied[key], value)
		}
	}
}

// TestNameOfLines: a name with line breaks, as names of roles may have, adds no lines to a difference.
func TestNameOfLines(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [roles.rbac.authorization.k8s.io], namespaces: {include: ["+ns+"]}}]\n")
	const name = "a\n+  invented: line\n-  removed: line"
	shared.api.do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/roles", object{"metadata": object{"name": name}})
	p := open(t, d, "#/object/roles.rbac.authorization.k8s.io/"+ns+"/"+url.PathEscape(name))
	p.sees(".diff", "kind: Role")
	for _, sign := range []string{"deleted", "added"} {
		if text := p.text(".diff ." + sign); strings.Contains(text, "invented") || strings.Contains(text, "removed") {
			t.Errorf("the first line that is %s: %s", sign, text)
		}
	}
	if text := p.text(".diff tr"); !strings.HasPrefix(strings.TrimSpace(text), "@@") {
		t.Errorf("the difference begins with %q", text)
	}
}

// TestClocks: the browser's clock is wrong.
func TestClocks(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns)+"- {name: later, resources: [gadgets.example.org]}\n")
	configMap(t, http.MethodPost, ns, "app", nil)
	for _, wrong := range []int{-20, 20} {
		p := open(t, &daemon{}, "about:blank")
		p.do(chromedp.Navigate(d.base+"/ui/"), func(ctx context.Context, tgt *chromedp.Target) (chromedp.Void, error) {
			return chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`void (() => { const now = Date.now; Date.now = () => now() + %d * 60000; })()`, wrong))(ctx, tgt)
		})
		p.sees(".strip-head", "1 change in 15m")
		eval[chromedp.Void](p, `void document.querySelector(".strip-area").focus()`)
		p.keys("+")
		p.sees(".strip-head", "in 7m 30s")
		if text := p.text(".notice.bad"); text != "" {
			t.Errorf("a clock that is %d minutes wrong: %s", wrong, text)
		}
		eval[chromedp.Void](p, `void (location.hash = "#/watches")`)
		p.sees("main", `configmaps\.v1.*watching.*\s\d+s ago`)
	}
}

// TestMidnight: the times of a day that has passed have their day, also those that were shown before.
func TestMidnight(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	var passed atomic.Bool
	p := open(t, behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !passed.Load() || r.URL.Path == "/api/v1/events" {
			pass.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		pass.ServeHTTP(answer, r)
		maps.Copy(w.Header(), answer.Header())
		w.Header().Set("Date", time.Now().Add(24*time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()) // the page may have gone
	}), "")
	p.sees(".row", `^\d\d:\d\d:`)
	passed.Store(true)
	p.sees(".row", `^\d{4}-\d\d-\d\d \d\d:`)
	p.sees(".strip-axis", `^\d{4}-\d\d-\d\d \d\d:`)
}

// TestLongList: a period with more changes than the feed keeps while it is live is listed to its end.
func TestLongList(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	const many = 2300
	configMap(t, http.MethodPost, ns, "busy", object{"n": "0"})
	for i := 1; i < many; i++ {
		configMap(t, http.MethodPatch, ns, "busy", object{"n": fmt.Sprint(i)})
	}
	p := open(t, d, "#/feed?from=-1h&to=-0s")
	p.sees(".row:first-child", fmt.Sprintf("%d → %d", many-2, many-1))
	until(t, "the oldest change is reached", func() bool {
		eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 1e7)`)
		return strings.Contains(p.text(".rows"), "added")
	})
	p.sees(".counts", "^2,300 changes$")
	if rows := eval[int](p, `document.querySelectorAll(".row").length`); rows > 200 {
		t.Errorf("%d rows are elements", rows)
	}
}

// TestMarks: marks that no letter has so many of do not cover the lines around, in no view, and a difference marks whole letters.
func TestMarks(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"unchanged": "a", "word": "e\u0302\u0301"})
	configMap(t, http.MethodPatch, ns, "app", object{"word": "e\u0302\u0300", "tower": "a" + strings.Repeat("\u0301", 200)})
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".fields", "tower")
	p.sees(".diff", "tower")
	const highest = `Math.max(...(document.querySelector(%s).innerText.match(/\p{M}+/gu) ?? [""]).map((m) => m.length))`
	for _, view := range []string{".fields", ".diff", ".versions"} {
		if n := eval[int](p, highest, view); n > 4 {
			t.Errorf("%s has a letter with %d marks", view, n)
		}
	}
	if marks := eval[[]string](p, `[...document.querySelectorAll(".diff mark")].map((e) => e.textContent)`); !slices.Equal(marks, []string{"e\u0302\u0301", "e\u0302\u0300"}) {
		t.Errorf("marked are %q", marks)
	}
	p.press(".tabs", "YAML")
	p.sees("pre", "tower")
	if n := eval[int](p, highest, "pre"); n > 4 {
		t.Errorf("the state has a letter with %d marks", n)
	}
}

// TestLabels: what screen readers read in place of what is shown has nothing that is not visible.
func TestLabels(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [roles.rbac.authorization.k8s.io], namespaces: {include: ["+ns+"]}}]\n")
	shared.api.do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/roles", object{"metadata": object{"name": "a\u202eb\u200bc"}})
	p := open(t, d, "#/between?namespace="+ns)
	until(t, "the role is listed", func() bool {
		p.press(".filter", "ask again")
		return strings.Contains(p.text(".net"), "Role")
	})
	if got, want := eval[string](p, `document.querySelector(".net .fold").getAttribute("aria-label")`), `Difference of a\u202eb\u200bc`; got != want {
		t.Errorf("the label is %q, want %q", got, want)
	}
}

// TestFocusInALiveList: a row that has the focus keeps it while others move it out of view.
func TestFocusInALiveList(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "chosen", nil)
	p := open(t, d, "")
	p.sees(".rows", "chosen")
	p.walk(ns+"/chosen", "")
	for i := range 60 {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("later-%d", i), nil)
	}
	p.sees(".rows", "later-59")
	p.focused(ns + "/chosen")
	p.keys(kb.Enter)
	p.sees("h1", "chosen")
}
