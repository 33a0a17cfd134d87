package statedir_test

import (
	"errors"
	"os"
	"testing"

	"github.com/watcherd/watcherd/playground/internal/statedir"
)

func TestOpenLocks(t *testing.T) {
	path := t.TempDir()
	first, err := statedir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := statedir.Open(path); !errors.Is(err, statedir.ErrInUse) {
		t.Fatalf("opened twice: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := statedir.Open(path)
	if err != nil {
		t.Fatalf("after closing: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a directory of the user's: %v, want it kept", err)
	}
}

func TestTemporaryDirGoes(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	d, err := statedir.Open("")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.Root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want it gone", err)
	}
}

func TestServerOfAnEmptyDir(t *testing.T) {
	layout, err := statedir.At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := layout.Server(); err == nil {
		t.Error("no error where no server was ever started")
	}
}
