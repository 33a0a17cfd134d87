// Command genschema writes the JSON Schema of the configuration. It is run by go
// generate in the folder of package config.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run("watcherd.schema.json"); err != nil {
		fmt.Fprintln(os.Stderr, "genschema:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	out, err := generate(root)
	if err != nil {
		return err
	}
	return os.WriteFile(file, out, 0o644) //nolint:gosec // it is a source file
}

// moduleRoot is the nearest folder above that holds a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above the working directory")
		}
		dir = up
	}
}
