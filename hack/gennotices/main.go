// Command gennotices writes the licences of the modules that are in the binary.
//
//	go run ./hack/gennotices THIRD_PARTY_NOTICES
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:generate go run . ../../THIRD_PARTY_NOTICES

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gennotices FILE")
		os.Exit(2)
	}
	text, err := notices(context.Background())
	if err == nil {
		err = os.WriteFile(os.Args[1], text, 0o644) //nolint:gosec // a source file, whose name is that of the user
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gennotices:", err)
		os.Exit(1)
	}
}

type module struct {
	Path, Version, Dir string
	Main               bool
	Replace            *module
}

// notices are the files with licences and notices of each module, the same text once.
func notices(ctx context.Context) ([]byte, error) {
	modules := map[string]module{}
	for _, system := range []string{"linux", "darwin"} { // those of the releases
		if err := linked(ctx, system, modules); err != nil {
			return nil, err
		}
	}
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	modules["Go's standard library"] = module{Dir: strings.TrimSpace(string(root))}
	for _, library := range []string{"preact", "signals"} { // in the page
		modules["internal/ui: "+library] = module{Dir: "../../internal/ui/web/lib/" + library}
	}
	users := map[string][]string{} // by text
	for name, m := range modules {
		files, err := licences(m.Dir)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s has no licence in %s", name, m.Dir)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			clean := strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
			users[clean] = append(users[clean], name)
		}
	}
	texts := make([]string, 0, len(users))
	for text, of := range users {
		slices.Sort(of)
		texts = append(texts, text)
	}
	slices.SortFunc(texts, func(a, b string) int { return slices.Compare(append(users[a], a), append(users[b], b)) })
	out := bytes.NewBufferString("watcherd contains the following software, under these licences.\n")
	for _, text := range texts {
		fmt.Fprintf(out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return out.Bytes(), nil
}

// linked adds the modules of the program's packages, as built for a system, to into.
func linked(ctx context.Context, system string, into map[string]module) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", "github.com/watcherd/watcherd/cmd/watcherd")
	cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, &stderr)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ Module *module }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		m := p.Module
		if m == nil || m.Main { // of the standard library, or ours
			continue
		}
		name := m.Path + " " + m.Version
		if m.Replace != nil {
			m = m.Replace
		}
		into[name] = *m
	}
}

var licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([-._].*)?$`)

func licences(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && licence.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}
