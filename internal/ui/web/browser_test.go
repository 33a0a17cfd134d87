package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// What all tests share: an API server, a browser, and the programs under test.
var shared struct {
	daemon     string // the program
	kubeconfig string
	api        *cluster
	browser    context.Context
}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		fmt.Println("no browser: apt-get install -y chromium fonts-dejavu-core")
		if os.Getenv("CI") == "true" {
			return 1
		}
		return 0
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "watcherd-page-")
	if err == nil {
		defer os.RemoveAll(dir)
		shared.daemon = filepath.Join(dir, "watcherd")
		_, err = inRoot(ctx, "build", "-o", shared.daemon, "./cmd/watcherd")
	}
	var stop func() error
	if err == nil {
		stop, err = startAPI(ctx, dir)
	}
	if err == nil {
		defer func() { _ = stop() }() // killed at worst
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.DisableGPU,
			chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
		allocated, end := chromedp.NewExecAllocator(ctx, options...)
		defer end()
		browserContext, endBrowser := chromedp.NewContext(allocated)
		defer endBrowser()
		shared.browser = browserContext //nolint:fatcontext // one for all tests
		err = chromedp.Do(browserContext)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

// inRoot runs the go command on the module of the daemon.
func inRoot(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = "../../..", os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// startAPI starts the playground's API server.
func startAPI(ctx context.Context, dir string) (stop func() error, err error) {
	program, err := inRoot(ctx, "run", "./hack/playground")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "serve", "--dir", filepath.Join(dir, "api"), "--lifeline")
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(lifeline.Close(), cmd.Wait()) }
	line := make([]byte, 4096)
	if _, err := out.Read(line); err != nil {
		return nil, errors.Join(err, stop())
	}
	shared.kubeconfig = filepath.Join(dir, "api", "admin.kubeconfig")
	if shared.api, err = newCluster(shared.kubeconfig); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// cluster is a client of the API server.
type cluster struct {
	base   string
	client *http.Client
}

func newCluster(kubeconfig string) (*cluster, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	value := func(key string) []byte {
		if m := regexp.MustCompile(key + `: "?([^"\s]+)`).FindSubmatch(text); m != nil {
			return m[1]
		}
		return nil
	}
	decoded := func(key string) []byte {
		b, _ := base64.StdEncoding.DecodeString(string(value(key))) // what is wrong is no certificate
		return b
	}
	pair, err := tls.X509KeyPair(decoded("client-certificate-data"), decoded("client-key-data"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(decoded("certificate-authority-data"))
	return &cluster{base: string(value("server")), client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}}}}, nil
}

