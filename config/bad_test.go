package config_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/config"
)

var update = flag.Bool("update", false, "write the messages that the bad configurations now give")

// TestBad loads every configuration in testdata that is wrong and compares every
// message with the file beside it.
func TestBad(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d bad configurations, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".bad.yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, err := config.Parse("w.yaml", data, kinds())
			if err == nil || c != nil {
				t.Fatalf("it was accepted: %+v", c)
			}
			list, ok := errors.AsType[*config.Errors](err)
			if !ok {
				t.Fatalf("error of type %T", err)
			}
			if !slices.IsSortedFunc(list.List, func(a, b *config.Error) int {
				return (a.Line-b.Line)*100_000 + a.Column - b.Column
			}) {
				t.Error("the problems are not sorted by place")
			}
			for _, e := range list.List {
				if e.Line < 1 || e.Column < 1 || e.Msg == "" {
					t.Errorf("no place or message: %+v", e)
				}
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, gerr := os.ReadFile(golden)
			if gerr != nil {
				t.Fatal(gerr)
			}
			if diff := cmp.Diff(string(want), err.Error()+"\n"); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}
