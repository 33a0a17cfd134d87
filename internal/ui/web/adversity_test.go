package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// behind is a daemon behind a proxy, which has each request answered by handle.
func behind(t *testing.T, d *daemon, handle func(w http.ResponseWriter, r *http.Request, pass http.Handler)) *daemon {
	t.Helper()
	target, err := url.Parse(d.base)
	if err != nil {
		t.Fatal(err)
	}
	pass := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, FlushInterval: -1}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, pass) }))
	t.Cleanup(srv.Close)
	return &daemon{t: t, base: srv.URL}
}

// late answers a request with what the daemon answers now, when it is released.
func late(w http.ResponseWriter, r *http.Request, pass http.Handler, release <-chan struct{}) {
	answer := httptest.NewRecorder()
	pass.ServeHTTP(answer, r)
	select {
	case <-release:
	case <-r.Context().Done():
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the page may have gone
}

// edited is a daemon whose answers to what ends in path are changed.
func edited(t *testing.T, d *daemon, path string, edit func(body []byte) []byte) *daemon {
	t.Helper()
	return behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !strings.HasSuffix(r.URL.Path, path) {
			pass.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		pass.ServeHTTP(answer, r)
		maps.Copy(w.Header(), answer.Header())
		w.Header().Del("Content-Length")
		w.WriteHeader(answer.Code)
		_, _ = w.Write(edit(answer.Body.Bytes())) // the page may have gone
	})
}

// encoded is the JSON of v.
func encoded(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	return text
}

// settled returns after the page has taken what was sent to it.
func (p *tab) settled() {
	p.t.Helper()
	eval[bool](p, `fetch("app.css").then((r) => r.text()).then(() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(true)))))`)
}

// rest waits until the proxy's part in a request is done.
func rest(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal(what)
	}
}

// TestFailedRequests: an answer that a proxy lost, or a part of it, is asked for again by itself, in each view.
func TestFailedRequests(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "debug"})
	var history, diff atomic.Int64
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		var n int64
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/history"):
			n = history.Add(1)
		case strings.HasSuffix(path, "/diff"):
			n = diff.Add(1)
		}
		switch n {
		case 1:
			http.Error(w, "no upstream", http.StatusBadGateway)
		case 2:
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"items":[`)
			_ = http.NewResponseController(w).Flush() // the page sees what is wrong
			panic(http.ErrAbortHandler)
		default:
			pass.ServeHTTP(w, r)
		}
	})
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 502|net::ERR_")
	for place, want := range map[string]string{"feed": `(?s)level info → debug.*added`, "object/configmaps/" + ns + "/app": `(?s)data\.level\s+info\s+debug`} {
		p.do(chromedp.Navigate(front.base + "/ui/#/" + place))
		p.sees("main", want)
		until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
	}
}

// TestRefusedStream: the feed lists what is recorded, and has the reason why nothing follows.
func TestRefusedStream(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	ctx, end := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer end()
	for range 32 { // as many as there may be
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.base+"/api/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		readers.Go(func() {
			_, _ = io.Copy(io.Discard, resp.Body) // until it is cancelled
			_ = resp.Body.Close()
		})
	}
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 503")
	p.do(chromedp.Navigate(d.base + "/ui/"))
	p.sees(".rows", ns+"/app")
	p.sees(".notice.bad", "32 event streams are open already")
	end()
	p.sees(".dot.live", "live")
	until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
}

// mute drops what is written once it is dead, as a network does that has lost a connection.
type mute struct {
	http.ResponseWriter
	dead *atomic.Bool
}

func (m mute) Unwrap() http.ResponseWriter { return m.ResponseWriter }

func (m mute) Write(b []byte) (int, error) {
	if m.dead.Load() {
		return len(b), nil
	}
	return m.ResponseWriter.Write(b)
}

// TestSilence: of a connection that is open and brings nothing, the page takes another. While none brings anything, the feed
// lists what is recorded, and has the reason why nothing follows.
func TestSilence(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "before", nil)
	var first sync.Once
	var held, dead atomic.Bool
	held.Store(true)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			if held.Load() {
				<-r.Context().Done()
				return
			}
			first.Do(func() { w = mute{w, &dead} })
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, &daemon{}, "about:blank")
	// What takes the page longer than half a minute takes it a twentieth here.
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `{ const set = setTimeout; window.setTimeout = (f, ms, ...more) => set(f, ms > 30000 ? ms / 20 : ms, ...more); }`,
	}); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.Navigate(front.base + "/ui/"))
	p.sees(".rows", "before")
	p.sees(".notice.bad", "the stream of changes brings nothing")
	held.Store(false)
	p.sees(".dot.live", "live")
	until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
	dead.Store(true)
	configMap(t, http.MethodPost, ns, "unheard", nil)
	p.sees(".rows", "unheard")
	p.sees(".counts", "^1 change since")
}

// TestOlderOfAnotherFilter: rows that were asked for before the filter changed are not in the list of the next.
func TestOlderOfAnotherFilter(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "other", nil)
	for i := range 260 {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("busy-%d", i), nil)
	}
	asked, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		held := false
		if r.URL.Query().Get("continue") != "" {
			once.Do(func() { held = true })
		}
		if !held {
			pass.ServeHTTP(w, r)
			return
		}
		defer close(done)
		close(asked)
		late(w, r, pass, release)
	})
	p := open(t, front, "")
	p.sees(".rows", "busy-259")
	eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 1e7)`)
	rest(t, "older rows are not asked for", asked)
	p.fill("name", "other")
	until(t, "the filter selects", func() bool {
		text := p.text(".rows")
		return strings.Contains(text, ns+"/other") && !strings.Contains(text, "busy")
	})
	close(release)
	rest(t, "the answer is not sent", done)
	p.settled()
	if text := p.text(".rows"); strings.Contains(text, "busy") {
		t.Errorf("the filter shows\n%.300s", text)
	}
}

