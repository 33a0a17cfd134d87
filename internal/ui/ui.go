// Package ui is the page: what the admin listener shows in a browser.
//
// Guarantees:
//
//   - The files are the same for everybody and hold no data. What the page shows it reads from
//     the HTTP interface, with the token of the reader.
//   - The page loads nothing from elsewhere and runs no script but its own: its policy refuses
//     inline code, other origins and frames, and turns no string into code or markup.
//   - Building the daemon needs nothing but Go: dist is committed. The sources and the bundler are
//     the module in web.
//
// Caveats: the page is for browsers of the year 2024 and later.
package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"time"
)

//go:generate go run -C web .

//go:embed dist
var dist embed.FS

// Policy is the Content-Security-Policy of the page.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the page below /ui/, to everybody.
func Handler() http.Handler {
	mux := http.NewServeMux()
	entries, err := dist.ReadDir("dist")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, entry := range entries {
		data, err := dist.ReadFile("dist/" + entry.Name())
		if err != nil {
			panic(err) // as before
		}
		sum := sha256.Sum256(data)
		tag, kind := `"`+hex.EncodeToString(sum[:8])+`"`, mime.TypeByExtension(path.Ext(entry.Name()))
		pattern := "GET /ui/" + entry.Name()
		if entry.Name() == "index.html" {
			pattern = "GET /ui/{$}"
		}
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Type", kind)
			h.Set("Content-Security-Policy", Policy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Cache-Control", "no-cache")
			h.Set("ETag", tag)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		})
	}
	return mux
}
