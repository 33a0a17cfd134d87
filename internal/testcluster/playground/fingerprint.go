package playground

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// fingerprint names a build: its sources, the Go it is built with, and how.
func (p Program) fingerprint(source string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n", platform(), p.pkg, p.ldflags)
	root := os.DirFS(source)
	// WalkDir goes in lexical order, so the sum is stable.
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || !isSource(path) {
			return nil
		}
		content, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", path, len(content))
		h.Write(content)
		return nil
	})
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// isSource reports whether a change of the file may change the program.
func isSource(path string) bool {
	switch {
	case strings.HasSuffix(path, "_test.go"):
		return false
	case strings.HasSuffix(path, ".go"), strings.HasSuffix(path, ".yaml"):
		return true
	default:
		return path == "go.mod" || path == "go.sum"
	}
}