// TestExpression: a live feed with an expression is held as others are, and misses no change that comes while it asks, also if
// the changes of a minute are more than a page.
func TestExpression(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "first", nil)
	var hold atomic.Bool
	asked, release := make(chan struct{}), make(chan struct{})
	frames := make(chan struct{}, 100)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		limit(r, 3)
		switch {
		case strings.HasSuffix(r.URL.Path, "/history") && hold.CompareAndSwap(true, false):
			answer := httptest.NewRecorder()
			pass.ServeHTTP(answer, r)
			close(asked)
			select {
			case <-release:
			case <-r.Context().Done():
			}
			_, _ = w.Write(answer.Body.Bytes()) // the page may have gone
		case strings.HasSuffix(r.URL.Path, "/events"):
			pass.ServeHTTP(counted{w, frames}, r)
		default:
			pass.ServeHTTP(w, r)
		}
	})
	p := open(t, front, "#/feed?when="+url.QueryEscape(`object.metadata.name != "x"`))
	p.sees(".rows", "first")
	p.sees(".dot.live", "live")

	hold.Store(true)
	configMap(t, http.MethodPost, ns, "one", nil)
	rest(t, "the page does not ask", asked)
	for len(frames) > 0 {
		<-frames
	}
	configMap(t, http.MethodPost, ns, "two", nil)
	rest(t, "there is no frame", frames)
	p.settled()
	close(release)
	p.sees(".rows", `(?s)two.*one.*first`)

	p.keys("p")
	p.sees(".bar", "resume")
	configMap(t, http.MethodPost, ns, "held", nil)
	p.sees(".bar", "1 newer")
	if text := p.text(".rows"); strings.Contains(text, "held") {
		t.Error("a paused feed lists new changes")
	}
	p.keys("p")
	p.sees(".rows", `(?s)held.*two.*one.*first`)
}

// TestExpressionFails: a live feed with an expression that cannot be asked for has the reason why what comes is not listed.
func TestExpressionFails(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "first", nil)
	var fails atomic.Bool
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if fails.Load() && strings.HasSuffix(r.URL.Path, "/history") {
			http.Error(w, "a block cannot be read", http.StatusInternalServerError)
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/feed?when="+url.QueryEscape(`object.metadata.name != "x"`))
	p.allow("status of 500")
	p.sees(".rows", "first")
	p.sees(".dot.live", "live")
	fails.Store(true)
	configMap(t, http.MethodPost, ns, "one", nil)
	p.sees(".notice.bad", "a block cannot be read")
	fails.Store(false)
	configMap(t, http.MethodPost, ns, "two", nil)
	p.sees(".rows", `(?s)two.*one.*first`)
	until(t, "the notice is gone", func() bool { return p.text(".notice.bad") == "" })
}

// TestShortPages: pages that do not fill the view, as large changes make them, do not end the list. An open period ends where the
// list was made.
func TestShortPages(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "first", nil)
	for i := range 8 {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("later-%d", i), nil)
	}
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/history") {
			shorten(r, 3)
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "")
	p.sees(".rows", `(?s)later-7.*first`)
	p.do(chromedp.Navigate(front.base + "/ui/#/feed?from=-1h"))
	p.sees(".bar", `9 changes\b`)
	if text := p.text(".bar"); !regexp.MustCompile(`– [\d: -]*\d\d:\d\d:\d\d back to live`).MatchString(strings.Join(strings.Fields(text), " ")) {
		t.Errorf("the period is shown as %q", text)
	}
}

// TestManyGaps: of thousands of gaps the histogram marks each place once and lists a part, and the versions of an object are not
// compared with each of their times.
func TestManyGaps(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	for i := range 40 {
		configMap(t, http.MethodPatch, ns, "app", object{"level": fmt.Sprint(i)})
	}
	const many = 2000
	edit := func(body []byte) []byte {
		var answer object
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Error(err)
			return body
		}
		gaps, now := make([]object, many), time.Now()
		for i := range gaps {
			to := now.Add(-time.Duration(i) * time.Minute)
			gaps[i] = object{"watch": "all", "resource": object{"version": "v1", "resource": "configmaps", "kind": "ConfigMap"}, "cause": "expired", "from": to.Add(-90 * time.Second), "to": to}
		}
		answer["gaps"], answer["complete"] = gaps, false
		return encoded(t, answer)
	}
	p := open(t, edited(t, edited(t, d, "/versions", edit), "/histogram", edit), "#/feed?range=168h")
	p.sees(".strip", "2,000 gaps")
	if n := eval[int](p, `document.querySelectorAll(".gap-area").length`); n != 1 {
		t.Errorf("gaps that touch are %d areas", n)
	}
	p.press(".strip", "⌁ 2,000 gaps")
	entries := func() int { return eval[int](p, `document.querySelectorAll(".gaps b").length`) }
	until(t, "some are listed", func() bool { return entries() == 200 })
	p.press(".strip", "1,800 more")
	until(t, "more are listed", func() bool { return entries() == 400 })

	p.do(chromedp.Navigate(p.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".versions", `(?s)gap from.*level 38 → 39`)
	if n := eval[int](p, `(async () => {
		const parse = Date.parse;
		let n = 0;
		Date.parse = (text) => { n++; return parse(text); };
		dispatchEvent(new KeyboardEvent("keydown", { key: "[" }));
		while (!document.querySelector(".versions [aria-current]").innerText.includes("37 → 38")) await new Promise((done) => setTimeout(done));
		return n;
	})()`); n > 20*many {
		t.Errorf("a step to the next version reads %d times", n)
	}
}

