package sinks_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/watcherd/watcherd/internal/testca"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// TestFilesThatAreWrittenMeanwhile loads a file while a program writes what it has now, twice: in the end that is loaded.
func TestFilesThatAreWrittenMeanwhile(t *testing.T) {
	former, now := testca.New(t, "former").PEM, testca.New(t, "now").PEM
	file := filepath.Join(t.TempDir(), "ca.crt")
	for range 400 {
		if err := os.WriteFile(file, former, 0o600); err != nil {
			t.Fatal(err)
		}
		files := sinks.TLSFiles{TLS: sinks.TLS{CAFile: file}}
		if _, _, err := files.Load(); err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() {
			err := os.WriteFile(file, now, 0o600)
			if err == nil {
				err = os.WriteFile(file, now, 0o600)
			}
			written <- err
		}()
		for len(written) == 0 {
			_, _, _ = files.Load() // of half of it, perhaps
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		got, _, err := files.Load()
		if err != nil {
			t.Fatal(err)
		}
		if want, err := files.TLS.Roots(); err != nil || !got.RootCAs.Equal(want) {
			t.Fatalf("the former authority is trusted although the file has another: %v", err)
		}
	}
}
