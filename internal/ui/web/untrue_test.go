package main

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

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

// edited is a daemon whose answers to what ends in path are changed.
func edited(t *testing.T, d *daemon, path, pattern, by string) *daemon {
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
		_, _ = w.Write(regexp.MustCompile(pattern).ReplaceAll(answer.Body.Bytes(), []byte(by))) // the page may have gone
	})
}

// TestFreeSpace: file systems that grow, as NFS services have them, report about 8 EiB, and some nothing.
func TestFreeSpace(t *testing.T) {
	d := start(t, configMaps(namespace(t)))
	for free, want := range map[string]string{"9223372036853727232": "8388608 TiB free", "-1": "in the log$"} {
		p := open(t, edited(t, d, "/status", `"diskFree":[0-9]+`, `"diskFree":`+free), "#/config")
		p.sees(".facts-list dt:nth-of-type(4) + dd", want)
	}
}