// limit has a request for changes ask for pages of a length.
func limit(r *http.Request, length int) {
	if r.URL.Query().Has("when") {
		shorten(r, length)
	}
}

func shorten(r *http.Request, length int) {
	q := r.URL.Query()
	q.Set("limit", strconv.Itoa(length))
	r.URL.RawQuery = q.Encode()
}

// TestManyEvents: the search for the Kubernetes Events of an object continues from page to page, and where it ends is shown. Those
// of a deleted object stay.
func TestManyEvents(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [configmaps, events], namespaces: {include: ["+ns+"]}}]\n")
	p := open(t, d, "#/feed?lens=all&namespace="+ns)
	configMap(t, http.MethodPost, ns, "app", nil)
	p.sees(".rows", ns+"/app") // each resource has a watch of its own
	for n := range 10 {
		shared.api.do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/events", object{
			"metadata": object{"name": fmt.Sprintf("app.%d", n)}, "type": "Normal", "reason": "Said", "message": fmt.Sprintf("this is event %d", n),
			"involvedObject": object{"apiVersion": "v1", "kind": "ConfigMap", "namespace": ns, "name": "app"},
		})
	}
	for n := range 10 {
		p.sees(".rows", fmt.Sprintf("event %d\n", n))
	}
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		limit(r, 1)
		pass.ServeHTTP(w, r)
	})
	p.do(chromedp.Navigate(front.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".versions", `(?s)event 9\n.*event 8\n.*event 2\n.*Kubernetes Events before .* were not all searched.*added`)
	if text := p.text(".versions"); strings.Contains(text, "event 1\n") {
		t.Errorf("more is searched than the page has the daemon do:\n%s", text)
	}
	p.do(chromedp.Navigate(d.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".versions", `(?s)event 9\n.*event 0\n`)
	if text := p.text(".versions"); strings.Contains(text, "not all searched") {
		t.Errorf("the search is not at its end:\n%s", text)
	}
	configMap(t, http.MethodDelete, ns, "app", nil)
	p.sees(".versions", "deleted")
	p.do(chromedp.Reload())
	p.sees(".versions", `(?s)deleted.*event 9\n.*event 0\n`)
}

// counted counts the frames of a stream.
type counted struct {
	http.ResponseWriter
	frames chan<- struct{}
}

func (c counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c counted) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	if strings.Contains(string(b), "event: frame") {
		c.frames <- struct{}{}
	}
	return n, err
}

// TestBusyLog: of more changes than a frame has, the number leads to all of them, and they are not listed in addition if the page
// learns late what was recorded before. An expression that only the oldest changes match finds them.
func TestBusyLog(t *testing.T) {
	r, d := startReplayed(t)
	var first sync.Once
	release := make(chan struct{})
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/history") {
			first.Do(func() {
				select {
				case <-release:
				case <-r.Context().Done():
				}
			})
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/feed?lens=all")
	p.sees(".dot.live", "live")
	const many = 12_000
	r.change(t, many)
	p.sees(".counts", "^"+grouped(many)+" changes since")
	close(release)
	until(t, "what was there before is listed", func() bool {
		eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 1e7)`)
		return p.text(".row.sync") != ""
	})
	if n := eval[int](p, `(async () => {
		const box = document.querySelector(".rows"), seen = new Map(), number = (row) => parseInt(row.innerText.replaceAll(",", ""));
		box.scrollTo(0, 0);
		for (let before = false; !before; box.scrollBy(0, box.clientHeight)) {
			await new Promise((done) => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => setTimeout(done)))));
			for (const row of box.querySelectorAll(".row")) {
				if (row.classList.contains("sync")) before = true;
				else seen.set(row.getAttribute("aria-posinset"), row.classList.contains("hole") ? number(row) : 1);
			}
		}
		box.scrollTo(0, 0);
		return [...seen.values()].reduce((a, b) => a + b);
	})()`); n != many {
		t.Errorf("%d changes are listed or counted, want %d", n, many)
	}
	p.others()
	p.press(".row.hole", "")
	p.sees(".bar", "back to live")
	p.sees(".counts", "changes so far")

	p.do(chromedp.Navigate(d.base + "/ui/#/feed?lens=all&when=" + url.QueryEscape(`size(event.type) == 4`)))
	until(t, "the oldest changes are found", func() bool {
		eval[chromedp.Void](p, `void [...document.querySelectorAll("button")].find((b) => b.innerText === "search on")?.click()`)
		return strings.Contains(p.text(".rows"), "Pod")
	})
}

// TestTimesOutOfOrder: the rows of a feed continue where they were cut, also if what was recorded before has later times: the
// deletions that a list shows have its time, and the clock may have been set back.
func TestTimesOutOfOrder(t *testing.T) {
	r, d := startReplayed(t)
	front := edited(t, d, "/api/v1/history", func(body []byte) []byte {
		var page map[string]any
		if err := json.Unmarshal(body, &page); err != nil {
			t.Error(err)
			return body
		}
		items, _ := page["items"].([]any)
		for _, item := range items {
			if c := item.(map[string]any); c["type"] == "updated" {
				c["time"] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
			}
		}
		return encoded(t, page)
	})
	const many = 2500 // more than the feed keeps
	before := d.recorded()
	r.change(t, many)
	until(t, "all is recorded", func() bool { return d.recorded() >= before+many })
	p := open(t, front, "#/feed?lens=all")
	p.sees(".dot.live", "live")
	toEnd := func() bool {
		eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 1e7)`)
		return p.text(".row.sync") != ""
	}
	until(t, "everything is listed", toEnd)
	eval[chromedp.Void](p, `void document.querySelector(".rows").scrollTo(0, 0)`)
	r.change(t, 1)
	p.sees(".counts", "^1 change since")
	until(t, "the oldest rows are dropped", func() bool {
		return eval[int](p, `Number(document.querySelector("[role=listitem]").ariaSetSize)`) == 2000
	})
	until(t, "everything is listed again", toEnd)
}