// do sends a request, whose body is a patch if the method is PATCH, and returns the object that is the answer.
func (a *cluster) do(t *testing.T, method, path string, body any) object {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, a.base+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := a.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s %v", method, path, resp.Status, answer, err)
	}
	var o object
	if err := json.Unmarshal(answer, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

type object = map[string]any

var namespaces atomic.Int64 // that were created

// namespace is one of the test's own.
func namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("%s-%d", strings.ToLower(t.Name()), namespaces.Add(1))
	shared.api.do(t, http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": name}})
	return name
}

// configMap creates, changes (PATCH) or deletes a ConfigMap.
func configMap(t *testing.T, method, namespace, name string, data object) {
	t.Helper()
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	if method != http.MethodPost {
		path += "/" + name
	}
	shared.api.do(t, method, path+"?fieldManager=tester", object{"metadata": object{"name": name}, "data": data})
}

// daemon is a running watcherd.
type daemon struct {
	t         *testing.T
	dir, base string
	token     string
	api       string // the kubeconfig
	cmd       *exec.Cmd
	log       *os.File
}

// start runs a daemon on a configuration, without its head and its admin listener, until the test ends.
func start(t *testing.T, config string) *daemon {
	t.Helper()
	return startWith(t, "", shared.kubeconfig, "admin: {listen: ADDRESS}\n"+config)
}

// startWith does so with a configuration that has an admin listener, which wants a token, and
// with an API server of its own.
func startWith(t *testing.T, token, kubeconfig, config string) *daemon {
	t.Helper()
	d := &daemon{t: t, token: token, api: kubeconfig, dir: t.TempDir(), base: "http://" + address(t)}
	d.configure(config)
	d.run()
	t.Cleanup(d.stop)
	return d
}

// address returns an address that nothing listens on, of a port that the kernel gives to no connection: it is free when
// the daemon comes back.
func address(t *testing.T) string {
	t.Helper()
	var failure error
	for range 100 {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(10_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
		failure = err
	}
	t.Fatal(failure)
	return ""
}

func (d *daemon) configure(config string) {
	d.t.Helper()
	config = "apiVersion: watcherd.dev/v1alpha1\nkind: WatcherConfig\nstore: {path: ./data, minFree: 1Mi}\n" + strings.ReplaceAll(config, "ADDRESS", `"`+strings.TrimPrefix(d.base, "http://")+`"`)
	if err := os.WriteFile(filepath.Join(d.dir, "watcherd.yaml"), []byte(config), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) run() {
	d.t.Helper()
	d.begin()
	until(d.t, "the daemon is ready", func() bool {
		r, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.base+"/readyz", nil)
		if err != nil {
			return false
		}
		r.Header.Set("Authorization", "Bearer "+d.token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		_ = resp.Body.Close() // only the status counts
		return resp.StatusCode == http.StatusOK
	})
}

// begin starts the program, which may not be ready for long.
func (d *daemon) begin() {
	d.t.Helper()
	var err error
	if d.log, err = os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		d.t.Fatal(err)
	}
	d.cmd = exec.CommandContext(context.WithoutCancel(d.t.Context()), shared.daemon, "run", "--config", "watcherd.yaml")
	d.cmd.Dir, d.cmd.Env = d.dir, append(os.Environ(), "KUBECONFIG="+d.api)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) stop() {
	if d.cmd == nil {
		return
	}
	err := errors.Join(d.cmd.Process.Signal(syscall.SIGTERM), d.cmd.Wait(), d.log.Close())
	d.cmd = nil
	if err != nil || d.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(d.dir, "log")) // for reading by people
		d.t.Errorf("the daemon: %v\n%s", err, log)
	}
}

// patience is how long a condition may take on a machine that does other things too.
const patience = 60 * time.Second

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// tab is a page in the browser. What its console reports fails the test: exceptions, refused
// requests that are not expected, and violations of the policy.
type tab struct {
	t       *testing.T
	ctx     context.Context
	base    string
	mu      sync.Mutex
	allowed *regexp.Regexp // reports that the test expects
}

