package ui_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/ui"
	"github.com/watcherd/watcherd/pkg/event"
)

func get(t *testing.T, path string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Header = header
	w := httptest.NewRecorder()
	ui.Handler().ServeHTTP(w, r)
	return w
}

func TestBudget(t *testing.T) {
	for file, limit := range map[string]int{"app.js": 70 << 10, "app.css": 10 << 10, "": 1 << 10} {
		w := get(t, "/ui/"+file, nil)
		if w.Code != http.StatusOK {
			t.Errorf("%q: status %d", file, w.Code)
			continue
		}
		var packed bytes.Buffer
		z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Body.WriteTo(z)
		if err == nil {
			err = z.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if packed.Len() > limit {
			t.Errorf("%q has %d bytes, packed, of at most %d", file, packed.Len(), limit)
		}
	}
}

// TestRedacted: the page has the form of redacted values that events have.
func TestRedacted(t *testing.T) {
	if body := get(t, "/ui/app.js", nil).Body.String(); !strings.Contains(body, event.RedactedPattern) {
		t.Errorf("app.js has no %s: change text.ts", event.RedactedPattern)
	}
}

// TestSelfContained: nothing of the page names another host, besides namespaces of XML.
func TestSelfContained(t *testing.T) {
	for _, file := range []string{"", "app.js", "app.css"} {
		body := get(t, "/ui/"+file, nil).Body.String()
		for _, known := range []string{"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML"} {
			body = strings.ReplaceAll(body, known, "")
		}
		if i := strings.Index(body, "://"); i >= 0 {
			t.Errorf("%q has a URL: %s", file, body[max(0, i-20):min(len(body), i+40)])
		}
	}
}

func TestHeaders(t *testing.T) {
	for file, kind := range map[string]string{"": "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "app.css": "text/css; charset=utf-8"} {
		w := get(t, "/ui/"+file, nil)
		if got := w.Header().Get("Content-Type"); got != kind {
			t.Errorf("%q has the type %s, want %s", file, got, kind)
		}
		if got := w.Header().Get("Content-Security-Policy"); got != ui.Policy || !strings.Contains(got, "default-src 'none'") {
			t.Errorf("%q has the policy %q", file, got)
		}
		if again := get(t, "/ui/"+file, http.Header{"If-None-Match": {w.Header().Get("ETag")}}); again.Code != http.StatusNotModified {
			t.Errorf("%q is sent again, with status %d", file, again.Code)
		}
	}
	if w := get(t, "/ui/index.html", nil); w.Code != http.StatusNotFound {
		t.Errorf("a page that is not there has status %d", w.Code)
	}
}