// TestTyping: what a reader writes while the address takes what was written before stays.
func TestTyping(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	p := open(t, d, "")
	p.sees(".dot.live", "live")
	if text := eval[string](p, `new Promise((done) => {
		const field = [...document.querySelectorAll(".field")].find((e) => e.innerText.trim() === "name").querySelector("input");
		const write = (text) => { field.value = text; field.dispatchEvent(new InputEvent("input", { bubbles: true })); };
		addEventListener("hashchange", () => {
			write("abc");
			const frames = (n) => requestAnimationFrame(() => setTimeout(() => n ? frames(n - 1) : done(field.value)));
			frames(3);
		}, { once: true });
		write("ab");
	})`); text != "abc" {
		t.Errorf("the field has %q", text)
	}
	// Of a field that is gone, nothing is applied, also if the cursor was in it.
	p.sees(".dot.live", "live")
	until(t, "all is applied", func() bool { return strings.HasSuffix(eval[string](p, "location.hash"), "name=abc") })
	if hash := eval[string](p, `new Promise((done) => {
		const field = [...document.querySelectorAll(".field")].find((e) => e.innerText.trim() === "name").querySelector("input");
		field.focus();
		field.value = "abcd";
		field.dispatchEvent(new InputEvent("input", { bubbles: true }));
		location.hash = "#/watches";
		setTimeout(() => done(location.hash), 1500);
	})`); hash != "#/watches" {
		t.Errorf("the address of the next view is %s", hash)
	}
}

// TestTypingTimes: a time that is written on after a pause is what its reader wrote, and so is one in place of a beginning that
// was taken away. The field has the time as it was understood when its reader has left it.
func TestTypingTimes(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	p := open(t, d, "#/between?from=-1h")
	p.sees(".lead", "Between")
	write := func(text string) {
		eval[chromedp.Void](p, `void (() => {
			const field = [...document.querySelectorAll(".field")].find((e) => e.innerText.trim() === "from").querySelector("input");
			field.focus();
			field.value = %[1]s === "" ? "" : field.value + %[1]s;
			field.dispatchEvent(new InputEvent("input", { bubbles: true }));
		})()`, text)
	}
	address := func(from string) {
		t.Helper()
		until(t, "the address has "+from, func() bool { return eval[string](p, `decodeURIComponent(location.hash)`) == "#/between?from="+from })
		p.settled()
	}
	of := func(seconds int) string {
		return eval[string](p, `new Date(new Date().setHours(0, 0, %s, 0)).toISOString()`, seconds)
	}
	write("")
	address("-10m")
	write("00:00")
	address(of(0))
	write(":30")
	address(of(30))
	if got := eval[string](p, `document.activeElement.blur() ?? new Promise((done) => setTimeout(() => done(document.getElementById("filter").value)))`); got != of(30) {
		t.Errorf("the field has %s", got)
	}
}

// TestManySteps: a browser bounds how many addresses a page may write. The reader who holds a key sees each version all the same,
// and the address has the last one.
func TestManySteps(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	const versions = 10
	front := edited(t, d, "/versions", func([]byte) []byte {
		var items []object
		for i := range versions {
			items = append(items, object{"sequence": versions - i, "time": time.Date(2026, 1, 1, 0, 0, versions-i, 0, time.UTC), "type": "updated", "summary": fmt.Sprint(i)})
		}
		return encoded(t, object{"items": items, "before": "exact", "gaps": []object{}})
	})
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 404") // they are not recorded
	p.do(chromedp.Navigate(front.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".versions", fmt.Sprint(versions-1))
	eval[bool](p, `(async () => {
		const replace = history.replaceState.bind(history), began = performance.now();
		let taken = 0;
		history.replaceState = (...place) => { // as Safari, which takes a hundred in half a minute
			if (++taken > 10 + (performance.now() - began) / 300) throw new DOMException("Attempt to use history.replaceState() more than 100 times per 30 seconds", "SecurityError");
			replace(...place);
		};
		for (let i = 0; i < 45; i++) {
			document.body.dispatchEvent(new KeyboardEvent("keydown", { key: i %% 10 < 5 ? "[" : "]", bubbles: true }));
			await new Promise((done) => setTimeout(done));
		}
		return true;
	})()`)
	p.sees(".versions [aria-current] .summary", "^5$")
	until(t, "the address has it", func() bool { return strings.HasSuffix(eval[string](p, "location.hash"), "?v=5") })
	p.press(".tabs", "YAML") // a step of the browser's history is from there
	until(t, "it is taken", func() bool { return strings.Contains(eval[string](p, "location.hash"), "tab=yaml") })
	p.do(chromedp.NavigateBack())
	p.sees(".tabs [aria-selected=true]", "Changes")
	p.sees(".versions [aria-current] .summary", "^5$")
}

// TestDeepObject: an object that nests deeper than the page can show does not break it.
func TestDeepObject(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [controllerrevisions.apps], namespaces: {include: ["+ns+"]}}]\n")
	const depth = 4000
	data := json.RawMessage(strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth))
	path := "/apis/apps/v1/namespaces/" + ns + "/controllerrevisions"
	shared.api.do(t, http.MethodPost, path, object{"metadata": object{"name": "deep"}, "revision": 1, "data": data})
	shared.api.do(t, http.MethodPatch, path+"/deep", object{"metadata": object{"labels": object{"a": "b"}}})
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 500")
	p.do(chromedp.Navigate(d.base + "/ui/#/object/controllerrevisions.apps/" + ns + "/deep"))
	p.sees(".versions", `(?s)label a.*added`)
	p.sees(".pane", `nests too deep`)
	p.press(".tabs", "YAML")
	p.sees(".pane", `kind: ControllerRevision|nests too deep`)
	p.do(chromedp.Navigate(d.base + "/ui/#/feed"))
	p.sees(".rows", ns+"/deep")
}

