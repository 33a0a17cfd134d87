// Package ui is the page: what the admin listener shows in a browser.
//
// Guarantees:
//
//   - The files are the same for everybody and hold no data. What the page shows it reads from
//     the HTTP interface, with the token of the reader.
//   - The page loads nothing from elsewhere and runs no script but its own: its policy refuses
//     inline code, other origins and frames, and turns no string into code or markup.
//   - A recording is one file with the answers that its views ask for. It sends no request.
//   - Building the daemon needs nothing but Go: dist is committed. The sources and the bundler are
//     the module in web.
//
// Caveats: the page is for browsers of the year 2025 and later. Earlier ones round the whole numbers
// of objects beyond 2^53, also in what is copied.
package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
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
		data := asset(entry.Name())
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
			if strings.Contains(r.Header.Get("If-None-Match"), tag) {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			h.Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data) // without a copy, which a client that does not read would keep; an error is its end
		})
	}
	return mux
}

// Recording is what a page shows that has no daemon behind it.
type Recording struct {
	Cluster  string            `json:"cluster"`
	Command  []string          `json:"command"` // that was recorded
	ExitCode int               `json:"exitCode"`
	LeftOut  int               `json:"leftOut"` // objects of which the answers have not everything
	Kinds    map[string]string `json:"kinds"`   // "deployment.apps": "deployments.apps"

	// Answers are those of the HTTP interface: by the path below /api/v1/, and "&key=value"
	// for each parameter in order, both without escapes.
	Answers map[string]json.RawMessage `json:"answers"`
}

// WriteTo writes the recording as one HTML file. Its policy allows the page's script and style alone,
// and no connection.
func (r *Recording) WriteTo(w io.Writer) (int64, error) {
	script, style := asset("app.js"), asset("app.css")
	data, err := json.Marshal(r) // has no < in it
	if err != nil {
		return 0, err
	}
	hash := func(text []byte) string {
		sum := sha256.Sum256(text)
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	n, err := fmt.Fprintf(w, `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src %s; style-src %s; img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<link rel="icon" href="data:,">
<style>%s</style>
<body>
<script type="application/json" id="recording">%s</script>
<script type="module">%s</script>
</body>
</html>
`, hash(script), hash(style), html.EscapeString(r.Cluster), style, data, script)
	return int64(n), err
}

// asset returns a file of the page.
func asset(name string) []byte {
	data, err := dist.ReadFile("dist/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return data
}
