// Command web bundles the page: the sources in src and the libraries in lib become
// the files of ../dist. It needs neither a network nor another program.
//
//	go run -C internal/ui/web .
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

const (
	dist = "../dist"
	sums = "lib/SHA256SUMS"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

func run() error {
	if err := verify(); err != nil {
		return err
	}
	vendored := func(path string) string {
		path, err := filepath.Abs("lib/" + path)
		if err != nil {
			panic(err) // there is no working directory
		}
		return path
	}
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"src/app.tsx", "src/app.css"},
		Outdir:      dist,
		Bundle:      true, Write: true,
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true,
		Format: api.FormatESModule, Target: api.ES2022, Charset: api.CharsetUTF8,
		JSX: api.JSXAutomatic, JSXImportSource: "preact",
		Alias: map[string]string{
			"preact":               vendored("preact/preact.mjs"),
			"preact/hooks":         vendored("preact/hooks.mjs"),
			"preact/jsx-runtime":   vendored("preact/jsxRuntime.mjs"),
			"@preact/signals":      vendored("signals/signals.mjs"),
			"@preact/signals-core": vendored("signals/signals-core.mjs"),
		},
		// The unsupported properties of older browsers would only make it larger.
		Engines:  []api.Engine{{Name: api.EngineChrome, Version: "123"}, {Name: api.EngineFirefox, Version: "124"}, {Name: api.EngineSafari, Version: "17.5"}},
		LogLevel: api.LogLevelWarning,
	})
	if len(result.Errors) > 0 {
		return errors.New("the page is not built")
	}
	page, err := os.ReadFile("src/index.html")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dist, "index.html"), page, 0o644) //nolint:gosec // a source file
}

// verify compares the vendored files with their checksums, both ways.
func verify() error {
	f, err := os.Open(sums)
	if err != nil {
		return err
	}
	defer f.Close()
	want := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if sum, name, ok := strings.Cut(lines.Text(), "  "); ok {
			want[name] = sum
		}
	}
	lib := os.DirFS("lib")
	err = fs.WalkDir(lib, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path == filepath.Base(sums) {
			return err
		}
		data, err := fs.ReadFile(lib, path)
		if err != nil {
			return err
		}
		if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != want[path] {
			return fmt.Errorf("lib/%s is not the file that %s names", path, sums)
		}
		delete(want, path)
		return nil
	})
	if err == nil && len(want) > 0 {
		return fmt.Errorf("files of %s are missing: %d", sums, len(want))
	}
	return err
}