// TestStaleState: what is copied is the version that is chosen.
func TestStaleState(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	configMap(t, http.MethodPatch, ns, "app", object{"level": "debug"})
	var hold atomic.Bool
	release := make(chan struct{})
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/app") && hold.Load() {
			late(w, r, pass, release)
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/object/configmaps/"+ns+"/app?tab=yaml")
	p.sees("pre", "level: debug")
	hold.Store(true)
	p.keys("[")
	p.sees(".versions [aria-current]", "added")
	if !eval[bool](p, `[...document.querySelectorAll(".pane button")].find((b) => b.textContent.startsWith("copy")).disabled`) {
		t.Error("the version before can be copied as the chosen one")
	}
	close(release)
	p.sees("pre", "level: info")
}

// TestLateAnswers: while an answer is late, none to another question is in its place.
func TestLateAnswers(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "one", object{"level": "info"})
	configMap(t, http.MethodPost, ns, "two", object{"level": "info"})
	configMap(t, http.MethodPatch, ns, "two", object{"level": "debug"})
	var hold atomic.Pointer[chan struct{}]
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if release := hold.Load(); release != nil && strings.HasPrefix(r.URL.Path, "/api/") && r.URL.Path != "/api/v1/status" && r.URL.Path != "/api/v1/events" {
			late(w, r, pass, *release)
			return
		}
		pass.ServeHTTP(w, r)
	})
	keep := func() (release func()) {
		c := make(chan struct{})
		hold.Store(&c)
		return func() {
			hold.Store(nil)
			close(c)
		}
	}
	p := open(t, front, "#/between?from=-1h&group=none")
	p.sees("main", `(?s)one.*two`)
	release := keep()
	p.fill("name", "two")
	p.sees("main", "Reading…")
	if text := p.text("main"); strings.Contains(text, "one") {
		t.Errorf("the changes of two are\n%s", text)
	}
	release()
	p.sees("main", "two")

	p.do(chromedp.Navigate(front.base + "/ui/#/object/configmaps/" + ns + "/two"))
	p.sees(".fields", `(?s)info.*debug`)
	release = keep()
	p.keys("[")
	p.sees(".versions [aria-current]", "added")
	until(t, "the last change is not shown as the first", func() bool { return !strings.Contains(p.text(".pane"), "debug") })
	release()
	p.sees(".pane", "created")
	p.press(".tabs", "YAML")
	p.sees("pre", "level: info")
	release = keep()
	p.keys("]")
	p.sees(".versions [aria-current]", "debug")
	until(t, "the first state is not shown as the last", func() bool { return !strings.Contains(p.text(".pane"), "level") })
	release()
	p.sees("pre", "level: debug")

	p.do(chromedp.Navigate(front.base + "/ui/#/feed"))
	p.sees(".strip-head", "^3 changes in")
	release = keep()
	p.fill("name", "one")
	p.sees(".strip-head", "^Counting…$")
	release()
	p.sees(".strip-head", "^1 change in")
}

// TestPausedStore: every view has the reason why nothing is recorded.
func TestPausedStore(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	d.stop()
	file := filepath.Join(d.dir, "watcherd.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "minFree: 1Mi", "minFree: 1000Ti", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.run()
	p := open(t, d, "#/watches")
	p.sees(".notice.bad", "New changes are not recorded at the moment: disk nearly full")
}

// TestLetterGone: a dead letter that is gone does not show the event of the next.
func TestLetterGone(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	d := start(t, hooked(ns, hook, "retry: {poisonAttempts: 1}"))
	configMap(t, http.MethodPost, ns, "one", nil)
	configMap(t, http.MethodPatch, ns, "one", object{"a": "b"})
	var gone atomic.Bool
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		q := r.URL.Query()
		switch letters := strings.HasSuffix(r.URL.Path, "/deadletters/hook"); {
		case letters && q.Get("events") != "":
			if err := drop(d, q.Get("after")); err != nil {
				t.Error(err)
			}
			gone.Store(true)
		case letters && gone.Load():
			<-r.Context().Done() // the list is the one from before
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/delivery/hook")
	p.sees(".group", "2 .*422")
	p.press(".group", "")
	p.press(".letter", "▸")
	p.sees(".letter", "It is no dead letter any more")
}

// TestLettersFarBehind: a filter finds dead letters behind more others than the daemon searches for one answer.
func TestLettersFarBehind(t *testing.T) {
	ns := namespace(t)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte("refused")) { // of a body that broke off, too
			http.Error(w, "no", http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(hook.Close)
	d := start(t, hooked(ns, hook.URL, "retry: {poisonAttempts: 1}"))
	const many = 1000 // the page asks for as many at first
	for i := range many {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("refused-%d", i), nil)
		if i%5 == 0 { // of a sink that refuses all, one event becomes a dead letter at a time
			configMap(t, http.MethodPost, ns, fmt.Sprintf("taken-%d", i), nil)
		}
	}
	configMap(t, http.MethodPost, ns, "refused-last", nil)
	p, taken := open(t, d, "#/delivery/hook"), many
	until(t, "all are dead letters", func() bool {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("taken-%d", taken), nil)
		taken++
		return p.text("tr.chosen [data-label^=Dead]") == "1,001"
	})
	p.fill("name", "refused-last")
	p.sees(".group", "1 .*422")
	p.fill("name", "nothing")
	p.sees("main", "No dead letter matches")
}

// TestDeepLetter: a dead letter that nests deeper than the page can show does not take the others and the sinks with it.
func TestDeepLetter(t *testing.T) {
	hook, _ := receiver(t)
	for name, depth := range map[string]int{"deep": 2500, "deeper": 9000} { // for what writes YAML, and for what reads JSON
		ns := namespace(t)
		t.Run(name, func(t *testing.T) {
			d := start(t, "watches: [{name: all, resources: [controllerrevisions.apps], namespaces: {include: ["+ns+"]}}]"+`
routes: [{name: all, sinks: [hook]}]
sinks: [{name: hook, retry: {poisonAttempts: 1}, webhook: {url: "`+hook+`"}}]
`)
			data := json.RawMessage(strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth))
			shared.api.do(t, http.MethodPost, "/apis/apps/v1/namespaces/"+ns+"/controllerrevisions", object{"metadata": object{"name": name}, "revision": 1, "data": data})
			p := open(t, d, "#/delivery/hook")
			p.sees(".group", "1 .*422")
			p.press(".group", "")
			p.press(".letter", "▸")
			p.sees(".letter", "nests too deep")
		})
	}
}