// open shows a place of the page in a tab of its own; without a daemon's address, place is a URL.
func open(t *testing.T, d *daemon, place string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(shared.browser, chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: ctx, base: d.base}
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	reports := chromedp.Console(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m, err := range reports {
			if err != nil {
				return
			}
			p.mu.Lock()
			allowed := p.allowed
			p.mu.Unlock()
			if text := fmt.Sprintf("%s: %s %s", m.Type, m.Text, m.URL); allowed == nil || !allowed.MatchString(text) {
				t.Errorf("the console reports %s", text)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	if d.base != "" {
		place = d.base + "/ui/" + place
	}
	p.do(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(place))
	return p
}

// allow names reports of the console that are expected from now on.
func (p *tab) allow(pattern string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed = regexp.MustCompile(pattern)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatalf("%v\nthe page:\n%s", err, p.text("body"))
	}
}

// eval is the value of an expression in the page.
func eval[T any](p *tab, expression string, args ...any) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	quoted := make([]any, len(args))
	for i, a := range args {
		b, err := json.Marshal(a)
		if err != nil {
			p.t.Fatal(err)
		}
		quoted[i] = string(b)
	}
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](fmt.Sprintf(expression, quoted...), chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// text is what a reader sees of an element.
func (p *tab) text(selector string) string {
	return eval[string](p, `document.querySelector(%s)?.innerText ?? ""`, selector)
}

// sees waits until an element has a text, a pattern.
func (p *tab) sees(selector, pattern string) {
	p.t.Helper()
	want, last := regexp.MustCompile(pattern), ""
	for end := time.Now().Add(patience); !want.MatchString(last); last = p.text(selector) {
		if time.Now().After(end) {
			p.t.Fatalf("%s has not %q after %v, but\n%s\nthe page:\n%s", selector, pattern, patience, last, p.text("body"))
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-p.ctx.Done():
		}
	}
}

// press clicks the first button or link with a name.
func (p *tab) press(within, name string) {
	p.t.Helper()
	until(p.t, "there is "+name, func() bool {
		return eval[bool](p, `(() => {
			const name = (e) => (e.getAttribute("aria-label") ?? e.innerText).trim();
			const found = [...document.querySelectorAll(%s)].flatMap((e) => [...e.querySelectorAll("button, a, summary")]).find((e) => !e.disabled && name(e).startsWith(%s));
			found?.click();
			return !!found;
		})()`, within, name)
	})
}

// others scrolls down to a row that stands for changes without rows. What was drawn before a scroll is not looked at.
func (p *tab) others() {
	p.t.Helper()
	until(p.t, "a row stands for others", func() bool {
		return eval[bool](p, `(async () => {
			document.querySelector(".rows").scrollBy(0, 300);
			for (let n = 0; n < 2; n++) await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
			return document.querySelector(".row.hole") !== null;
		})()`)
	})
}

// fill writes into the field with a label.
func (p *tab) fill(label, value string) {
	p.t.Helper()
	found := eval[bool](p, `(() => {
		const input = [...document.querySelectorAll(".field")].find((e) => e.querySelector("span").innerText === %s)?.querySelector("input");
		if (!input) return false;
		input.focus();
		input.value = %s;
		input.dispatchEvent(new InputEvent("input", { bubbles: true }));
		input.blur();
		return true;
	})()`, label, value)
	if !found {
		p.t.Fatalf("there is no field %s in\n%s", label, p.text("body"))
	}
}

func (p *tab) keys(keys string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys))
}

func (p *tab) colours(scheme string) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
		p.t.Fatal(err)
	}
}

// accessible fails the test for what axe finds, in both schemes of colours and on a small screen.
func (p *tab) accessible() {
	p.t.Helper()
	source, err := os.ReadFile("lib/axe/axe.min.js")
	if err != nil {
		p.t.Fatal(err)
	}
	p.do(func(ctx context.Context, tgt *chromedp.Target) (chromedp.Void, error) {
		return chromedp.Evaluate[chromedp.Void](string(source))(ctx, tgt)
	})
	type violation struct{ ID, Help, Node string }
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 360} {
			p.colours(scheme)
			p.do(chromedp.EmulateViewport(width, 800))
			for _, v := range eval[[]violation](p, `axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }).then((r) => r.violations.flatMap((v) => v.nodes.slice(0, 3).map((n) => ({ ID: v.id, Help: v.help, Node: n.html.slice(0, 200) + " " + (n.failureSummary ?? "") }))))`) {
				p.t.Errorf("%s, %d px: %s: %s: %s", scheme, width, v.ID, v.Help, v.Node)
			}
			if wide := eval[int64](p, `document.documentElement.scrollWidth`); wide > width {
				p.t.Errorf("at %d px the page is %d px wide", width, wide)
			}
			p.shot(os.Getenv("WATCHERD_SCREENSHOTS"), fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(p.t.Name(), "/", "-"), scheme, width))
		}
	}
	p.do(chromedp.EmulateViewport(1280, 800))
}

// picture keeps a picture of the upper part of the tab, for the documentation, in the folder
// that WATCHERD_PICTURES names.
func (p *tab) picture(name string) {
	p.t.Helper()
	p.colours("light")
	p.do(chromedp.EmulateViewport(1280, 400))
	p.shot(os.Getenv("WATCHERD_PICTURES"), name)
	p.do(chromedp.EmulateViewport(1280, 800))
}

// shot keeps a picture of the tab in the folder, if there is one.
func (p *tab) shot(dir, name string) {
	p.t.Helper()
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600)
	}
	if err != nil {
		p.t.Error(err)
	}
}