// TestLettersCounted: dead letters that came after they were counted are not deleted with the others.
func TestLettersCounted(t *testing.T) {
	ns := namespace(t)
	hook, _ := receiver(t)
	d := start(t, hooked(ns, hook, "retry: {poisonAttempts: 1}"))
	p := open(t, d, "#/delivery/hook")
	configMap(t, http.MethodPost, ns, "counted", nil)
	configMap(t, http.MethodPatch, ns, "counted", object{"a": "b"})
	p.sees(".group", "2 .*422")
	p.press(".filter", "delete all")
	p.sees("dialog", "Delete 2 dead letters")
	configMap(t, http.MethodPatch, ns, "counted", object{"a": "c"})
	p.sees(".group", "3 .*422")
	p.allow("status of 409")
	p.fill("Type hook to confirm", "hook")
	p.press("dialog", "delete")
	p.sees(".notice.bad", "3 dead letters match by now, not 2")
	p.sees(".group", "3 .*422")
}

// TestEventsUnsearched: an object whose Kubernetes Events cannot be searched does not look like one without any.
func TestEventsUnsearched(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [configmaps, events], namespaces: {include: ["+ns+"]}}]\n")
	configMap(t, http.MethodPost, ns, "app", nil)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if q := r.URL.Query(); q.Get("resource") == "events" {
			q.Set("when", "no expression")
			r.URL.RawQuery = q.Encode()
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 400")
	p.do(chromedp.Navigate(front.base + "/ui/#/object/configmaps/" + ns + "/app"))
	p.sees(".notice.gap", "^Kubernetes Events were not searched: when: ")
}

// TestEventsOfABusyObject: the search for Kubernetes Events does not begin again with each change of an object that has more
// versions than a page.
func TestEventsOfABusyObject(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: all, resources: [configmaps, events], namespaces: {include: ["+ns+"]}}]\n")
	configMap(t, http.MethodPost, ns, "app", nil)
	var asked atomic.Int64
	busy := edited(t, d, "/versions", func([]byte) []byte {
		n := int(asked.Add(1))
		var items []object
		for i := range 500 {
			items = append(items, object{"sequence": 500 + n - i, "time": time.Date(2026, 1, 1, 0, 0, 500+n-i, 0, time.UTC), "type": "updated"})
		}
		return encoded(t, object{"items": items, "before": "exact", "gaps": []object{}, "continue": "r"})
	})
	var mu sync.Mutex
	searches := map[string]bool{} // by where they begin
	front := behind(t, busy, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if q := r.URL.Query(); q.Get("resource") == "events" && strings.HasPrefix(q.Get("from"), "2026-01-01T") {
			mu.Lock()
			searches[q.Get("from")] = true
			mu.Unlock()
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, &daemon{}, "about:blank")
	p.allow("status of 404")
	p.do(chromedp.Navigate(front.base + "/ui/#/object/configmaps/" + ns + "/app"))
	until(t, "the versions were asked for again", func() bool { return asked.Load() > 3 })
	mu.Lock()
	defer mu.Unlock()
	if len(searches) != 1 {
		t.Errorf("the search began %d times", len(searches))
	}
}

// drop deletes the dead letter behind a position.
func drop(d *daemon, position string) error {
	after, err := strconv.Atoi(position)
	if err != nil {
		return err
	}
	resp, err := http.Post(d.base+"/api/v1/deadletters/hook/drop", "application/json", strings.NewReader(fmt.Sprintf(`{"positions":[%d]}`, after+1)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// TestBackground: a tab that was opened in the background, as with the middle button, counts since it is seen.
func TestBackground(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	p := open(t, &daemon{}, "about:blank")
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `Object.defineProperty(document, "hidden", { configurable: true, get: () => true });`,
	}); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.Navigate(d.base + "/ui/#/feed?namespace=" + ns))
	p.sees(".strip-head", "change")
	configMap(t, http.MethodPost, ns, "unseen", nil)
	nextSecond()
	nextSecond()
	eval[chromedp.Void](p, `void (Object.defineProperty(document, "hidden", { get: () => false }), document.dispatchEvent(new Event("visibilitychange")))`)
	p.sees(".rows", "unseen")
	p.sees(".counts", "^0 changes since")
	if !eval[bool](p, `Date.parse(document.querySelector(".counts time").dateTime) > Date.parse(document.querySelector(".row time").dateTime)`) {
		t.Errorf("of the time that it has %q of, it lists\n%s", p.text(".counts"), p.text(".rows"))
	}
	configMap(t, http.MethodPost, ns, "seen", nil)
	p.sees(".counts", "^1 change since")
}

// TestSeenAgain: a tab that is seen again asks in place of what it asked for before, however often that is.
func TestSeenAgain(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	var waiting atomic.Int64
	asked := make(chan struct{}, 10)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !strings.HasSuffix(r.URL.Path, "/histogram") {
			pass.ServeHTTP(w, r)
			return
		}
		waiting.Add(1)
		defer waiting.Add(-1)
		asked <- struct{}{}
		<-r.Context().Done() // of a daemon that takes long
	})
	p := open(t, &daemon{}, "about:blank")
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `AbortSignal.timeout = () => new AbortController().signal;`, // else each is given up in the end
	}); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.Navigate(front.base + "/ui/"))
	rest(t, "there is no first request", asked)
	for range 3 {
		eval[chromedp.Void](p, `void document.dispatchEvent(new Event("visibilitychange"))`)
		rest(t, "there is no other request", asked)
	}
	until(t, "one request is open", func() bool { return waiting.Load() == 1 })
}

// TestPartOfAPeriod: an answer that was cut says nothing of where the history begins.
func TestPartOfAPeriod(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	configMap(t, http.MethodPost, ns, "app", nil)
	front := edited(t, d, "/changes", func(body []byte) []byte {
		var c object
		if err := json.Unmarshal(body, &c); err != nil {
			t.Error(err)
		}
		delete(c, "since")
		c["truncated"] = true // as with more objects than an answer has
		return encoded(t, c)
	})
	p := open(t, &daemon{}, front.base+"/ui/#/between?from=-1h")
	p.sees(".lead", "only the first part")
	if text := p.text(".lead"); strings.Contains(text, "begins") {
		t.Errorf("it has %q", text)
	}
}

// TestMetadataOnly: of an object whose metadata alone is watched, the Kubernetes Events are listed, and nothing to apply is offered.
func TestMetadataOnly(t *testing.T) {
	ns := namespace(t)
	d := start(t, "watches: [{name: bare, resources: [configmaps], metadataOnly: true, namespaces: {include: ["+ns+"]}}, {name: said, resources: [events], namespaces: {include: ["+ns+"]}}]\n")
	configMap(t, http.MethodPost, ns, "app", object{"level": "info"})
	p := open(t, d, "#/object/configmaps/"+ns+"/app")
	p.sees(".versions", "added|sync")
	shared.api.do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/events", object{
		"metadata": object{"name": "app.1"}, "type": "Normal", "reason": "Said", "message": "this is an event",
		"involvedObject": object{"apiVersion": "v1", "kind": "ConfigMap", "namespace": ns, "name": "app"},
	})
	p.sees(".versions", "this is an event")
	p.press(".tabs", "YAML")
	p.sees(".pane", `(?s)only its metadata is recorded.*name: app`)
	if text := p.text(".pane"); strings.Contains(text, "kubectl apply") {
		t.Errorf("the pane has\n%s", text)
	}
}

// TestManyFields: an object with thousands of fields is compared and written once, not for each status, and a part of it is shown at a time.
func TestManyFields(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	const many = 5000
	data := object{}
	for _, value := range []string{"old", "new"} {
		method := map[string]string{"old": http.MethodPost, "new": http.MethodPatch}[value]
		for i := range many {
			data[fmt.Sprintf("key-%04d", i)] = value
		}
		configMap(t, method, ns, "big", data)
	}
	statuses := make(chan struct{}, 1)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		pass.ServeHTTP(w, r)
		if strings.HasSuffix(r.URL.Path, "/status") {
			select {
			case statuses <- struct{}{}:
			default:
			}
		}
	})
	p := open(t, front, "#/object/configmaps/"+ns+"/big")
	quiet := func(of string) {
		t.Helper()
		p.settled()
		eval[chromedp.Void](p, `void (window.looks = 0, Object.keys = new Proxy(Object.keys, { apply: (f, on, args) => { if (Object.getOwnPropertyNames(args[0]).length >= `+strconv.Itoa(many)+`) window.looks++; return f.apply(on, args); } }))`)
		for range 3 {
			rest(t, "no status is asked for", statuses)
			p.settled()
		}
		if n := eval[int](p, "window.looks"); n != 0 {
			t.Errorf("%s: the fields are read %d times more", of, n)
		}
	}
	p.sees(".fields", "key-0000")
	quiet("changes")
	shown := func() int { return eval[int](p, `document.querySelectorAll(".fields tbody tr").length`) }
	p.press(".pane", "4,960 more fields")
	until(t, "a thousand more are shown", func() bool { return shown() == 1040 })
	p.press(".pane", "3,960 more fields")
	until(t, "a thousand more are shown", func() bool { return shown() == 2040 })
	p.press(".tabs", "YAML")
	p.sees("pre", "key-0000: new")
	quiet("YAML")
}

// TestManySources: of thousands of watched resources, five hundred at a time are listed, and those that wait before the others.
func TestManySources(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	front := edited(t, d, "/status", func(body []byte) []byte {
		var status struct {
			object  `json:"-"`
			Watches []struct{ Sources []object }
		}
		if err := errors.Join(json.Unmarshal(body, &status), json.Unmarshal(body, &status.object)); err != nil {
			t.Error(err)
			return body
		}
		var watches []object
		for i := range 300 {
			var sources []object
			for j := range 17 {
				source := maps.Clone(status.Watches[0].Sources[0])
				source["resource"] = fmt.Sprintf("kind-%d.v1.group-%d.example.com", j, i)
				if i == 299 && j == 16 {
					source["state"] = "forbidden"
				}
				sources = append(sources, source)
			}
			watches = append(watches, object{"name": fmt.Sprintf("watch-%d", i), "sources": sources})
		}
		status.object["watches"] = watches
		return encoded(t, status.object)
	})
	p := open(t, front, "#/watches")
	p.sees("main", `(?s)^Watches.*watch-299\s+Resource.*kind-16\.v1\.group-299\.example\.com in \S+\s+forbidden`)
	listed := func(n int) func() bool {
		return func() bool { return eval[int](p, `document.querySelectorAll("tbody tr:not(.why)").length`) == n }
	}
	until(t, "five hundred are listed", listed(500))
	p.press("main", "4,600 more resources")
	until(t, "five hundred more are listed", listed(1000))
}

// TestClusterScope: an object in no namespace has versions, states and differences as others have.
func TestClusterScope(t *testing.T) {
	d := start(t, "watches: [{name: spaces, resources: [namespaces]}]\n")
	ns := namespace(t)
	shared.api.do(t, http.MethodPatch, "/api/v1/namespaces/"+ns+"?fieldManager=tester", object{"metadata": object{"labels": object{"team": "blue"}}})
	p := open(t, d, "#/feed?resource=namespaces&name="+ns)
	p.sees(".rows", "(?s)blue.*added")
	p.keys("j\r")
	p.sees(".fields", `metadata\.labels\.team`)
	p.sees(".diff", `\+.*team: blue`)
	p.press(".tabs", "YAML")
	p.sees("pre", "(?s)kind: Namespace.*team: blue")
	p.press(".tabs", "Blame")
	p.sees(".blame", "(?s)tester.*blue")
	p.press(".object-head", "in the feed")
	p.sees(".rows", "(?s)blue.*added")
}

// TestSeenWithoutStream: a tab that is seen again is not live before its stream is.
func TestSeenWithoutStream(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	var held atomic.Bool
	asked := make(chan struct{}, 10)
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if held.Load() && strings.HasSuffix(r.URL.Path, "/events") {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "")
	p.sees(".dot.live", "live")
	held.Store(true)
	eval[chromedp.Void](p, `void document.dispatchEvent(new Event("visibilitychange"))`)
	rest(t, "the stream is not asked for", asked)
	p.settled()
	if text := p.text(".state .dot"); text != "reconnecting" {
		t.Errorf("without a stream the page is %q", text)
	}
}

// preceded has a text before what is written.
type preceded struct {
	http.ResponseWriter
	text string
}

func (p *preceded) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *preceded) Write(b []byte) (int, error) {
	if _, err := p.ResponseWriter.Write([]byte(p.text)); err != nil {
		return 0, err
	}
	p.text = ""
	return p.ResponseWriter.Write(b)
}

// TestHeldBehindTheLog: a list that is held stays as it is, also if the log has lost what came meanwhile.
func TestHeldBehindTheLog(t *testing.T) {
	ns := namespace(t)
	d := start(t, configMaps(ns))
	for i := range 5 {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("old%d", i), nil)
	}
	var away atomic.Bool
	cut := make(chan context.CancelFunc, 10)
	release := make(chan struct{})
	front := behind(t, d, func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/history"):
			shorten(r, 3)
		case strings.HasSuffix(r.URL.Path, "/events"):
			if away.Load() {
				select {
				case <-release:
				case <-r.Context().Done():
					return
				}
				w = &preceded{w, "event: truncated\ndata: {\"firstSequence\":1}\n\n"}
			}
			ctx, cancel := context.WithCancel(r.Context())
			cut <- cancel
			r = r.WithContext(ctx)
		}
		pass.ServeHTTP(w, r)
	})
	p := open(t, front, "#/feed?namespace="+ns)
	p.sees(".rows", "old4")
	p.sees(".dot.live", "live")
	p.keys("p")
	p.sees(".bar", "resume")
	configMap(t, http.MethodPost, ns, "between", nil)
	p.sees(".bar", "1 newer")
	p.settled()
	held := p.text(".rows")
	p.allow("ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_ABORTED|status of")
	away.Store(true)
	(<-cut)()
	p.sees(".dot.waiting", "reconnecting")
	for i := range 5 {
		configMap(t, http.MethodPost, ns, fmt.Sprintf("new%d", i), nil)
	}
	until(t, "all is recorded", func() bool {
		return eval[bool](p, `fetch("../api/v1/history?limit=1").then((r) => r.text()).then((a) => a.includes("new4"))`)
	})
	close(release)
	p.sees(".counts", "at least")
	configMap(t, http.MethodPost, ns, "after", nil)
	p.sees(".counts", "at least 7")
	nextSecond()
	nextSecond()
	if text := p.text(".rows"); text != held {
		t.Errorf("the list that is held becomes\n%s\nof\n%s", text, held)
	}
	p.sees(".bar", `7 newer`)
	p.keys("p")
	p.sees(".rows", `(?s)after.*new4.*new3.*new2.*new1.*new0.*between.*old4.*old0`)
}
